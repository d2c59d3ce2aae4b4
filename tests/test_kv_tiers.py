"""KV blocks in the memory of the host, below the GPU's: caches, loads, predictions, flags."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest
from commands import refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_by_hand import config_of
from shared_prefixes import PREFIX, REST, demand_of, requests_of_four_prefixes

import physim
from physim.batching.demand import Demand
from physim.batching.kv_capacity import prefix_hits
from physim.batching.limits import Limits, LowerTier, LowerTiers
from physim.batching.prefix_loads import Loads, found_down_to
from physim.corrections.fields import Corrections
from physim.engines.engine import engine_named
from physim.engines.host_memory import ASYNCHRONOUS, LAYERED, SERIAL, HostMemory
from physim.errors import InputError
from physim.fluid.steady import steady_state
from physim.inputs.lower_tiers import COPIED_SHARE
from physim.inputs.popularity import Popularity
from physim.prediction.arrays import step_model_of
from physim.prediction.commands import serve_command
from physim.replay.cluster import Cluster, replay
from physim.replay.kv_cache import KVCache
from physim.replay.lower_cache import LowerCache
from physim.replay.request import Request
from physim.replay.segment import Segment
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes, WalkedStepTimes
from physim.replay.workload import Workload, drawn
from physim.service.kv_store import KVStore, KVTier

MODEL = "Qwen/Qwen3-14B"
COPIES, MOVES = HostMemory(copies=True), HostMemory(copies=False, outputs=True)
# A block is 40 bytes, so that it comes up in 40 ms; a step takes 10 ms and 1 ms for each token.
BANDWIDTH, SECONDS = 1000.0, LinearStepTimes(0.01, 1e-3, 0.0)


def store(blocks: int, host: int, kept: HostMemory = COPIES, size: int = 4) -> KVStore:
    tiers = (KVTier(blocks), KVTier(host, BANDWIDTH))
    return KVStore(tiers, size, block_bytes=40.0, host_memory=kept)


def engine_with(kv: KVStore, **limits: Any) -> Any:
    limits = {"async_scheduling": False, **limits}
    return dataclasses.replace(config_of(Limits(16, 200, 10_000, kv.blocks, **limits)), kv=kv)


# Caches, block by block.


def test_what_the_gpu_evicts_moves_down_and_comes_up_again():
    host = LowerCache(6, MOVES)
    cache, one, two = KVCache(8, host), Segment(0, 16, 4), Segment(0, 16, 4)
    for segment in (one, two):
        cache.hold(segment)
        cache.take(5)
        cache.grow(segment, 4)
        cache.give_up([segment], 1)
    # The last block of the first, which follows the three that are still here, and its own.
    assert (one.present, two.present) == (3, 4)
    assert (host.below(one), host.below(two), host.used) == (1, 0, 2)
    assert cache.below([one], cache.found([one], 9), 9) == (4, 1)
    cache.hold(one)
    cache.raise_up([one], 4, 1.0)
    assert (one.present, host.used) == (4, 1)
    # What the second request left behind goes next, and then its prefix.
    cache.take(1)
    assert (host.used, two.present, cache.free) == (2, 4, 4)
    cache.take(4)
    assert (two.present, host.below(two), host.used) == (0, 4, 6)
    # There is room for six: the oldest is lost first, of a segment its end.
    host.put(None, 3)
    assert (host.below(two), host.used) == (3, 6)


def test_copies_stay_below_whatever_the_gpu_has():
    host = LowerCache(6, COPIES)
    cache, one = KVCache(8, host), Segment(0, 16, 4)
    cache.hold(one)
    cache.take(5)
    cache.grow(one, 4)
    host.copy([one], 1)
    cache.give_up([one], 1)
    assert (host.used, host.below(one)) == (5, 0)
    cache.take(6)
    assert (one.present, host.below(one), host.used) == (2, 2, 5)
    assert cache.below([one], 2, 9) == (4, 2)
    assert cache.below([one], 2, 3) == (3, 1)
    host.put(None, 4)
    # The request's own block was the older.
    assert (host.used, host.below(one)) == (6, 0)
    assert cache.below([one], 2, 9) == (2, 0)


@settings(max_examples=60)
@given(
    blocks=st.integers(20, 60),
    below=st.integers(1, 80),
    copies=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_blocks_of_every_tier_are_within_its_bounds(blocks, below, copies, seed):
    rng = np.random.default_rng(seed)
    host = LowerCache(below, HostMemory(copies, outputs=not copies))
    cache = KVCache(blocks, host)
    paths = [(Segment(0, 20, 4), Segment(20, 20 + 4 * n, 4)) for n in range(1, 6)]
    running: list[tuple[tuple[Segment, ...], int]] = []
    for _ in range(60):
        path, own = paths[rng.integers(5)], int(rng.integers(1, 6))
        found, rising = cache.below(path, cache.found(path, 99), 99)
        needed = path[-1].end - found + rising + own
        if needed + cache.unused(path, found) <= cache.free and rng.random() < 0.6:
            for segment in path:
                cache.hold(segment)
            cache.raise_up(path, found, 0.0)
            assert cache.found(path, 99) == found
            cache.take(rising)
            for segment in path:
                missing = segment.end - segment.first - segment.present
                cache.take(missing)
                cache.grow(segment, missing)
            cache.take(own)
            if copies:
                host.copy(path, own)
            running.append((path, own))
        elif running:
            cache.give_up(*running.pop(int(rng.integers(len(running)))))
        held = {segment: None for path, _ in running for segment in path}
        used = sum(segment.present for segment in held) + sum(own for _, own in running)
        assert cache.free == blocks - used
        counts = [(one, host.below(one)) for path in paths for one in path]
        assert 0 <= host.used <= below
        for segment, count in counts:
            assert count >= 0
            assert 0 <= segment.present <= segment.end - segment.first - count
        if not copies:
            assert sum(count for _, count in counts) <= host.used
    for path, own in running:
        cache.give_up(path, own)
    assert cache.free == blocks


# The replay: requests in a row, each with a prefix of 4 blocks; the first two are evicted.

FIRST, SECOND, THIRD = 0.0, 1.0, 2.0


def in_a_row(times: list[tuple[float, int]], kept: HostMemory, blocks: int = 9) -> Any:
    segments = [Segment(0, 16, 4) for _ in range(3)]
    requests = [
        Request(n, at_s, 20, 1, path=[segments[which]]) for n, (at_s, which) in enumerate(times)
    ]
    engine = engine_with(store(blocks, 40, kept))
    return replay(Workload(requests, 100), SECONDS, engine)


ROW = [(FIRST, 0), (SECOND, 1), (THIRD, 2)]


@pytest.mark.parametrize(
    ("kept", "ttft_s"),
    [
        # Four blocks in 160 ms, then a step with the four tokens that are left.
        (HostMemory(loads=ASYNCHRONOUS), 0.160 + 0.014),
        (HostMemory(loads=SERIAL), 0.160 + 0.014),
        (HostMemory(loads=LAYERED), 0.160),
        (dataclasses.replace(MOVES, loads=SERIAL), 0.160 + 0.014),
    ],
)
def test_an_evicted_prefix_comes_up_in_its_bytes_over_the_bandwidth(kept, ttft_s):
    found = in_a_row([*ROW, (3.0, 0)], kept)
    frame = found.to_frame().set_index("number")
    assert frame["ttft_s"].tolist() == pytest.approx([0.030, 0.030, 0.030, ttft_s])
    assert frame["cached_tokens"].tolist() == [0, 0, 0, 16]
    assert [one.loaded_tokens for one in found.requests] == [0, 0, 0, 16]


def test_loads_follow_one_another_and_who_needs_the_same_waits_for_it():
    """With room for eleven blocks one of the first prefix is left, and then two of the second."""
    found = in_a_row([*ROW, (3.0, 0), (3.0, 1), (3.01, 0)], COPIES, blocks=11)
    assert [one.loaded_tokens for one in found.requests[3:]] == [12, 8, 0]
    ttft_s = found.to_frame().set_index("number")["ttft_s"].tolist()
    # Of the first prefix three blocks come up in 120 ms, then two of the second in 80 ms. Two
    # requests have the first, and are in one step.
    assert ttft_s[3:] == pytest.approx([0.120 + 0.018, 0.200 + 0.014, 0.110 + 0.018])


def test_others_decode_while_a_prefix_comes_up():
    segments = [Segment(0, 16, 4) for _ in range(3)]
    rows = [(0.0, 0, 1), (1.0, 1, 1), (2.0, 2, 1), (2.99, None, 30), (3.0, 0, 1)]
    requests = [
        Request(n, at_s, 20, out, path=[] if which is None else [segments[which]])
        for n, (at_s, which, out) in enumerate(rows)
    ]
    engine = engine_with(store(19, 40))
    small = replay(Workload(requests, 100), SECONDS, engine)
    frame = small.to_frame().set_index("number")
    # Prefixes are still in so many blocks, but for the first's last ones.
    loaded = small.requests[4].loaded_tokens
    assert 0 < loaded <= 16
    assert frame.loc[3, "ttft_s"] == pytest.approx(0.030)
    # Its steps take 10 ms each, and one has the prompt that has come up.
    assert frame.loc[3, "e2e_s"] == pytest.approx(0.030 + 29 * 0.010 + 1e-3 * 4)
    # A step ends as the load does, or less than one later.
    load_s = loaded / 4 * 0.040
    assert load_s <= frame.loc[4, "ttft_s"] - 0.014 - 0.020 + 1e-9 <= load_s + 0.010 + 1e-9


@pytest.mark.parametrize("kept", [COPIES, MOVES], ids=["copies", "moves"])
def test_a_tier_changes_nothing_until_something_is_evicted(kept):
    load = physim.Load(
        1200, 150, rate=6.0, arrival="poisson", requests=800, cached_tokens=1024, prefixes=90
    )
    tiered = engine_with(store(12_800, 20_000, kept, 16), block_size=16)
    plain = dataclasses.replace(tiered, kv=KVStore(tiered.kv.tiers[:1], 16))
    one, other = (replay(drawn(load, own, 0), SECONDS, own) for own in (plain, tiered))
    assert one.to_frame().equals(other.to_frame())
    for name in ("gaps", "work", "samples"):
        first, second = (vars(getattr(found, name)) for found in (one, other))
        for what, numbers in first.items():
            assert np.array_equal(numbers, second[what])


@pytest.mark.slow
def test_nor_does_it_in_the_fluid():
    plain, tiered = predicted(prefixes=100), predicted(prefixes=100, kv_host_bytes=5e10)
    assert tiered.pool.host_hit_rate == 0.0
    assert tiered.ttft_parts_s["loading"] == 0.0
    for name in ("ttft_s", "itl_s", "e2e_s", "saturation_rps"):
        assert getattr(tiered, name) == pytest.approx(getattr(plain, name), rel=1e-9)


def random_requests(seed: int) -> tuple[Any, list[Request]]:
    rng = np.random.default_rng(seed)
    kept = HostMemory(
        copies=bool(rng.random() < 0.5),
        outputs=bool(rng.random() < 0.5),
        loads=str(rng.choice([ASYNCHRONOUS, LAYERED, SERIAL])),
    )
    size, requests, blocks = requests_of_four_prefixes(rng)
    kv = store(blocks, int(blocks * rng.choice([0.2, 1, 4])) + 1, kept, size)
    limits = {"async_scheduling": bool(rng.random() < 0.5), "prompts_apart": bool(seed % 3 == 0)}
    limits["whole_requests"] = bool(seed % 5 == 0)
    return engine_with(kv, block_size=size, **limits), requests


@dataclasses.dataclass
class Watched:
    """Step times that look at the caches of a server at each step."""

    engine: Any
    requests: list[Request]
    server: ReplayServer | None = None

    def __call__(self, **sums: float) -> float:
        assert self.server is not None
        segments = {segment for request in self.requests for segment in request.path}
        for rank in self.server._ranks:
            host = rank.cache.host
            assert host is not None
            assert 0 <= host.used <= host.blocks
            assert 0 <= rank.cache.free <= self.engine.kv.blocks
            for segment in segments:
                assert segment.first + segment.present + host.below(segment) <= segment.end
        return SECONDS.step(**sums)


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 200), marks=pytest.mark.slow)])
def test_random_replays_lose_nothing_and_stay_within_every_tier(seeds):
    loaded = preempted = 0
    for seed in seeds:
        engine, requests = random_requests(seed)
        watched = Watched(engine, requests)
        server = ReplayServer(WalkedStepTimes(watched), engine, None if seed % 2 else 2.0)
        watched.server = server
        Cluster(Workload(requests, 200), [[server]]).run()
        assert server.kv_blocks == 0
        for request in requests:
            assert (request.finished_s is None) != (request.dropped_s is None)
            if request.dropped_s is None:
                assert request.generated == request.output_tokens
            assert 0 <= request.loaded_tokens <= request.cached_tokens < request.input_tokens
        again, twice = (
            replay(Workload(random_requests(seed)[1], 200), SECONDS, engine).to_frame()
            for _ in range(2)
        )
        assert again.equals(twice)
        loaded += sum(request.loaded_tokens for request in requests)
        preempted += sum(request.preemptions for request in requests)
    assert loaded > 500
    assert preempted > 3


# The fluid: hit rates by tier.

SHARED: dict[str, Any] = {
    "gpu": "h100_sxm",
    "max_num_seqs": 128,
    "kv_blocks": 12_800,
    "rate": 6.0,
    "arrival": "poisson",
    "input_tokens": 1200,
    "output_tokens": 150,
    "cached_tokens": 1024,
    "fit": "none",
}
BLOCK_BYTES = 2_621_440


@jax.jit
def tiers(demand: Demand, blocks: float, host: float, copies: float, running: float) -> Any:
    limits = Limits(64, 2048, 10_000, blocks)
    below = LowerTiers((LowerTier(blocks=host),), copies=copies, outputs=1.0 - copies)
    on_gpu = prefix_hits(limits, demand, running, demand.rate, 0.0)
    return on_gpu, *found_down_to(limits, below, demand, running, on_gpu)


def exact(number: int, popularity: str, blocks: int, below: int, kept: HostMemory) -> Any:
    """Hit rates on the GPU and anywhere, of requests one at a time in a cache that is warm."""
    count = 8000
    rng = np.random.default_rng(number)
    which = Popularity.parse(popularity).drawn(rng, number, count).tolist()
    segments = [Segment(0, PREFIX * 16, 16) for _ in range(number)]
    host = LowerCache(below, kept)
    cache, found = KVCache(blocks, host), []
    for one in which:
        path = [segments[one]]
        on_gpu = cache.found(path, PREFIX)
        known, rising = cache.below(path, on_gpu, PREFIX)
        found.append((on_gpu, known))
        cache.hold(path[0])
        cache.raise_up(path, known, 0.0)
        cache.take(PREFIX - known + rising + REST)
        cache.grow(path[0], PREFIX - known)
        if kept.copies:
            host.copy(path, REST)
        cache.give_up(path, REST)
    return np.mean(found[count // 3 :], axis=0) / PREFIX


@pytest.mark.parametrize("kept", [COPIES, MOVES], ids=["copies", "moves"])
@pytest.mark.parametrize("popularity", ["in-turn", "uniform", "zipf:1"])
@pytest.mark.parametrize("working_set", [0.2, 0.7, 1.6, 5.0])
def test_hits_by_tier_are_those_of_exact_caches(kept, popularity, working_set):
    number = 300
    blocks = round(number * PREFIX / working_set)
    for ratio in (0.5, 1.3, 4.0):
        below = round(ratio * blocks)
        found = tiers(demand_of(number, popularity), blocks, below, float(kept.copies), 0.0)
        assert np.asarray(found) == pytest.approx(
            exact(number, popularity, blocks, below, kept), abs=0.03
        )


@settings(max_examples=60)
@given(
    number=st.integers(2, 100_000),
    popularity=st.sampled_from(["in-turn", "uniform", "zipf:1"]),
    blocks=st.floats(500, 1e5),
    host=st.floats(0.0, 5.0),
    more=st.floats(1.0, 3.0),
    copies=st.sampled_from([0.0, 1.0]),
)
def test_more_host_memory_never_finds_less(number, popularity, blocks, host, more, copies):
    demand = demand_of(number, popularity)
    on_gpu, found = tiers(demand, blocks, host * blocks, copies, 5.0)
    assert 0 <= on_gpu <= found <= 1
    same, larger = tiers(demand, blocks, more * host * blocks, copies, 5.0)
    assert larger >= found - 1e-6
    # What the GPU has does not depend on what is below it.
    assert same == on_gpu


def test_the_wait_for_a_load_by_hand():
    """Half of the requests load for 40 ms each, 10 a second: the link is busy a fifth of a time."""
    demand, limits = demand_of(9, "uniform"), Limits(64, 2048, 10_000, 1000, async_scheduling=False)
    demand = dataclasses.replace(demand, arrival_cv2=1.0)
    loads = Loads((0.5,), (0.04,), LowerTiers((LowerTier(1000.0, latency_s=0.001),)), 640.0)
    # M/D/1: 0.04 x 0.2 / (2 x 0.8).
    load = 0.04 + 0.005 + 0.001
    assert loads.most(1) == pytest.approx(50.0)
    assert loads.loading_s(10.0, 0.02, 0.0, demand, limits) == pytest.approx(0.5 * load)
    # Beside steps of 20 ms half of one is lost, and one more where the next is formed already.
    assert loads.loading_s(10.0, 0.02, 1.0, demand, limits) == pytest.approx(0.5 * (load + 0.01))
    ahead = dataclasses.replace(limits, async_scheduling=True)
    assert loads.loading_s(10.0, 0.02, 1.0, demand, ahead) == pytest.approx(0.5 * (load + 0.03))
    # At least a step.
    assert loads.loading_s(10.0, 0.2, 1.0, demand, limits) == pytest.approx(0.5 * 0.2)
    # Evenly spaced, half of them by chance: half as varied.
    even = dataclasses.replace(demand, arrival_cv2=0.0)
    assert loads.loading_s(10.0, 0.02, 0.0, even, limits) == pytest.approx(0.5 * (load - 0.0025))
    # Beyond what the link has time for it is as long as it gets, and finite.
    assert math.isfinite(loads.loading_s(1000.0, 0.02, 1.0, demand, limits))
    layered = dataclasses.replace(loads.lower, asynchronous=0.0)
    assert loads._replace(lower=layered).loading_s(10.0, 0.02, 1.0, demand, limits) == 0.0


def predicted(engine: str = "vllm", **options: Any) -> physim.Prediction:
    return physim.predict(MODEL, **{**SHARED, "engine": engine, **options})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_tier_takes_time_off_where_prefixes_are_evicted(engine):
    options = {"prefixes": 250, "popularity": "uniform", "engine": engine}
    without = predicted(**options)
    found = predicted(**options, kv_host_bytes=4 * 12_800 * BLOCK_BYTES)
    assert found.pool.hit_rate == pytest.approx(1024 / 1200, abs=1e-3)
    on_gpu = found.pool.hit_rate - found.pool.host_hit_rate
    assert on_gpu == pytest.approx(without.pool.hit_rate, abs=2e-3)
    assert found.ttft_s < without.ttft_s
    assert found.saturation_rps > without.saturation_rps
    assert sum(found.ttft_parts_s.values()) == pytest.approx(found.ttft_s)
    assert sum(found.pool.step_parts_s.values()) == pytest.approx(found.pool.step_s)
    # Where it comes up with a request's own steps it is a part of these.
    assert (found.ttft_parts_s["loading"] > 0) == (engine == "vllm")
    assert without.ttft_parts_s["loading"] == 0


@pytest.mark.slow
def test_a_link_that_is_too_slow_bounds_what_is_served():
    options = {"prefixes": 250, "kv_host_bytes": 4 * 12_800 * BLOCK_BYTES}
    # Of 64 blocks in turn none is on the GPU: 5 a second at most.
    slow = predicted(**options, kv_host_bandwidth=5 * 64 * BLOCK_BYTES, rate=2.0)
    assert slow.saturation_rps == pytest.approx(5.0, rel=1e-3)
    # 0.2 s each with the link busy for 0.4 of the time.
    wait_s = 0.2 + 0.2 * 0.4 / 0.6 / 2
    step_s = slow.pool.step_s
    assert slow.ttft_parts_s["loading"] == pytest.approx(wait_s, abs=2 * step_s)
    assert predicted(**options, kv_host_bandwidth=5 * 64 * BLOCK_BYTES).saturated


@pytest.mark.slow
def test_servers_with_and_without_a_tier_are_solved_together():
    options = {**SHARED, "prefixes": 300, "popularity": "uniform"}
    del options["fit"]
    some = ({}, {"kv_host_bytes": 8e10}, {"kv_host_bytes": 8e10, "prefixes": 1})
    cases = [
        physim.Case.from_options(MODEL, **{**options, **one})
        for one in (some[0], some[1], {**some[2], "popularity": "in-turn"})
    ]
    every = physim.predict_cases(cases, Corrections())
    for case, found in zip(cases, every, strict=True):
        (one,) = physim.predict_cases([case], Corrections())
        assert found.ttft_s == pytest.approx(one.ttft_s)
        assert found.pool.host_hit_rate == pytest.approx(one.pool.host_hit_rate)


# What is said, asked for and written.


@pytest.mark.slow
def test_what_comes_up_is_said():
    options = {"prefixes": 300, "popularity": "uniform", "kv_host_bytes": 5e10}
    found = predicted(**options)
    lines = [line for line in found.assumptions if "host's memory" in line]
    assert lines[0].startswith(
        "prefixes are evicted from the GPU's memory before they are asked for again: 300 of 64 KV "
        "blocks each have no room beside requests in a cache of 12,800; "
    )
    assert lines[1].endswith("for which 19,073 blocks in the host's memory have no room")
    assert "host memory at 50 GB/s a GPU" in found.scenario
    assert "of them from host memory" in found._repr_html_()
    assert "19,073 more in host memory at 50 GB/s" in found.pool.describe_memory()
    content = found.to_dict()["pools"][0]
    assert content["host_hit_rate"] == found.pool.host_hit_rate
    assert content["server"]["kv_host_blocks"] == 19_073
    kept = predicted(prefixes=100, kv_host_bytes=5e10)
    assert not any("host's memory" in line for line in kept.assumptions)
    words = "predict --gpu h100_sxm --rate 6 --input 1200 --output 150 --cached 1024 --kv-blocks"
    words += " 12800 --prefixes 250 --kv-host-bytes 1e11 --fit none"
    printed = run(*words.split(), MODEL).stdout
    assert "from host" in printed
    assert "85.3%  of prompt tokens, come up from host memory" in printed


@pytest.mark.slow
def test_explain_has_the_blocks_in_host_memory():
    options = {**SHARED, "prefixes": 300, "popularity": "zipf:1", "kv_host_bytes": 5e10}
    found = physim.explain(MODEL, **options)
    assert found.host_hit_rate == pytest.approx(predicted(**options).pool.host_hit_rate)
    assert found.values["kv_host_blocks"]["ttft"] < -0.05
    assert "kv_host_blocks" not in physim.explain(MODEL, **SHARED).values


def case_of(engine: str, **options: Any) -> physim.Case:
    own = {name: value for name, value in SHARED.items() if name not in ("fit", "kv_blocks")}
    return physim.Case.from_options(MODEL, **{**own, "engine": engine, **options})


def test_the_size_of_a_server_is_shared_by_its_gpus():
    server = case_of("vllm", tp=2, kv_host_bytes=200 * 2**30).server
    # 100 GiB each for blocks of half as many bytes.
    assert server.kv.host == KVTier(81_920, COPIED_SHARE * 64e9, size_bytes=100 * 2**30)
    assert server.kv.load_block_s(server.kv.host) == pytest.approx(BLOCK_BYTES / 2 / 50e9)
    assert case_of("vllm", kv_host_bytes=1e11, kv_host_bandwidth=2e10).server.kv.host.bandwidth == (
        2e10
    )
    assert case_of("vllm").server.kv.host is None


def test_flags_of_each_engine():
    asked = {"tp": 2, "kv_host_bytes": 200 * 2**30}
    assert "--kv-offloading-backend native --kv-offloading-size 200 " in serve_command(
        case_of("vllm", **asked)
    )
    sglang = serve_command(case_of("sglang", **asked))
    assert "--enable-hierarchical-cache --hicache-size 107.374 --hicache-write-policy" in sglang
    trtllm = serve_command(case_of("trtllm", **asked))
    assert (
        "kv_cache_config: {free_gpu_memory_fraction: 0.9, host_cache_size: 107374182400}" in trtllm
    )
    assert "--kv_cache_free_gpu_memory_fraction" not in trtllm
    for engine in ("vllm", "sglang", "trtllm"):
        words = serve_command(case_of(engine))
        assert not any(one in words for one in ("offloading", "hicache", "host_cache"))


@pytest.mark.parametrize(
    ("engine", "options", "told"),
    [
        ("vllm", {"kv_host_bytes": -1.0}, "kv_host_bytes: -1 is no number of bytes"),
        ("vllm", {"kv_host_bytes": math.nan}, "kv_host_bytes: nan is no number of bytes"),
        ("vllm", {"kv_host_bytes": True}, "kv_host_bytes: True is not a number"),
        ("vllm", {"kv_host_bytes": 1e6}, "kv_host_bytes: has room for 0 KV blocks of 2,621,440"),
        ("vllm", {"kv_host_bandwidth": 1e9}, "kv_host_bandwidth: is given without kv_host_bytes"),
        ("sglang", {"kv_host_bytes": 1e9}, "and sglang needs"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(engine, options, told):
    with pytest.raises(InputError, match=told):
        case_of(engine, **options)


def test_an_engine_or_a_gpu_that_lacks_something(monkeypatch):
    line = refused(
        "predict",
        MODEL,
        "--gpu",
        "h100_sxm",
        "--rate",
        "1",
        "--input",
        "99",
        "--output",
        "9",
        "--kv-host-bytes",
        "0",
    )
    assert line.startswith("kv_host_bytes: 0 is no number of bytes")
    engine = engine_named("vllm")
    monkeypatch.setattr(
        "physim.inputs.deployment.engine_named",
        lambda _: dataclasses.replace(engine, host_memory=None),
    )
    with pytest.raises(InputError, match="kv_host_bytes: is for vllm, sglang, trtllm, not vllm"):
        case_of("vllm", kv_host_bytes=1e11)


# The fluid against the replay.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "prefixes", "popularity", "ratio"),
    [
        ("vllm", 90, "uniform", 1.5),
        ("vllm", 700, "zipf:1", 3.0),
        ("sglang", 250, "in-turn", 4.0),
        ("trtllm", 250, "zipf:1", 0.5),
    ],
)
def test_the_fluid_loads_what_the_replay_loads(engine, prefixes, popularity, ratio):
    # Of 5,000 requests the first with each prefix finds none.
    options = {"engine": engine, "prefixes": prefixes, "popularity": popularity}
    options["kv_host_bytes"] = ratio * 12_800 * BLOCK_BYTES
    fluid, replayed = predicted(**options), predicted(**options, method="replay")
    first = prefixes / 5000 * 1024 / 1200
    assert fluid.pool.hit_rate == pytest.approx(replayed.pool.hit_rate, abs=0.01 + first)
    assert fluid.pool.host_hit_rate == pytest.approx(replayed.pool.host_hit_rate, abs=0.01 + first)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.06)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.02)
    # Some load and others do not.
    for name in ("p50", "p90"):
        said, seen = (one.whole.latencies["ttft"][name] for one in (fluid, replayed))
        assert said == pytest.approx(seen, rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "within"),
    [
        (
            {
                "rate": None,
                "arrival": "constant",
                "stages": [(4.0, 300.0), (8.0, 300.0)],
                "engine": "trtllm",
            },
            0.06,
        ),
        # Clients whose prompts vary meet one another's more than the fluid says, in one tier too.
        (
            {
                "rate": None,
                "concurrency": 64,
                "requests": 3000,
                "output_tokens": physim.Lengths.exponential(150),
            },
            0.3,
        ),
        ({"rate": 20.0, "kv_host_bandwidth": 2e10}, 0.1),
    ],
)
def test_so_it_does_under_other_loads(load, within):
    options = {**SHARED, "prefixes": 250, "popularity": "zipf:0.7", **load}
    options["kv_host_bytes"] = 2.0 * 12_800 * BLOCK_BYTES
    fluid, replayed = (physim.predict(MODEL, **options, method=one) for one in ("fluid", "replay"))
    assert fluid.pool.host_hit_rate == pytest.approx(replayed.pool.host_hit_rate, abs=0.05)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=within)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_the_slope_of_ttft_in_host_memory(engine):
    options = {"prefixes": 300, "popularity": "zipf:1", "kv_blocks": 12_800}
    case = case_of(engine, **options, kv_host_bytes=1.5 * 12_800 * BLOCK_BYTES)
    limits = jax.tree.map(float, Limits.from_server(case.server))
    demand, model = Demand.from_load(case.demanded, 16), step_model_of(case, Corrections())

    @jax.jit
    def ttft(blocks: Any) -> Any:
        (host,) = limits.lower.tiers
        tiers = (dataclasses.replace(host, blocks=blocks),)
        lower = dataclasses.replace(limits.lower, tiers=tiers)
        return steady_state(model, demand, dataclasses.replace(limits, lower=lower)).ttft

    slope = jax.jit(jax.grad(ttft))(19_200.0)
    assert slope < 0
    assert slope == pytest.approx(float(ttft(19_220.0) - ttft(19_180.0)) / 40, rel=2e-2)
