"""The fluid beside the replay of the same load."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from commands import refused
from commands import run as run_command
from limits_by_hand import config_of

import physim
from physim.batching.limits import Limits
from physim.prediction import checked
from physim.prediction.approximation import errors_of
from physim.prediction.checked import Compared
from physim.replay.outcome import WITHIN_90, EngineSamples, Gaps, Replayed, Work, standard_errors

MODEL, ENGINE = "Qwen/Qwen3-14B", {"gpu": "h100_sxm", "tp": 2, "max_model_len": 4096}
LENGTHS = {"input_tokens": 500, "output_tokens": physim.Lengths.parse("normal:20:5")}
PREDICT = ["predict", MODEL, "--gpu", "h100_sxm", "--tp", "2", "--max-model-len", "4096"]
SHORT = ["--input", "500", "--output", "normal:20:5"]


def figures(found, part="all", statistic="mean"):
    return {r.quantity: r for r in found.rows if (r.part, r.statistic) == (part, statistic)}


def test_a_difference_is_of_the_replays():
    assert Compared("all", "ttft", "mean", 0.9, 1.2).difference_pct == pytest.approx(-25.0)
    assert Compared("all", "kv_use", "mean", 0.1, 0.0).difference_pct is None
    assert Compared("all", "ttft", "mean", 0.9, 1.2).chance_pct is None
    row = Compared("all", "ttft", "mean", 0.9, 1.2, 0.012)
    assert row.chance_pct == pytest.approx(WITHIN_90)


@pytest.mark.parametrize("after", [0.0, 0.9])
def test_the_chance_of_a_replay(after):
    # A chain whose values are normal with a deviation of one, each `after` times the one before:
    # its mean is off as that of so many fewer values (1 - after) / (1 + after).
    count, rng = 4000, np.random.default_rng(0)
    found, means = [], []
    for _ in range(60):
        chain = rng.normal(size=count)
        for place in range(1, count):
            chain[place] = after * chain[place - 1] + math.sqrt(1 - after**2) * chain[place]
        found.append(standard_errors(chain, np.ones(count)))
        means.append(chain.mean())
    mean, median, *_ = np.sqrt(np.mean(np.square(found), axis=0))
    expected = math.sqrt((1 + after) / (1 - after) / count)
    assert mean == pytest.approx(expected, rel=0.15)
    assert np.std(means) == pytest.approx(expected, rel=0.2)
    if not after:
        # Half a chance over the density at the median.
        assert median == pytest.approx(math.sqrt(math.pi / 2 / count), rel=0.15)


def test_values_that_stand_for_several_count_so_often():
    values, weights = np.arange(200.0), np.tile([1.0, 3.0], 100)
    once = standard_errors(np.repeat(values, weights.astype(int)), np.ones(400))
    np.testing.assert_allclose(standard_errors(values, weights), once, rtol=1e-12)


def test_the_fluid_knows_least_of_bursts_near_saturation():
    def errors(share, **load):
        case = physim.Case.from_options(MODEL, **ENGINE, **LENGTHS, rate=share * most, **load)
        (found,) = physim.predict_cases([case], physim.Corrections())
        return errors_of(case, found)

    case = physim.Case.from_options(MODEL, **ENGINE, **LENGTHS, rate=1)
    most = physim.predict_cases([case], physim.Corrections())[0].saturation_rps
    chance, bursts = ({"arrival": "poisson"}, {"arrival": "gamma", "burstiness": 0.5})
    for metric in ("ttft", "itl", "e2e"):
        # Fewer than all regimes are in order: at 30 and 60% errors are about as small.
        assert errors(0.3, **chance)[metric] < errors(0.3, **bursts)[metric]
        if metric != "itl":
            assert errors(0.3, **bursts)[metric] < errors(0.8, **bursts)[metric]
    assert errors(0.8, **chance)["ttft"] == 0.019
    assert errors(0.8)["ttft"] == 0.019  # evenly spaced


@pytest.mark.slow
def test_a_load_that_stays():
    found = physim.check(MODEL, **ENGINE, **LENGTHS, rate=10, arrival="poisson")
    assert (found.replayed, found.compared) == (5000, 3500)
    assert len(found.rows) == 4 * 5 + 5
    mean = figures(found)
    assert mean["ttft"].fluid == found.prediction.ttft_s
    assert (
        mean["ttft"].fluid
        == physim.predict(MODEL, **ENGINE, **LENGTHS, rate=10, arrival="poisson").ttft_s
    )
    for name in ("ttft", "itl", "tpot", "e2e", "requests_per_s", "output_tokens_per_s"):
        assert abs(mean[name].difference_pct) < 10, name
    for name in ("ttft", "itl", "tpot", "e2e"):
        assert 0 < mean[name].chance_pct < 5, name
    assert mean["requests_per_s"].chance_pct is None
    # Little's law, in the replay alone: as many run as came in a request's time, but that some of
    # it is spent outside of the engine.
    there = mean["requests_per_s"].replay * mean["e2e"].replay
    assert 0.8 * there < mean["running"].replay < there
    assert mean["batch"].replay < mean["running"].replay
    assert mean["running"].fluid == found.prediction.pool.running
    # About 500 tokens and half of 20 each, in blocks of 16.
    blocks = mean["running"].replay * math.ceil(510 / 16)
    assert mean["kv_use"].replay == pytest.approx(blocks / found.prediction.pool.kv_blocks, rel=0.1)


def test_blocks_that_one_request_takes_as_it_decodes():
    # One request always runs, with 201 to 1,200 tokens in blocks of 16: 44.2 of them in the mean.
    blocks = sum(math.ceil((200 + token) / 16) for token in range(1, 1001)) / 1000
    found = physim.check(MODEL, **ENGINE, input_tokens=200, output_tokens=1000, concurrency=1)
    use = figures(found)["kv_use"]
    there = found.prediction.pool.kv_blocks
    assert use.replay * there == pytest.approx(blocks, rel=0.01)
    assert use.fluid * there == pytest.approx(blocks, rel=0.02)


@pytest.mark.slow
def test_another_seed_is_another_replay():
    one, other, again = (
        figures(physim.check(MODEL, **ENGINE, **LENGTHS, concurrency=8, requests=200, seed=seed))
        for seed in (1, 2, 1)
    )
    assert one == again
    assert one["ttft"].fluid == other["ttft"].fluid
    assert one["ttft"].replay != other["ttft"].replay


def test_what_the_engine_holds_by_hand():
    # One request runs from 0 to 2 s and one from 6 to 10 s; the engine notes only what it runs.
    frame = pd.DataFrame(
        {
            "scheduled_s": [0.0, 6.0],
            "first_token_s": [1.0, 8.0],
            "finished_s": [2.0, 10.0],
            "state": "completed",
        }
    )
    samples = EngineSamples(*np.array([[0.0, 0, 1, 30], [6.0, 0, 1, 50], [8.0, 0, 1, 60]]).T)
    engine = config_of(Limits(64, 2048, 4096, 100))
    gaps, work = Gaps(*np.zeros((3, 0))), Work(*np.zeros((7, 0)))
    result = Replayed([], samples, gaps, work, 3, 10.0, engine, engine, engine.kv_blocks)
    held = checked._held(result, frame, 0.0, 10.0)
    assert held["running"] == pytest.approx(0.6)
    assert held["batch"] == pytest.approx(0.3)
    assert held["kv_use"] == pytest.approx((2 * 0.3 + 2 * 0.5 + 2 * 0.6) / 10)
    # From the middle of the first to the middle of the second.
    held = checked._held(result, frame, 1.0, 8.0)
    assert held["running"] == pytest.approx(3 / 7)
    assert held["kv_use"] == pytest.approx((1 * 0.3 + 2 * 0.5) / 7)


@pytest.mark.slow
def test_clients_and_what_ends():
    found = physim.check(MODEL, **ENGINE, **LENGTHS, concurrency=8, requests=200)
    assert (found.replayed, found.compared) == (200, 200)
    assert set(figures(found)) == {
        *("ttft", "itl", "tpot", "e2e", "requests_per_s", "output_tokens_per_s")
    }
    replay = physim.predict(
        MODEL, **ENGINE, **LENGTHS, concurrency=8, requests=200, method="replay"
    )
    assert figures(found)["ttft"].replay == replay.ttft_s
    assert figures(found, statistic="p99")["e2e"].replay == replay.whole.latencies["e2e"]["p99"]
    without_end = figures(physim.check(MODEL, **ENGINE, **LENGTHS, concurrency=8))
    assert abs(without_end["running"].difference_pct) < 5
    assert 0.8 * 8 < without_end["running"].replay < 8


@pytest.mark.slow
def test_above_capacity_the_queue_has_no_latency():
    found = physim.check(MODEL, **ENGINE, **LENGTHS, rate=1e4, max_num_seqs=16)
    mean = figures(found)
    assert "ttft" not in mean
    assert "e2e" not in mean
    assert abs(mean["requests_per_s"].difference_pct) < 15
    assert mean["running"].replay == pytest.approx(16, rel=0.05)


@pytest.mark.slow
def test_stages_are_compared_each():
    stages = (physim.Stage(4, 30), physim.Stage(8, 30))
    found = physim.check(MODEL, **ENGINE, **LENGTHS, stages=stages, arrival="constant")
    assert found.replayed == 360
    assert {row.part for row in found.rows} == {"all", "4/s, 30 s", "8/s, 30 s"}
    for part in ("all", "4/s, 30 s", "8/s, 30 s"):
        assert abs(figures(found, part)["e2e"].difference_pct) < 10


def test_a_load_that_begins_slowly_is_replayed_for_longer(monkeypatch):
    monkeypatch.setattr("physim.prediction.replayed.REPLAYED", 200)
    found = physim.check(MODEL, **ENGINE, input_tokens=64, output_tokens=400, rate=30.0)
    under_way = found.prediction.requests_per_s * found.prediction.e2e_s
    assert under_way > 60
    assert found.replayed == pytest.approx(10 * under_way, rel=0.02)


def test_requests_that_are_all_answered_at_once_are_no_steady_state(monkeypatch):
    monkeypatch.setattr("physim.prediction.replayed.REPLAYED", 8)
    monkeypatch.setattr("physim.prediction.replayed._LONGER", 1)
    fixed = {"input_tokens": 64, "output_tokens": 20}
    with pytest.raises(physim.InputError, match="all 8 replayed requests answered at once"):
        physim.check(MODEL, **ENGINE, **fixed, concurrency=8)


def test_the_command_prints_both():
    run = run_command(*PREDICT, *SHORT, "--rate", "6", "--check", columns="80")
    assert run.returncode == 0, run.stderr
    for words in (
        "Beside a replay of 5000 requests, of which 3500 are compared: the first fifth",
        "TTFT   fluid",
        "replay",
        "requests that decode",
        "difference",
    ):
        assert words in run.stdout
    assert "…" not in run.stdout
    ended = run_command(*PREDICT, *SHORT, "--concurrency", "4", "--requests", "40", "--check")
    assert "Beside a replay of all 40 requests:" in ended.stdout


@pytest.mark.slow
def test_json_has_the_check():
    run = run_command(*PREDICT, *SHORT, "--rate", "6", "--check", "--json")
    content = json.loads(run.stdout)
    assert (content["check"]["replayed"], content["check"]["compared"]) == (5000, 3500)
    row = content["check"]["rows"][0]
    assert (row["part"], row["quantity"], row["statistic"]) == ("all", "ttft", "mean")
    assert row["fluid"] == content["ttft_s"]
    assert row["difference_pct"] == pytest.approx(100 * (row["fluid"] / row["replay"] - 1))


@pytest.mark.parametrize(
    ("more", "name"),
    [(["--trace", "requests.csv"], "--trace"), ([*SHORT, "--method", "replay"], "--method replay")],
)
def test_a_replay_is_not_checked_by_a_replay(more, name):
    assert refused(*PREDICT, "--check", *more) == (
        f"--check: replays the load, as {name} does; leave one of the two out"
    )
