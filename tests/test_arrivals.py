"""Recorded arrivals: their index of dispersion, loads that come like them, and windows of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from limits_by_hand import config_of
from test_request_lengths import LIMITS, run

import physim
from physim.errors import InputError
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.profile import LoadProfile
from physim.inputs.request_lengths import RequestLengths
from physim.replay.workload import drawn


def poisson(rate=5.0, count=40_000, seed=0):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def test_poisson_arrivals_have_an_index_of_one_in_every_window():
    found = ArrivalDispersion.from_arrivals(poisson())
    assert len(found.windows_s) == 16
    assert found.windows_s[0] == pytest.approx(0.2, rel=0.02)
    assert found.windows_s[-1] == pytest.approx(0.1 * 8000, rel=0.02)
    # Of n windows the index has a standard error of sqrt(2 / n).
    for window, index, bursts in zip(found.windows_s, found.index, found.bursts, strict=True):
        assert index == pytest.approx(1, abs=4 * np.sqrt(2 * window / 8000))
        assert bursts == pytest.approx(1, abs=0.2)


def test_even_arrivals_by_hand():
    # Windows of 0.25 s hold no arrival or one of those at 0, 0.5, 1, ...: half of each, so the
    # variance is a quarter and the mean a half.
    times = 0.5 * np.arange(10_001)
    found = ArrivalDispersion.from_arrivals(times)
    assert found.rate == 2
    assert found.index_at(100.0) < 0.01
    from physim.inputs.arrivals import _index

    assert _index(times, 0.25) == pytest.approx(0.5, rel=1e-3)


def test_arrivals_in_clumps_by_hand():
    # Clumps of five come at random, so every index is five where windows are longer than a clump.
    found = ArrivalDispersion.from_arrivals(np.repeat(poisson(1.0, 20_000), 5))
    assert found.index_at(10.0) == pytest.approx(5, rel=0.1)
    assert found.bursts_at(10.0) == pytest.approx(5, rel=0.1)
    assert found.index_at(1e-6) == found.index[0]


def test_a_rate_that_changes_is_told_from_bursts():
    # The rate goes up and down between 2 and 8 in twenty minutes. In a window w it adds its
    # variance, 4.5, times w over its mean, 5.
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 12_000, 8 * 12_000))
    kept = rng.uniform(0, 8, len(times)) < 5 + 3 * np.sin(2 * np.pi * times / 1200)
    found = ArrivalDispersion.from_arrivals(times[kept])
    for window in (2.0, 10.0):
        assert found.index_at(window) == pytest.approx(1 + 4.5 * window / 5, rel=0.1)
        assert found.bursts_at(window) == pytest.approx(1, abs=0.15)
    assert found.slow_s == 60
    # A trace of three minutes has no stretches of a minute to tell apart in windows that it has.
    assert ArrivalDispersion.from_arrivals(poisson(5.0, 900)).slow_s == pytest.approx(18, rel=0.1)


def test_arrivals_at_another_rate():
    found = ArrivalDispersion.from_arrivals(np.repeat(poisson(1.0, 2000), 5))
    faster = found.at_rate(2 * found.rate)
    assert faster.rate == pytest.approx(2 * found.rate)
    assert faster.index_at(5.0) == pytest.approx(found.index_at(10.0))
    assert faster.slow_s == 30
    assert faster.arrival_s[-1] == pytest.approx(found.arrival_s[-1] / 2)
    json.dumps(found.to_dict())


def test_arrivals_start_over():
    found = ArrivalDispersion.from_arrivals(np.arange(100.0))
    assert found.first(3).tolist() == [0, 1, 2]
    assert found.first(250).tolist() == list(range(250))
    assert found.before(250.5).tolist() == list(range(251))
    assert found.before(100.0).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (np.arange(99.0), "arrivals: are 99, of which little can be said; give 100"),
        (np.zeros(200), "arrivals: have no length of time"),
        (np.append(np.arange(200.0), np.nan), "arrivals: have no length of time"),
    ],
)
def test_arrivals_of_which_nothing_can_be_said(times, says):
    with pytest.raises(InputError, match=says):
        ArrivalDispersion.from_arrivals(times)


# ---- loads ----


def test_a_load_that_comes_like_a_trace():
    found = ArrivalDispersion.from_arrivals(np.repeat(poisson(1.0, 2000), 5))
    load = physim.Load(500, 50, rate=10.0, arrival="trace", dispersion=found, requests=12_000)
    # Batches of five by chance: of requests that live for as short as half a minute, four others.
    assert load.arrival_cv2 == pytest.approx(5.0, abs=0.7)
    assert load.burst_cv2 == pytest.approx(found.at_rate(10.0).bursts_at(0.3))
    requests = drawn(load, config_of(LIMITS), 0).requests
    times = np.array([one.arrival_s for one in requests])
    np.testing.assert_allclose(times[:10_000], found.at_rate(10.0).arrival_s)
    assert times[-1] == pytest.approx(1200, rel=0.05)
    assert (np.diff(times) >= 0).all()
    assert load.to_dict()["dispersion"]["requests"] == 10_000
    assert "arrival_s" not in load.to_dict()["dispersion"]


@pytest.mark.parametrize("life_s", [0.5, 2.0, 6.0])
def test_the_number_that_runs_varies_as_lives_overlap(life_s):
    """Requests without limit, of a record in even batches: counted one by one."""
    times = np.repeat(np.arange(4000) * 2.3, 6)
    own = ArrivalDispersion.from_arrivals(times)
    found = replace(own, life_s=life_s)
    outputs = physim.Lengths.exponential(100)
    load = physim.Load(50, outputs, rate=own.rate, arrival="trace", dispersion=found)
    rng = np.random.default_rng(0)
    ends = np.sort(times + life_s * rng.exponential(1.0, len(times)))
    at = np.linspace(100, 9000, 20_001)
    running = np.searchsorted(times, at, side="right") - np.searchsorted(ends, at, side="right")
    evenness = 0.5  # of exponential lives, what the lesser of two is of the mean
    peaked = 1 + (load.arrival_cv2 - 1) * evenness
    assert peaked == pytest.approx(running.var() / running.mean(), rel=0.12, abs=0.15)


def test_stages_come_like_a_trace_at_their_own_rates():
    found = ArrivalDispersion.from_arrivals(np.arange(200.0))
    stages = (physim.Stage(1, 50), physim.Stage(4, 100))
    load = physim.Load(500, 50, stages=stages, arrival="trace", dispersion=found)
    times = [one.arrival_s for one in drawn(load, config_of(LIMITS), 0).requests]
    assert times == [*range(50), *(50 + np.arange(400) / 4).tolist()]
    assert load.arrival_cv2 < 0.1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": 1, "arrival": "trace"}, "dispersion: is missing, which arrival trace needs"),
        ({"rate": 1, "arrival": "poisson", "dispersion": 1}, "has no meaning for arrival poisson"),
        ({"concurrency": 4, "arrival": "trace", "dispersion": 1}, "has no meaning for clients"),
    ],
)
def test_recorded_arrivals_that_do_not_go_with_the_rest(given, says):
    if "dispersion" in given:
        given = given | {"dispersion": ArrivalDispersion.from_arrivals(np.arange(100.0))}
    with pytest.raises(InputError, match=says):
        physim.Load(500, 50, **given)


@pytest.mark.slow
def test_bursts_of_a_trace_make_requests_wait(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{time:.6f},2000,20" for time in np.repeat(poisson(1.0, 400), 12)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    given = ["predict", "Qwen3-8B", "--gpu", "h100", "--rate", "4", "--fit", "none", "--json"]
    given += ["--lengths", str(path)]
    found = {
        (method, arrival): json.loads(run(*given, "--method", method, "--arrival", arrival).stdout)
        for method in ("fluid", "replay")
        for arrival in ("poisson", f"trace:{path}")
    }
    for method in ("fluid", "replay"):
        plain, recorded = (found[method, arrival] for arrival in ("poisson", f"trace:{path}"))
        assert recorded["ttft_s"] > 1.2 * plain["ttft_s"]
        assert recorded["load"]["arrival"] == "trace"


@pytest.mark.parametrize("burstiness", [0.3, pytest.param(0.1, marks=pytest.mark.slow)])
def test_strong_bursts_make_prompts_wait_for_one_another(burstiness):
    # TTFT was 12 and 36% too short while the numbers that follow a request were.
    case = {"gpu": "h100_sxm", "max_num_seqs": 128, "max_num_batched_tokens": 2048, "fit": "none"}
    case |= {"rate": 8.0, "input_tokens": 575, "output_tokens": 248}
    case |= {"arrival": "gamma", "burstiness": burstiness}
    fluid = physim.predict("Qwen/Qwen3-8B", **case)
    replayed = physim.predict("Qwen/Qwen3-8B", method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.09)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.03)


# The last: 111 ms apart, with steps of 15 ms and prompts of 89, which half of the next ones meet.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "tokens", "rate"),
    [("vllm", 786, 6.0), ("sglang", 786, 20.0), ("trtllm", 6000, 2.0), ("vllm", 3000, 9.0)],
)
def test_evenly_spaced_requests_do_not_wait_for_one_another(engine, tokens, rate):
    case = {"gpu": "h100_sxm", "tp": 2, "engine": engine, "fit": "none"}
    load = {"input_tokens": tokens, "output_tokens": 200, "rate": rate, "arrival": "constant"}
    found = physim.check("Qwen/Qwen3-14B", **case, **load)
    for row in found.rows:
        if row.quantity == "ttft":
            assert row.fluid == pytest.approx(row.replay, rel=0.03), row.statistic


def test_a_prompt_waits_for_the_rest_of_a_step_and_for_the_next():
    # Steps of 7.2 ms whenever a request comes, half a second after the one before.
    case = {"gpu": "h100_sxm", "tp": 2, "fit": "none", "rate": 2.0, "arrival": "constant"}
    found = physim.predict("Qwen/Qwen3-14B", **case, input_tokens=786, output_tokens=251)
    ttft, step_s = found.whole.latencies["ttft"], found.whole.latencies["itl"]["p50"]
    assert ttft["p99"] - ttft["p50"] == pytest.approx(0.49 * step_s, rel=0.03)
    assert found.ttft_parts_s["scheduling"] == pytest.approx(1.5 * step_s, rel=0.03)


def test_a_table_of_lengths_says_nothing_of_arrivals(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("input_tokens,output_tokens\n5,5\n")
    with pytest.raises(InputError, match="has no column arrival_s; add it"):
        ArrivalDispersion.read(path)
    path.write_text("arrival_s,input_tokens,output_tokens\n1,5,5\n")
    with pytest.raises(InputError, match=r"pairs.csv: arrivals: are 1, of which"):
        ArrivalDispersion.read(path)


# ---- windows ----


def trace(path):
    path.write_text(
        "arrival_s,input_tokens,output_tokens,cached_tokens\n"
        "5,100,10,64\n8,300,30,\n25,64,20,\n31,64,20,\n39,64,20,\n45,500,7,\n"
    )
    return path


def test_a_trace_in_windows(tmp_path):
    profile = LoadProfile.from_trace(trace(tmp_path / "day.csv"), window_s=20)
    first, second = profile.windows
    assert (first.start_s, first.duration_s, first.rate) == (0, 20, 2 / 20)
    assert first.lengths == RequestLengths.from_columns([100, 300], [10, 30], [64, 0])
    assert first.load().cached_tokens == 32
    # Arrivals, and tokens to compute and to generate, per second.
    assert first.demands == (0.1, 0.1 * (200 - 32), 0.1 * 20)
    assert (second.start_s, second.duration_s, second.rate) == (20, 20, 4 / 20)
    assert physim.read_profile(tmp_path / "day.csv", window_s=20) == profile


def test_windows_as_stages(tmp_path):
    load = LoadProfile.from_trace(trace(tmp_path / "day.csv"), window_s=20).in_stages()
    assert [(one.rate, one.duration_s) for one in load.stages] == [(0.1, 20), (0.2, 20)]
    assert load.lengths.moments.input == (100 + 300 + 3 * 64 + 500) / 6
    assert load.arrival == "poisson"


@pytest.mark.slow
def test_windows_as_stages_are_predicted(tmp_path):
    load = LoadProfile.from_trace(trace(tmp_path / "day.csv"), window_s=20).in_stages()
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm").under(load)
    found = physim.predict(case, fit="none")
    assert [part.arrived for part in found.stages] == pytest.approx([2, 4])


def test_windows_that_are_no_stages(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,9\n1,9,9\n100,9,9\n")
    with pytest.raises(InputError, match="has no request from 10 to 90 s; make windows longer"):
        LoadProfile.from_trace(path, window_s=10).in_stages()
    apart = LoadProfile((physim.inputs.profile.Window(0, 60, 1, 100, 10),))
    with pytest.raises(InputError, match="has lengths of each window apart"):
        apart.in_stages()
    path.write_text("arrival_s,input_tokens,output_tokens\n3,9,9\n")
    with pytest.raises(InputError, match="has only one point in time"):
        LoadProfile.from_trace(path, window_s=10)
    with pytest.raises(InputError, match="window: 0 s is not positive"):
        LoadProfile.from_trace(path, window_s=0)


def test_recorded_traffic_of_a_service(traces):
    path = traces / "azure_conversation_2023.csv.gz"
    found = ArrivalDispersion.read(path)
    assert found.rate == pytest.approx(19_365 / 3501.72, rel=1e-4)
    # Its rate moves over minutes; within them requests come almost by chance.
    assert found.index_at(10.0) > 2.5 * found.bursts_at(10.0)
    assert found.bursts_at(1.0) == pytest.approx(1.1, abs=0.1)
    windows = LoadProfile.from_trace(path, window_s=300).windows
    assert sum(one.rate * one.duration_s for one in windows) == pytest.approx(19_366)


def test_what_follows_a_request_is_counted():
    # Four at once every three seconds: of its own time half of three others, and none within two
    # seconds; within four the next four. The mean is 4/3 a second.
    times = np.repeat(np.arange(200) * 3.0, 4)
    record = ArrivalDispersion.from_arrivals(times)
    assert record.follow_within(np.array([2.0])) == pytest.approx(1.5 - 2 * 4 / 3, abs=0.05)
    assert record.follow_within(np.array([4.0])) == pytest.approx(5.5 - 4 * 4 / 3, abs=0.05)
    both = record.follow_within(np.array([2.0, 4.0]))
    assert both == pytest.approx((1.5 + 5.5 - 6 * 4 / 3) / 2, abs=0.05)
    # Faster, the same in shorter windows.
    faster = record.at_rate(2 * record.rate)
    assert faster.follow_within(np.array([1.0])) == pytest.approx(1.5 - 8 / 3, abs=0.05)


def test_poisson_arrivals_are_followed_by_the_mean():
    times = np.cumsum(np.random.default_rng(5).exponential(0.1, 40_000))
    record = ArrivalDispersion.from_arrivals(times)
    for window in (0.1, 1.0, 10.0):
        assert record.follow_within(np.array([window])) == pytest.approx(0.0, abs=0.25)
