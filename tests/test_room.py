"""Room that servers that decode make before prompts are computed for them, as SGLang's do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from limits_by_hand import config_of

import physim
from physim.batching.limits import Limits
from physim.batching.room_ahead import RoomAhead
from physim.replay.cluster import ReplayPool, replay_pools
from physim.replay.kv_cache import KVCache
from physim.replay.request import Request
from physim.replay.room import Room
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload
from physim.service.phases import DECODE, PREFILL
from physim.service.service import Transfer

# A step takes 10 ms and 1 ms for each token of a prompt.
SECONDS = LinearStepTimes(0.01, 1e-3, 0.0)
MODEL = "Qwen/Qwen3-8B"


def pool_of(phase: str, blocks: int, reserved: int | None, slots: int = 16) -> ReplayPool:
    limits = Limits(slots, 200, 10_000, blocks, block_size=4, async_scheduling=False)
    config = config_of(limits, phases=(phase,))
    policy = dataclasses.replace(config.policy, prompts_apart=True, reserved_tokens=reserved)
    return ReplayPool(SECONDS, dataclasses.replace(config, policy=policy))


def served(
    rows: list[tuple[float, int, int]],
    reserved: int | None,
    blocks: int,
    timeout_s: float | None = None,
    slots: int = 16,
) -> Any:
    requests = [Request(n, at_s, prompt, out) for n, (at_s, prompt, out) in enumerate(rows)]
    pools = [pool_of(PREFILL, 100, reserved), pool_of(DECODE, blocks, reserved, slots)]
    sent = [Transfer(1e-4, latency_s=0.002)]
    return replay_pools(Workload(requests, 100), pools, sent, timeout_s=timeout_s)


def test_room_by_hand():
    """Of 20 blocks, prompts of 16 tokens take five with the token that they give."""
    pool = pool_of(DECODE, 20, 8, slots=40)
    cache = KVCache(20)
    room = Room(pool.config, cache)
    some = [Request(n, 0.0, 16, 9) for n in range(4)]
    for one in some:
        room.ask(one)
    # One alone, a second beside two blocks for each of two; a third has no such room.
    assert room.make(0) == some[:2]
    assert (cache.free, len(room), room.blocks_for(some[0]), room.blocks_for(some[2])) == (
        10,
        4,
        5,
        0,
    )
    assert room.make(0) == []
    # As one leaves there is: five blocks and two for each of two.
    assert room.leave(some[0])
    assert not room.leave(some[0])
    assert room.make(0) == [some[2]]
    # Those that run count too.
    assert room.leave(some[1])
    assert room.make(4) == []
    assert room.make(0) == [some[3]]
    # However much is kept free, who comes alone has room.
    few = Room(pool_of(DECODE, 6, 512).config, KVCache(6))
    few.ask(some[0])
    few.ask(some[1])
    assert few.make(0) == [some[0]]
    # Of few slots there are thrice as many.
    for slots, most in ((2, 6), (32, 96), (33, 33)):
        many = Room(pool_of(DECODE, 10_000, 8, slots).config, KVCache(10_000))
        for n in range(200):
            many.ask(Request(n, 0.0, 16, 9))
        assert len(many.make(0)) == most


def test_a_prompt_waits_for_room_where_its_answer_will_be():
    """Room for one: 26 ms for its prompt, 3.6 ms to send it, and ten steps after it."""
    rows = [(0.0, 16, 11), (0.0, 16, 11)]
    first, second = served(rows, 8, 9).requests
    assert first.scheduled_s == 0.0
    assert first.finished_s == pytest.approx(0.026 + 0.0036 + 0.1)
    assert second.scheduled_s == pytest.approx(first.finished_s)
    assert second.finished_s == pytest.approx(2 * first.finished_s)
    # Where room is made once prompts are there, both are computed in one step.
    early, late = served(rows, None, 9).requests
    assert early.scheduled_s == late.scheduled_s == 0.0
    assert late.finished_s == pytest.approx(early.finished_s + 0.1)
    # A client that gives up leaves no room behind.
    dropped = served([*rows, (0.2, 16, 11)], 8, 9, timeout_s=0.15).requests
    assert [one.dropped_s is not None for one in dropped] == [False, True, False]


def test_nothing_changes_where_there_is_room():
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 3, 60)).tolist()
    rows = [(at_s, int(rng.integers(4, 40)), int(rng.integers(1, 20))) for at_s in times]
    frames = [served(rows, reserved, 500).to_frame() for reserved in (None, 8)]
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize("seed", range(6))
def test_every_prompt_has_room_before_it_is_computed(seed):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 1, 60)).tolist()
    rows = [(at_s, int(rng.integers(4, 40)), int(rng.integers(1, 30))) for at_s in times]
    timeout_s = 2.0 if seed % 2 else None
    found = served(rows, 16, 30, timeout_s, slots=int(rng.choice([2, 40])))
    for one in found.requests:
        assert (one.finished_s is None) != (one.dropped_s is None)
    # Of those that have a place at once the blocks of prompts are no more than there are.
    spans = [
        (one.scheduled_s, one.finished_s, -(-(one.input_tokens + 1) // 4))
        for one in found.requests
        if one.finished_s is not None and one.output_tokens > 1 and not one.preemptions
    ]
    for start, _, _ in spans:
        assert sum(blocks for begun, ended, blocks in spans if begun <= start < ended) <= 30


def test_sglang_makes_room_first_and_others_do_not():
    lengths = {"input_tokens": 1000, "output_tokens": 200, "rate": 1.0, "gpu": "h100_sxm"}
    for engine, reserved in (("sglang", 512), ("vllm", None), ("trtllm", None)):
        options = {**lengths, "engine": engine, "prefill": "tp=1", "decode": "tp=1"}
        case = physim.Case.from_options(MODEL, **options)
        assert case.server_of(DECODE).policy.reserved_tokens == reserved


def test_how_many_have_room_by_hand():
    """Of 64,000 tokens a request has 2,512 for 0.3 s, and then 2,612 for 2 s."""
    options = {"gpu": "h100_sxm", "input_tokens": 2000, "output_tokens": 201, "rate": 1.0}
    options |= {"prefill": "tp=1", "decode": "tp=1,kv_blocks=4000"}
    case = physim.Case.from_options(MODEL, engine="sglang", **options)
    room = RoomAhead.of_pool(case.service.pool_of(DECODE), case.demanded)
    assert room is not None
    assert room.rps(0.3, 2.0) == pytest.approx(64_000 / (0.3 * 2512 + 2.0 * 2612.5))
    # Of few places as many requests have one as are there for 2.3 s.
    few = dataclasses.replace(room, places=23.0)
    assert few.rps(0.3, 2.0) == pytest.approx(10.0)
    other = physim.Case.from_options(MODEL, **options)
    assert RoomAhead.of_pool(other.service.pool_of(DECODE), other.demanded) is None


def test_wait_for_room_is_erlangs():
    """20 places and stays of 2 s: Erlang's C formula, and half its wait where stays are alike."""
    room = RoomAhead(20.0, 1e9, 100.0, 100.0)
    for rate in (7.0, 8.0, 9.0):
        offered = 2.0 * rate
        last = offered**20 / math.factorial(20) / (1 - offered / 20)
        erlang = last / (sum(offered**n / math.factorial(n) for n in range(20)) + last)
        wait_s, chance = room.wait(rate, 0.5, 1.5)
        assert chance == pytest.approx(erlang, rel=0.05)
        assert wait_s == pytest.approx(erlang * 2.0 / (20 - offered) / 2, rel=0.05)
    assert room.wait(2.0, 0.5, 1.5)[0] < 1e-6


@pytest.mark.slow
def test_waits_for_room_in_open_loops():
    """A request has some 2,600 of 64,000 tokens for 2 s. Without the wait TTFT is 18% short."""
    options = {"gpu": "h100_sxm", "engine": "sglang", "prefill": "tp=1,replicas=3", "fit": "none"}
    options |= {"decode": "tp=1,kv_blocks=4000", "rate": 9.5, "arrival": "poisson"}
    options |= {"input_tokens": 2000, "output_tokens": 200}
    fluid = physim.predict(MODEL, **options)
    replays = [
        physim.predict(MODEL, **options, requests=6000, method="replay", seed=seed).ttft_s
        for seed in range(2)
    ]
    assert fluid.ttft_s == pytest.approx(np.mean(replays), rel=0.16)


@pytest.mark.slow
def test_the_fluid_says_where_prompts_wait_for_room():
    options = {"gpu": "h100_sxm", "engine": "sglang", "prefill": "tp=1,replicas=3", "fit": "none"}
    options |= {"input_tokens": 2000, "output_tokens": 200, "arrival": "poisson"}
    told = "has room for it, which about "

    def lines(rate: float, blocks: int, **others: Any) -> list[str]:
        decode = f"tp=1,kv_blocks={blocks}"
        found = physim.predict(MODEL, **{**options, **others}, rate=rate, decode=decode)
        return [line for line in found.assumptions if told in line]

    # Of 64,000 tokens a request has some 2,600 for two seconds, and 2,500 for 0.3 s before.
    (line,) = lines(11.0, 4000)
    assert 9.0 < float(line.split(told)[1].split()[0]) < 13.0
    assert not lines(4.0, 4000)
    assert not lines(11.0, 4000, engine="vllm")


@pytest.mark.slow
def test_the_replay_serves_about_as_many_as_have_room():
    options = {"gpu": "h100_sxm", "engine": "sglang", "prefill": "tp=1,replicas=3"}
    options |= {"decode": "tp=1,kv_blocks=4000", "rate": 16.0, "arrival": "poisson"}
    lengths = {"input_tokens": 2000, "output_tokens": 200, "requests": 3000}
    found = physim.predict(MODEL, **options, **lengths, method="replay", fit="none")
    # All come in 188 s, and it takes as much longer as there is no room.
    assert found.requests_per_s == pytest.approx(11.0, rel=0.1)
