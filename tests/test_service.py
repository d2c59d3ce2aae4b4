"""What serves: phases of a request, pools, services, and replayed servers that share requests."""

import dataclasses

import numpy as np
import pytest
from limits_by_hand import config_of

import physim
from physim.errors import InputError
from physim.fluid.limits import Limits
from physim.replay.cluster import Cluster, least_loaded
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Request, Workload
from physim.service.phases import DECODE, PREFILL, phases
from physim.service.server import Draft
from physim.service.service import Link, Pool, Service


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
    return physim.Case.of("Qwen/Qwen3-8B", gpu="h100_sxm").server


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
    case = physim.Case.of("Qwen/Qwen3-8B", gpu="h100_sxm")
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
