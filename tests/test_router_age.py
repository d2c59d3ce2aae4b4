"""Routers that see the loads of servers as they were: by hand, and what must hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import fingerprint
from limits_by_hand import config_of
from typer.testing import CliRunner

import physim
from physim.batching.limits import Limits
from physim.cli import app
from physim.errors import InputError
from physim.replay.cluster import ReplayPool, replay_pools
from physim.replay.past import SeenServer
from physim.replay.request import Request
from physim.replay.scaling import replay_scaled
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload
from physim.service.routers import BY_LOAD, PREFIX_SCORES, ROUTERS
from physim.service.scaling import Autoscaling, Timetable

MODEL = "Qwen/Qwen3-8B"
# Every step takes a tenth of a second.
TENTH = LinearStepTimes(0.1, 0.0, 0.0)
# As those of a small model: a prompt of 1,500 tokens takes 50 ms.
STEPS = LinearStepTimes(5e-3, 50e-6, 30e-6)


class Server:
    """What is seen of a server."""

    def __init__(self):
        self.now, self.requests, self.waiting, self.kv_blocks, self.received = 0.0, 0, 0, 0, 0
        self.config = None


def test_what_is_seen_by_hand():
    server = Server()
    seen = SeenServer(server, 0.05)

    def at(now, requests):
        server.now, server.requests = now, requests
        seen.note()

    at(0.01, 1)
    at(0.04, 2)
    seen.see(0.049)
    assert seen.requests == 0
    # The look at 0.05 sees what was last noted before it, until the one at 0.1.
    at(0.06, 3)
    seen.see(0.07)
    assert seen.requests == 2
    at(0.08, 4)
    seen.see(0.09)
    assert seen.requests == 2
    seen.see(0.1)
    assert seen.requests == 4
    # Nothing new is seen where nothing happened.
    seen.see(7.0)
    assert seen.requests == 4
    server.received = 9
    assert seen.received == 9


def requests_at(*arrivals):
    return Workload([Request(n, one, 10, 20) for n, one in enumerate(arrivals)], 100)


def test_requests_between_two_looks_go_to_one_server():
    """The first is seen at 1 s, and the other server gets all that come before 2 s."""
    arrivals = (0.5, 1.1, 1.2, 1.3, 1.4, 1.5)
    slots = 3

    def last_starts_s(age_s):
        workload = requests_at(*arrivals)
        pool = ReplayPool(TENTH, config_of(Limits(slots, 2048, 1_000, 10_000)), 2)
        found = replay_pools(workload, [pool], router="least_requests", router_age_s=age_s)
        return max(one.scheduled_s for one in found.requests)

    # Three each run at once; with an old look five are at one server, of whom two wait for slots
    # until the first ends its twenty steps.
    assert last_starts_s(0.0) < 1.8
    assert 3.1 < last_starts_s(1.0) < 3.5


def mean_ttft_s(router, age_s):
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / 40, 2000)).tolist()
    lengths = rng.integers(10, 200, 2000).tolist()
    made = [Request(n, arrivals[n], 1500, lengths[n]) for n in range(2000)]
    pool = ReplayPool(STEPS, config_of(Limits(100, 2048, 4096, 100_000)), 4)
    found = replay_pools(Workload(made, 2000), [pool], router=router, router_age_s=age_s)
    return np.mean([one.first_token_s - one.arrival_s for one in found.requests])


@pytest.mark.slow
@pytest.mark.parametrize("router", ["least_requests", PREFIX_SCORES])
def test_an_older_look_makes_routers_by_load_clump(router):
    means = [mean_ttft_s(router, age_s) for age_s in (0.0, 0.05, 0.5)]
    assert means[1] > 1.2 * means[0]
    assert means[2] > 1.5 * means[1]


def test_what_routers_of_each_kind_see():
    def service(**options):
        return physim.Case.from_options(MODEL, gpu="h100_sxm", replicas=2, **options).service

    scraped = {router for router in ROUTERS if service(router=router).router_age_s == 0.05}
    assert scraped == {"least_kv", PREFIX_SCORES}
    assert {service(router=router).router_age_s for router in ROUTERS} == {0.0, 0.05}
    assert service(router=PREFIX_SCORES, router_age_s=0.0).router_age_s == 0.0
    # The fluid says that it sees the present, the replay and others do not.
    load = {"input_tokens": 500, "output_tokens": 10, "rate": 2.0, "gpu": "h100_sxm"}
    load |= {"replicas": 2, "fit": "none", "router": PREFIX_SCORES}
    line = "the router is taken to see loads as they are, which it reads every 50 ms"
    assert line in physim.predict(MODEL, **load).assumptions
    assert line not in physim.predict(MODEL, **load, router_age_s=0.0).assumptions
    found = physim.predict(MODEL, **load, method="replay", requests=20)
    assert line not in found.assumptions


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    router=st.sampled_from(BY_LOAD),
    age_s=st.sampled_from([1e-9, 0.05, 1.0, 1e3]),
    servers=st.integers(1, 4),
)
def test_none_is_lost_whatever_is_seen(seed, router, age_s, servers):
    def run(own_age_s):
        arrivals = [((seed + 1) * n * 7919 % 1000) / 50 for n in range(40)]
        pool = ReplayPool(TENTH, config_of(Limits(5, 2048, 1_000, 10_000)), servers)
        return replay_pools(
            requests_at(*arrivals), [pool], router=router, router_age_s=own_age_s, seed=seed
        )

    found = run(age_s)
    assert all(one.finished_s is not None for one in found.requests)
    assert sum(one.generated for one in found.requests) == 40 * 20
    assert fingerprint(found) == fingerprint(run(age_s))
    if servers == 1:
        assert fingerprint(found) == fingerprint(run(0.0))


def test_servers_that_come_and_go_are_seen_late_too():
    scaling = Autoscaling(Timetable((0.0, 2.0), (1, 3)), 1, 3, 0.0)
    pool = ReplayPool(TENTH, config_of(Limits(2, 2048, 1_000, 10_000)))
    arrivals = [n / 10 for n in range(150)]

    def run(age_s):
        workload = requests_at(*arrivals)
        return replay_scaled(workload, pool, scaling, 1, 15.0, "least_requests", 0, age_s)

    now, late = run(0.0).replayed, run(5.0).replayed
    assert len(now.requests) == len(late.requests) == 150
    assert fingerprint(now) == fingerprint(run(0.0).replayed) != fingerprint(late)


def test_ages_that_cannot_be_used():
    options = {"gpu": "h100_sxm", "replicas": 2}
    for age in (-0.1, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"router_age_s: .* is not a time; use seconds from 0"):
            physim.Case.from_options(MODEL, **options, router="least_kv", router_age_s=age)
    for router in ("round_robin", "random"):
        with pytest.raises(InputError, match=f"a router {router} looks at no loads"):
            physim.Case.from_options(MODEL, **options, router=router, router_age_s=0.05)


@pytest.mark.slow
def test_the_command_line_takes_the_age():
    given_ = "--gpu h100_sxm --fit none --rate 40 --input 2000 --output 20 --requests 200 --json"
    given_ += " --arrival poisson --replicas 4 --router least_requests --method replay"
    results = [
        CliRunner().invoke(app, ["predict", MODEL, *given_.split(), *more])
        for more in ([], ["--router-age", "0"], ["--router-age", "0.5"])
    ]
    assert [one.exit_code for one in results] == [0, 0, 0]
    assert results[0].stdout == results[1].stdout != results[2].stdout
