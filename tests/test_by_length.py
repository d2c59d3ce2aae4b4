"""Latencies by the length of prompts."""

import json

import numpy as np
import pytest
from commands import refused
from commands import run as run_command

import physim
from physim import plot
from physim.batching.demand import Demand
from physim.prediction.arrays import prompts_of_strata
from physim.prediction.requests import Requests

MODEL, ENGINE = "Qwen/Qwen3-14B", {"gpu": "h100_sxm", "tp": 2, "max_model_len": 8192}
PROMPTS = physim.Lengths.parse("gamma:1500:900")
PREDICT = ["predict", MODEL, "--gpu", "h100_sxm", "--tp", "2", "--max-model-len", "8192"]
VARIED = ["--rate", "4", "--input", "gamma:1500:900", "--output", "20"]


def requests(tokens, ttft, weight=None):
    seconds = np.array(ttft, float)
    return Requests(seconds, seconds, 10 * seconds, np.array(tokens, float), weight)


def test_quarters_and_the_longest_tenth_by_hand():
    # In any order: the request of 100 k tokens takes k seconds.
    order = [3, 8, 1, 6, 5, 2, 7, 4]
    found = requests([100 * k for k in order], order).by_length(["ttft", "e2e"])
    assert [(g.least_tokens, g.most_tokens) for g in found] == [
        (100, 200),
        (300, 400),
        (500, 600),
        (700, 800),
        (800, 800),
    ]
    assert [g.mean_tokens for g in found] == [150, 350, 550, 750, 800]
    assert [g.share for g in found] == [0.25, 0.25, 0.25, 0.25, 0.125]
    assert [g.latencies["ttft"]["mean"] for g in found] == [1.5, 3.5, 5.5, 7.5, 8.0]
    assert [g.latencies["e2e"]["p50"] for g in found] == [15, 35, 55, 75, 80]
    assert found[0].latencies["ttft"]["p99"] == 2.0


def test_a_request_counts_for_as_many_as_it_stands_for():
    weight = np.array([3.0, 1.0, 4.0, 0.0])
    found = requests([100, 100, 200, 900], [1, 5, 7, 100], weight).by_length(["ttft"])
    assert [(g.least_tokens, g.most_tokens, g.share) for g in found] == [
        (100, 100, 0.5),
        (200, 200, 0.5),
    ]
    assert [g.latencies["ttft"]["mean"] for g in found] == [2.0, 7.0]


def test_prompts_of_one_length_are_one_group():
    found = requests([100] * 6 + [200, 300], range(1, 9)).by_length(["ttft"])
    assert [(g.least_tokens, g.most_tokens, g.share) for g in found] == [
        (100, 100, 0.75),
        (200, 300, 0.25),
        (300, 300, 0.125),
    ]
    # Of two lengths, the longer one is the longest tenth too.
    both = requests([100, 200] * 5, range(10)).by_length(["ttft"])
    assert [(g.least_tokens, g.share) for g in both] == [(100, 0.5), (200, 0.5)]
    (alone,) = requests([786] * 5, range(1, 6)).by_length(["ttft"])
    assert (alone.share, alone.latencies["ttft"]["p50"]) == (1.0, 3.0)


@pytest.mark.parametrize("method", ["fluid", "replay"])
def test_a_prompt_counts_with_its_cached_part(method):
    load = {"rate": 6, "input_tokens": 786, "cached_tokens": 770, "output_tokens": 20}
    load |= {"arrival": "constant"}
    found = physim.predict(MODEL, **ENGINE, **load, method=method)
    (alone,) = found.by_length()
    assert alone.least_tokens == alone.most_tokens == 786
    whole = found.whole.latencies["ttft"]
    assert alone.latencies["ttft"] == pytest.approx(whole, rel=0.01)


def test_whole_prompts_go_with_what_is_computed_of_them():
    # The longest prompt has the least to compute: 3000 - 2992 tokens, of blocks of 16.
    cached = [0, 500, 2999]
    lengths = physim.RequestLengths.from_columns([1000, 2000, 3000], [50, 50, 50], cached)
    case = physim.Case.from_options(MODEL, **ENGINE, rate=2, lengths=lengths)
    block = case.server.kv.block_size
    found = prompts_of_strata(case)
    computed = Demand.from_load(case.load, block).prompts
    assert np.mean(found) == pytest.approx(2000)
    assert found[0] == pytest.approx(3000)
    assert computed[0] == pytest.approx(3000 - 2999 // block * block)
    assert found[computed == pytest.approx(1000)] == pytest.approx(1000)
    assert found[-1] == pytest.approx(2000)
    alone = physim.Case.from_options(
        MODEL, **ENGINE, rate=2, input_tokens=PROMPTS, output_tokens=50
    )
    assert prompts_of_strata(alone) == pytest.approx(Demand.from_load(alone.load, block).prompts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        pytest.param({"rate": 4.0, "arrival": "poisson"}, id="rate"),
        pytest.param({"stages": (physim.Stage(4, 60), physim.Stage(8, 60))}, id="stages"),
    ],
)
def test_long_prompts_wait_for_themselves_as_in_the_replay(load):
    given = {**ENGINE, **load, "input_tokens": PROMPTS, "output_tokens": 20}
    fluid, replay = (physim.predict(MODEL, **given, method=m) for m in ("fluid", "replay"))
    ours, theirs = fluid.by_length(), replay.by_length()
    assert len(ours) == len(theirs) == 5
    for one, other in zip(ours, theirs, strict=True):
        assert one.share == pytest.approx(other.share, abs=0.03)
        assert one.mean_tokens == pytest.approx(other.mean_tokens, rel=0.1)
        mean = other.latencies["ttft"]["mean"]
        assert one.latencies["ttft"]["mean"] == pytest.approx(mean, rel=0.15)
    means = [one.latencies["ttft"]["mean"] for one in ours]
    assert means == sorted(means)
    assert means[-1] > 2 * means[0]


@pytest.mark.slow
def test_clients_have_groups_too():
    lengths = {"input_tokens": PROMPTS, "output_tokens": 20}
    clients = physim.predict(MODEL, **ENGINE, **lengths, concurrency=4).by_length()
    assert len(clients) == 5
    assert all(np.isfinite(group.latencies["e2e"]["p99"]) for group in clients)


def test_loads_above_capacity_have_groups_without_latencies():
    lengths = {"input_tokens": PROMPTS, "output_tokens": 20}
    above = physim.predict(MODEL, **ENGINE, **lengths, rate=1e4)
    assert [group.latencies for group in above.by_length()] == [{}] * 5
    with pytest.raises(physim.InputError, match="TTFT has no value"):
        plot.draw_by_length(above)


def test_the_picture_is_of_the_groups():
    given = {**ENGINE, "rate": 4.0, "input_tokens": PROMPTS, "output_tokens": 20}
    axes = plot.draw_by_length(physim.predict(MODEL, **given))
    (line,) = (line for line in axes.get_lines() if line.get_label() == "median")
    tokens, median = line.get_data()
    assert len(tokens) == 8
    assert np.average(tokens) == pytest.approx(1500, rel=0.05)
    assert np.all(np.diff(median) > 0)
    assert axes.get_xlabel() == "tokens of the prompt"


def test_the_command_prints_groups_and_draws_them(tmp_path):
    picture = tmp_path / "lengths.svg"
    run = run_command(*PREDICT, *VARIED, "--by-length", "--plot", picture, columns="80")
    assert run.returncode == 0, run.stderr
    assert "By tokens of the prompt" in run.stdout
    assert "9%  TTFT" in run.stdout
    assert "…" not in run.stdout
    assert "tokens of the prompt" in picture.read_text()
    content = json.loads(run_command(*PREDICT, *VARIED, "--by-length", "--json").stdout)
    assert [set(group) for group in content["by_length"]] == [
        {"least_tokens", "most_tokens", "mean_tokens", "share", "latencies"}
    ] * 5
    assert set(content["by_length"][0]["latencies"]) == {"ttft", "e2e"}


def test_a_trace_has_groups_of_its_own_prompts(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens\n"
        + "".join(f"{k},{100 * (k + 1)},5\n" for k in range(8))
    )
    run = run_command(*PREDICT, "--trace", path, "--by-length", "--json")
    found = json.loads(run.stdout)["by_length"]
    assert [group["mean_tokens"] for group in found] == [150, 350, 550, 750, 800]


def test_a_picture_without_values_is_one_line(tmp_path):
    load = ["--rate", "9999", *VARIED[2:], "--by-length", "--plot", tmp_path / "x.png"]
    assert refused(*PREDICT, *load).startswith("plot: TTFT has no value")
