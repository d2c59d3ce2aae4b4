"""Random services under random loads, and what holds of every replay of them.

`benchmarks/replay_invariants.py` tries thousands; `test_fleets.py` some tens. Steps take times that
are linear in their tokens, drawn anew for each case: what holds, holds whatever a step takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import physim
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.prediction import replayed
from physim.replay import cluster
from physim.replay.outcome import Replayed
from physim.replay.request import Request
from physim.replay.scheduler import Scheduler
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import drawn
from physim.service.phases import DECODE
from physim.service.routers import BY_LOAD, ROUND_ROBIN, ROUTERS

Rng = np.random.Generator

_DENSE, _EXPERTS = "Qwen/Qwen3-8B", ("openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B")
_ENGINES = ("vllm", "sglang", "trtllm")
# Requests of a case.
_REQUESTS = 120
# Every so many of a server's acts all of its blocks are counted one by one.
_APART = 8
# Of sums of times, a share.
_ROUNDING = 1e-9


class Drawn(NamedTuple):
    """A random case.

    Attributes:
        options: Its options, as `physim.Case.from_options` takes them.
        model: Its model.
        seed: Seed of its requests.
        step_s: Time of an empty step, of a prompt token and of a request that decodes, seconds.
    """

    options: dict[str, Any]
    model: str
    seed: int
    step_s: tuple[float, float, float]

    def case(self) -> physim.Case:
        """The case itself."""
        return physim.Case.from_options(self.model, **self.options)

    @property
    def features(self) -> set[str]:
        """What is on in it."""
        given = self.options
        found = {
            name
            for name in ("draft", "prefill", "kv_host_bytes", "kv_disk_bytes", "timeout_s")
            if name in given
        }
        found |= {name for name in ("turns", "cached_tokens", "stages") if given.get(name)}
        found |= {"clients"} if "concurrency" in given else set()
        found |= {"replicas"} if given.get("replicas", 1) > 1 else set()
        found |= {name for name in ("dp", "pp") if given.get(name, 1) > 1}
        return found | {given["router"]}


def drawn_case(seed: int, attempt: int = 0) -> Drawn:
    """A random service of several servers or one, under a random load.

    KV blocks are so few that requests wait for them, are preempted, and find prefixes evicted, or
    have no room at all: then the next attempt is another.

    Args:
        seed: Which one.
        attempt: Which one of those.
    """
    rng = np.random.default_rng((seed, 7, attempt))
    prompt, answer = (round(math.exp(rng.uniform(*ends))) for ends in ((2.5, 7.0), (0.0, 6.2)))
    longest = 12 * (prompt + answer) + 64
    engine = str(rng.choice(_ENGINES))
    options: dict[str, Any] = {
        "gpu": "h100_sxm",
        "engine": engine,
        "input_tokens": _lengths(rng, prompt),
        "output_tokens": _lengths(rng, answer),
        "max_model_len": longest,
        "max_num_seqs": int(rng.integers(1, 40)),
        "max_num_batched_tokens": int(math.exp(rng.uniform(4.5, 8.5))),
        "router": ROUTERS[seed % len(ROUTERS)],
    }
    if rng.random() < 0.5:
        options["async_scheduling"] = bool(rng.integers(2))
    if engine == "sglang" and rng.random() < 0.3:
        options["receive_every"] = int(rng.integers(2, 12))
    model = _DENSE
    if rng.random() < 0.4:
        model = str(rng.choice(_EXPERTS))
        options["dp"] = int(rng.integers(1, 4))
    if rng.random() < 0.15:
        options["pp"] = 2
    elif rng.random() < 0.5:
        options |= _draft(rng)
    is_apart = rng.random() < 0.5
    if is_apart:
        first, second = (int(count) for count in rng.integers(1, 4, size=2))
        slots = int(rng.integers(1, 20))
        options |= {"prefill": f"replicas={first}", "transfer_by_layer": bool(rng.integers(2))}
        options |= {"decode": f"replicas={second},max_num_seqs={slots}"}
        options |= {"transfer_latency_s": float(rng.choice([0.0, 0.03]))}
        options |= {"transfer_bandwidth": float(math.exp(rng.uniform(19, 26)))}
    else:
        options["replicas"] = int(rng.integers(1, 5))
    options |= _load(rng)
    options |= _caches(rng, prompt, "turns" in options, engine)
    # Turns may come to the longest that there is.
    most = longest if "turns" in options else rng.uniform(1, 6) * (prompt + answer)
    options["kv_blocks"] = round((most / 16 + 4) * math.exp(rng.uniform(0.0, 1.5)))
    step_s = (0.01, 1e-5, 1e-4) * np.exp(rng.normal(size=3))
    if options["router"] in BY_LOAD:
        options["router_age_s"] = float(rng.choice([0.0, 0.05, 2.0]))
    return Drawn(options, model, seed, tuple(step_s.tolist()))


def _lengths(rng: Rng, mean: int) -> Any:
    kind = rng.integers(3)
    if kind == 0 or mean < 4:
        return mean
    if kind == 1:
        return physim.Lengths.exponential(float(mean))
    return physim.Lengths.gamma(float(mean), float(mean) * rng.uniform(0.1, 0.6))


def _draft(rng: Rng) -> dict[str, Any]:
    tokens = int(rng.integers(1, 6))
    return {
        "draft": "ngram",
        "draft_tokens": tokens,
        "draft_acceptance": float(rng.uniform(0.05, 0.95)),
    }


def _load(rng: Rng) -> dict[str, Any]:
    """Requests at a rate, in stages that change and drain, or of clients; turns and giving up."""
    kind = rng.integers(3)
    arrival = {"arrival": str(rng.choice(["constant", "poisson"]))}
    if rng.random() < 0.3:
        arrival = {"arrival": "gamma", "burstiness": float(rng.uniform(0.2, 3.0))}
    if kind == 0:
        load: dict[str, Any] = {"concurrency": int(rng.integers(1, 60)), "requests": _REQUESTS}
        if rng.random() < 0.3:
            load["think_s"] = float(rng.exponential(1.0))
    elif kind == 1:
        load = {"rate": float(math.exp(rng.uniform(-1, 4.5))), "requests": _REQUESTS, **arrival}
    else:
        # A stage of hardly any requests lets servers drain.
        rates = [float(math.exp(rng.uniform(-1, 4.5))), 0.2, float(math.exp(rng.uniform(-1, 4)))]
        load = {"stages": [(rate, 50 / max(rate, 5.0)) for rate in rates], **arrival}
    if kind < 2 and rng.random() < 0.3:
        load |= {"turns": float(rng.integers(2, 6)), "think_s": float(rng.exponential(2.0))}
    elif kind > 0 and rng.random() < 0.25:
        load["timeout_s"] = float(rng.exponential(5.0) + 0.05)
    return load


def _caches(rng: Rng, prompt: int, is_talk: bool, engine: str) -> dict[str, Any]:
    """Prefixes that requests share, and host memory and a disk below the KV cache."""
    caches: dict[str, Any] = {}
    if not is_talk and prompt > 64 and rng.random() < 0.6:
        caches |= {"cached_tokens": int(rng.integers(16, prompt // 2))}
        caches |= {"prefixes": int(rng.integers(1, 60))}
        caches |= {"popularity": str(rng.choice(["in-turn", "uniform", "zipf:1"]))}
    if rng.random() < 0.5:
        caches |= {"kv_host_bytes": float(math.exp(rng.uniform(18, 24)))}
        caches |= {"kv_host_bandwidth": float(math.exp(rng.uniform(20, 24)))}
        if engine != "trtllm" and rng.random() < 0.5:
            caches |= {"kv_disk_bytes": float(math.exp(rng.uniform(20, 26)))}
            caches |= {"kv_disk_bandwidth": float(math.exp(rng.uniform(20, 23)))}
            caches |= {"kv_disk_latency_s": float(rng.choice([0.0, 1e-3]))}
    return caches


# ---- what holds at all times ----


def _check_blocks(rank: Scheduler, whole: bool) -> None:
    """KV blocks of a rank and of the tiers below it are within bounds, and add up."""
    cache = rank.cache
    assert 0 <= cache.free <= rank.kv.blocks, "KV blocks out of bounds"
    for lower, tier in ((cache.host, rank.kv.host), (cache.disk, rank.kv.disk)):
        assert (lower is None) == (tier is None)
        if lower is not None:
            assert 0 <= lower.used <= lower.blocks == tier.blocks, "lower blocks out of bounds"
    assert all(request in rank.waiting for request in rank.fetching), "only who waits fetches"
    if not whole:
        return
    assert sum(cache._queue.values()) == cache.free, "unused blocks do not add up"
    assert min(cache._queue.values(), default=1) >= 0
    for lower in (cache.host, cache.disk):
        if lower is not None:
            assert sum(lower._queue.values()) == lower.used, "lower blocks do not add up"
    for segment in rank._own.values():
        assert 0 <= segment.present <= max(segment.end - segment.first, 0), "segment out of bounds"
        assert segment.holders >= 0, "a segment is held by fewer than none"


class WatchedServer(ReplayServer):
    """A server that looks at itself whenever it has acted.

    Attributes:
        computed: Prompt tokens that were computed of each request.
        landed_s: When each prompt was computed, the first time.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.computed: Counter[Request] = Counter()
        self.landed_s: dict[Request, float] = {}
        self._acts = 0

    def act(self, outside: Any, horizon_s: float) -> None:
        before_s = self.now
        super().act(outside, horizon_s)
        assert self.now >= before_s, "time runs backwards"
        self._acts += 1
        config = self.config
        for rank in self._ranks:
            _check_blocks(rank, self._acts % _APART == 0)
            assert len(rank.running) + len(rank.done) <= config.slots, "more run than slots"
            assert rank.prefilling.keys() <= rank.running.keys()

    def _launch(self, lane: Any, *args: Any) -> Any:
        budget = self.config.sizes.max_num_batched_tokens
        for batch in lane.batches:
            prompts = sum(chunk.tokens for chunk in batch.chunks)
            assert prompts <= budget, "prompts beyond the budget of a step"
            if batch.chunks and not self.config.policy.prompts_apart:
                assert batch.tokens <= budget, "a step beyond its budget"
            for request, tokens, before, _ in batch.chunks:
                assert tokens > 0
                assert before + tokens <= request.target, "more is computed than a prompt has"
                self.computed[request] += tokens
        return super()._launch(lane, *args)


class WatchedCluster(cluster.Cluster):
    """A cluster that notes what passes between its pools.

    Attributes:
        passed: Times that each request went on.
        sent_s: When its KV blocks were there.
        busy_s: From when until when each server sent, request by request.
    """

    last: WatchedCluster

    def __init__(self, *args: Any) -> None:
        self.passed: Counter[Request] = Counter()
        self.sent_s: dict[Request, float] = {}
        super().__init__(*args)
        WatchedCluster.last = self

    def pass_on(self, request: Request, source: ReplayServer) -> float:
        place, now_s = self._pool_of[source], source.now
        before_s = self._taken_s.get(source, 0.0)
        assert request.computed == request.input_tokens, "a prompt goes on that is not computed"
        sent_s = super().pass_on(request, source)
        transfer, taken_s = self._transfers[place], self._taken_s[source]
        exposed_s = transfer.exposed_s(request.computed, now_s - (request.scheduled_s or 0.0))
        # One after the other, each as long as its bytes take.
        assert taken_s >= max(before_s, now_s) + exposed_s * (1 - _ROUNDING), "a link is too fast"
        assert sent_s == taken_s + transfer.latency_s
        self.passed[request] += 1
        self.sent_s[request] = sent_s
        return sent_s


@contextlib.contextmanager
def _watched(drawn_one: Drawn) -> Iterator[None]:
    times = LinearStepTimes(*drawn_one.step_s)
    with (
        mock.patch.object(cluster, "ReplayServer", WatchedServer),
        mock.patch.object(cluster, "Cluster", WatchedCluster),
        mock.patch.object(replayed, "ModelStepTimes", return_value=times),
    ):
        yield


def watched_replay(drawn_one: Drawn) -> tuple[Replayed, WatchedCluster]:
    """A replay of a case, and the servers that it ran on.

    Args:
        drawn_one: The case.
    """
    case = drawn_one.case()
    load = case.demanded
    workload = drawn(load, case.server_of(DECODE), drawn_one.seed)
    with _watched(drawn_one):
        found = replayed.replay_of(workload, case, Corrections(), load.timeout_s, drawn_one.seed)
    return found, WatchedCluster.last


# ---- what holds at the end ----


class Checked(NamedTuple):
    """A replay that kept to all that must hold.

    Attributes:
        drawn: The case.
        counts: What happened in it.
    """

    drawn: Drawn
    counts: Counter[str]


def check_replay(seed: int) -> Checked:
    """Replays the first random case of a seed that can be served, and holds it against all of it.

    Args:
        seed: The seed.

    Raises:
        AssertionError: Something does not hold.
    """
    for attempt in itertools.count():
        drawn_one = drawn_case(seed, attempt)
        with contextlib.suppress(InputError):
            found, servers = watched_replay(drawn_one)
            return Checked(drawn_one, _checked(drawn_one, found, servers))
    raise AssertionError


def _checked(drawn_one: Drawn, found: Replayed, servers: WatchedCluster) -> Counter[str]:
    case = drawn_one.case()
    load, pools = case.demanded, case.service.pools
    is_talk = load.conversing
    _check_requests(found, servers, is_talk)
    _check_conservation(found, servers, case.service.router)
    for server in servers.servers:
        assert server.asleep, "a server is left with something to do"
        for rank in server._ranks:
            _check_blocks(rank, True)
            assert not any((rank.running, rank.waiting, rank.done, rank.loading))
            # All that is held is of requests that another server has by now.
            left = {segment for one in rank.handovers for segment in one.segments}
            held = sum(one.blocks for one in rank.handovers)
            held += sum(segment.present for segment in left)
            assert rank.cache.free + held == rank.kv.blocks, "blocks are held by nobody"
    if load.requests is not None:
        assert len(found.requests) == load.requests, "requests are lost or made up"
    again, _ = watched_replay(drawn_one)
    assert fingerprint(found) == fingerprint(again), "a replay again is another"
    rows = found.requests
    return Counter(
        requests=len(rows),
        dropped=sum(one.dropped_s is not None for one in rows),
        preempted=sum(one.preemptions > 0 for one in rows),
        cached=sum(one.cached_tokens > 0 for one in rows),
        loaded=sum(one.loaded_tokens > 0 for one in rows),
        passed_on=len(servers.passed) if len(pools) > 1 else 0,
        steps=found.steps,
    )


def _check_requests(found: Replayed, servers: WatchedCluster, is_talk: bool) -> None:
    """Every request ends once, in the order in which things happen to it."""
    assert len(set(found.requests)) == len(found.requests)
    for one in found.requests:
        ends = [time for time in (one.finished_s, one.dropped_s) if time is not None]
        assert len(ends) == 1, "a request does not end once"
        if one.finished_s is None:
            assert one.generated <= one.output_tokens
            continue
        assert one.generated == one.output_tokens, "tokens out are not those asked for"
        assert one.arrival_s <= one.scheduled_s <= one.first_token_s <= one.finished_s
        own = [server.computed[one] for server in servers.pools[0] if one in server.computed]
        wanted = one.input_tokens - one.cached_tokens
        assert len(own) == 1, "a prompt is computed at several servers"
        assert own[0] >= wanted if one.preemptions else own[0] == wanted, "prompt tokens are lost"
        if one in servers.sent_s:
            assert one.first_token_s >= servers.sent_s[one], "a token before its prompt is there"
    if is_talk:
        # A turn comes after the answer to the one before.
        key = [(one.conversation, one.number) for one in found.requests]
        by_talk = sorted(zip(key, found.requests, strict=True), key=lambda pair: pair[0])
        for (_, first), (_, second) in itertools.pairwise(by_talk):
            if first.conversation == second.conversation is not None:
                assert second.arrival_s >= (first.finished_s or first.dropped_s)


def _check_conservation(found: Replayed, servers: WatchedCluster, router: str) -> None:
    """What comes into routers and links goes out of them, once."""
    received = [[server.received for server in pool] for pool in servers.pools]
    assert sum(received[0]) == len(servers.sent) == len(found.requests), "a router loses requests"
    assert all(times == 1 for times in servers.passed.values()), "a request goes on twice"
    for pool in received[1:]:
        assert sum(pool) == len(servers.passed), "a link loses requests"
    if servers.pools[-1][0].config.makes_room_first and len(servers.passed) < len(servers.sent):
        # Who does not go on has had its turn.
        received = received[:1]
    if router == ROUND_ROBIN:
        assert all(max(pool) - min(pool) <= 1 for pool in received), "in turn is not in turn"
    firsts = sum(one.first_token_s is not None for one in found.requests)
    given = sum(one.generated for one in found.requests)
    if not any(one.dropped_s is not None for one in found.requests):
        assert firsts + int(found.gaps.tokens.sum()) == given, "tokens out are lost on the way"
        alone = sum(one.output_tokens == 1 for one in found.requests)
        if len(servers.pools) > 1:
            assert len(servers.passed) == len(found.requests) - alone, "who goes on is not who must"


def fingerprint(found: Replayed) -> str:
    """A digest of all that a replay gave, to the last bit.

    Args:
        found: The replay.
    """
    digest = hashlib.sha256()
    frame = found.to_frame()
    for name in frame:
        digest.update(np.ascontiguousarray(frame[name].to_numpy().astype("S32")).tobytes())
    for part in (found.samples, found.gaps, found.work):
        for values in vars(part).values():
            digest.update(np.ascontiguousarray(values).tobytes())
    digest.update(np.float64(found.end_s).tobytes())
    return digest.hexdigest()
