"""What is asked about services of several servers, beside what they are predicted to do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.errors import InputError
from physim.page.build import predicted
from physim.tables.writer import write_tables

MODEL = "Qwen/Qwen3-8B"
LENGTHS = {"input_tokens": 2000, "output_tokens": 150}
APART = {"prefill": "replicas=2", "decode": {"tp": 2, "replicas": 1}}
FLEETS = [{}, {"replicas": 3, "router": "random"}, APART]
GPU = {"gpu": "h100_sxm", "fit": "none"}


def printed(*words):
    """What a command prints, on a wide terminal."""
    found = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.exception
    return found.stdout


# ---- side by side ----


def test_fleets_beside_one_server():
    load = {"rate": 4.0, "arrival": "poisson", **LENGTHS}
    prices = {"h100_sxm": 2.0}
    found = physim.compare(
        [MODEL], ["h100_sxm"], [1, 2], fleets=FLEETS, prices=prices, fit="none", **load
    )
    rows = {row["layout"]: row for row in found.rows}
    # Pools with degrees of their own have the rest of the command's: here one that differs.
    assert sorted(rows) == [
        "2 x (tp 1) prefill : 1 x (tp 2) decode",
        "2 x (tp 2) prefill : 1 x (tp 2) decode",
        "3 x (tp 1), random",
        "3 x (tp 2), random",
        "tp 1",
        "tp 2",
    ]
    several, apart = rows["3 x (tp 1), random"], rows["2 x (tp 1) prefill : 1 x (tp 2) decode"]
    assert [several[name] for name in ("tp", "servers", "gpus")] == [1, 3, 3]
    assert [apart[name] for name in ("tp", "pp", "servers", "gpus")] == [None, 1, 3, 4]
    # 600 tokens a second on four GPUs, at 2 an hour each.
    assert apart["output_tokens_per_s_per_gpu"] == pytest.approx(150.0)
    assert apart["cost_per_million_tokens"] == pytest.approx(4 * 2 / 3600 / 600 * 1e6)
    for row, options in ((several, FLEETS[1]), (apart, FLEETS[2])):
        alone = physim.predict(MODEL, **GPU, **load, **options)
        assert row["ttft_s"] == pytest.approx(alone.ttft_s, rel=1e-4)
        assert row["where"] == alone.gpus


def test_the_same_pools_are_compared_once_and_what_cannot_be_is_said():
    load = {"rate": 4.0, **LENGTHS}
    pools = {"prefill": "tp=1", "decode": "tp=1"}
    fleets = [pools, {"prefill": "tp=1"}, {"replicas": 0}]
    found = physim.compare([MODEL], ["h100_sxm"], [1, 2], fleets=fleets, fit="none", **load)
    assert [row["layout"] for row in found.rows] == ["1 x (tp 1) prefill : 1 x (tp 1) decode"]
    reasons = [row["reason"] for row in found.refused]
    assert reasons[0] == "decode: is not given, and prefill is; give both, or neither"
    assert (len(reasons), reasons[1]) == (4, "replicas: 0 is not positive; correct it")


def test_compare_prints_fleets():
    words = ["compare", MODEL, "--gpus", "h100,l40s", "--rate", 4, "--input", 2000]
    words += ["--output", 150, "--replicas", "1,3", "--prefill", "replicas=2", "--decode", "tp=2"]
    text = printed(*words, "--price", "h100=2", "--price", "l40s=1")
    for word in ("3 x (tp 1)", "2 x (tp 1) prefill : 1 x (tp 2) decode", "tok/s/GPU", "per 1M"):
        assert word in text
    line = "left out Qwen/Qwen3-8B on l40s (router round_robin, prefill replicas=2, decode tp=2): "
    assert f"{line}transfer_bandwidth: is not given" in text
    rows = json.loads(printed(*words, "--json"))["rows"]
    assert [row["servers"] for row in rows if row["gpu"] == "l40s"] == [3, 1]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (lambda options: predicted(MODEL, **options), "a page"),
        (lambda options: list(write_tables([MODEL], [], [1], Path("no"), **options)), "a table"),
        (lambda options: physim.recommend(MODEL, slo=["e2e=9s"], **options), "what is chosen"),
    ],
)
def test_what_is_about_one_server_says_so(asked, what):
    with pytest.raises(InputError) as error:
        asked({"replicas": 2})
    assert str(error.value).startswith(f"replicas: is of several servers, and {what} is of one; ")
