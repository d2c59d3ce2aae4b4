"""What serves: phases of a request, pools, services, and replayed servers that share requests."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from limits_by_hand import config_of

import physim
from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.network import Stop, steady_network
from physim.fluid.steady import steady_state
from physim.replay.cluster import Cluster, least_loaded
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Request, Workload
from physim.service.phases import DECODE, PREFILL, phases
from physim.service.server import Draft
from physim.service.service import Link, Pool, Service
from physim.step.lowering import lower
from physim.step.model import StepModel


def test_the_phases_of_a_request_by_hand():
    prefill, decode = phases(1000, 200, 50, chunk=400)
    assert (prefill.computed, prefill.context, prefill.steps, prefill.handed_on) == (
        *(800, 200, 2, 1000),
    )
    assert prefill.steps * prefill.yielded == 1
    assert (decode.computed, decode.context, decode.steps, decode.kv_tokens) == (
        *(49, 1000, 49, 1049),
    )
    # Every token comes of one of them.
    assert prefill.steps * prefill.yielded + decode.steps * decode.yielded == 50


@pytest.fixture(scope="module")
def server():
    return physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm").server


def test_a_service_has_a_pool_for_each_phase(server):
    apart = Service(
        (Pool(server, 2, (PREFILL,)), Pool(server, 1, (DECODE,))), (Link(0, 1, 400e9, 1e-5),)
    )
    assert apart.model == server.model
    with pytest.raises(InputError, match="service: has 3 servers in 2 pools, and one is predicted"):
        _ = apart.server
    with pytest.raises(InputError, match="service: has no pool for decode"):
        Service((Pool(server, 1, (PREFILL,)),))
    with pytest.raises(InputError, match="replicas: 0 is not positive"):
        Pool(server, 0)
    with pytest.raises(InputError, match=r"phases: \('rest',\) are no phases"):
        Pool(server, 1, ("rest",))
    with pytest.raises(InputError, match="router: 'mine' is unknown"):
        Service((Pool(server),), router="mine")
    drafted = dataclasses.replace(server, draft=Draft(3))
    with pytest.raises(InputError, match="draft: is not predicted"):
        _ = Service.single(drafted).server


def test_the_keywords_of_one_server_are_a_service_of_one_pool(server):
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm")
    assert case.service == Service.single(server)
    found = physim.predict(case.under(physim.Load(500, 100, rate=1.0)), fit="none")
    assert found.pools == (found.pool,)
    assert found.pool.server == server
    assert found.saturation_rps == found.pool.saturation_rps
    assert list(found.to_frame()["kv_use"]) == [found.pool.kv_use]


def requests_of(count, gap_s):
    return [Request(place, place * gap_s, 500, 40) for place in range(count)]


def stay_s(requests):
    """How long requests stay, mean."""
    return np.mean([one.finished_s - one.arrival_s for one in requests])


def served(servers, requests):
    times = LinearStepTimes(5e-3, 50e-6, 1e-4)
    config = config_of(Limits(8, 2048, 4096, 5000))
    own = [ReplayServer(times, config, None) for _ in range(servers)]
    cluster = Cluster(Workload(requests, longest=600), own, least_loaded)
    cluster.run()
    return cluster


def test_two_servers_share_requests_and_each_ends_once():
    """Requests that come together go to both in turn; one that finds all idle waits for none."""
    requests = requests_of(64, 0.02)
    cluster = served(2, requests)
    assert len(cluster.sent) == 64
    assert all(one.finished_s is not None for one in requests)
    assert all(server.asleep and not server.load for server in cluster.servers)
    steps = [server.steps for server in cluster.servers]
    assert min(steps) > 0.8 * max(steps)
    alone = requests_of(64, 0.02)
    served(1, alone)
    assert stay_s(requests) < stay_s(alone)


def test_servers_that_are_replayed_again_do_the_same():
    first, again = requests_of(40, 0.01), requests_of(40, 0.01)
    served(3, first)
    served(3, again)
    assert [one.finished_s for one in first] == [one.finished_s for one in again]


def stop_of(server, prompt, output, rate, **others):
    demand = Demand.from_load(physim.Load(prompt, output, rate=rate, arrival="poisson"), 16)
    model = StepModel(lower(server), Corrections())
    limits = jax.tree.map(float, Limits.from_server(server))
    return Stop(model, jax.tree.map(jnp.asarray, demand), limits, **others)


def test_one_pool_is_what_its_server_is(server):
    stop = stop_of(server, 1000, 100, 4.0)
    found, alone = steady_network([stop]), steady_state(stop.model, stop.demand, stop.limits)
    assert (found.ttft, found.itl, found.e2e) == (alone.ttft, alone.itl, alone.e2e)
    assert found.throughput == alone.throughput


def test_departures_of_a_pool_are_arrivals_of_the_next(server):
    prefill, decode = stop_of(server, 1000, 1, 4.0, handover_s=0.25), stop_of(server, 1, 100, 4.0)
    found = steady_network([prefill, decode])
    first, second = found.pools
    assert found.throughput == pytest.approx(4.0)
    assert found.e2e == pytest.approx(first.e2e + 0.25 + second.e2e)
    assert (found.ttft, found.itl, found.saturated) == (first.ttft, second.itl, False)
    # Of more than it can do, no more comes to the next; twice the servers do twice as much.
    swamped = steady_network([stop_of(server, 1000, 1, 1e4), stop_of(server, 1, 100, 1e4)])
    assert swamped.saturated
    most = float(swamped.pools[0].throughput)
    assert swamped.throughput == pytest.approx(min(most, float(swamped.pools[1].throughput)))
    two = steady_network([stop_of(server, 1000, 1, 1e4, replicas=2.0)])
    assert two.throughput == pytest.approx(2 * most, rel=1e-3)
