"""What is asked about services of several servers, beside what they are predicted to do."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from test_evaluation import ROW
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.errors import InputError
from physim.fitting.observations import observe
from physim.page.build import predicted
from physim.prediction.fleets import predict_fleets
from physim.questions import service_explanation
from physim.questions.capacity import Capacity
from physim.questions.elasticities import METRICS, Elasticities
from physim.questions.objectives import Objective
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
    line = "left out Qwen/Qwen3-8B on l40s (prefill replicas=2, decode tp=2): "
    assert f"{line}transfer_bandwidth: is not given" in text
    rows = json.loads(printed(*words, "--json"))["rows"]
    assert [row["servers"] for row in rows if row["gpu"] == "l40s"] == [3, 1]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (lambda options: predicted(MODEL, **options), "a page"),
        (lambda options: list(write_tables([MODEL], [], [1], Path("no"), **options)), "a table"),
        (lambda options: physim.recommend(MODEL, slo=["e2e=9s"], **options), "what is asked for"),
    ],
)
def test_what_is_about_one_server_says_so(asked, what):
    with pytest.raises(InputError) as error:
        asked({"replicas": 2})
    assert str(error.value).startswith(f"replicas: is of several servers, and {what} is of one; ")


# ---- the highest rate ----


@pytest.mark.slow
def test_replicas_behind_chance_can_do_as_many_times_what_one_can():
    asked = {**GPU, **LENGTHS, "slo": ["e2e_p99=4s"]}
    one, three = (physim.capacity(MODEL, **asked, replicas=n, router="random") for n in (1, 3))
    # Requests that come by chance come so to each.
    assert three.rate_rps == pytest.approx(3 * one.rate_rps, rel=1e-3)
    assert (three.limited_by, three.prediction.pool.replicas) == ("e2e_p99", 3)


@pytest.mark.slow
def test_what_pools_apart_can_do_is_what_the_smaller_can():
    asked = {**GPU, **LENGTHS, "slo": ["ttft_p99=2s", "itl_mean=1s"], "decode": "replicas=2"}
    found = physim.capacity(MODEL, prefill="tp=1", **asked)
    pool = found.prediction.limiting_pool
    assert (pool.phases, found.limited_by) == (("prefill",), "ttft_p99")
    assert found.rate_rps < pool.saturation_rps
    check = physim.predict(
        MODEL,
        **GPU,
        **LENGTHS,
        arrival="poisson",
        rate=0.99 * found.rate_rps,
        prefill="tp=1",
        decode="replicas=2",
    )
    assert check.whole.latencies["ttft"]["p99"] < 2.0
    line = found.prediction.describe_pools()
    assert line.startswith("in use: prefill ")
    assert line.endswith("requests/s; prefill is what saturates first")


def test_capacity_prints_which_pool_saturates_first(monkeypatch):
    asked = {**LENGTHS, "rate": 4.0, "arrival": "poisson", **APART}
    prediction = physim.predict(MODEL, **GPU, **asked)
    found = Capacity(4.0, "e2e_p99", (Objective("e2e", "p99", 9.0),), None, None, prediction)
    given = {}
    monkeypatch.setattr(physim, "capacity", lambda *_, **named: given.update(named) or found)
    words = ["capacity", MODEL, "--gpu", "h100", "--input", 2000, "--output", 150, "--slo", "e2e=9"]
    text = printed(*words, "--prefill", "replicas=2", "--decode", "tp=2", "--router", "random")
    assert prediction.describe_pools() in text
    assert "saturation throughput of the servers" in text
    assert [given[name] for name in ("prefill", "decode", "router")] == [
        "replicas=2",
        "tp=2",
        "random",
    ]


# ---- grids ----


def test_a_grid_of_fleets(tmp_path):
    (tmp_path / "grid.yaml").write_text(
        f"model: {MODEL}\ngpu: h100_sxm\nfit: none\nrate: [4, 8]\ninput_tokens: 2000\n"
        "output_tokens: 150\nprefill: ['replicas=2', {tp: 2}]\ndecode: tp=2\n"
    )
    assert physim.sweep(tmp_path / "grid.yaml", tmp_path / "out", jobs=1) == 4
    rows = pd.read_parquet(tmp_path / "out")
    assert list(rows["prefill"]) == 2 * ["replicas=2", "tp=2"]
    assert (rows["gpus"] == 4).all()
    assert set(rows["problem"]) == {""}
    first = rows.iloc[0]
    alone = physim.predict(MODEL, **GPU, **LENGTHS, rate=4.0, prefill="replicas=2", decode="tp=2")
    assert first["ttft_mean_s"] == pytest.approx(alone.ttft_s, rel=1e-4)
    for pool in alone.pools:
        wanted = first[f"{pool.phases[0]}_saturation_rps"]
        assert wanted == pytest.approx(pool.saturation_rps, rel=1e-4)
    assert first["batch"] == pytest.approx(alone.pools[1].batch, rel=1e-4)
    assert first["prefill_step_s"] == pytest.approx(alone.pools[0].step_s, rel=1e-4)


def test_a_grid_of_replicas_and_routers(tmp_path):
    axes = {"model": [MODEL], "gpu": ["h100_sxm"], "rate": [8.0], "arrival": ["poisson"]}
    axes |= {"input_tokens": [2000], "output_tokens": [150], "fit": ["none"]}
    axes |= {"replicas": [1, 2], "router": ["round_robin", "random"]}
    physim.sweep(physim.CaseGrid(axes), tmp_path / "out", jobs=1)
    rows = pd.read_parquet(tmp_path / "out")
    assert list(rows["gpus"]) == [1, 1, 2, 2]
    assert not {name for name in rows if name.startswith(("prefill", "decode"))}
    # Of one server the router is of no account; of two, requests in turn wait less.
    e2e = list(rows["e2e_mean_s"])
    assert e2e[0] == pytest.approx(e2e[1])
    assert e2e[2] < e2e[3] < e2e[0]


# ---- what limits them ----


@pytest.fixture
def explained(monkeypatch):
    """Pools apart and what limits them, but for what their servers depend on: all of one part."""

    def elasticities(case, **_):
        row = dict.fromkeys(METRICS, -0.5)
        return Elasticities({"peak_flops": row}, dict.fromkeys(METRICS, 1.0), {}, 0.0, case, "none")

    monkeypatch.setattr(service_explanation, "explain", elasticities)
    return physim.explain_service(MODEL, **GPU, **LENGTHS, rate=8.0, **APART)


def test_the_pool_that_limits_and_what_its_steps_are_made_of(explained):
    first, second = explained.pools
    prediction = physim.predict(MODEL, **GPU, **LENGTHS, rate=8.0, **APART)
    assert explained.limiting is first
    for own, pool in zip(explained.pools, prediction.pools, strict=True):
        assert own.use == pytest.approx(8.0 / pool.saturation_rps, rel=1e-4)
        assert math.fsum(own.step_shares.values()) == pytest.approx(1.0)
    # Of a prompt no token decodes; of the others no prompt is computed.
    assert first.step_parts_s["decode_attention"] == 0
    assert first.step_parts_s["prefill_attention"] > 0
    assert second.step_s == pytest.approx(second.pool.step_s)
    # 2,000 tokens through the weights of a model of 8 billion at 989 TFLOP/s.
    assert 2 * 2000 * 8e9 / 989e12 < first.step_s < 2 * (2 * 2000 * 8e9 / 989e12)
    assert first.server.case.demanded.rate == pytest.approx(4.0)


def test_clients_come_by_chance_to_pools_that_they_do_not_fill(explained):
    del explained
    load = {"concurrency": 400, **LENGTHS}
    found = physim.explain_service(MODEL, **GPU, **load, prefill="tp=1", decode="tp=2")
    first, second = (own.server.case.demanded for own in found.pools)
    served = found.prediction.requests_per_s
    assert (first.arrival, first.concurrency) == ("poisson", None)
    assert first.rate == pytest.approx(0.95 * found.pools[0].pool.saturation_rps)
    assert second.rate == pytest.approx(served)
    assert found.limiting.use == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
def test_flops_limit_prompts_and_bandwidth_what_is_generated():
    found = physim.explain_service(MODEL, **GPU, **LENGTHS, rate=8.0, **APART)
    first, second = (own.server.to_dict()["elasticities"] for own in found.pools)
    assert first["peak_flops"]["ttft"] < -0.5
    assert first["memory_bandwidth"]["saturation"] < 0.2
    assert second["memory_bandwidth"]["itl"] < -0.5
    assert abs(second["peak_flops"]["itl"]) < 0.01


def test_a_service_explained_in_json(explained):
    content = json.loads(json.dumps(explained.to_dict()))
    assert content["limiting"] == ["prefill"]
    assert [pool["phases"] for pool in content["pools"]] == [["prefill"], ["decode"]]


def test_explain_prints_pools(monkeypatch, explained):
    monkeypatch.setattr(physim, "explain_service", lambda *_, **__: explained)
    words = ["explain", MODEL, "--gpu", "h100", "--rate", 8, "--input", 2000, "--output", 150]
    text = printed(*words, "--prefill", "replicas=2", "--decode", "tp=2")
    assert "; prefill is what saturates first" in text
    assert f"a step of a mean prompt of {explained.pools[0].step_s * 1e3:.2f} ms: mlp" in text
    assert "on the way to the servers that generate" in text
    tables = [line.split() for line in text.splitlines() if line.rstrip().endswith("saturation")]
    assert tables == [["TTFT", "saturation"], ["ITL", "E2E", "saturation"]]


def test_replicas_depend_on_what_one_of_them_depends_on(explained):
    del explained
    found = physim.explain_service(MODEL, **GPU, **LENGTHS, rate=6.0, replicas=3)
    assert found.limiting.server.case.demanded.rate == 2
    assert found.limiting.server.case.service.is_single
    assert found.limiting.metrics == METRICS


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"concurrency": 4, "requests": 40}, "load: ends or changes"),
        ({"rate": 900.0}, "load: is above the saturation throughput of"),
    ],
)
def test_what_of_a_service_cannot_be_explained(load, message):
    with pytest.raises(InputError) as error:
        physim.explain_service(MODEL, **GPU, **LENGTHS, **APART, **load)
    assert str(error.value).startswith(message)


@pytest.mark.slow
def test_a_page_on_pools(tmp_path):
    words = ["report", MODEL, "--gpu", "h100", "--rate", 8, "--input", 2000, "--output", 150]
    words += ["--prefill", "replicas=2", "--decode", "tp=2", "--out", tmp_path / "page.html"]
    printed(*words)
    page = (tmp_path / "page.html").read_text()
    for word in (
        "What a request passes",
        "capacity depend on, prefill",
        "decode step goes, decode",
    ):
        assert f"{word}</h2>" in page
    assert page.count("vllm serve") == 2


# ---- measured rows ----


@pytest.fixture
def rows(tmp_path):
    """Writes rows of runs that differ in some columns, under 32 clients."""

    def written(*changes):
        row = ROW | {"prompt_groups": 0, "concurrency": 32, "requests": 320}
        some = [{**row, "experiment": f"run {n}", **own} for n, own in enumerate(changes)]
        path = tmp_path / "runs.csv"
        pd.DataFrame(some).to_csv(path, index=False)
        return path

    return written


REPLICAS = {"replicas": 4, "router": "random"}
POOLS = {"prefill": "replicas=2", "decode": "tp=2"}


@pytest.mark.slow
def test_rows_of_several_servers_are_predicted(rows):
    found = physim.evaluate([rows({}, REPLICAS, POOLS)], fit="none", intervals=False)
    assert [row["layout"] for row in found.rows] == ["tp1", "tp1 x4", "tp1"]
    load = {"concurrency": 32, "requests": 320, "input_tokens": 575, "output_tokens": 248}
    server = {"max_model_len": 4096, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    for row, fleet in zip(found.rows, ({}, REPLICAS, POOLS), strict=True):
        alone = physim.predict(MODEL, **GPU, **load, **server, sampling="unknown", **fleet)
        assert row["metrics"]["e2e_mean"]["predicted"] == pytest.approx(alone.e2e_s, rel=1e-3)


def test_rows_of_pools_at_a_rate_are_left_to_the_replay(rows):
    rate = {"concurrency": None, "requests": None, "rate_rps": 8.0}
    found = physim.evaluate([rows(REPLICAS, POOLS | rate)], fit="none")
    assert [row["experiment"] for row in found.rows] == ["run 0"]
    (skipped,) = found.skipped
    assert skipped["reason"].startswith("load: that ends or changes is only replayed")


def test_a_load_of_one_stage_is_that_of_each_replica():
    stages = [(8.0, 20.0)]
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", **LENGTHS, stages=stages, replicas=2)
    one = physim.predict(MODEL, **GPU, **LENGTHS, rate=4.0)
    (found,) = predict_fleets([case], [physim.Corrections()], lambda *_: [one])
    assert (found.stages, found.whole.rate) == ((), None)
    assert found.requests_per_s == pytest.approx(2 * one.requests_per_s)


def test_rows_of_several_servers_are_not_fitted(rows):
    found = observe([rows({}, REPLICAS, POOLS)])
    assert [one.row.experiment for one in found.rows] == ["run 0"]
    assert {one["reason"] for one in found.left_out} == {"was served by several servers"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({**POOLS, "replicas": 2}, "replicas: are of servers that do both"),
        ({"replicas": 0}, "replicas: "),
        ({"router": "mine"}, "router: mine is unknown; use one of round_robin, "),
    ],
)
def test_rows_of_servers_that_cannot_be(rows, changes, complaint):
    with pytest.raises(InputError, match=complaint):
        physim.evaluate([rows(changes)])
