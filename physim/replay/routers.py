"""Which of the servers of a pool takes a request.

A router knows what servers hold as it picks one, or what they held some time ago
(`physim.replay.past`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from physim.replay.config import ReplayConfig
from physim.replay.request import Request
from physim.replay.segment import Segment
from physim.service.routers import (
    CACHE_AWARE,
    LEAST_KV,
    LEAST_REQUESTS,
    PREFIX_SCORES,
    RANDOM,
    ROUND_ROBIN,
)


class Candidate(Protocol):
    """What a router sees of a server: see `physim.replay.server.ReplayServer`."""

    @property
    def config(self) -> ReplayConfig:
        """What it is."""

    @property
    def requests(self) -> int:
        """Requests that wait and that run."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""

    @property
    def kv_blocks(self) -> int:
        """KV blocks in use."""

    @property
    def received(self) -> int:
        """Requests that it was given."""

    def found(self, path: Sequence[Segment]) -> int:
        """Blocks of a prompt that are in its prefix cache."""


Router = Callable[[Sequence[Candidate], Request], Candidate]

# Weights of the default scorers of the Gateway API Inference Extension, which llm-d builds on: of
# the share of a prompt that a server has, of its free KV blocks and of how few requests wait.
_PREFIX, _FREE, _QUEUE = 3.0, 2.0, 2.0
# Defaults of SGLang's router: it balances where the most loaded server has so many requests more
# than the least loaded one and so many times as many; else a prompt goes where more than such a
# share of it was sent before.
_MORE, _TIMES, _SHARE = 64, 1.5, 0.3


def router_named(name: str, seed: int = 0) -> Router:
    """A router of one pool.

    Args:
        name: One of `physim.service.routers.ROUTERS`.
        seed: Seed of what it leaves to chance.
    """
    routers: dict[str, Callable[[], Router]] = {
        ROUND_ROBIN: _RoundRobin,
        RANDOM: lambda: _Random(seed),
        LEAST_REQUESTS: lambda: _least_requests,
        LEAST_KV: lambda: _least_kv,
        PREFIX_SCORES: lambda: _prefix_scores,
        CACHE_AWARE: _CacheAware,
    }
    return routers[name]()


class _RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._turn = -1

    def __call__(self, servers: Sequence[Candidate], _: Request) -> Candidate:
        self._turn = (self._turn + 1) % len(servers)
        return servers[self._turn]


class _Random:
    """Any, by chance."""

    def __init__(self, seed: int) -> None:
        # Not the stream of numbers that requests are drawn from with this seed.
        self._rng = np.random.default_rng((seed, 2))

    def __call__(self, servers: Sequence[Candidate], _: Request) -> Candidate:
        return servers[int(self._rng.integers(len(servers)))]


def _least_requests(servers: Sequence[Candidate], _: Request) -> Candidate:
    """The one with the fewest requests; of several, the one that was given the fewest."""
    return min(servers, key=lambda server: (server.requests, server.received))


def _least_kv(servers: Sequence[Candidate], _: Request) -> Candidate:
    """The one whose running requests hold the fewest KV blocks, likewise."""
    return min(servers, key=lambda server: (server.kv_blocks, server.received))


def _prefix_scores(servers: Sequence[Candidate], request: Request) -> Candidate:
    """The one with the highest sum of weighted scores; of several, who was given the fewest."""
    queues = [server.waiting for server in servers]
    most, least = max(queues), min(queues)
    blocks = max(request.path[-1].end if request.path else 0, 1)

    def score(server: Candidate) -> float:
        queue = (most - server.waiting) / (most - least) if most > least else 1.0
        free = 1.0 - server.kv_blocks / server.config.kv_blocks
        return _PREFIX * server.found(request.path) / blocks + _FREE * free + _QUEUE * queue

    return max(servers, key=lambda server: (score(server), -server.received))


class _CacheAware:
    """Where most of the prompt was sent before, unless that unbalances the servers."""

    def __init__(self) -> None:
        self._sent: dict[Segment, Candidate] = {}

    def __call__(self, servers: Sequence[Candidate], request: Request) -> Candidate:
        loads = [server.requests for server in servers]
        most, least = max(loads), min(loads)
        server = None
        if not (most - least > _MORE and most > _TIMES * least):
            server = self._holder(request, servers)
        if server is None:
            server = _least_requests(servers, request)
        self._sent.update(dict.fromkeys(request.path, server))
        return server

    def _holder(self, request: Request, servers: Sequence[Candidate]) -> Candidate | None:
        """The server that enough of a prompt was sent to; None where there is none any more."""
        known, blocks = None, 0
        for segment in request.path:
            if self._sent.get(segment) not in servers:
                break
            known, blocks = self._sent[segment], segment.end
        enough = blocks * servers[0].config.kv.block_size > _SHARE * request.input_tokens
        return known if enough else None
