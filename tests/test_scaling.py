"""Servers that come and go with the load: rules by hand, and what must hold in any replay."""

import dataclasses
import json
import math
import re

import commands
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_by_hand import config_of
from test_fleets import Server

import physim
from physim import plot
from physim.batching.limits import Limits
from physim.errors import InputError
from physim.exports.autoscalers import hpa_yaml, keda_yaml
from physim.inputs.profile import LoadProfile, Window
from physim.inputs.stages import Stage
from physim.questions.objectives import Requirements
from physim.questions.scaled_day import ScalingRun
from physim.questions.schedule import Arrivals, ReplicaSchedule
from physim.questions.thresholds import derived_hold_s, derived_threshold
from physim.replay.cluster import ReplayPool, replay_pools
from physim.replay.request import Request
from physim.replay.routers import router_named
from physim.replay.scaling import Replica, replay_scaled
from physim.replay.segment import Segment
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload, drawn_windows
from physim.service.routers import ROUTERS
from physim.service.scaling import (
    Autoscaling,
    OpenTarget,
    TargetTracking,
    Timetable,
    read_policy,
)

# Every step takes a tenth of a second.
TENTH = LinearStepTimes(0.1, 0.0, 0.0)


def pool_of(slots=1, times=TENTH, blocks=100_000):
    limits = Limits(slots, 2048, 1_000_000, blocks, async_scheduling=False)
    return ReplayPool(times, config_of(limits))


def workload_of(*requests):
    """Requests as pairs of arrival and output tokens."""
    made = [Request(n, arrival, 10, output) for n, (arrival, output) in enumerate(requests)]
    return Workload(made, 10_000)


def random_workload(rng, count=120, prefixes=3):
    arrivals = np.cumsum(rng.exponential(rng.choice([0.3, 1.0, 4.0]), count)).tolist()
    segments = [Segment(0, 64, 16) for _ in range(prefixes)]
    made = [
        Request(n, arrival, int(rng.integers(70, 300)), int(rng.integers(1, 60)), path=[one])
        for n, (arrival, one) in enumerate(
            zip(arrivals, rng.choice(np.array(segments, object), count).tolist(), strict=True)
        )
    ]
    return Workload(made, 1000)


def counts(replicas, begins="asked_s"):
    """Times at which the number of servers changes, and how many there are then."""
    changes = {}
    for one in replicas:
        if math.isfinite(getattr(one, begins)):
            changes[getattr(one, begins)] = changes.get(getattr(one, begins), 0) + 1
            changes[one.leaves_s] = changes.get(one.leaves_s, 0) - 1
    times = sorted(changes)
    return list(zip(times, np.cumsum([changes[time] for time in times]).tolist(), strict=True))


def test_kubernetes_rule_by_hand():
    # Of the documentation: 200m where 100m are wanted doubles the replicas, 50m halves them.
    rule = TargetTracking("kv", 0.5)
    assert (rule.wanted(1.0, 3, 3), rule.wanted(0.25, 4, 4)) == (6, 2)
    # 50 x (90 / 75) = 60.
    assert TargetTracking("ttft", 0.75).wanted(0.9, 50, 50) == 60
    # Within a tenth nothing is done.
    assert [rule.wanted(value, 10, 10) for value in (0.46, 0.54, 0.56)] == [10, 10, 12]
    # A value is of the servers that serve; a sum is shared by those that start, too.
    assert rule.wanted(1.0, 6, 3) == 6
    assert TargetTracking("running", 32).wanted(192.0, 6, 3) == 6
    assert TargetTracking("running", 32).wanted(200.0, 6, 3) == 6
    assert TargetTracking("running", 32).wanted(225.0, 6, 3) == 8
    assert TargetTracking("waiting", 2).wanted(0.0, 6, 3) == 0
    assert rule.wanted(math.nan, 5, 4) == 5


def test_a_timetable_by_hand():
    table = Timetable((0.0, 600.0, 1200.0), (2, 5, 1), lead_s=120.0)
    assert [table.wanted(t) for t in (0, 479, 480, 600, 1100, 1199, 1200)] == [2, 2, 5, 5, 5, 5, 1]
    looks = [0.0]
    while looks[-1] < math.inf:
        looks.append(table.next_look_s(looks[-1]))
    assert looks == [0.0, 480.0, 600.0, 1080.0, 1200.0, math.inf]


def test_a_step_in_load_by_hand():
    """Three requests of 100 s for two servers that take one each."""
    scaling = Autoscaling(TargetTracking("requests", 1.0), 1, 3, start_up_s=60.0)
    workload = workload_of((1.0, 1000), (1.0, 1000), (1.0, 1000), (76.0, 500))
    found = replay_scaled(workload, pool_of(), scaling, 2, 600.0, "least_requests")
    first, second, third, last = found.replayed.requests
    # Three requests at the look after 15 s are one and a half for each of two.
    assert [one.asked_s for one in found.replicas] == [0.0, 0.0, 15.0]
    assert [one.serves_s for one in found.replicas] == [0.0, 0.0, 75.0]
    # The third waits for the first all the same, the one that comes later for nobody.
    assert [one.scheduled_s for one in (first, second)] == pytest.approx([1.0, 1.0])
    assert third.scheduled_s == pytest.approx(101.0)
    assert last.scheduled_s == pytest.approx(76.0)
    assert (third.finished_s, last.finished_s) == pytest.approx((201.0, 126.0))
    # Two requests are left at 105 s; five minutes after the last look that wanted three, which was
    # at 90 s, one server goes, and the other at 405 s: one was wanted from 135 s on, and zero,
    # that is least, from 210 s.
    assert counts(found.replicas) == [(0.0, 2), (15.0, 3), (405.0, 2), (435.0, 1), (600.0, 0)]


def test_what_starts_is_let_go_first_and_what_serves_ends_its_requests():
    table = Timetable((0.0, 100.0, 120.0), (1, 3, 1))
    scaling = Autoscaling(table, 1, 3, start_up_s=60.0)
    found = replay_scaled(workload_of((0.0, 10)), pool_of(), scaling, 1, 300.0)
    assert [(one.serves_s, one.ended_s) for one in found.replicas] == [
        (0.0, 300.0),
        (math.inf, 120.0),
        (math.inf, 120.0),
    ]
    scaling = Autoscaling(table, 1, 3)
    workload = workload_of((101.0, 1000), (102.0, 1000), (103.0, 1000), (125.0, 10))
    found = replay_scaled(workload, pool_of(4), scaling, 1, 300.0)
    assert [one.leaves_s for one in found.replicas] == [300.0, 120.0, 120.0]
    # Round robin: each has one that takes 100 s when two of them get no more.
    assert [one.ended_s for one in found.replicas] == pytest.approx([300.0, 202.0, 203.0])
    assert all(one.finished_s is not None for one in found.replayed.requests)
    assert found.replayed.requests[-1].finished_s == pytest.approx(126.0, abs=0.11)


def policies(rng):
    metric = str(rng.choice(["running", "waiting", "requests", "kv", "ttft"]))
    target = {"kv": 0.02, "ttft": 0.4}.get(metric, float(rng.uniform(0.3, 4)))
    tracking = TargetTracking(metric, target, float(rng.choice([1, 5, 15])), 0.1, 20.0)
    starts = tuple(np.cumsum([0, *rng.uniform(1, 40, 5)]).tolist())
    replicas = tuple(rng.integers(1, 7, 6).tolist())
    return (
        tracking if rng.random() < 0.6 else Timetable(starts, replicas, float(rng.choice([0, 9])))
    )


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_whatever_scales_every_request_ends_once_and_bounds_hold(seed):
    def once():
        rng = np.random.default_rng(seed)
        least = int(rng.integers(1, 4))
        start_up_s = float(rng.choice([0.0, 3.0, 30.0]))
        scaling = Autoscaling(policies(rng), least, least + int(rng.integers(0, 4)), start_up_s)
        workload, router = random_workload(rng), str(rng.choice(ROUTERS))
        asked = sum(one.output_tokens for one in workload.requests)
        pool = pool_of(4, LinearStepTimes(0.02, 1e-5, 1e-3), blocks=200)
        found = replay_scaled(workload, pool, scaling, least, 150.0, router, seed)
        return scaling, asked, found

    scaling, asked, found = once()
    requests, replicas = found.replayed.requests, found.replicas
    assert len({one.number for one in requests}) == len(requests) == 120
    assert sum(one.generated for one in requests) == asked
    assert all(
        one.arrival_s <= one.scheduled_s < one.first_token_s <= one.finished_s for one in requests
    )
    # Every time of a server is in order, and it starts for as long as it should.
    for one in replicas:
        assert one.asked_s <= one.leaves_s <= one.ended_s < math.inf
        if one.serves_s < math.inf and one.asked_s > 0:
            assert one.serves_s == pytest.approx(one.asked_s + scaling.start_up_s)
    for begins, least in (("asked_s", scaling.least), ("serves_s", 1)):
        there = [number for time_s, number in counts(replicas, begins) if time_s < 150.0]
        assert least <= min(there) <= max(there) <= scaling.most
    # Once more, to the last byte.
    _, _, again = once()
    assert again.replicas == replicas
    assert again.replayed.to_frame().equals(found.replayed.to_frame())


@pytest.mark.parametrize("router", ROUTERS)
def test_servers_that_stay_are_a_pool_of_fixed_replicas(router):
    times = LinearStepTimes(0.02, 1e-5, 1e-3)
    three = ReplayPool(times, pool_of(4, times).config, 3)
    fixed = replay_pools(random_workload(np.random.default_rng(3)), [three], router=router)
    never = TargetTracking("requests", 2.0)
    workload = random_workload(np.random.default_rng(3))
    scaled = replay_scaled(workload, three, Autoscaling(never, 3, 3), 3, 100.0, router).replayed
    ours, theirs = scaled.to_frame(), fixed.to_frame()
    # Runs of steps are cut where the autoscaler looks, which moves the last digits.
    for name in ("scheduled_s", "first_token_s", "finished_s"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)
    assert (ours["cached_tokens"] == theirs["cached_tokens"]).all()


def test_a_new_server_has_nothing_in_its_cache():
    """A prompt of ten blocks that everybody shares, of which one token is new."""
    shared = Segment(0, 160, 16)
    made = [Request(n, 10.0 * n, 161, 2, path=[shared]) for n in range(8)]
    table = Timetable((0.0, 35.0), (1, 2))
    found = replay_scaled(Workload(made, 200), pool_of(8), Autoscaling(table, 1, 2, 10.0), 1, 100.0)
    # The second server serves from 45 s on; in turn the one at 60 s is its first.
    cached = [one.cached_tokens for one in found.replayed.requests]
    assert cached.count(0) == 2
    assert cached[0] == 0
    assert cached[1:5] == [160] * 4


def test_a_cache_aware_router_forgets_servers_that_went():
    path = (Segment(0, 160, 16),)
    router, servers = router_named("cache_aware"), [Server(1), Server(0)]
    assert router(servers, Request(0, 0.0, 160, 2, path=path)) is servers[1]
    assert router(servers[:1], Request(1, 0.0, 160, 2, path=path)) is servers[0]


def test_servers_that_come_late_cost_goodput():
    """More start-up, later first tokens: a step from one server's load to three servers'."""
    late = []
    for start_up_s in (0.0, 30.0, 60.0, 120.0):
        made = [(n * 1.0, 50) for n in range(60)] + [(60 + n * 0.2, 50) for n in range(900)]
        scaling = Autoscaling(TargetTracking("requests", 8.0), 1, 6, start_up_s)
        pool = pool_of(10, LinearStepTimes(0.05, 0.0, 1e-3))
        found = replay_scaled(workload_of(*made), pool, scaling, 1, 240.0, "least_requests")
        frame = found.replayed.to_frame()
        late.append(float((frame["ttft_s"] > 0.5).mean()))
    assert late == sorted(late)
    assert late[0] < 0.2 < late[-1]


def test_perfect_foresight_serves_as_the_timetable_says():
    def served(last_s):
        table = Timetable((0.0, 50.0, 90.0, last_s), (1, 4, 2, 3), lead_s=30.0)
        workload = random_workload(np.random.default_rng(1))
        scaling = Autoscaling(table, 1, 4, start_up_s=30.0)
        found = replay_scaled(workload, pool_of(4, blocks=300), scaling, 1, 150.0)
        return counts(found.replicas, "serves_s")

    assert served(125.0) == [(0.0, 1), (50.0, 4), (90.0, 2), (125.0, 3), (150.0, 0)]
    # One that would have to be asked for again by then is not let go.
    assert served(115.0) == [(0.0, 1), (50.0, 4), (90.0, 3), (150.0, 0)]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: read_policy("running"), "policy 'running': is no metric and its target"),
        (lambda: read_policy("cpu=0.5"), "policy: 'cpu' is unknown; use one of running"),
        (lambda: read_policy("running=many"), "policy 'running=many': 'many' is not a number"),
        (lambda: read_policy("running=0"), "policy: target: 0 is not positive"),
        (lambda: read_policy("kv=80"), "policy: target: 80 is no share"),
        (lambda: TargetTracking("kv", 0.5, look_s=0), "policy: look_s: 0 s is below 1 s"),
        (lambda: TargetTracking("kv", 0.5, hold_s=-1), "policy: hold_s: -1 is negative"),
        (lambda: read_policy("waiting=auto"), "policy waiting=auto: does not say how full"),
        (lambda: read_policy("cpu=auto"), "policy: 'cpu' is unknown"),
        (lambda: OpenTarget("kv", hold_s=-1), "policy: hold_s: -1 is negative"),
        (lambda: read_policy("schedule=9s"), "timetable: has no number for each time"),
        (lambda: Timetable((0.0, 0.0), (1, 1)), "timetable: has times that do not rise"),
        (lambda: Timetable((0.0,), (0,)), "timetable: 0 is no server"),
        (lambda: Timetable((0.0,), (1,), -1.0), "timetable: lead_s: -1 is negative"),
        (lambda: Autoscaling(Timetable((0.0,), (1,)), 0), "least: 0 is no server"),
        (lambda: Autoscaling(Timetable((0.0,), (1,)), 3, 2), "most: 2 are fewer than 3"),
        (lambda: Autoscaling(Timetable((0.0,), (1,)), 1, 2, -1.0), "start-up: -1 s is no time"),
    ],
)
def test_what_cannot_scale_is_one_line(make, line):
    with pytest.raises(InputError, match=line.replace("(", r"\(")):
        make()


def test_policies_are_read():
    assert read_policy("ttft=500ms") == TargetTracking("ttft", 0.5)
    assert read_policy("schedule=60s", [(0.0, 2), (60.0, 3)]) == Timetable(
        (0.0, 60.0), (2, 3), 60.0
    )
    assert read_policy("schedule", [(0.0, 2)]).lead_s == 0.0
    assert read_policy("kv=auto", look_s=30.0) == OpenTarget("kv", 30.0)
    assert read_policy("kv=auto", hold_s=9.0).with_target(0.5, 7.0).hold_s == 7.0
    assert (read_policy("running = 32").name, read_policy("ttft=1").name) == (
        "running=32",
        "ttft=1s",
    )


# ---- what a day becomes ----

MODEL = "Qwen/Qwen3-8B"
# Steps are long with so few slots, so that a few requests a second take servers.
WHERE = {"gpu": "h100_sxm", "fit": "none", "max_num_seqs": 8}
ASKED = {"slo": ["ttft=1s", "tpot=30ms"], "goodput": 0.9}
RATES = (2.0, 8.0, 8.0, 3.0)


@pytest.fixture(scope="module")
def day():
    windows = [Window(600 + 120.0 * n, 120.0, rate, 500.0, 120.0) for n, rate in enumerate(RATES)]
    return LoadProfile(tuple(windows))


@pytest.fixture(scope="module")
def scaled(day):
    policy = TargetTracking("requests", 6.0, hold_s=60.0)
    times = (0.0, 30.0, 90.0)
    return physim.scale(
        MODEL, day, policy=policy, most=6, start_ups_s=times, prices={"h100": 2.0}, **ASKED, **WHERE
    )


@pytest.mark.slow
def test_a_day_is_replayed_beside_what_its_windows_take(scaled, day):
    fixed, schedule, runs = scaled.fixed, scaled.schedule, scaled.runs
    # All have the same requests.
    for run in (schedule, *runs):
        np.testing.assert_array_equal(run.arrival_s, fixed.arrival_s)
    assert len(fixed.kept) == pytest.approx(120 * sum(RATES), rel=0.1)
    # The schedule serves as windows say; the GPU-hours are those of its servers, and of draining.
    plan = ReplicaSchedule.planned(
        scaled.case, day, scaled.asked, physim.load_fit("none"), 6, Arrivals()
    )
    moments, numbers = schedule.serving()
    at_start = [
        int(numbers[np.searchsorted(moments, 120.0 * n, side="right") - 1]) for n in range(4)
    ]
    assert at_start == plan.replicas.tolist()
    assert plan.gpu_hours() <= schedule.gpu_hours <= plan.gpu_hours() + 0.01
    assert fixed.gpu_hours == pytest.approx(plan.most * 480 / 3600, abs=0.005)
    assert fixed.serving()[1].tolist() == [plan.most]
    assert fixed.goodput >= schedule.goodput > 0.9
    # Servers that take long to start come too late for the step.
    shares = [run.goodput for run in runs]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0]
    assert scaled.lost_per_minute == pytest.approx((shares[0] - shares[1]) / 0.5)
    assert runs[-1].peak_waiting > fixed.peak_waiting
    for run in runs:
        assert 1 <= run.serving()[1].min() <= run.asked()[1].max() <= 6
        assert run.cost == pytest.approx(2.0 * run.gpu_hours)


@pytest.mark.slow
def test_a_day_as_plain_values(scaled):
    found = json.loads(json.dumps(scaled.to_dict()))
    assert [run["policy"] for run in found["runs"][1:3]] == ["schedule, in time", "requests=6"]
    assert found["runs"][2]["asked"][0] == found["runs"][2]["serving"][0] == [0.0, 1]
    assert found["hours"] == pytest.approx(480 / 3600)
    assert scaled.to_frame()["start_up_s"].tolist()[2:] == [0.0, 30.0, 90.0]


@pytest.mark.slow
def test_a_day_is_drawn(scaled, tmp_path):
    load, servers, ttft = plot.draw_scaling(scaled, 30.0)
    assert "requests=6, start-up 30 s" in servers.get_legend().get_texts()[1].get_text()
    assert load.get_ylabel() == "requests/s"
    assert ttft.get_yscale() == "log"
    plot.save([load, servers, ttft], tmp_path / "day.png")
    with pytest.raises(InputError, match="start-up: 31 s is not there; use one of 0, 30, 90"):
        plot.draw_scaling(scaled, 31.0)


def test_servers_and_gpus_over_time():
    # One from the beginning; one is asked for at 10 s, serves at 40 and is let go at 100.
    replicas = [Replica(0.0, 0.0, 120.0, 120.0), Replica(10.0, 40.0, 100.0, 103.0)]
    run = ScalingRun("x", 30.0, replicas, 2, 120.0, np.zeros(1), np.zeros(1), np.ones(1, bool), 0)
    assert run.to_frame().to_numpy().tolist() == [
        [0, 1, 1, 2],
        [10, 2, 1, 4],
        [40, 2, 2, 4],
        [100, 1, 1, 2],
    ]


# ---- targets that are derived ----


@pytest.mark.parametrize(
    ("start_up_s", "hold_s"),
    [
        # Dips of 300 s at 600 s and of 90 s at 1,500 s; what falls at 2,000 s does not rise again.
        (0.0, 15.0),
        (40.0, 40.0),
        (45.0, 90.0),
        (120.0, 120.0),
        (150.0, 300.0),
        (9000.0, 3600.0),
    ],
)
def test_a_server_is_kept_as_long_as_it_takes_to_start(start_up_s, hold_s):
    table = [(0.0, 2), (600.0, 1), (900.0, 3), (1500.0, 2), (1590.0, 3), (2000.0, 1)]
    assert derived_hold_s(table, start_up_s, 15.0) == hold_s


def replays(highest, tried):
    """Replays of a day that keeps to its objectives up to a target."""

    def replayed(policy):
        tried.append(policy.target)
        missed = None if policy.target <= highest else "goodput"
        none = np.zeros(1)
        return ScalingRun(
            policy.name, 60.0, (), 1, 1.0, none, none, np.zeros(1, bool), 0, 0, missed
        )

    return replayed


@pytest.mark.slow
def test_the_highest_target_that_holds_is_found():
    load = {"rate": 1.0, "input_tokens": 500, "output_tokens": 120, "arrival": "poisson"}
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", max_num_seqs=8, **load)
    asked, fit = Requirements.parse(**ASKED), physim.load_fit("none")
    found, tried = {}, []
    for highest in (1e9, 4.0, 0.0):
        tried.clear()
        ask = (OpenTarget("requests", tolerance=0.0), [case], asked, fit, 77.0, 60.0)
        if not highest:
            with pytest.raises(InputError, match="misses goodput over the day at any target"):
                derived_threshold(*ask, replays(highest, tried))
            continue
        found[highest] = derived_threshold(*ask, replays(highest, tried))
        assert len(tried) == found[highest].replays <= 6
    full, part = found.values()
    assert (full.share, full.replays, full.policy.hold_s) == (1.0, 1, 77.0)
    # What a server can take is what `physim.capacity` says.
    most = physim.capacity(case, **ASKED, fit="none")
    assert (full.rate_rps, full.limited_by) == (pytest.approx(most.rate_rps), most.limited_by)
    # By Little's law all that are in the engine are those that come while one is.
    own = physim.predict(case.under(dataclasses.replace(case.load, rate=most.rate_rps)), fit="none")
    outside = sum(own.ttft_parts_s[name] for name in ("front_end", "output"))
    assert full.policy.target == pytest.approx(most.rate_rps * (own.e2e_s - outside), rel=0.02)
    assert part.policy.target <= 4.0 < full.policy.target
    assert 0 < part.share < 1
    # The next share's target is above what holds.
    above = [one for one in tried if one > 4.0]
    assert not above or min(above) > part.policy.target


@pytest.fixture(scope="module")
def derived():
    windows = tuple(Window(60.0 * n, 60.0, rate, 500.0, 120.0) for n, rate in enumerate((2.0, 7.0)))
    asked = {"policy": "requests=auto", "most": 6, "start_ups_s": (30.0,)}
    return physim.scale(MODEL, LoadProfile(windows), **asked, **ASKED, **WHERE)


@pytest.mark.slow
def test_a_day_keeps_to_its_objectives_at_the_derived_target(derived, scaled):
    (run,), threshold = derived.runs, derived.threshold
    assert (run.missed, run.name) == (None, threshold.policy.name)
    assert run.goodput >= 0.9
    assert threshold.policy.hold_s == 30.0
    assert derived.to_dict()["threshold"]["target"] == threshold.policy.target
    assert (scaled.threshold, scaled.to_dict()["threshold"]) == (None, None)
    late = scaled.runs[-1]
    assert (late.missed == "goodput") == (late.goodput < 0.9)


@pytest.mark.slow
def test_statistics_of_the_whole_day_are_asked_too(day):
    asked = {"slo": ["ttft=9s", "e2e_p50=1ms"], "goodput": 0.5}
    with pytest.raises(InputError, match="slo e2e_p50=1ms: is missed at any rate"):
        physim.scale(MODEL, day, policy="running=auto", start_ups_s=(0.0,), **asked, **WHERE)


@pytest.mark.slow
def test_manifests_have_the_target_that_was_replayed(derived, scaled):
    target = f"{derived.threshold.policy.target:g}"
    text = hpa_yaml(derived)
    hpa, keda = (yaml.safe_load(own) for own in (text, keda_yaml(derived)))
    # autoscaling/v2 HorizontalPodAutoscaler
    assert (hpa["apiVersion"], hpa["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    spec = hpa["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "qwen3-8b",
    }
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 6)
    (metric,) = spec["metrics"]
    assert metric["type"] == "External"
    assert metric["external"] == {
        "metric": {"name": "qwen3-8b-requests"},
        "target": {"type": "AverageValue", "averageValue": target},
    }
    # What the replay does: twice as many or four more in 15 s, fewer after 30 s.
    up, down = spec["behavior"]["scaleUp"], spec["behavior"]["scaleDown"]
    assert up["stabilizationWindowSeconds"] == 0
    assert [(one["type"], one["value"], one["periodSeconds"]) for one in up["policies"]] == [
        ("Percent", 100, 15),
        ("Pods", 4, 15),
    ]
    assert down["stabilizationWindowSeconds"] == 30
    assert "tolerance" not in up
    # keda.sh/v1alpha1 ScaledObject
    assert (keda["apiVersion"], keda["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = keda["spec"]
    assert (spec["scaleTargetRef"], spec["pollingInterval"]) == ({"name": "qwen3-8b"}, 15)
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 6)
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"] == down
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    chosen = '{model_name="Qwen/Qwen3-8B"}'
    assert trigger["metadata"]["query"] == (
        f"sum(vllm:num_requests_running{chosen}) + sum(vllm:num_requests_waiting{chosen})"
    )
    assert trigger["metadata"]["threshold"] == target
    said = json.loads(text.partition("\n")[0].removeprefix("# "))
    assert said["threshold"]["target"] == derived.threshold.policy.target
    assert (said["gpu"], said["fit"], said["replayed"]["missed"]) == ("h100_sxm", "none", None)
    given = json.loads(hpa_yaml(scaled).partition("\n")[0].removeprefix("# "))
    assert given["threshold"] == "given"


@pytest.mark.slow
def test_metrics_that_servers_do_not_share_are_values(scaled):
    policy = TargetTracking("ttft", 0.25, tolerance=0.2)
    day = dataclasses.replace(scaled, scaling=Autoscaling(policy, 1, 4))
    (metric,) = (spec := yaml.safe_load(hpa_yaml(day))["spec"])["metrics"]
    assert metric["external"]["target"] == {"type": "Value", "value": "0.25"}
    assert [spec["behavior"][one]["tolerance"] for one in ("scaleUp", "scaleDown")] == ["0.2"] * 2
    (trigger,) = yaml.safe_load(keda_yaml(day))["spec"]["triggers"]
    chosen = '{model_name="Qwen/Qwen3-8B"}[1m]'
    name = "vllm:time_to_first_token_seconds"
    assert trigger["metadata"]["query"] == (
        f"sum(rate({name}_sum{chosen})) / sum(rate({name}_count{chosen}))"
    )
    table = dataclasses.replace(scaled, scaling=Autoscaling(Timetable((0.0,), (1,)), 1, 4))
    with pytest.raises(InputError, match="policy: is a timetable"):
        keda_yaml(table)


@pytest.mark.slow
def test_a_schedule_with_a_lead_is_there_in_time(day, scaled):
    found = physim.scale(
        MODEL, day, policy="schedule=90s", most=6, start_ups_s=(30.0, 90.0, 200.0), **ASKED, **WHERE
    )
    early, in_time, late = found.runs
    assert in_time.goodput == pytest.approx(scaled.schedule.goodput, abs=0.01)
    assert early.goodput >= in_time.goodput > late.goodput


def test_hours_of_a_day(day):
    part = day.between(660.0, 900.0)
    assert [(one.start_s, one.duration_s, one.rate) for one in part.windows] == [
        (660.0, 60.0, 2.0),
        (720.0, 120.0, 8.0),
        (840.0, 60.0, 8.0),
    ]
    assert day.between(0.0, 1e6) == day


def test_requests_of_windows_share_prefixes():
    load = physim.Load(
        200,
        20,
        cached_tokens=96,
        prefixes=2,
        popularity="uniform",
        arrival="poisson",
        stages=(Stage(5.0, 20.0),),
    )
    windows = [(0.0, load), (20.0, load)]
    server = physim.Case.from_options(MODEL, gpu="h100_sxm").server
    drawn = drawn_windows(windows, server, 0)
    assert len({one.path for one in drawn.requests}) == 2
    assert [one.number for one in drawn.requests] == list(range(len(drawn.requests)))
    assert {one.stage for one in drawn.requests if one.arrival_s < 20} == {0}
    again, other = drawn_windows(windows, server, 0), drawn_windows(windows, server, 1)
    times = [[one.arrival_s for one in own.requests] for own in (drawn, again, other)]
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"slo": ["ttft_p99=1s"]}, "slo: asks nothing of each request"),
        ({"policy": "cpu=1"}, "policy: 'cpu' is unknown"),
        ({"policy": "schedule=soon"}, "policy 'schedule=soon': 'soon' is not a number"),
        ({"start_ups_s": ()}, "start-up: has no time"),
        ({"start_ups_s": (-1.0,)}, "start-up: -1 s is no time"),
        ({"least": 9}, "most: 8 are fewer than 9"),
        ({"hours": (3.0, 4.0)}, "load profile: has no request from 10800 to 14400 s"),
        ({"rate": 3.0}, "rate: is given by the load profile already"),
        ({"replicas": 2}, "service: has 2 servers"),
        ({"prefill": "tp=1", "decode": "tp=1"}, "service: has 2 servers in 2 pools"),
        ({"router": "fastest"}, "router"),
        ({"seed": -1}, "seed: -1 is negative"),
        ({"prices": {"h100": -1.0}}, "price of h100_sxm: -1 is not positive"),
    ],
)
def test_what_cannot_be_scaled_is_one_line(day, options, line):
    given = {"policy": "running=6", **ASKED, **WHERE, **options}
    with pytest.raises(InputError, match=re.escape(line)):
        physim.scale(MODEL, day, **given)


def test_more_requests_than_can_be_replayed_are_refused(day):
    long = LoadProfile(tuple(dataclasses.replace(one, rate=1e4) for one in day.windows))
    with pytest.raises(InputError, match=r"about 4,800,000 requests in 0.133 hours, and 200,000"):
        physim.scale(MODEL, long, policy="running=6", **ASKED, **WHERE)


@pytest.fixture
def recorded(tmp_path):
    """Two requests a second for two minutes, then eight; one in six has a shared prefix."""
    rng = np.random.default_rng(0)
    times = np.sort(np.concatenate([rng.uniform(0, 120, 240), rng.uniform(120, 240, 960)]))
    rows = [
        f"{time:.3f},500,120,{'a' if place % 6 == 0 else ''}" for place, time in enumerate(times)
    ]
    path = tmp_path / "day.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,prefix_group", *rows]))
    return path, np.round(times, 3)


@pytest.mark.slow
def test_a_trace_is_replayed_as_it_was_recorded(recorded):
    path, times = recorded
    asked = {"trace": path, "window_s": 60.0, "policy": "requests=6", "start_ups_s": (30.0,)}
    found = physim.scale(MODEL, **asked, hours=(0.01, 0.05), **ASKED, **WHERE)
    # The windows that hours cut begin where these begin.
    own = times[(times >= 36.0) & (times <= 180.0)] - 36.0
    np.testing.assert_allclose(found.runs[0].arrival_s, own)
    assert found.profile.hours == pytest.approx(0.04)
    # One goes on with the load that there is at the end.
    moments, numbers = found.runs[0].asked()
    assert (moments[0], numbers[0]) == (0.0, 1)
    assert numbers[-1] > 1


def test_a_day_is_a_profile_or_a_trace(day, recorded):
    both = {"trace": recorded[0], "profile": day}
    for options, line in (({}, "is missing"), (both, "is given twice")):
        with pytest.raises(InputError, match=f"load: {line}"):
            physim.scale(MODEL, **options, policy="running=6", **ASKED, **WHERE)


@pytest.mark.slow
def test_a_part_of_turns_is_refused(tmp_path):
    path = tmp_path / "turns.jsonl"
    rows = [
        {"timestamp": 900.0 * n, "input_length": 600, "output_length": 20, "session_id": str(n % 3)}
        for n in range(9)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    asked = {"trace": path, "window_s": 4.0, "policy": "kv=0.5", "start_ups_s": (0,)}
    found = physim.scale(MODEL, **asked, **ASKED, **WHERE)
    assert (found.fixed.goodput, len(found.fixed.kept)) == (1.0, 9)
    with pytest.raises(InputError, match="hours: are a part of requests that follow one another"):
        physim.scale(MODEL, **asked, hours=(0.001, 0.002), **ASKED, **WHERE)


@pytest.mark.slow
def test_a_day_is_scaled_in_a_shell(recorded, tmp_path):
    picture = tmp_path / "day.png"
    words = ["scale", MODEL, "--gpu", "h100", "--fit", "none", "--max-num-seqs", "8"]
    words += ["--slo", "ttft=1s", "--slo", "tpot=30ms", "--policy", "requests=6"]
    words += ["--profile", str(recorded[0]), "--window", "120"]
    found = commands.run(*words, "--start-up", "0,60", "--plot", picture, "--price", "h100=2")
    assert (found.returncode, found.stderr) == (0, "")
    assert "schedule, in time" in found.stdout
    assert "A minute of start-up costs" in found.stdout
    assert picture.stat().st_size > 5000
    bad = commands.run(*words, "--hours", "8")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "--hours '8': is not FROM:TO" in bad.stderr
    assert (
        "--start-up 'x': is not numbers by commas" in commands.run(*words, "--start-up", "x").stderr
    )


@pytest.mark.slow
def test_files_for_autoscalers_in_a_shell(recorded, tmp_path):
    hpa, keda, servers = (tmp_path / name for name in ("hpa.yaml", "keda.yaml", "servers.csv"))
    words = ["scale", MODEL, "--gpu", "h100", "--fit", "none", "--max-num-seqs", "8"]
    words += ["--slo", "ttft=1s", "--slo", "tpot=30ms", "--trace", str(recorded[0])]
    words += ["--window", "120", "--start-up", "30", "--hpa", hpa, "--keda", keda]
    found = commands.run(*words, "--servers", servers, "--policy", "running=auto")
    assert (found.returncode, found.stderr) == (0, "")
    assert "req/s that it can take" in found.stdout
    kinds = [yaml.safe_load(path.read_text())["kind"] for path in (hpa, keda)]
    assert kinds == ["HorizontalPodAutoscaler", "ScaledObject"]
    assert servers.read_text().partition("\n")[0] == "start_s,asked,serving,gpus"
    bad = commands.run(*words, "--policy", "schedule=30s")
    assert "--hpa and --keda: are about a target; use --policy requests=auto" in bad.stderr
