"""Loads over a day: read from traces and from Prometheus, and what they take."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.errors import InputError
from physim.inputs import profile
from physim.inputs.lengths import lengths
from physim.inputs.profile import LoadProfile, Window
from physim.prediction.results import Prediction
from physim.questions import recommendation
from physim.questions.objectives import Requirements
from physim.questions.schedule import Arrivals, ReplicaSchedule, server_hours_about
from physim.questions.servers import Servers

TELLING = {"rate": 8.0, "input_tokens": 1000, "output_tokens": 100}
SMALL = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}


def window(place, rate, prompt=1000.0, output=100.0):
    return Window(60.0 * place, 60.0, rate, prompt, output)


# ---- traces ----


def test_a_trace_is_cut_into_windows(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,prefix_group\n"
        "5,100,10,\n8,300,10,\n25,64,20,a\n31,64,20,a\n39,64,20,a\n45,500,7,\n"
    )
    found = physim.read_profile(path, window_s=20)
    first, second = found.windows
    assert (first.start_s, first.duration_s, first.rate) == (0, 20, 2 / 20)
    assert lengths(first.input_tokens).mean == 200
    assert first.output_tokens == 10.0
    # From 25 s to the last arrival at 45; the first of the group finds nothing in the cache.
    assert (second.start_s, second.duration_s, second.rate) == (20, 20, 4 / 20)
    assert second.cached_tokens == 2 * 64 // 4
    assert found.hours == pytest.approx(40 / 3600)


def test_a_window_without_requests_is_left_out(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,9\n1,9,9\n100,9,9\n")
    starts = [one.start_s for one in physim.read_profile(path, window_s=10).windows]
    assert starts == [0, 90]


def test_peaks_that_windows_hide_are_said(tmp_path):
    # A hundred seconds a window: one request a second, but in the second window 60 within 10 s.
    even = np.arange(0, 300, 1.0)
    burst = np.linspace(150, 159.9, 60)
    path = tmp_path / "day.csv"
    for arrivals, count in ((even, 0), (np.sort(np.append(even, burst)), 1)):
        frame = pd.DataFrame({"arrival_s": arrivals, "input_tokens": 9, "output_tokens": 9})
        frame.to_csv(path, index=False)
        notes = physim.read_profile(path, window_s=100).notes
        assert len(notes) == count
    # 70 requests in a part of a window that has 16 in the mean.
    assert notes[0].startswith("windows average over peaks within them: in 1 of 3, requests")
    assert "most in that at 100 s, 4.4 times as fast for 10 s; plan with windows" in notes[0]
    assert physim.read_profile(path, window_s=10).notes == ()


@given(seed=st.integers(0, 2**31), rate=st.floats(0.5, 30))
@settings(max_examples=20, deadline=None)
def test_chance_makes_no_peaks(seed, rate):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, 2000))
    windows = [
        Window(start, 60.0, float(np.sum((arrivals >= start) & (arrivals < start + 60))) / 60, 9, 9)
        for start in np.arange(0.0, arrivals[-1] - 60, 60.0).tolist()
        if np.any((arrivals >= start) & (arrivals < start + 60))
    ]
    assert profile._peaks_hidden(windows, arrivals) == ()


# ---- Prometheus ----


def dump(path, series, kind="matrix"):
    result = [
        {"metric": {"__name__": name, **labels}, "values": [[t, str(v)] for t, v in values]}
        for name, labels, values in series
    ]
    content = {"status": "success", "data": {"resultType": kind, "result": result}}
    path.write_text(json.dumps(content))
    return path


def counters(engine="vllm:", requests="request_success_total"):
    """Two servers; the second restarts between 60 and 120 s, after which it counts from zero."""
    times = [0, 60, 120]
    return [
        (f"{engine}{name}", {"pod": pod}, list(zip(times, values, strict=True)))
        for name, of_pods in {
            requests: {"a": [100, 160, 220], "b": [50, 110, 30]},
            "prompt_tokens_total": {"a": [0, 6e4, 12e4], "b": [0, 12e4, 3e4]},
            "generation_tokens_total": {"a": [0, 6e3, 12e3], "b": [0, 6e3, 6e3]},
        }.items()
        for pod, values in of_pods.items()
    ]


@pytest.mark.parametrize(
    ("engine", "requests"),
    [
        ("vllm:", "request_success_total"),
        ("vllm_", "request_success_total"),
        ("sglang:", "num_requests_total"),
    ],
)
def test_counters_become_windows(tmp_path, engine, requests):
    path = dump(tmp_path / "day.json", counters(engine, requests))
    first, second = physim.read_profile(path, window_s=60).windows
    # 60 of each server; 18e4 prompt tokens and 12e3 generated ones.
    assert (first.rate, first.input_tokens, first.output_tokens) == (2.0, 1500.0, 100.0)
    # After its restart the second server counted 30 requests, 3e4 tokens and none or 6e3.
    assert second.rate == pytest.approx(90 / 60)
    assert second.input_tokens == pytest.approx(9e4 / 90)


def test_servers_may_start_at_different_times(tmp_path):
    later = [(name, labels, values[labels["pod"] == "b" :]) for name, labels, values in counters()]
    first, second = physim.read_profile(dump(tmp_path / "day.json", later), window_s=60).windows
    # Of the server that was seen from 60 s on, the first minute is not known.
    assert (first.rate, second.rate) == (1.0, 1.5)


def test_files_of_one_counter_each_are_read_together(tmp_path):
    every = counters()
    paths = [dump(tmp_path / f"{place}.json", [one]) for place, one in enumerate(every)]
    together = physim.read_profile(dump(tmp_path / "all.json", every), window_s=60)
    assert physim.read_profile(*paths, window_s=60) == together


def test_a_histogram_gives_the_shape_and_a_counter_the_mean(tmp_path):
    times = [0, 60]
    buckets = {"500": 30, "1000": 60, "4000": 120, "+Inf": 120}
    series = [
        ("vllm:request_prompt_tokens_bucket", {"le": edge}, list(zip(times, [0, n], strict=True)))
        for edge, n in buckets.items()
    ]
    hits = ("vllm:prefix_cache_hits_total", {}, [(0, 0), (60, 24e3)])
    series += [(name, own, values[:2]) for name, own, values in counters()] + [hits]
    (only,) = physim.read_profile(dump(tmp_path / "day.json", series), window_s=60).windows
    found = physim.read_profile(dump(tmp_path / "day.json", series), window_s=60)
    assert found.notes == (
        "lengths are the means of each window, since there is no "
        "vllm:request_generation_tokens_bucket",
    )
    drawn = np.array(only.input_tokens.values)
    assert drawn.mean() == pytest.approx(1500)
    # Half of the requests are of up to 1000 tokens; these have 500 in the mean, the others 2500.
    assert drawn[len(drawn) // 2 - 1] < 1000 <= drawn[len(drawn) // 2]
    assert only.cached_tokens == 24e3 / 120
    assert only.output_tokens == 100.0


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "broken JSON"),
        ('{"status": "error", "error": "bad query"}', "bad query; save what query_range returns"),
        ('{"status": "success", "data": {"resultType": "vector"}}', "holds a vector, no range"),
        (
            '{"status": "success", "data": {"resultType": "matrix", "result": [{"values": 1}]}}',
            "data.result[0].metric: is missing; pass what query_range returns",
        ),
        (
            '{"status": "success", "data": {"resultType": "matrix", "result": []}}',
            "has no vllm:request_success_total or sglang:num_requests_total; query it too",
        ),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, content, line):
    path = tmp_path / "day.json"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        physim.read_profile(path)
    assert line in str(error.value)
    assert "day.json" in str(error.value)


TIMES = [0, 60, 120]


def series_of(name="vllm:prompt_tokens_total", values=(0, 1, 2), times=TIMES, **labels):
    """A dump's series, its samples as JSON has them."""
    samples = [list(pair) for pair in zip(times, values, strict=True)]
    return {"metric": {"__name__": name, **labels}, "values": samples}


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (series_of(times=[0, 120, 60]), "values[2]: its time 60.000 is not after 120.000; sort"),
        (series_of(times=[0, 60, 60]), "values[2]: its time 60.000 is not after 60.000"),
        (series_of(times=[0, True, 60]), "values[1][0]: True is not a number"),
        (series_of(times=[0, "60", 120]), "values[1][0]: '60' is not a number"),
        (series_of(values=["0", "NaN", "2"]), "values[1][1]: NaN is not a number"),
        (series_of(values=["0", "+Inf", "2"]), "values[1][1]: +Inf is not a number"),
        (series_of(values=["0", False, "2"]), "values[1][1]: False is not a number"),
        (series_of(values=["0", "-1", "2"]), "values[1][1]: -1 is below 0"),
        (series_of(values=["0", "", "2"]), "values[1][1]: is empty"),
        (series_of(values=[], times=[]), "values: [] has too few entries"),
        (series_of(name=""), "metric.__name__: is empty"),
        ({"metric": {}, "values": [[0, 1]]}, "metric.__name__: is missing; query the counters"),
        (series_of(pod=3), "metric.pod: 3 is not text"),
        (
            series_of("vllm:request_prompt_tokens_bucket", le="many"),
            "le of vllm:request_prompt_tokens_bucket: 'many' is no upper edge",
        ),
    ],
)
def test_samples_that_are_no_counters_are_refused(tmp_path, one, line):
    path = dump(tmp_path / "day.json", counters())
    content = json.loads(path.read_text())
    content["data"]["result"].append(one)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        physim.read_profile(path, window_s=60)
    assert line in str(error.value)


def test_parts_of_a_series_are_one_series(tmp_path):
    every = counters()
    parts = [
        dump(
            tmp_path / f"{n}.json",
            [(name, labels, values[n : n + 2]) for name, labels, values in every],
        )
        for n in (0, 1)
    ]
    together = physim.read_profile(dump(tmp_path / "all.json", every), window_s=60)
    assert physim.read_profile(*parts, window_s=60) == together
    # So a file that is given twice counts once.
    assert physim.read_profile(*parts, *parts, window_s=60) == together
    name, labels, values = every[0]
    other = dump(tmp_path / "other.json", [(name, labels, [(0, 7), *values[1:]])])
    with pytest.raises(InputError, match=r"vllm:request_success_total: is 100 and 7 at 0\.000"):
        physim.read_profile(*parts, other, window_s=60)


def test_what_prometheus_warned_of_is_said(tmp_path):
    path = dump(tmp_path / "day.json", counters())
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "warnings": ["partial\nresponse"]}))
    assert physim.read_profile(path, window_s=60).notes[0] == "Prometheus warned: partial response"


def test_more_windows_than_anybody_plans_for_are_refused(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,9\n10000000000,9,9\n")
    with pytest.raises(InputError, match=r"window: 60 s makes 166666667 windows of .*day.csv"):
        physim.read_profile(path, window_s=60)
    far = [
        (name, own, [(10**10 * n, v) for n, (_, v) in enumerate(values)])
        for name, own, values in counters()
    ]
    with pytest.raises(InputError, match=r"makes 333333333 windows of .*day.json"):
        physim.read_profile(dump(tmp_path / "day.json", far), window_s=60)


def test_requests_of_one_moment_have_no_rate(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n5,9,9\n5,9,9\n")
    with pytest.raises(InputError, match="has only one point in time"):
        physim.read_profile(path)


@pytest.mark.parametrize(
    ("window", "line"),
    [
        ({"start_s": -1.0}, "window: start_s: -1.0 is below 0"),
        ({"duration_s": 0.0}, "window: duration_s: 0.0 is below 1e-06"),
        ({"duration_s": float("nan")}, "window: duration_s: nan is below 1e-06"),
        ({"rate": -2.0}, "rate: -2.0 is not positive"),
        ({"cached_tokens": 700.0}, "cached_tokens: 700.0 is not between 0 and the input's 600"),
    ],
)
def test_windows_that_cannot_be(window, line):
    own = {"start_s": 0.0, "duration_s": 60.0, "rate": 1.0, "input_tokens": 600.0}
    with pytest.raises(InputError, match=line):
        Window(**{**own, "output_tokens": 100.0, **window})


def test_windows_are_in_order():
    first, second = window(0, 1.0), window(1, 1.0)
    with pytest.raises(InputError, match="window at 0 s: begins before that at 60 s has ended"):
        LoadProfile((second, first))
    assert LoadProfile((first, second)).hours == pytest.approx(120 / 3600)


def test_what_is_no_profile_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a trace"):
        physim.read_profile(tmp_path / "day.txt")
    with pytest.raises(InputError, match="window: 0 s is not positive"):
        physim.read_profile(tmp_path / "day.csv", window_s=0)
    with pytest.raises(InputError, match="has no window with requests"):
        LoadProfile(())


# ---- what a day takes ----


def priced_by_the_day(monkeypatch, needed, prices, misses=()):
    """Servers by their place that are chosen for a day, with a search that computes nothing.

    Args:
        monkeypatch: Pytest's.
        needed: What each server needs in each of two windows.
        prices: What an hour of each costs.
        misses: Servers and how many of them miss their objectives when they are replayed.
    """
    day = LoadProfile((window(0, 8.0), Window(60.0, 540.0, 1.0, 1000.0, 100.0)))
    sizes = range(100, 100 + len(needed))
    cases = [
        physim.Case.from_options("Qwen/Qwen3-8B", gpu=gpu, max_num_seqs=size, **TELLING)
        for size, gpu in zip(sizes, ("h100_sxm", "a100_sxm", "h200_sxm"), strict=False)
    ]

    def planned(case, *_):
        replicas = np.array(needed[cases.index(case)])
        return ReplicaSchedule([case] * 2, day.windows, replicas, np.ones(2))

    def replayed(shares, *_):
        place = next(place for place, case in enumerate(cases) if case.service == shares[0].service)
        found = object.__new__(Prediction)
        of[id(found)] = (place, round(8.0 / shares[0].demanded.rate))
        return [found]

    of = {}
    asked = Requirements.parse(["ttft_mean=1s"], 0.9)

    def missed(_, replay):
        return "ttft" if of[id(replay)] in misses else None

    monkeypatch.setattr(Requirements, "missed", missed)
    monkeypatch.setattr(ReplicaSchedule, "planned", planned)
    monkeypatch.setattr(recommendation, "predict_cases", replayed)
    search = recommendation._Search(
        cases,
        np.array([max(own) for own in needed]),
        np.full(len(cases), 9),
        np.array(prices),
        np.zeros(len(cases)),
    )
    known = physim.load_fit("none")
    return search.checked(asked, known, 3, day, Arrivals()), cases


def test_the_cheapest_of_a_day_is_so_with_servers_turned_off(monkeypatch):
    # A big server at 3 an hour for ten minutes, or four small ones at 1 for one minute and one for
    # nine: 0.5 against 13 minutes' 0.217, though the peak takes 4 against 3.
    found, cases = priced_by_the_day(monkeypatch, [(1, 1), (4, 1)], [3.0, 1.0])
    assert [cases.index(one.case.under(cases[0].load)) for one in found] == [1, 0]
    assert [one.schedule.server_hours for one in found] == pytest.approx([13 / 60, 10 / 60])


def test_a_server_more_is_in_every_window(monkeypatch):
    found, _ = priced_by_the_day(monkeypatch, [(4, 1)], [1.0], misses=[(0, 4)])
    assert found[0].replicas == 5
    assert found[0].schedule.replicas.tolist() == [5, 2]


def test_about_what_a_day_takes_by_hand():
    day = LoadProfile((window(0, 8.0), Window(60.0, 540.0, 1.0, 4000.0, 100.0)))
    # One minute of all four; nine of half of them, since half as many prompt tokens come.
    assert server_hours_about(day, 4) == pytest.approx((4 * 60 + 2 * 540) / 3600)
    assert server_hours_about(day, 1) == pytest.approx(600 / 3600)


def test_peaks_are_the_windows_that_nothing_covers():
    loads = (1.0, 1000.0), (4.0, 1000.0), (2.0, 9000.0), (3.9, 1000.0), (0.5, 1000.0)
    windows = [window(place, *load) for place, load in enumerate(loads)]
    found = LoadProfile(tuple(windows)).peaks(9)
    # 4 requests/s have more arrivals and outputs, 2 of 9000 tokens more prompt tokens.
    assert found == [windows[2], windows[1]]
    assert LoadProfile(tuple(windows)).peaks(1) == [windows[2]]


@pytest.fixture(scope="module")
def day():
    """Eight windows of ten minutes: busy at noon, few but long prompts at night."""
    rates = [3.0, 6.0, 14.0, 40.0, 40.0, 12.0, 5.0, 4.0]
    prompts = [6000.0, 786.0, 786.0, 786.0, 700.0, 786.0, 786.0, 6000.0]
    return LoadProfile(
        tuple(
            Window(600.0 * place, 600.0, rate, prompt, 251.0)
            for place, (rate, prompt) in enumerate(zip(rates, prompts, strict=True))
        )
    )


@pytest.fixture(scope="module")
def found(day):
    return physim.recommend(
        "Qwen/Qwen3-14B",
        slo=["ttft_p99=500ms", "itl_mean=15ms"],
        gpus=["h100_sxm"],
        prices={"h100_sxm": 2.5},
        profile=day,
        count=1,
        **SMALL,
    )


@pytest.mark.slow
def test_a_days_servers_hold_in_every_window(found, day):
    known = physim.load_fit("default")
    for one in found.choices:
        assert one.schedule.most <= one.replicas
        cases = [one.case.under(own.load()) for own in day.windows]
        servers = Servers(cases, known)
        every = np.arange(len(cases))
        needed = one.schedule.replicas
        assert servers.under(every, 1.0 / needed, found.asked).kept.all()
        fewer = np.flatnonzero(needed > 1)
        if fewer.size:
            assert not servers.under(fewer, 1.0 / (needed[fewer] - 1), found.asked).kept.any()
        assert found.asked.missed(one.replayed) is None


@pytest.mark.slow
def test_gpu_hours_are_those_of_the_windows(found, day):
    best = found.choices[0]
    gpus = best.case.server.parallelism.gpus
    assert best.schedule.gpu_hours(best.replicas) == pytest.approx(best.gpus * 8 * 600 / 3600)
    by_hand = gpus * sum(best.schedule.replicas) * 600 / 3600
    assert best.schedule.gpu_hours() == pytest.approx(by_hand)
    tokens = 251.0 * 600 * sum(own.rate for own in day.windows)
    price = 2.5 * by_hand
    assert best.scheduled_price == best.to_dict()["cost_scaled"] == pytest.approx(price)
    assert best.cost == pytest.approx(price / tokens * 1e6)
    frame = best.schedule.to_frame()
    assert frame["gpus"].tolist() == [gpus * own for own in best.schedule.replicas]
    assert frame["start_s"].tolist() == [own.start_s for own in day.windows]
    assert best.to_dict()["gpu_hours"] == best.schedule.gpu_hours(best.replicas)


@pytest.mark.slow
def test_the_fewest_are_found_from_any_number_on(found):
    servers = found.servers
    most = np.full(len(servers.cases), 6)
    fewest = servers.fewest(found.asked, most)
    for least in (1, 3, 6):
        given = np.full(len(servers.cases), least)
        from_there = servers.fewest(found.asked, most, given)
        np.testing.assert_array_equal(
            from_there, np.where(fewest > 0, np.maximum(fewest, given), 0)
        )
    nothing = np.zeros(len(servers.cases), int)
    assert not servers.fewest(found.asked, most, nothing).any()
    assert not servers.fewest(Requirements.parse(["itl_mean=1us"], 0.9), most).any()


@pytest.mark.slow
def test_a_day_is_planned_for_in_a_shell(tmp_path):
    rng = np.random.default_rng(0)
    arrivals = np.concatenate(
        [np.sort(rng.uniform(0, 300, 300)), np.sort(rng.uniform(300, 600, 2400))]
    )
    trace = pd.DataFrame(
        {
            "arrival_s": arrivals,
            "input_tokens": rng.integers(200, 900, len(arrivals)),
            "output_tokens": rng.integers(50, 150, len(arrivals)),
        }
    )
    path, plan, picture = (tmp_path / name for name in ("day.csv", "plan.csv", "day.png"))
    trace.to_csv(path, index=False)
    words = ["recommend", "Qwen/Qwen3-14B", "--gpus", "h100_sxm", "--slo", "itl_mean=15ms"]
    words += ["--profile", str(path), "--window", "300", "--count", "1"]
    words += ["--max-num-seqs", "256", "--max-num-batched-tokens", "8192"]
    found = CliRunner().invoke(app, [*words, "--schedule", str(plan), "--plot", str(picture)])
    assert found.exit_code == 0, found.output
    assert "GPU-hours" in found.output
    windows = pd.read_csv(plan)
    assert windows["rate"].tolist() == pytest.approx([1, 8], rel=0.02)
    assert (windows["replicas"] >= 1).all()
    assert picture.stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--profile", "day.csv", "--rate", "3"],
            "--rate: is given by --profile already; leave it out",
        ),
        (
            ["--profile", "day.csv", "--input", "3"],
            "--input: is given by --profile already; leave it out",
        ),
        (
            ["--profile", "day.csv", "--prefixes", "3"],
            "--prefixes: is given by --profile already; leave",
        ),
        (["--profile", "no.csv"], "no.csv: No such file"),
        (["--rate", "3"], "--input and --output: are missing; give both"),
        (["--input", "3", "--output", "3"], "load: is missing; give --rate, --concurrency,"),
        (
            ["--rate", "3", "--input", "9", "--output", "9", "--schedule", "plan.csv"],
            "--plot and --schedule: are about a day; give it with --profile",
        ),
    ],
)
def test_a_profile_and_a_load_exclude_each_other(words, line):
    found = CliRunner().invoke(app, ["recommend", "Qwen/Qwen3-14B", "--slo", "ttft_p99=1s", *words])
    assert isinstance(found.exception, InputError)
    assert line in str(found.exception)


@pytest.mark.parametrize("rate", [0.5, 90.0])
def test_a_window_that_does_not_fit_is_named(rate):
    """Whether it is among the busiest, or found when all are looked at."""
    long = Window(600.0, 600.0, rate, 50_000.0, 100.0)
    windows = (Window(0.0, 600.0, 10.0, 700.0, 200.0), long)
    with pytest.raises(InputError, match=r"window at 600 s: input and output: 50100 tokens exceed"):
        physim.recommend(
            "Qwen/Qwen3-14B",
            slo=["itl_mean=15ms"],
            gpus=["h100_sxm"],
            max_gpus=2,
            profile=LoadProfile(windows),
            **SMALL,
        )


def test_a_profile_says_the_load_in_python_too(day):
    with pytest.raises(InputError, match="rate: is given by the load profile already"):
        physim.recommend("Qwen/Qwen3-14B", slo=["itl_mean=15ms"], profile=day, rate=3.0)


@pytest.mark.slow
def test_a_picture_of_a_day_needs_a_day(found):
    from dataclasses import replace

    from physim.plot import draw_schedule

    above, below = draw_schedule(found)
    assert above.get_ylabel() == "requests per second"
    assert len(below.get_legend().get_texts()) == 1
    without = replace(found, choices=[replace(one, schedule=None) for one in found.choices])
    with pytest.raises(InputError, match="schedule: is of a load profile"):
        draw_schedule(without)
