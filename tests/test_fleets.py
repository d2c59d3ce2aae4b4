"""Fleets: replicas behind a router, and prefill and decode apart."""

import dataclasses
import json
import math

import pytest
from invariants import check_replay
from typer.testing import CliRunner

import physim
from physim.batching.demand import Demand
from physim.cli import app
from physim.errors import InputError
from physim.inputs.fleet import pool_options
from physim.inputs.pool_load import pool_load, shared_out
from physim.plot import draw_pools
from physim.prediction.commands import serve_commands
from physim.prediction.replayed import replay_load
from physim.replay.cluster import Cluster
from physim.replay.kv_cache import KVCache
from physim.replay.request import Request
from physim.replay.routers import router_named
from physim.replay.scheduler import Scheduler
from physim.replay.segment import Segment

MODEL = "Qwen/Qwen3-8B"
LOAD = {"input_tokens": 2000, "output_tokens": 150, "arrival": "poisson"}
APART = {"prefill": "replicas=2", "decode": {"tp": 2, "replicas": 1}}


def predicted(**options):
    return physim.predict(MODEL, gpu="h100_sxm", fit="none", **options)


def test_what_is_shared_out_by_hand():
    load = physim.Load(1000, 50, rate=8.0, arrival="poisson", cached_tokens=160, prefixes=6)
    in_turn = shared_out(load, 4, "round_robin")
    assert (in_turn.rate, in_turn.arrival, in_turn.burstiness) == (2.0, "gamma", 4.0)
    # Of six in turn, each of four servers sees three: every second one.
    assert in_turn.prefixes == 3
    by_chance = shared_out(load, 4, "random")
    assert (by_chance.rate, by_chance.arrival, by_chance.prefixes) == (2.0, "poisson", 6)
    assert shared_out(load, 3, "cache_aware").prefixes == 2
    # Even arrivals that each come with a chance of a quarter vary by three quarters.
    even = shared_out(dataclasses.replace(load, arrival="constant"), 4, "random")
    assert even.arrival_cv2 == pytest.approx(0.75)
    assert shared_out(dataclasses.replace(load, arrival="constant"), 4, "round_robin").rate == 2.0
    clients = physim.Load(1000, 50, concurrency=10, requests=100)
    assert shared_out(clients, 4, "random").concurrency == 2.5
    assert shared_out(clients, 20, "random").concurrency == 1.0
    assert shared_out(load, 1, "random") is load


def test_a_router_that_levels_out_servers_by_hand():
    load = physim.Load(1000, 50, rate=8.0, arrival="poisson")
    levelled = shared_out(load, 4, "least_requests")
    assert dataclasses.asdict(levelled) == dataclasses.asdict(shared_out(load, 4, "round_robin"))
    demand = Demand.from_load(levelled, 16)
    # Of four servers each gets every fourth; in long steps, of which many end with requests that
    # leave it, as by chance. At half a request a step 1 - 1/e of the way.
    assert demand.levelled_out(0.0).burst_cv2 == pytest.approx(0.25)
    assert demand.levelled_out(0.5).burst_cv2 == pytest.approx(0.25 + 0.75 * (1 - math.exp(-1)))
    assert demand.levelled_out(100.0).burst_cv2 == pytest.approx(1.0)
    assert demand.levelled_out(0.5).arrival_cv2 == 0.25
    in_turn = Demand.from_load(shared_out(load, 4, "round_robin"), 16)
    assert in_turn.levelled_out(100.0).burst_cv2 == 0.25
    # Bursts are no less for it.
    bursts = dataclasses.replace(load, arrival="gamma", burstiness=0.1)
    demand = Demand.from_load(shared_out(bursts, 4, "least_requests"), 16)
    assert demand.levelled_out(100.0).burst_cv2 == pytest.approx(2.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "engine", "lengths", "rate"),
    [
        # As though in turn TTFT was 13% too short.
        ("Qwen/Qwen3-8B", "vllm", (1500, 150), 80.0),
        # As though in turn ITL was 19% too long: two prompts of 400 tokens leave CUDA graphs.
        ("Qwen/Qwen3-30B-A3B", "trtllm", (400, 300), 120.0),
    ],
)
def test_the_least_loaded_of_six_servers_gets_the_next_request(model, engine, lengths, rate):
    prompt, output = (physim.Lengths.gamma(mean, 0.3 * mean) for mean in lengths)
    fluid, replay = (
        physim.predict(
            model,
            gpu="h100_sxm",
            tp=1 if model == MODEL else 2,
            engine=engine,
            replicas=6,
            router="least_requests",
            rate=rate,
            arrival="poisson",
            input_tokens=prompt,
            output_tokens=output,
            fit="none",
            method=method,
        )
        for method in ("fluid", "replay")
    )
    assert fluid.ttft_s == pytest.approx(replay.ttft_s, rel=0.06)
    assert fluid.itl_s == pytest.approx(replay.itl_s, rel=0.08)


class Server:
    """What a router sees of a server."""

    def __init__(self, requests=0, waiting=0, kv_blocks=0, found=0):
        self.requests, self.waiting, self.kv_blocks, self.received = requests, waiting, kv_blocks, 0
        self.config = type(
            "Config", (), {"kv_blocks": 1000, "kv": type("KV", (), {"block_size": 16})}
        )
        self._found = found

    def found(self, path):
        return self._found if path else 0


def picks(name, servers, requests):
    router = router_named(name)
    chosen = []
    for request in requests:
        server = router(servers, request)
        server.received += 1
        chosen.append(servers.index(server))
    return chosen


def test_routers_by_hand():
    some = [Request(n, 0.0, 320, 2) for n in range(4)]
    assert picks("round_robin", [Server(), Server(), Server()], some) == [0, 1, 2, 0]
    assert picks("least_requests", [Server(5), Server(2), Server(2)], some) == [1, 2, 1, 2]
    assert picks("least_kv", [Server(0, 0, 9), Server(9, 9, 2)], some) == [1] * 4
    drawn = picks("random", [Server(), Server()], [Request(n, 0.0, 9, 2) for n in range(400)])
    assert 160 < sum(drawn) < 240
    # A prefix of all blocks has 3, as much as an empty queue and half of the cache free.
    path = (Segment(0, 320, 16),)
    asked = [Request(0, 0.0, 320, 2, path=path)]
    assert picks("prefix_scores", [Server(0, 4, 600, found=20), Server()], asked) == [1]
    assert picks("prefix_scores", [Server(0, 0, 500, found=20), Server()], asked) == [0]


def test_a_cache_aware_router_keeps_prefixes_together_until_that_unbalances():
    path = (Segment(0, 160, 16),)
    alike = [Request(n, 0.0, 320, 2, path=path) for n in range(3)]
    servers = [Server(), Server()]
    assert picks("cache_aware", servers, alike) == [0, 0, 0]
    router = router_named("cache_aware")
    first = router(servers, alike[0])
    first.requests = 64
    assert router(servers, alike[1]) is first
    # More than 64 requests and half as many more.
    first.requests = 65
    assert router(servers, alike[2]) is not first
    # A tenth of a prompt is too little to go by.
    servers = [Server(1), Server(0)]
    router = router_named("cache_aware")
    short = (Segment(0, 32, 16),)
    assert router(servers, Request(0, 0.0, 320, 2, path=short)) is servers[1]
    servers[1].requests = 2
    assert router(servers, Request(1, 0.0, 320, 2, path=short)) is servers[0]


def test_one_replica_is_the_server_itself():
    load = LOAD | {"rate": 4.0}
    one, alone = (predicted(**load, **fleet).to_dict() for fleet in ({"replicas": 1}, {}))
    assert one == alone
    routed = predicted(**load, replicas=1, router="random").to_dict()
    said = ["router random changes nothing: there is one server to choose"]
    assert routed == alone | {"assumptions": said}


def test_replicas_have_their_share():
    four = predicted(**LOAD, rate=16.0, replicas=4, router="random")
    one = predicted(**LOAD, rate=4.0)
    assert four.ttft_s == pytest.approx(one.ttft_s, rel=1e-5)
    assert four.requests_per_s == pytest.approx(16.0)
    assert four.saturation_rps == pytest.approx(4 * one.saturation_rps)
    assert (four.pool.replicas, four.gpus) == (4, "4 servers of 1 x h100_sxm")
    # In turn they come more evenly.
    assert predicted(**LOAD, rate=16.0, replicas=4).e2e_s < four.e2e_s


def differences(**options):
    """How much more the fluid has than a replay, by quantity and statistic, as a share."""
    check = physim.check(MODEL, gpu="h100_sxm", fit="none", **options)
    return {(row.quantity, row.statistic): (row.difference_pct or 0.0) / 100 for row in check.rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("router", "bound"),
    [("round_robin", 0.11), ("random", 0.04), ("least_requests", 0.07), ("prefix_scores", 0.04)],
)
def test_a_fleet_in_the_fluid_is_that_of_the_replay(router, bound):
    load = LOAD | {"output_tokens": physim.Lengths.exponential(150), "rate": 24.0}
    age = {"router_age_s": 0.0} if router == "prefix_scores" else {}
    found = differences(**load, replicas=3, router=router, **age)
    assert abs(found["ttft", "mean"]) < bound
    assert abs(found["itl", "mean"]) < 0.035
    # Of drawn exponential lengths the mean is a percent and a half below what was asked for.
    assert abs(found["e2e", "mean"]) < 0.045


@pytest.mark.slow
def test_a_random_balancer_clumps():
    """Chance makes first tokens wait that come evenly, more than one server's at the mean rate."""
    options = {"input_tokens": 4000, "output_tokens": 50, "arrival": "constant"}
    two = options | {"replicas": 2}
    most = predicted(**two, rate=1.0).saturation_rps
    for method in ("fluid", "replay"):
        in_turn, by_chance = (
            predicted(**two, rate=0.7 * most, router=router, method=method).ttft_s
            for router in ("round_robin", "random")
        )
        one = predicted(**options, rate=0.35 * most, method=method).ttft_s
        assert in_turn == pytest.approx(one, rel=0.05)
        assert by_chance > 1.15 * one


@pytest.mark.parametrize("rate", [8.0, pytest.param(24.0, marks=pytest.mark.slow)])
def test_pools_apart_in_the_fluid_are_those_of_the_replay(rate):
    found = differences(**LOAD, **APART, rate=rate)
    assert abs(found["ttft", "mean"]) < 0.04
    assert abs(found["ttft", "p90"]) < 0.1
    assert abs(found["itl", "mean"]) < 0.02
    assert abs(found["e2e", "mean"]) < 0.015


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_pools_apart_on_ranks_in_the_fluid_are_those_of_the_replay(engine):
    options = {"gpu": "h100_sxm", "engine": engine, "prefill": "dp=4,ep=4", "decode": "dp=4,ep=4"}
    load = {"input_tokens": 1500, "output_tokens": 60, "arrival": "poisson"}
    most = physim.predict("Qwen/Qwen3-30B-A3B", **options, **load, rate=1.0).saturation_rps
    check = physim.check("Qwen/Qwen3-30B-A3B", **options, **load, rate=0.6 * most, fit="none")
    found = {(row.quantity, row.statistic): row.difference_pct for row in check.rows}
    assert abs(found["ttft", "mean"]) < 8.0
    assert abs(found["ttft", "p99"]) < 15.0
    assert abs(found["itl", "mean"]) < 2.0
    assert abs(found["e2e", "mean"]) < 3.0


def test_what_first_tokens_of_pools_apart_are_spent_on():
    found = predicted(**LOAD, **APART, rate=8.0, transfer_latency_s=0.1)
    assert math.fsum(found.ttft_parts_s.values()) == pytest.approx(found.ttft_s)
    assert 0.1 < found.ttft_parts_s["transfer"] < 0.12
    assert [pool.phases for pool in found.pools] == [("prefill",), ("decode",)]


@pytest.mark.slow
@pytest.mark.parametrize("clients", [16, 64, 256])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_clients_of_pools_apart(clients, engine):
    """Where decode has few slots, they wait for these."""
    check_clients(APART, clients, max_num_seqs=48, engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_clients_who_wait_for_kv_blocks(engine):
    """Engines that preempt nothing: SGLang's decode has room before prompts are computed."""
    check_clients({"prefill": "replicas=2", "decode": "tp=1,kv_blocks=3000"}, 64, engine=engine)


def check_clients(pools, clients, **options):
    """Asserts that clients of pools are those of the replay."""
    lengths = {
        "input_tokens": physim.Lengths.normal(1000, 100),
        "output_tokens": physim.Lengths.normal(400, 40),
    }
    found = differences(**lengths, concurrency=clients, requests=10 * clients, **pools, **options)
    assert abs(found["itl", "mean"]) < 0.03
    assert abs(found["e2e", "mean"]) < 0.05
    assert abs(found["requests_per_s", "mean"]) < 0.05


def test_apart_what_is_asked_for_by_hand():
    assert pool_options("decode", "tp=8, dp=8,replicas=2,gpu=h200_sxm,expert-load=0") == {
        "tp": 8,
        "dp": 8,
        "replicas": 2,
        "gpu": "h200_sxm",
        "expert_load": 0.0,
    }
    case = physim.Case.from_options(
        MODEL, gpu="h100_sxm", max_num_seqs=64, prefill="tp=2", decode="max_num_seqs=8,replicas=3"
    )
    first, second = case.service.pools
    assert (first.server.parallelism.tp, first.server.sizes.max_num_seqs) == (2, 64)
    assert (second.replicas, second.server.sizes.max_num_seqs, case.service.gpus) == (3, 8, 5)
    # 36 layers of 8 KV heads of 128 in 16 bit, keys and values: half of them on each of two GPUs.
    token = 2 * 36 * 8 * 128 * 2
    assert case.service.link.token_s(first.server, first.server) == pytest.approx(
        token / 2 / case.service.link.bandwidth
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill": "tp=1"}, "decode: is not given, and prefill is; give both, or neither"),
        ({"prefill": "tp", "decode": ""}, "prefill: 'tp' is not an option and its value"),
        ({"prefill": "tps=1", "decode": ""}, "prefill: option 'tps': is unknown; did you mean tp"),
        ({"prefill": "tp=x", "decode": ""}, "prefill: tp: 'x' is not a number; correct it"),
        ({"prefill": "replicas=0", "decode": ""}, "prefill: replicas: 0 is not a positive integer"),
        ({"prefill": "tp=3", "decode": ""}, "prefill: tp"),
        ({**APART, "replicas": 2}, "replicas: are of servers that do both"),
        ({**APART, "router": "mine"}, "router: 'mine' is unknown; use one of round_robin"),
        ({**APART, "gpu": "l40s"}, "transfer_bandwidth: is not given, and nothing is known"),
        ({**APART, "transfer_bandwidth": 0.0}, "transfer_bandwidth: 0.0 is not positive"),
        ({"transfer_latency_s": 1.0}, "transfer_latency_s: is of servers apart"),
        ({"replicas": 0}, "replicas: 0 is not positive"),
        ({"replicas": 2.5}, "replicas: 2.5 is not a whole number"),
        (
            {**APART, "rate": None, "stages": [(1, 9)]},
            "load: that ends or changes is only replayed",
        ),
    ],
)
def test_what_cannot_be_asked_for(options, message):
    with pytest.raises(InputError) as error:
        physim.predict(MODEL, fit="none", **{"gpu": "h100_sxm", "rate": 2.0} | LOAD | options)
    assert str(error.value).startswith(message)


def test_what_only_one_server_is_asked_about():
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", replicas=2, rate=2.0, **LOAD)
    with pytest.raises(InputError, match="service: has 2 servers, where one is asked"):
        physim.explain(case)


def test_more_than_pools_can_do_is_said():
    found = predicted(**LOAD | APART, rate=1e3)
    assert (found.saturated, found.ttft_s, found.e2e_s) == (True, None, None)
    assert found.requests_per_s == pytest.approx(found.saturation_rps, rel=1e-3)


TALK = {"input_tokens": 700, "cached_tokens": 512, "output_tokens": 150, "turns": 5, "think_s": 5.0}


def test_turns_of_pools_apart_by_hand():
    """Of 40 common tokens and 60 new ones a turn: what each pool has of the second turn."""
    load = physim.Load(100, 11, rate=2.0, arrival="poisson", cached_tokens=40, turns=2)
    first, second = (pool_load(load, [phase]) for phase in ("prefill", "decode"))
    prompts, found, answers = first.lengths.arrays
    assert sorted(zip(prompts, found, answers, strict=True)) == [(100, 40, 1), (171, 100, 1)]
    # The token of the prompt comes with it, and is the first that is computed.
    contexts, held, given = second.lengths.arrays
    assert sorted(zip(contexts, held, given, strict=True)) == [(101, 100, 10), (172, 171, 10)]
    assert not any(one.conversing for one in (first, second))
    assert (first.rate, first.arrival) == (2.0, "poisson")


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        {"rate": 8.0, "arrival": "poisson"},
        {"concurrency": 60},
    ],
)
def test_conversations_in_pools_apart_are_those_of_the_replay(load):
    found = differences(**TALK, **load, prefill="tp=1", decode="tp=1")
    assert abs(found["ttft", "mean"]) < 0.02
    assert abs(found["itl", "mean"]) < 0.01
    assert abs(found["e2e", "mean"]) < 0.01


def test_what_is_taken_of_turns_is_said():
    pools = {"prefill": "replicas=2", "decode": "tp=2", "rate": 8.0}
    stays = "turns find the prompts before where these were computed, without answers"
    kept = predicted(**TALK, **pools, router="cache_aware").assumptions
    assert stays in kept
    assert "evicted" not in " ".join(kept)
    lines = predicted(**TALK, **pools, router="random").assumptions
    assert stays in lines
    assert "a router random sends turns to any server" in " ".join(lines)


def test_a_slow_link_saturates_before_the_pools():
    """A prompt's 2,000 tokens of 147,456 bytes take 0.59 s at 0.5 GB/s: 1.7 a second."""
    slow = LOAD | {"prefill": "tp=1", "decode": "tp=1", "transfer_bandwidth": 0.5e9}
    most = 0.5e9 / (2000 * 147_456)
    found = predicted(**slow, rate=4.0)
    assert found.saturated
    assert found.saturation_rps == found.link_rps == pytest.approx(most, rel=1e-3)
    assert found.requests_per_s == pytest.approx(most, rel=1e-3)
    assert found.describe_pools().endswith("the link is what saturates first")
    assert found.to_dict()["link_rps"] == found.link_rps
    light = predicted(**slow, rate=1.0)
    assert light.requests_per_s / light.saturation_rps == pytest.approx(1.0 / most, rel=1e-3)
    assert "link_rps" not in predicted(**LOAD, rate=1.0).to_dict()
    with pytest.raises(InputError, match="above the saturation throughput of 1"):
        physim.explain_service(MODEL, gpu="h100_sxm", fit="none", **slow, rate=4.0)


def test_many_fleets_are_predicted_at_once():
    some = [LOAD | {"rate": 4.0}, LOAD | APART | {"rate": 4.0}, LOAD | {"rate": 4.0, "replicas": 2}]
    cases = [physim.Case.from_options(MODEL, gpu="h100_sxm", **one) for one in some]
    together = physim.predict_cases(cases, physim.Corrections())
    for one, own in zip(together, some, strict=True):
        assert one.ttft_s == pytest.approx(predicted(**own).ttft_s, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 8, 16])
def test_what_holds_of_every_replay(start):
    """Drafts, pools apart, routers, tiers, prefixes, conversations and loads that change."""
    for seed in range(start, start + 8):
        check_replay(seed)


def takes_too_few(kv_cache, blocks):
    TAKE(kv_cache, blocks)
    kv_cache.free += blocks > 3


def gives_one_too_many(scheduler, request, batch, now_s, output_s):
    request.generated += request.output_tokens > 9
    return BEGIN(scheduler, request, batch, now_s, output_s)


def sends_at_once(cluster, request, place, sent_s):
    COME(cluster, request, place, request.arrival_s if place else sent_s)


TAKE, BEGIN, COME = KVCache.take, Scheduler._begin_decode, Cluster._come


@pytest.mark.parametrize(
    ("where", "name", "broken", "message"),
    [
        (KVCache, "take", takes_too_few, "KV blocks out of bounds"),
        (Scheduler, "_begin_decode", gives_one_too_many, "tokens out are lost on the way"),
        (Cluster, "_come", sends_at_once, "a token before its prompt is there"),
    ],
)
def test_what_does_not_hold_is_noticed(monkeypatch, where, name, broken, message):
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError, match=message):
        check_replay(1)


def test_servers_that_compute_prompts_keep_no_room_for_answers():
    """A prompt of 100 tokens needs 7 blocks, whatever its answer; all that a server has is 20."""
    load = {"input_tokens": 100, "output_tokens": 1000, "concurrency": 2, "requests": 8}
    pools = {"prefill": "kv_blocks=20", "decode": "kv_blocks=400"}
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", engine="trtllm", **load, **pools)
    found = replay_load(case, physim.Corrections(), 0)
    assert found.counts()["completed"] == 8
    # Of two that come together the second does not wait until the first has left.
    assert found.requests[1].scheduled_s == found.requests[0].scheduled_s


def test_predict_prints_pools_apart():
    words = ["predict", MODEL, "--gpu", "h100_sxm", "--rate", "8", "--input", "2000"]
    words += ["--output", "150", "--prefill", "replicas=2", "--decode", "tp=2"]
    text = CliRunner().invoke(app, [*words, "--transfer-latency", "0.05"]).stdout
    assert "2 servers of 1 x h100_sxm for prefill, 2 x h100_sxm for decode" in text
    assert "on the way to the servers that generate" in text
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [pool["phases"] for pool in found["pools"]] == [["prefill"], ["decode"]]
    assert found["pools"][0]["replicas"] == 2


@pytest.mark.slow
def test_recommend_says_whether_apart_beats_together():
    options = {"gpus": ["h100_sxm"], "rate": 3.0, "input_tokens": 4000, "output_tokens": 200}
    found = physim.recommend(
        "Qwen/Qwen3-8B", slo=["ttft_p90=2s", "itl_p99=30ms"], max_gpus=3, apart=True, **options
    )
    split = found.split
    assert split.gpus == found.to_dict()["split"]["gpus"] <= 3
    assert split.prediction.whole.latencies["itl"]["p99"] < 0.03
    assert split.replayed.method == "replay"
    bounds = ["ttft_p90=2s", "itl_p99=8ms"]
    with pytest.raises(
        InputError, match=r"missed by all .* serve them apart: 1 x \(tp 1\) prefill"
    ):
        physim.recommend("Qwen/Qwen3-8B", slo=bounds, max_gpus=3, apart=True, **options)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "vllm",
            '--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\'',
        ),
        ("sglang", "--disaggregation-mode"),
        ("trtllm", "cache_transceiver_config: {backend: DEFAULT}"),
    ],
)
def test_commands_start_a_server_of_each_pool(engine, words):
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", engine=engine, **APART)
    commands = serve_commands(case)
    assert list(commands) == ["prefill_command", "decode_command"]
    assert all(words in command for command in commands.values())
    replicas = physim.Case.from_options(MODEL, gpu="h100_sxm", engine=engine, replicas=3)
    alone = physim.Case.from_options(MODEL, gpu="h100_sxm", engine=engine)
    assert serve_commands(replicas) == serve_commands(alone)
    assert words not in serve_commands(alone)["serve_command"]


@pytest.mark.slow
def test_a_load_that_changes_is_replayed_in_pools_apart():
    options = LOAD | APART | {"stages": [(4, 20), (8, 20)]}
    found = physim.predict(MODEL, gpu="h100_sxm", method="replay", **options)
    assert [part.rate for part in found.stages] == [4, 8]
    assert [one.rate for one in found.load.stages] == [4, 8]
    assert found.stages[0].latencies["ttft"]["mean"] < found.stages[1].latencies["ttft"]["mean"]
    assert found.intervals["ttft_s"][0] < found.ttft_s < found.intervals["ttft_s"][1]
    _check_pools_over_time(found)


def _check_pools_over_time(found):
    """What a prediction says of its pools over time: servers are idle before and after."""
    timeline = found.timeline
    assert json.loads(json.dumps(found.to_dict()))["timeline"]["pools"][1]["running"]
    # All the KV blocks in use are those of either pool, weighted by how many these have.
    most = [max(pool.kv_use) for pool in timeline.pools]
    assert 0 < max(timeline.kv_use) < max(most) < 1
    for pool in timeline.pools:
        assert (pool.running[-1], pool.waiting[-1]) == (0, 0)
        assert max(pool.running) > 0
    drawn = draw_pools(found)
    assert len(drawn) == 7
    assert drawn[3].get_title() == "decode on 2 x h100_sxm"
    with pytest.raises(InputError, match="plot: needs pools apart over time"):
        draw_pools(dataclasses.replace(found, timeline=dataclasses.replace(timeline, pools=())))


def test_clients_fewer_than_servers_keep_all_their_requests():
    load = physim.Load(500, 100, concurrency=2, requests=100)
    # Of ten servers two have a client each, who sends half of the requests.
    own = shared_out(load, 10, "round_robin")
    assert (own.concurrency, own.requests) == (1, 50)
    own = shared_out(dataclasses.replace(load, concurrency=8.0), 4, "round_robin")
    assert (own.concurrency, own.requests) == (2, 25)
