"""The load of a server: what the requests of a service do at a pool, and its share of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int

from physim.inputs.load import Load
from physim.inputs.popularity import IN_TURN
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.routed_load import LevelledLoad, RoutedLoad
from physim.service.phases import DECODE, PHASES, PREFILL, visit
from physim.service.routers import BY_LOAD, BY_PREFIX, LEVELLING, RANDOM, ROUND_ROBIN

# Turns of which some find what was said before and some do not, at least.
_FEWEST_TURNS = 4096


def pool_load(
    load: Load, phases: Collection[str], hands_first_token: bool = True, found: float = 1.0
) -> Load:
    """The load of a pool that runs some phases.

    Requests come as they do to the service. What they have in the KV cache when they start is each
    request's own, unless the pool computes their prompts and they share prefixes. Of turns of
    conversations servers that only compute prompts have the prompt before, unless it is evicted;
    the answers to it are elsewhere.

    Args:
        load: The load of the service.
        phases: Phases that the pool runs, of `physim.service.phases.PHASES`.
        hands_first_token: Whether the token that the prompt gave comes with it to the pool that
            decodes.
        found: Share of the turns of conversations whose prompt before is not evicted.
    """
    if set(phases) == set(PHASES):
        return load
    if load.conversing:
        return pool_load(_as_requests(load, found), phases, hands_first_token)
    if load.lengths is None and DECODE not in phases:
        # Prefixes that requests share stay shared.
        return replace(load, output_tokens=1)
    lengths = load.lengths or RequestLengths.independent(load.input_tokens, load.output_tokens)
    prompts, cached, outputs = lengths.arrays
    stay = visit(phases, prompts, cached, outputs, hands_first_token)
    # A request of one token has it of its prompt, and goes nowhere else.
    given = np.maximum(stay.given, 1.0)
    columns = stay.context + stay.computed, given, stay.context
    return replace(load, prefixes=1, popularity=IN_TURN).with_lengths(
        RequestLengths.from_columns(
            *columns, recorded=lengths.recorded, handed=PREFILL not in phases
        )
    )


def _as_requests(load: Load, found: float) -> Load:
    """Turns as requests whose prompts, what is cached of them, and answers go together."""
    turns, cv2 = load.turn_sample, load.arrival_cv2
    most = np.minimum(turns.asked_tokens, turns.input_tokens - 1.0)
    requests = turns.requests(most)
    if found < 1.0:
        # Every so many do not find what was said before, of few that stand for all as of many.
        times = math.ceil(_FEWEST_TURNS / len(most))
        columns = turns.input_tokens, turns.output_tokens, most
        prompts, outputs, cached = (np.repeat(column, times) for column in columns)
        is_found = np.diff(np.floor(found * np.arange(len(prompts) + 1))) > 0
        cached = np.where(is_found, cached, np.minimum(cached, turns.prefix_tokens))
        requests = RequestLengths.from_columns(prompts, outputs, cached, name="turns")
    own = replace(load, turns=1, think_s=0.0, prefixes=1, popularity=IN_TURN)
    if load.rate is not None:
        own = replace(own, **_arriving(cv2))
    return own.with_lengths(requests)


def _arriving(cv2: float) -> dict[str, Any]:
    """How requests come whose times between arrivals vary so much, as options of a load."""
    if cv2 == 0.0:
        return {"arrival": "constant", "burstiness": 1.0}
    kind = ("poisson", 1.0) if cv2 == 1.0 else ("gamma", 1.0 / cv2)
    return {"arrival": kind[0], "burstiness": kind[1]}


def shared_out(load: Load, servers: int, router: str) -> Load:
    """The load of one of some servers that a router spreads requests over.

    What is left to chance keeps its dispersion: of counts with an index of dispersion ``I``, a
    server that gets each with a chance of ``1/n`` has ``1 + (I - 1)/n`` (Cox and Isham, Point
    Processes, 1980). In turn each ``n``-th request comes, with ``I/n``; so it is in the long run
    where a router looks at what servers have.

    Args:
        load: The load of all.
        servers: How many servers there are.
        router: How it is spread, of `physim.service.routers.ROUTERS`.
    """
    if servers == 1:
        return load
    changes: dict[str, Any] = {"prefixes": _prefixes(load, servers, router)}
    if changes["prefixes"] == 1:
        changes["popularity"] = IN_TURN
    # Of fewer clients than servers, each has one to itself.
    used = servers if load.concurrency is None else min(servers, load.concurrency)
    if load.requests is not None:
        changes["requests"] = max(round(load.requests / used), 1)
    if load.concurrency is not None:
        return replace(load, concurrency=load.concurrency / used, **changes)
    if load.rate is not None:
        changes["rate"] = load.rate / servers
    changes["stages"] = tuple(replace(one, rate=one.rate / servers) for one in load.stages)
    chance = router == RANDOM or (router in BY_PREFIX and load.popularity != IN_TURN)
    if load.dispersion is not None:
        return _of_recorded(replace(load, **changes), servers, chance)
    cv2 = load.arrival_cv2 / servers + (1.0 - 1.0 / servers) * chance
    shared = replace(load, **_arriving(cv2), **changes)
    if chance or router not in BY_LOAD:
        return shared
    return (LevelledLoad if router in LEVELLING else RoutedLoad).from_load(shared)


def _of_recorded(load: Load, servers: int, chance: bool) -> Load:
    """A load with a server's share of the recorded arrivals, and of their lengths with them."""
    assert load.dispersion is not None
    count = len(load.dispersion.arrival_s)
    rows: Int[np.ndarray, " rows"] = np.arange(0, count, servers)
    if chance:
        rows = np.flatnonzero(np.random.default_rng(0).integers(servers, size=count) == 0)
    recorded = load.recorded
    load = replace(load, dispersion=load.dispersion.of_rows(rows))
    if not recorded:
        return load
    assert load.lengths is not None
    return load.with_lengths(load.lengths.of_rows(rows))


def _prefixes(load: Load, servers: int, router: str) -> int:
    """Different prefixes that come to a server."""
    if load.prefixes == 1 or router in BY_PREFIX:
        return max(round(load.prefixes / servers), 1)
    if router == ROUND_ROBIN and load.popularity == IN_TURN:
        return load.prefixes // math.gcd(load.prefixes, servers)
    return load.prefixes
