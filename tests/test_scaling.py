"""Servers that come and go with the load: rules by hand, and what must hold in any replay."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_by_hand import config_of

from physim.batching.limits import Limits
from physim.errors import InputError
from physim.replay.cluster import ReplayPool, replay_pools
from physim.replay.routers import router_named
from physim.replay.scaling import replay_scaled
from physim.replay.segment import Segment
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Request, Workload
from physim.service.routers import ROUTERS
from physim.service.scaling import Autoscaling, TargetTracking, Timetable, read_policy

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
    from test_fleets import Server

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
        (lambda: TargetTracking("kv", 0.5, look_s=0), "policy: look_s: 0 is not positive"),
        (lambda: TargetTracking("kv", 0.5, hold_s=-1), "policy: hold_s: -1 is negative"),
        (lambda: Timetable((), ()), "timetable: has no number for each time"),
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
    assert (read_policy("running = 32").name, read_policy("ttft=1").name) == (
        "running=32",
        "ttft=1s",
    )
