"""What serves: phases of a request, pools, services, and replayed servers that share requests."""

import dataclasses

import numpy as np
import pytest
from limits_by_hand import config_of

import physim
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.pool_load import pool_load
from physim.inputs.request_lengths import RequestLengths
from physim.replay.cluster import Cluster
from physim.replay.request import Request
from physim.replay.routers import router_named
from physim.replay.segment import Segment
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload
from physim.service.phases import DECODE, PHASES, PREFILL, decode_steps, visit
from physim.service.policy import Policy
from physim.service.service import Link, Pool, Service, Transfer


def test_visits_of_a_request_by_hand():
    both = visit(PHASES, 1000, 200, 50)
    assert (both.context, both.computed, both.given, both.kv_tokens) == (200, 800, 50, 1049)
    first = visit((PREFILL,), 1000, 200, 50)
    assert (first.context, first.computed, first.given, first.kv_tokens) == (200, 800, 1, 1000)
    # The next pool has the prompt, computes the token that it came with, and gives the others.
    then = visit((DECODE,), 1000, 200, 50)
    assert (then.context, then.computed, then.given, then.kv_tokens) == (1000, 1, 49, 1049)
    assert decode_steps(both.given) == decode_steps(first.given) + 1 + decode_steps(then.given)
    # Or it computes the last token of the prompt again, and gives all.
    again = visit((DECODE,), 1000, 200, 50, hands_first_token=False)
    assert (again.context, again.computed, again.given, again.kv_tokens) == (999, 1, 50, 1049)


def test_the_load_of_a_pool_by_hand():
    load = physim.Load(1000, 50, rate=4.0, cached_tokens=200, prefixes=3, arrival="poisson")
    assert pool_load(load, PHASES) is load
    assert pool_load(load, (PREFILL,)) == dataclasses.replace(load, output_tokens=1)
    decode = pool_load(load, (DECODE,))
    assert (decode.mean_input, decode.lengths.mean_cached, decode.mean_output) == (1001, 1000, 49)
    assert (decode.rate, decode.arrival) == (4.0, "poisson")
    joint = RequestLengths.from_columns([100, 300], [1, 9], [50, 0])
    requests = pool_load(physim.Load.of_requests(joint, rate=1.0), (DECODE,)).lengths
    # Who has all tokens with the prompt is taken for one that gets another.
    wanted = RequestLengths.from_columns([101, 301], [1, 8], [100, 300], handed=True)
    assert requests == wanted


@pytest.fixture(scope="module")
def server():
    return physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm").server


def test_a_service_has_a_pool_for_each_phase(server):
    pools = Pool(server, 2, (PREFILL,)), Pool(server, 1, (DECODE,))
    apart = Service(pools, Link(400e9, 1e-5))
    assert apart.model == server.model
    assert (apart.pool_of(PREFILL), apart.pool_of(DECODE), apart.gpus) == (*pools, 3)
    assert apart.where == "2 servers of 1 x h100_sxm for prefill, 1 x h100_sxm for decode"
    with pytest.raises(InputError, match="service: has 3 servers in 2 pools, where one is asked"):
        _ = apart.server
    with pytest.raises(InputError, match="service: has pools and no link between them; add one"):
        Service(pools)
    with pytest.raises(InputError, match="service: has no pool for decode"):
        Service((Pool(server, 1, (PREFILL,)),))
    with pytest.raises(InputError, match="replicas: 0 is not positive"):
        Pool(server, 0)
    with pytest.raises(InputError, match=r"phases: \('rest',\) are no phases"):
        Pool(server, 1, ("rest",))
    with pytest.raises(InputError, match="router: 'mine' is unknown"):
        Service((Pool(server),), router="mine")


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
    routers = [router_named("least_requests")]
    cluster = Cluster(Workload(requests, longest=600), [own], routers=routers)
    cluster.run()
    return cluster


def test_two_servers_share_requests_and_each_ends_once():
    """Requests that come together go to both in turn; one that finds all idle waits for none."""
    requests = requests_of(64, 0.02)
    cluster = served(2, requests)
    assert len(cluster.sent) == 64
    assert all(one.finished_s is not None for one in requests)
    assert all(server.asleep and not server.requests for server in cluster.servers)
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


TIMES = LinearStepTimes(5e-3, 50e-6, 1e-4)


def pools_of(requests, servers=(1, 1), transfer=None, blocks=5000, hands_first_token=True):
    """Requests whose prompts are computed in one pool and that decode in another."""
    limits = Limits(8, 2048, 4096, blocks)
    policy = Policy(hands_first_token=hands_first_token)
    pools = []
    for phase, count in zip((PREFILL, DECODE), servers, strict=True):
        config = dataclasses.replace(config_of(limits, phases=(phase,)), policy=policy)
        pools.append([ReplayServer(TIMES, config, None) for _ in range(count)])
    cluster = Cluster(Workload(requests, longest=600), pools, [transfer or Transfer(0.0)])
    cluster.run()
    return cluster


def test_a_request_that_is_handed_on_by_hand():
    """A prompt's step, its transfer, then a step for each token but the first."""
    (request,) = requests_of(1, 0.0)
    cluster = pools_of([request], transfer=Transfer(1e-5, 2e-3))
    prefill_s = 5e-3 + 500 * 50e-6
    moved_s = 500 * 1e-5 + 2e-3
    # Its client has the token that came with it when the other pool has it and room for it.
    assert request.first_token_s == pytest.approx(prefill_s + moved_s)
    # The first step in the other pool computes the token that it came with, as all that follow do.
    decode_s = 39 * (5e-3 + 1e-4)
    assert request.finished_s == pytest.approx(prefill_s + moved_s + decode_s)
    assert [server.steps for server in cluster.servers] == [1, 39]


def test_a_request_whose_last_prompt_token_is_computed_again_by_hand():
    """The token that the prompt gave is dropped: there is one more step in the other pool."""
    (request,) = requests_of(1, 0.0)
    pools_of([request], transfer=Transfer(1e-5, 2e-3), hands_first_token=False)
    reaches_s = 5e-3 + 500 * 50e-6 + 500 * 1e-5 + 2e-3
    assert request.first_token_s == pytest.approx(reaches_s + 5e-3 + 1e-4)
    assert request.finished_s == pytest.approx(request.first_token_s + 39 * (5e-3 + 1e-4))
    assert request.generated == 40


def test_layers_that_are_sent_as_they_are_computed_by_hand():
    """Of ten layers the last is sent after the prompt, or what takes longer than computing it."""
    by_layer = Transfer(1e-5, 0.0, while_computed=0.9)
    assert by_layer.exposed_s(1000, 1.0) == pytest.approx(0.1e-2)
    assert by_layer.exposed_s(1000, 2e-3) == pytest.approx(0.8e-2)
    assert Transfer(1e-5).exposed_s(1000, 1.0) == pytest.approx(1e-2)


def test_a_request_that_is_handed_on_attends_as_it_does_in_all_steps():
    """Latent keys and values are not expanded for its first token, as those before prompts are."""
    options = {"gpu": "h200_sxm", "prefill": "tp=1", "decode": "tp=1", "max_model_len": 40_000}
    load = {"input_tokens": 30_000, "rate": 0.1, "requests": 20}
    cases = [
        physim.Case.from_options(
            "deepseek-ai/DeepSeek-V2-Lite", **options, **load, output_tokens=tokens
        )
        for tokens in (2, 50)
    ]
    first, later = physim.predict_cases(cases, Corrections(), method="replay")
    assert first.itl_s == pytest.approx(later.itl_s, rel=0.01)


def test_a_request_of_one_token_is_handed_to_nobody():
    request = Request(0, 0.0, 500, 1)
    cluster = pools_of([request])
    assert request.finished_s == request.first_token_s
    assert [server.steps for server in cluster.servers] == [1, 0]


def test_a_transfer_carries_one_request_after_the_other():
    """Three prompts end with one step; each waits for those before it."""
    requests = requests_of(3, 0.0)
    slow = Transfer(1e-2)
    pools_of(requests, transfer=slow)
    ended = [one.finished_s for one in requests]
    assert np.diff(ended) == pytest.approx([5.0, 5.0], rel=1e-3)


def test_blocks_stay_with_the_source_until_they_are_handed_on():
    """Where the cache holds one prompt, the next starts when the first is gone."""
    requests = requests_of(2, 0.0)
    pools_of(requests, transfer=Transfer(1e-2), blocks=40)
    first, second = requests
    # That has just left when its client has its first token.
    assert second.scheduled_s == pytest.approx(first.first_token_s)


def test_all_of_many_requests_are_handed_on_once():
    requests = requests_of(200, 0.012)
    cluster = pools_of(requests, servers=(2, 3), transfer=Transfer(1e-6, 1e-4))
    assert all(one.finished_s is not None and one.generated == 40 for one in requests)
    for server in cluster.servers:
        assert server.asleep
        for rank in server._ranks:
            rank.release(np.inf)
            assert rank.cache.free == 5000


def test_servers_do_not_find_what_others_have_cached():
    """Each computes a prefix that all requests share once, and finds it from then on."""
    shared = Segment(0, 160, 16)
    requests = [Request(n, 0.5 * n, 200, 2, path=(shared,)) for n in range(8)]
    cluster = served(1, requests)
    assert [one.cached_tokens for one in requests] == [0, *[160] * 7]
    requests = [Request(n, 0.5 * (n // 2), 200, 2, path=(shared,)) for n in range(8)]
    shared.present = 0
    cluster = served(2, requests)
    assert [one.cached_tokens for one in requests] == [0, 0, *[160] * 6]
    assert min(server.steps for server in cluster.servers) > 0


def test_a_server_knows_of_requests_whose_client_waited_for_another():
    """While one runs a long answer alone, clients of another send it theirs: it takes them on."""
    requests = [Request(0, 0.0, 100, 1000), Request(1, 0.0, 100, 2)]
    more = [Request(n, 0.0, 100, 2) for n in range(2, 6)]

    def follow(request, now_s):
        if request.number == 0 or not more:
            return None
        following = more.pop(0)
        following.arrival_s = now_s
        return following

    own = [ReplayServer(TIMES, config_of(Limits(8, 2048, 4096, 5000)), None) for _ in range(2)]

    def router(servers, request):
        # All that follow go to the server of the long answer.
        return servers[request.number == 1]

    cluster = Cluster(Workload(requests, 2000, follow), [own], routers=[router])
    cluster.run()
    waits = [one.scheduled_s - one.arrival_s for one in cluster.sent]
    assert max(waits) < 2 * (5e-3 + 100 * 50e-6 + 1e-4)
