"""Servers under shares of a load, by the thousand, without a record for each prediction."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from physim.corrections.files import Fit
from physim.inputs.case import Case
from physim.metrics import PERCENTILES
from physim.prediction.arrays import CaseArrays, row_of, stack
from physim.prediction.requests import keeps_to
from physim.prediction.steady import solve_offered, solve_saturated
from physim.pytree import Pytree, swapped
from physim.questions.objectives import EACH, NOTHING, Objective, Requirements

# Predictions that are made at once, of few and of many. More at once are no faster, since all wait
# for the one that takes most iterations, and take ten times as long to compile.
_CHUNKS = (16, 128)

# Requests that come so many times as fast as they are served at most keep to nothing. That is with
# all slots taken, and with fewer, which evict less of the prefix cache, it may be more.
_HOPELESS = 2.0
# More servers than anybody asks for.
_MANY = 1e9
# Relative rounding errors of shares.
_ROUNDING = 1e-9

Numbers = Float[np.ndarray, " n"]
Result = TypeVar("Result")
# Places of some rows, and how many of them count.
Chunk = tuple[Int[np.ndarray, " size"], int]


def most_clients(clients: Numbers, shares: Numbers) -> Numbers:
    """Clients of the server that has most, where servers share them evenly.

    Args:
        clients: All clients.
        shares: The share that each server is to have.
    """
    # Shares have rounding errors.
    return np.maximum(np.ceil(clients * shares * (1 - _ROUNDING)), 1.0)


class Latencies(Pytree):
    """What requests get of a number of servers, seconds; infinite above capacity.

    Attributes:
        means: Mean latencies, by metric.
        percentiles: Those of `physim.metrics.PERCENTILES`, by metric.
        kept: Where nothing that is asked is missed.
        throughput: Requests that are served per second.
        batch: Requests that decode, mean over time.
        kv_use: Share of the KV blocks that running requests hold.
        step_parts: Time of a mean step by part, in the order of `physim.step.lowering.PART_NAMES`.
    """

    means: dict[str, Numbers]
    percentiles: dict[str, Float[np.ndarray, "n percentiles"]]
    kept: Bool[np.ndarray, " n"]
    throughput: Numbers
    batch: Numbers
    kv_use: Numbers
    step_parts: Float[np.ndarray, "n parts"]

    def bounded_by(self, objective: Objective) -> Numbers:
        """The latency that an objective bounds; the mean for one on each request."""
        return _bounded(objective, self.means, self.percentiles)


class Servers:
    """Servers of one engine under one load, as arrays that are made once.

    Attributes:
        cases: The servers.
    """

    def __init__(self, cases: Sequence[Case], fit: Fit) -> None:
        self.cases = tuple(cases)
        self._systems = CaseArrays.from_cases(self.cases)
        self._corrections = stack([fit.on(case).corrections for case in cases])

    def under(
        self, which: Int[np.ndarray, " n"], shares: Numbers, asked: Requirements = NOTHING
    ) -> Latencies:
        """Latencies of some servers that get shares of the load.

        Args:
            which: The servers, by their places in ``cases``.
            shares: Which share of the load's rate, or of its clients, each gets; see
                `most_clients`.
            asked: What is asked of them.
        """
        demand = self._systems.demand
        clients = None
        if demand.concurrency is not None:
            clients = most_clients(demand.concurrency[which], shares)
        return self._found(which, demand.rate[which] * shares, clients, asked)

    def fewest(
        self,
        asked: Requirements,
        most: Int[np.ndarray, " n"],
        least: Int[np.ndarray, " n"] | None = None,
    ) -> Int[np.ndarray, " n"]:
        """How few of each server keep to objectives if they share the load evenly; 0 if none do.

        What keeps to them does so with more, so these are found by bisection.

        Args:
            asked: What is asked.
            most: How many are allowed of each.
            least: How many there are anyway; 0 for none. None for as few as can be.
        """
        every = np.arange(len(self.cases))

        def kept(which: Int[np.ndarray, " n"], numbers: Int[np.ndarray, " n"]) -> Any:
            return self.under(which, 1.0 / numbers, asked).kept if which.size else []

        hopeless, served = self._hopeless(), np.zeros(len(every), bool)
        too_few, enough, wanted = hopeless, most.copy(), ~served
        if least is not None:
            too_few, wanted = np.maximum(hopeless, least), least > 0
            given = every[least > hopeless]
            served[given] = kept(given, least[given])
            enough = np.where(served, least, most)
            too_few = np.where(served, least - 1, too_few)
        more = every[wanted & ~served & (most > too_few)]
        served[more] = kept(more, most[more])
        while (unsure := every[served & (enough - too_few > 1)]).size:
            middle = (too_few[unsure] + enough[unsure]) // 2
            met = self.under(unsure, 1.0 / middle, asked).kept
            enough[unsure[met]], too_few[unsure[~met]] = middle[met], middle[~met]
        return np.where(served, enough, 0)

    def headroom(self, asked: Requirements, replicas: Int[np.ndarray, " n"]) -> Numbers:
        """The least share of a bound, or of the saturation throughput, that is left of each.

        Args:
            asked: What is asked.
            replicas: How many of each share the load; of those with 0 nothing is left.
        """
        every, some = np.zeros(len(self.cases)), np.flatnonzero(replicas)
        if not some.size:
            return every
        found = self.under(some, 1.0 / replicas[some])
        bounds = [one for one in asked.objectives if one.statistic != EACH]
        left = [1 - found.bounded_by(one) / one.seconds for one in bounds]
        every[some] = np.min([*left, 1 - found.throughput / self.saturation[some]], axis=0)
        return every

    def _hopeless(self) -> Int[np.ndarray, " n"]:
        """Numbers of each that are certainly too few; 0 for clients, who wait for answers."""
        demand = self._systems.demand
        if demand.concurrency is not None:
            return np.zeros(len(self.cases), int)
        most = np.maximum(_HOPELESS * self.saturation, demand.rate / _MANY)
        return np.maximum(np.ceil(demand.rate / most).astype(int) - 1, 0)

    def under_rates(
        self, which: Int[np.ndarray, " n"], rates: Numbers, asked: Requirements = NOTHING
    ) -> Latencies:
        """Latencies of some servers to which the load's requests come at rates of their own.

        Args:
            which: The servers, by their places in ``cases``.
            rates: Arrivals per second.
            asked: What is asked of them.
        """
        closed = self._systems.demand.concurrency is not None
        return self._found(which, rates, np.full(len(which), np.inf) if closed else None, asked)

    @functools.cached_property
    def saturation(self) -> Numbers:
        """What each serves at most, requests per second."""
        every = np.arange(len(self.cases))
        return np.concatenate(_run(self._saturated, _chunks(every)))

    def _found(
        self,
        which: Int[np.ndarray, " n"],
        rates: Numbers,
        clients: Numbers | None,
        asked: Requirements,
    ) -> Latencies:
        # Numbers that were solved have fewer digits, for which all would be compiled once more.
        rates = np.asarray(rates, float)

        def solved(chunk: Chunk) -> Latencies:
            places, count = chunk
            own = None if clients is None else clients[places]
            return self._latencies(which[places], rates[places], own, asked, count)

        # All of a chunk wait for the one that takes most iterations, which depends on its load.
        order = np.argsort(rates / self.saturation[which] if clients is None else clients)
        place = np.argsort(order)
        parts = _run(solved, [(order[rows], count) for rows, count in _chunks(which)])
        found: Latencies = jax.tree.map(lambda *own: np.concatenate(own)[place], *parts)
        return found

    def _latencies(
        self,
        rows: Int[np.ndarray, " n"],
        rates: Numbers,
        clients: Numbers | None,
        asked: Requirements,
        count: int,
    ) -> Latencies:
        systems, corrections = row_of((self._systems, self._corrections), rows)
        demand = swapped(systems.demand, rate=rates)
        if clients is not None:
            of_all = np.where(np.isfinite(clients), clients / demand.concurrency, 1.0)
            demand = swapped(demand, concurrency=clients, requests=demand.requests * of_all)
        state, drawn = jax.tree.map(
            lambda leaf: np.asarray(leaf)[:count],
            solve_offered(replace(systems, demand=demand), corrections),
        )
        above = {"ttft": state.saturated, "e2e": state.saturated, "itl": False}
        means = {
            metric: np.where(over, np.inf, getattr(state, metric)) for metric, over in above.items()
        }
        means["tpot"] = means["itl"]
        percentiles = drawn.percentiles()
        if self.cases[0].demanded.mean_output == 1:
            # There is no time between tokens, which keeps any bound.
            for none in ("itl", "tpot"):
                means[none], percentiles[none] = 0.0 * means[none], 0.0 * percentiles[none]
        met, within = ~state.saturated, np.ones(drawn.ttft.shape, bool)
        for one in asked.objectives:
            if one.statistic == EACH:
                within &= keeps_to(drawn.ttft, drawn.tpot, drawn.e2e, one.metric, one.seconds)
            else:
                met &= _bounded(one, means, percentiles) <= one.seconds
        return Latencies(
            means,
            percentiles,
            met & (np.mean(within, axis=1) >= asked.goodput),
            state.throughput,
            state.batch,
            state.kv_use,
            state.step.seconds,
        )

    def _saturated(self, chunk: Chunk) -> Numbers:
        places, count = chunk
        found = solve_saturated(*row_of((self._systems, self._corrections), places))
        return np.asarray(found)[:count]


def _bounded(
    objective: Objective,
    means: Mapping[str, Numbers],
    percentiles: Mapping[str, Float[np.ndarray, "n percentiles"]],
) -> Numbers:
    """The latency that an objective bounds; the mean for one on each request."""
    if objective.statistic in ("mean", EACH):
        return means[objective.metric]
    place = PERCENTILES.index(int(objective.statistic[1:]))
    found: Numbers = percentiles[objective.metric][:, place]
    return np.where(np.isfinite(means[objective.metric]), found, np.inf)


def _chunks(rows: Int[np.ndarray, " n"]) -> list[Chunk]:
    """Places of rows by the chunk, the last one filled up so that all have one shape."""
    size = next((size for size in _CHUNKS if len(rows) <= size), _CHUNKS[-1])
    counts = [min(size, len(rows) - start) for start in range(0, len(rows), size)]
    return [
        (place * size + np.minimum(np.arange(size), count - 1), count)
        for place, count in enumerate(counts)
    ]


def _run(function: Callable[[Chunk], Result], chunks: Sequence[Chunk]) -> list[Result]:
    """A function's results, on all cores: what XLA compiled of a chunk runs on one."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        first = function(chunks[0])  # compiles
        return [first, *pool.map(function, chunks[1:])]
