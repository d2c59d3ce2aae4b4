"""KV blocks on a disk below the host's memory: caches, reads, predictions, flags."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_by_hand import config_of
from shared_prefixes import PREFIX, REST, demand_of, requests_of_four_prefixes

import physim
from physim.batching.demand import Demand
from physim.batching.kv_capacity import prefix_hits
from physim.batching.limits import Limits, LowerTier, LowerTiers
from physim.batching.prefix_loads import Loads, found_down_to, loads_of
from physim.corrections.fields import Corrections
from physim.engines.host_memory import ASYNCHRONOUS, LAYERED, HostMemory
from physim.errors import InputError
from physim.fluid.steady import steady_state
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
from physim.replay.workload import Workload
from physim.service.kv_store import KVStore, KVTier

MODEL = "Qwen/Qwen3-14B"
COPIES = HostMemory(disk=True)
# A block is 40 bytes: 40 ms from the host's memory, 80 ms and at first 5 ms from the disk. A step
# takes 10 ms and 1 ms for each token.
HOST, DISK, LATENCY_S = 1000.0, 500.0, 0.005
SECONDS = LinearStepTimes(0.01, 1e-3, 0.0)


def engine_with(
    blocks: int, host: int, disk: int, kept: HostMemory = COPIES, size: int = 4, **limits: Any
) -> Any:
    tiers = [KVTier(blocks), KVTier(host, HOST), KVTier(disk, DISK, LATENCY_S)]
    kv = KVStore(tuple(tiers[: 3 if disk else 2]), size, block_bytes=40.0, host_memory=kept)
    limits = {"async_scheduling": False, "block_size": size, **limits}
    return dataclasses.replace(config_of(Limits(16, 200, 10_000, blocks, **limits)), kv=kv)


# Caches, block by block.


def test_what_only_the_disk_has_comes_up_to_the_host():
    host, disk = LowerCache(6, COPIES), LowerCache(20, COPIES)
    cache = KVCache(8, host, disk)
    one, two = Segment(0, 16, 4), Segment(0, 16, 4)
    for segment in (one, two):
        cache.hold(segment)
        cache.take(5)
        cache.grow(segment, 4)
        cache.copy([segment], 1)
        cache.give_up([segment], 1)
    # Of the first prefix three blocks are on the GPU and one is left in the host's memory.
    assert (one.present, host.count(one), disk.count(one)) == (3, 1, 4)
    assert (host.used, disk.used) == (6, 10)
    assert cache.below([one], 3, 9) == (3, 0)
    # Of what the GPU has nothing is read.
    assert cache.fetch([one], 3) == []
    assert cache.fetch([one], 9) == [(one, 1)]
    assert (host.count(one), host.used) == (4, 6)
    assert cache.below([one], 3, 9) == (4, 1)
    assert cache.fetch([one], 9) == []
    # A prompt is read up to the first block that is nowhere.
    unknown = Segment(16, 32, 4)
    assert cache.fetch([unknown, two], 9) == []


# The replay: requests in a row, each with a prefix of 4 blocks and a block of its own. The GPU has
# room for two of them, and so has the host's memory.

ROW = [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3)]


def in_a_row(times: Sequence[tuple[float, int]], kept: HostMemory, host: int, disk: int) -> Any:
    segments = [Segment(0, 16, 4) for _ in range(4)]
    requests = [
        Request(n, at_s, 20, 1, path=[segments[which]]) for n, (at_s, which) in enumerate(times)
    ]
    return replay(Workload(requests, 100), SECONDS, engine_with(10, host, disk, kept))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("loads", "ttft_s"),
    [
        # Four blocks in 325 ms, then in 160 ms, then a step with the four tokens that are left.
        (ASYNCHRONOUS, 0.325 + 0.160 + 0.014),
        (LAYERED, 0.325 + 0.160),
    ],
)
def test_an_evicted_prefix_is_read_in_its_bytes_over_the_bandwidth(loads, ttft_s, early):
    kept = HostMemory(loads=loads, disk=True, fetches_early=early)
    found = in_a_row([*ROW, (4.0, 0)], kept, 10, 100)
    ttfts_s = found.to_frame().set_index("number")["ttft_s"].tolist()
    assert ttfts_s == pytest.approx([0.030, 0.030, 0.030, 0.030, ttft_s])
    assert [one.loaded_tokens for one in found.requests] == [0, 0, 0, 0, 16]
    assert [one.fetched_tokens for one in found.requests] == [0, 0, 0, 0, 16]


def test_reads_follow_one_another_and_who_needs_the_same_waits_for_it():
    found = in_a_row([*ROW, (4.0, 0), (4.0, 1), (4.01, 0)], COPIES, 10, 100)
    assert [one.fetched_tokens for one in found.requests[4:]] == [16, 16, 0]
    assert [one.loaded_tokens for one in found.requests[4:]] == [16, 16, 0]
    ttft_s = found.to_frame().set_index("number")["ttft_s"].tolist()
    # Two requests have the first prefix, and are in one step; the other is read after it.
    first_s, second_s = 0.325 + 0.160, 0.320 + 0.325 + 0.160
    assert ttft_s[4:] == pytest.approx([first_s + 0.018, second_s + 0.014, first_s + 0.008])


def test_others_pass_who_waits_for_the_disk():
    """A request that comes later, with slots for one, runs first: nobody holds the slot."""
    segments = [Segment(0, 16, 4) for _ in range(4)]
    rows = [*ROW, (4.0, 0), (4.1, None)]
    requests = [
        Request(n, at_s, 20, 1, path=[] if which is None else [segments[which]])
        for n, (at_s, which) in enumerate(rows)
    ]
    engine = engine_with(10, 10, 100)
    engine = dataclasses.replace(engine, sizes=dataclasses.replace(engine.sizes, max_num_seqs=1))
    frame = replay(Workload(requests, 100), SECONDS, engine).to_frame().set_index("number")
    assert frame.loc[5, "ttft_s"] == pytest.approx(0.030)
    assert frame.loc[4, "ttft_s"] == pytest.approx(0.325 + 0.160 + 0.014)


def test_a_disk_changes_nothing_until_the_host_evicts_something():
    times = [*ROW, (4.0, 0), (5.0, 1), (6.0, 2), (6.1, 0)]
    for host, is_same in ((30, True), (40, True), (10, False)):
        without, with_disk = (in_a_row(times, COPIES, host, disk) for disk in (0, 100))
        assert without.to_frame().equals(with_disk.to_frame()) == is_same
        assert any(one.fetched_tokens for one in with_disk.requests) != is_same


def random_requests(seed: int) -> tuple[Any, list[Request]]:
    rng = np.random.default_rng((seed, 3))
    kept = HostMemory(
        outputs=bool(rng.random() < 0.5),
        loads=str(rng.choice([ASYNCHRONOUS, LAYERED])),
        disk=True,
        fetches_early=bool(rng.random() < 0.5),
    )
    size, requests, blocks = requests_of_four_prefixes(rng)
    host, disk = (int(blocks * rng.choice([0.2, 0.7, 2])) + 1 for _ in range(2))
    limits = {"async_scheduling": bool(rng.random() < 0.5), "prompts_apart": bool(seed % 3 == 0)}
    return engine_with(blocks, host, 2 * disk, kept, size, **limits), requests


@dataclasses.dataclass
class Watched:
    """Step times that look at the tiers of a server at each step."""

    engine: Any
    server: ReplayServer | None = None

    def __call__(self, **sums: float) -> float:
        assert self.server is not None
        for rank in self.server._ranks:
            for lower in (rank.cache.host, rank.cache.disk):
                assert 0 <= lower.used <= lower.blocks
                assert sum(lower._queue.values()) == lower.used
            assert 0 <= rank.cache.free <= self.engine.kv.blocks
        return SECONDS.step(**sums)


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 200), marks=pytest.mark.slow)])
def test_random_replays_lose_nothing_and_stay_within_every_tier(seeds):
    fetched = preempted = dropped = 0
    for seed in seeds:
        engine, requests = random_requests(seed)
        watched = Watched(engine)
        server = ReplayServer(WalkedStepTimes(watched), engine, None if seed % 2 else 1.0)
        watched.server = server
        Cluster(Workload(requests, 200), [[server]]).run()
        assert server.kv_blocks == 0
        assert not any(rank.fetching or rank.waiting for rank in server._ranks)
        for request in requests:
            assert (request.finished_s is None) != (request.dropped_s is None)
            if request.dropped_s is None:
                assert request.generated == request.output_tokens
        again, twice = (
            replay(Workload(random_requests(seed)[1], 200), SECONDS, engine).to_frame()
            for _ in range(2)
        )
        assert again.equals(twice)
        fetched += sum(request.fetched_tokens for request in requests)
        preempted += sum(request.preemptions for request in requests)
        dropped += sum(request.dropped_s is not None for request in requests)
    assert fetched > 300
    assert preempted > 3
    assert dropped > 3


# The fluid: hit rates by tier.

COPIED, MOVED = 1.0, 0.0


@jax.jit
def down_to(demand: Demand, blocks: Any, host: Any, disk: Any, copies: Any) -> Any:
    limits = Limits(64, 2048, 10_000, blocks)
    lower = LowerTiers((LowerTier(blocks=host), LowerTier(blocks=disk)), copies=copies)
    on_gpu = prefix_hits(limits, demand, 0.0, demand.rate, 0.0)
    return on_gpu, *found_down_to(limits, lower, demand, 0.0, on_gpu)


def exact(number: int, popularity: str, blocks: int, host: int, disk: int) -> Any:
    """Hit rates down to each tier, of requests one at a time in caches that are warm."""
    count = 6000
    rng = np.random.default_rng(number)
    which = Popularity.parse(popularity).drawn(rng, number, count).tolist()
    segments = [Segment(0, PREFIX * 16, 16) for _ in range(number)]
    cache = KVCache(blocks, LowerCache(host, COPIES), LowerCache(disk, COPIES))
    found = []
    for one in which:
        path = [segments[one]]
        on_gpu = cache.found(path, PREFIX)
        on_host, _ = cache.below(path, on_gpu, PREFIX)
        cache.fetch(path, PREFIX)
        known, rising = cache.below(path, on_gpu, PREFIX)
        found.append((on_gpu, on_host, known))
        cache.hold(path[0])
        cache.raise_up(path, known, 0.0)
        cache.take(PREFIX - known + rising + REST)
        cache.grow(path[0], PREFIX - known)
        cache.copy(path, REST)
        cache.give_up(path, REST)
    return np.mean(found[count // 3 :], axis=0) / PREFIX


@pytest.mark.parametrize("popularity", ["in-turn", "uniform", "zipf:1"])
@pytest.mark.parametrize("working_set", [0.3, 1.4, 3.0, 8.0])
def test_hits_by_tier_are_those_of_exact_caches(popularity, working_set):
    number = 250
    blocks = round(number * PREFIX / working_set)
    for ratio, more in ((0.7, 2.0), (1.5, 4.0)):
        host, disk = round(ratio * blocks), round(ratio * more * blocks)
        found = down_to(demand_of(number, popularity), blocks, host, disk, COPIED)
        said = exact(number, popularity, blocks, host, disk)
        assert np.asarray(found) == pytest.approx(said, abs=0.03)


@settings(max_examples=40)
@given(
    number=st.integers(2, 100_000),
    popularity=st.sampled_from(["in-turn", "uniform", "zipf:1"]),
    blocks=st.floats(500, 1e5),
    host=st.floats(0.0, 5.0),
    disk=st.floats(0.0, 9.0),
    more=st.floats(1.0, 3.0),
    copies=st.sampled_from([COPIED, MOVED]),
)
def test_more_of_a_disk_never_finds_less(number, popularity, blocks, host, disk, more, copies):
    demand = demand_of(number, popularity)
    on_gpu, on_host, found = down_to(demand, blocks, host * blocks, disk * blocks, copies)
    assert 0 <= on_gpu <= on_host <= found <= 1
    *above, larger = down_to(demand, blocks, host * blocks, more * disk * blocks, copies)
    assert larger >= found - 1e-6
    # What is above does not depend on what is below.
    assert above == [on_gpu, on_host]
    none = down_to(demand, blocks, host * blocks, 0.0, copies)[-1]
    assert none == on_host


def test_the_waits_for_two_tiers_by_hand():
    """Half of the requests pass the host's link, a quarter the disk before, 8 a second."""
    demand, limits = demand_of(9, "uniform"), Limits(64, 2048, 10_000, 1000, async_scheduling=False)
    demand = dataclasses.replace(demand, arrival_cv2=1.0)
    lower = LowerTiers((LowerTier(1000.0), LowerTier(1000.0, latency_s=0.002)))
    loads = Loads((0.5, 0.25), (0.04, 0.2), lower, 640.0)
    # The disk is the bottleneck: 1 / (0.25 x 0.2) a second.
    assert loads.most(1) == pytest.approx(20.0)
    at = (8.0, 0.02)
    # M/D/1: the links are busy for 0.16 and for 0.4 of the time.
    host, disk = 0.04 * (1 + 0.16 / 0.84 / 2), 0.2 * (1 + 0.4 / 0.6 / 2) + 0.002
    assert loads.loading_s(*at, 0.0, demand, limits) == pytest.approx(0.5 * host)
    assert loads.fetching_s(*at, 0.0, demand, limits) == pytest.approx(0.25 * disk)
    # Each is noticed at the end of a step, half of one later.
    assert loads.loading_s(*at, 1.0, demand, limits) == pytest.approx(0.5 * (host + 0.01))
    assert loads.fetching_s(*at, 1.0, demand, limits) == pytest.approx(0.25 * (disk + 0.01))
    # Loads with a step have no wait of their own; what is read from the disk has.
    layered = loads._replace(lower=dataclasses.replace(lower, asynchronous=0.0, layered=1.0))
    assert layered.loading_s(*at, 0.0, demand, limits) == 0.0
    assert layered.fetching_s(*at, 0.0, demand, limits) == pytest.approx(0.25 * disk)
    # Shares from what is found down to each tier.
    made = loads_of(lower, demand, 0.3, (0.55, 0.8))
    assert made.shares == pytest.approx((0.5, 0.25))


# Predictions.

SHARED: dict[str, Any] = {
    "gpu": "h100_sxm",
    "max_num_seqs": 128,
    "kv_blocks": 12_800,
    "rate": 6.0,
    "arrival": "poisson",
    "input_tokens": 1200,
    "output_tokens": 150,
    "cached_tokens": 1024,
}
BLOCK_BYTES = 2_621_440
GPU_BYTES = 12_800 * BLOCK_BYTES
TIERED: dict[str, Any] = {
    **SHARED,
    "prefixes": 400,
    "popularity": "uniform",
    "kv_host_bytes": 1.2 * GPU_BYTES,
    "kv_disk_bytes": 4 * GPU_BYTES,
    "kv_disk_bandwidth": 10e9,
}


def predicted(**options: Any) -> physim.Prediction:
    return physim.predict(MODEL, **{**TIERED, "fit": "none", **options})


def case_of(**options: Any) -> physim.Case:
    return physim.Case.from_options(MODEL, **{**TIERED, **options})


@pytest.mark.slow
def test_a_disk_takes_time_off_where_the_host_evicts():
    # Of one block nothing comes.
    without = predicted(kv_disk_bytes=BLOCK_BYTES)
    found = predicted(kv_disk_write_bandwidth=1e8)
    assert without.pool.disk_hit_rate == 0.0
    assert found.pool.hit_rate == pytest.approx(1024 / 1200, abs=3e-3)
    deepest = found.pool.hit_rate - without.pool.hit_rate
    assert found.pool.disk_hit_rate == pytest.approx(deepest, abs=5e-3)
    assert 0 < found.pool.disk_hit_rate < found.pool.host_hit_rate < found.pool.hit_rate
    # To read a prefix takes longer than to compute it on this GPU, which is free for others.
    assert found.ttft_s > without.ttft_s
    assert found.e2e_s < without.e2e_s
    assert found.saturation_rps > without.saturation_rps
    assert sum(found.ttft_parts_s.values()) == pytest.approx(found.ttft_s)
    assert found.ttft_parts_s["loading"] > without.ttft_parts_s["loading"]
    # What is said of it: 11 blocks of a prompt are new, and few others.
    (line,) = (one for one in found.assumptions if "written to the disk" in one)
    new_blocks = (1.0 - found.pool.hit_rate) * 1200 / 16
    assert new_blocks == pytest.approx(11, abs=0.3)
    assert line.startswith(f"{6 * new_blocks * BLOCK_BYTES / 1e9:.3g} GB/s are to be written")
    assert "51,200 more on disk at 10 GB/s" in found.pool.describe_memory()
    assert "of these from disk" in found._repr_html_()
    content = found.to_dict()["pools"][0]
    assert content["disk_hit_rate"] == found.pool.disk_hit_rate
    assert content["server"]["kv_disk_blocks"] == 51_200
    # The disk bounds what is served: two requests a second, were all prefixes read from it.
    slow = predicted(kv_disk_bandwidth=2 * 64 * BLOCK_BYTES)
    bound = 2 * 1024 / 1200 / slow.pool.disk_hit_rate
    assert slow.saturation_rps <= bound * (1 + 1e-6)
    assert slow.saturated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "prefixes", "popularity", "host", "disk", "bandwidth"),
    [
        ("vllm", 700, "zipf:1", 1.0, 3.0, 5e9),
        ("vllm", 400, "uniform", 1.2, 1.9, 20e9),
        ("vllm", 250, "zipf:0.7", 0.5, 4.0, 3e9),
        ("sglang", 500, "zipf:1", 1.5, 6.0, 10e9),
        ("sglang", 300, "in-turn", 1.1, 4.0, 10e9),
    ],
)
def test_the_fluid_reads_what_the_replay_reads(engine, prefixes, popularity, host, disk, bandwidth):
    options = {"engine": engine, "prefixes": prefixes, "popularity": popularity}
    options |= {"kv_host_bytes": host * GPU_BYTES, "kv_disk_bytes": disk * GPU_BYTES}
    options |= {"kv_disk_bandwidth": bandwidth, "kv_disk_latency_s": 1e-3}
    fluid, replayed = predicted(**options), predicted(**options, method="replay")
    # Of 5,000 requests the first with each prefix finds none.
    first = prefixes / 5000 * 1024 / 1200
    for name in ("hit_rate", "host_hit_rate", "disk_hit_rate"):
        said, seen = (getattr(one.pool, name) for one in (fluid, replayed))
        assert said == pytest.approx(seen, abs=0.01 + first)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.06)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.025)
    for name in ("p50", "p90"):
        said, seen = (one.whole.latencies["ttft"][name] for one in (fluid, replayed))
        assert said == pytest.approx(seen, rel=0.12)


@pytest.mark.slow
def test_the_slope_of_ttft_in_the_disk():
    case = case_of(popularity="zipf:1")
    limits = jax.tree.map(float, Limits.from_server(case.server))
    demand, model = Demand.from_load(case.demanded, 16), step_model_of(case, Corrections())

    @jax.jit
    def ttft(blocks: Any) -> Any:
        host, disk = limits.lower.tiers
        tiers = (host, dataclasses.replace(disk, blocks=blocks))
        lower = dataclasses.replace(limits.lower, tiers=tiers)
        return steady_state(model, demand, dataclasses.replace(limits, lower=lower)).ttft

    slope = jax.jit(jax.grad(ttft))(19_200.0)
    assert math.isfinite(slope)
    assert slope == pytest.approx(float(ttft(19_220.0) - ttft(19_180.0)) / 40, rel=2e-2)


@pytest.mark.slow
def test_servers_with_fewer_tiers_are_solved_together():
    options = [{}, {"kv_disk_bytes": None, "kv_disk_bandwidth": None}]
    cases = [case_of(**one) for one in options]
    for case, both in zip(cases, physim.predict_cases(cases, Corrections()), strict=True):
        (one,) = physim.predict_cases([case], Corrections())
        assert both.ttft_s == pytest.approx(one.ttft_s)
        assert both.pool.disk_hit_rate == pytest.approx(one.pool.disk_hit_rate)


# What is asked for and written.


def test_a_disk_is_shared_by_the_gpus():
    server = case_of(tp=2, kv_disk_write_bandwidth=4e9, kv_disk_latency_s=1e-4).server
    assert server.kv.disk == KVTier(51_200, 5e9, 1e-4, 2 * GPU_BYTES, 2e9)
    assert server.kv.load_block_s(server.kv.disk) == pytest.approx(BLOCK_BYTES / 10e9)


def test_flags_of_each_engine():
    words = serve_command(case_of(tp=2))
    tiers = json.loads(words.split("--kv-transfer-config '")[1].split("'")[0])
    assert tiers["kv_connector"] == "OffloadingConnector"
    extra = tiers["kv_connector_extra_config"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    assert extra["cpu_bytes_to_use"] == round(1.2 * GPU_BYTES)
    assert extra["secondary_tiers"] == [{"type": "fs", "root_dir": "/mnt/kv_cache"}]
    assert "--kv-offloading" not in words
    words = serve_command(case_of(), "prefill")
    both = json.loads(words.split("--kv-transfer-config '")[1].split("'")[0])
    names = [one["kv_connector"] for one in both["kv_connector_extra_config"]["connectors"]]
    assert names == ["NixlConnector", "OffloadingConnector"]
    words = serve_command(case_of(engine="sglang", tp=2))
    assert "--hicache-storage-backend file --hicache-storage-prefetch-policy wait_complete" in words
    assert f"'{{\"max_size\": {2 * GPU_BYTES}}}'" in words


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_disk_bytes": 0.0}, "kv_disk_bytes: 0 is no number of bytes"),
        ({"kv_disk_bytes": 1e6}, "kv_disk_bytes: has no room for a KV block of 2,621,440 bytes"),
        ({"kv_disk_bandwidth": None}, "kv_disk_bandwidth: is not given"),
        ({"kv_disk_bandwidth": "fast"}, "kv_disk_bandwidth: 'fast' is not a number"),
        ({"kv_disk_write_bandwidth": -1.0}, "kv_disk_write_bandwidth: -1 is no number of bytes"),
        ({"kv_disk_latency_s": -1.0}, "kv_disk_latency_s: -1 s is no time"),
        ({"kv_disk_latency_s": math.nan}, "kv_disk_latency_s: nan s is no time"),
        ({"kv_host_bytes": None}, "kv_disk_bytes: is given without kv_host_bytes"),
        ({"kv_disk_bytes": None}, "kv_disk_bandwidth: is given without kv_disk_bytes"),
        ({"engine": "trtllm"}, "kv_disk_bytes: is for vllm, sglang, not trtllm"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(options, told):
    with pytest.raises(InputError, match=told):
        case_of(**options)
