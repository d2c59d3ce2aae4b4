"""Predictions of services that compute prompts in one pool and generate answers in another.

A request passes both: what leaves the first comes to the second, and its client has its first token
when the second has its KV blocks and room for it. Of clients, who wait for answers, the rate
follows from how long a request takes (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from physim.batching.limits import Limits
from physim.batching.prompt_caches import PromptCaches
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.ending import ends_later
from physim.fluid.passage import ALONE_RPS, LEAST_SHARE, MOST_SHARE
from physim.fluid.prompt_queue import PromptSteps
from physim.inputs.case import Case
from physim.inputs.scenario import taken_of_load
from physim.metrics import METRICS, PERCENTILES, STATISTICS
from physim.prediction.apart_arrays import clients_of_rank, known_steps, slots_of, with_slots
from physim.prediction.arrays import step_model_of
from physim.prediction.evictions import ALL_FIT
from physim.prediction.journeys import Journey, PromptQueue, Way
from physim.prediction.results import Prediction
from physim.service.phases import DECODE
from physim.service.routers import BY_PREFIX
from physim.step.many_batches import total_seconds

Predict = Callable[[Sequence[Case], Sequence[Corrections]], list[Prediction]]
"""Predicts cases of one server each."""

# How many halvings of the shares in which a rate of clients is looked for, in logarithm, find it
# within a tenth of a percent.
_HALVINGS = 14
# What is nearer to a bound than this is there.
_NEARLY = 0.998
# Where a server is nearly full, requests of clients all wait about as long, so that what they wait
# differs as where it is full to so much.
_CALM = 0.7
# From such a share of the requests that have room on, what they wait for it is too short by a tenth
# of TTFT.
_ROOMY = 0.8


def predict_apart(
    cases: Sequence[Case], corrections: Sequence[Corrections], predict: Predict
) -> list[Prediction]:
    """Predictions of services whose pools each run one phase.

    Args:
        cases: The cases.
        corrections: Corrections of each.
        predict: Predicts cases of one server.

    Raises:
        InputError: A load ends or changes.
    """
    of_clients = [row for row, case in enumerate(cases) if case.demanded.concurrency is not None]
    coming = [row for row in range(len(cases)) if row not in of_clients]
    for row in coming:
        check_stays(cases[row])
    found: dict[int, Prediction] = {}
    for rows, predicted in ((coming, _of_rates), (of_clients, _of_clients)):
        if rows:
            own = [cases[row] for row in rows], [corrections[row] for row in rows]
            found.update(zip(rows, predicted(*own, predict), strict=True))
    return [found[row] for row in range(len(cases))]


def check_stays(case: Case) -> None:
    """Refuses a load that pools apart are not predicted under.

    Args:
        case: Pools apart and their load.

    Raises:
        InputError: It comes at a rate, and ends or changes.
    """
    load = case.demanded
    if load.concurrency is None and (load.dispersion is not None or not load.endless):
        problem = "that ends or changes is only replayed where prefill and decode are apart"
        raise InputError("load", problem, "use --method replay, or a rate without end")


class _Services:
    """Cases whose journeys are asked for at one rate after the other.

    Attributes:
        cases: The cases.
        prompts: The servers that compute the prompts of each.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        corrections: Sequence[Corrections],
        predict: Predict,
    ) -> None:
        self.cases = [replace(case, load=case.demanded.in_open_loop(1.0)) for case in cases]
        self._corrections, self._predict = corrections, predict
        self._ways = [Way.of_case(case) for case in cases]
        # Clients of a data-parallel rank that generates, were all of them there at once.
        self._together = [
            clients_of_rank(case, way.second) for case, way in zip(cases, self._ways, strict=True)
        ]
        self._answers_cv2 = [
            None if case.demanded.concurrency is None else case.demanded.moments().output_cv2
            for case in cases
        ]
        own = [case.of_pool(way.first) for case, way in zip(self.cases, self._ways, strict=True)]
        self.prompts = self._queues(own, self._ways, corrections)
        # Turns of conversations of which all that was said before them is evicted.
        rows = [row for row, case in enumerate(cases) if case.demanded.conversing]
        ways = [self._ways[row] for row in rows]
        missed = [self.cases[row].of_pool(self._ways[row].first, 0.0) for row in rows]
        kept = [
            PromptCaches.of_pool(
                self._ways[row].first, cases[row].demanded, cases[row].service.router
            )
            for row in rows
        ]
        queues = self._queues(missed, ways, [corrections[row] for row in rows])
        self._evictions = dict(zip(rows, zip(queues, kept, strict=True), strict=True))

    def _queues(
        self, cases: Sequence[Case], ways: Sequence[Way], corrections: Sequence[Corrections]
    ) -> list[PromptQueue]:
        """The queues of servers that compute prompts."""
        if not cases:
            return []
        # Of requests that hardly come, each comes alone.
        alone = self._predict(
            [replace(case, load=replace(case.demanded, rate=ALONE_RPS)) for case in cases],
            corrections,
        )
        found = []
        for one, way, case, scaled in zip(alone, ways, cases, corrections, strict=True):
            load, moments = case.demanded, case.demanded.moments()
            steps = _steps_of(case, one, scaled)
            found.append(
                PromptQueue(
                    one, steps, way.first.replicas, load.arrival_cv2, moments.new_cv2, moments.new
                )
            )
        return found

    def at_rates(self, rates: Sequence[float], slots: bool = True) -> list[Journey]:
        """What pools make of so many requests per second of each case.

        Args:
            rates: Requests per second of each.
            slots: Whether requests wait for slots where they generate.
        """
        every = list(zip(self.cases, self._ways, self.prompts, rates, strict=True))
        passed = []
        for (case, way, prompts, rate), together in zip(every, self._together, strict=True):
            load = replace(case.demanded, rate=min(rate, prompts.saturation_rps))
            own = replace(case, load=load).of_pool(way.second)
            passed.append(own if slots else own.with_server(with_slots(own.server, together)))
        seconds = self._predict(passed, self._corrections)
        columns = every, seconds, self._answers_cv2
        journeys = [
            Journey(way, rate, prompts, second, answer_cv2)
            for (_, way, prompts, rate), second, answer_cv2 in zip(*columns, strict=True)
        ]
        for row, (missed, caches) in self._evictions.items():
            journeys[row] = journeys[row].with_evictions(missed, caches)
        return journeys

    def firsts(self, journeys: Sequence[Journey]) -> list[Prediction]:
        """A server of each case that computes prompts, where requests come as they do there."""
        some = [
            replace(case, load=replace(case.demanded, rate=one.rate)).of_pool(
                one.way.first, one.found
            )
            for case, one in zip(self.cases, journeys, strict=True)
        ]
        return self._predict(some, self._corrections)


def _steps_of(case: Case, lone: Prediction, corrections: Corrections) -> PromptSteps:
    """Steps of a server that computes prompts.

    Args:
        case: The server and its prompts.
        lone: The same where these come alone.
        corrections: Corrections of its steps.
    """
    limits, parts = Limits.from_server(case.server), lone.ttft_parts_s
    computed_s, known = parts["prefill"] + parts["launches"], known_steps(case)
    if known is None:
        most_rps = lone.pool.saturation_rps
        return PromptSteps.from_limits(limits, case.demanded.moments().new, computed_s, most_rps)
    seconds = total_seconds(step_model_of(case, corrections), known.batches)
    return PromptSteps.from_known(limits, known, computed_s, seconds)


def _of_rates(
    cases: Sequence[Case], corrections: Sequence[Corrections], predict: Predict
) -> list[Prediction]:
    """Predictions of loads in open loop."""
    services = _Services(cases, corrections, predict)
    rates = [case.demanded.rate or 0.0 for case in cases]
    journeys = services.at_rates(rates)
    every = zip(cases, journeys, services.firsts(journeys), strict=True)
    return [
        _prediction(case, one, first, one.ttft_s, one.requests_per_s, one.ttft_parts_s)
        for case, one, first in every
    ]


def _of_clients(
    cases: Sequence[Case], corrections: Sequence[Corrections], predict: Predict
) -> list[Prediction]:
    """Predictions of clients, of whom as many come as there are over what a request takes."""
    clients = np.array([case.demanded.concurrency for case in cases], float)
    think_s = np.array([case.demanded.think_s for case in cases])
    services = _Services(cases, corrections, predict)
    # Where next to nothing comes, all that there is to know of how much may come.
    fewest = services.at_rates([ALONE_RPS] * len(cases))
    slots = np.array([slots_of(one.way.second) for one in fewest], float)
    # Prompts queue by chance before they are as many as can be; of slots as many wait as there are
    # more clients.
    ends = np.array([min(one.prompts.saturation_rps, one.way.most_rps) for one in fewest])
    low, high = np.log(LEAST_SHARE * ends), np.log(MOST_SHARE * ends)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = services.at_rates(np.exp(middle).tolist(), slots=False)
        stays, answers = (
            np.array([getattr(one, name) for one in found]) for name in ("e2e_s", "answer_s")
        )
        rate = np.exp(middle)
        more = (rate * (stays + think_s) < clients) & (rate * answers < slots)
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    rates = np.exp(low)
    found = services.at_rates(rates.tolist(), slots=False)
    calm = services.at_rates(np.minimum(rates, _CALM * ends).tolist(), slots=False)
    # Of more clients than prompts that can be computed, as many come as can.
    stays = np.array([one.e2e_s for one in found])
    all_come = np.minimum(clients / (stays + think_s), ends)
    # Clients that there is no room for wait for it.
    held = rates < _NEARLY * np.minimum(MOST_SHARE * ends, all_come)
    served = np.where(held, rates, all_come)
    found = [one.saturating_as(other) for one, other in zip(found, fewest, strict=True)]
    columns = cases, found, calm, services.firsts(found), served.tolist()
    return [_of_waits(*row) for row in zip(*columns, strict=True)]


def _of_waits(
    case: Case, one: Journey, calm: Journey, first: Prediction, rate: float
) -> Prediction:
    """The prediction for clients: they wait for whatever they do not spend on their answers.

    Those who send their first requests at once wait for one another's prompts; when they come again
    they are apart.

    Args:
        case: The case.
        one: What pools make of their requests.
        calm: The same where pools have room.
        first: A server that computes prompts.
        rate: Requests per second.
    """
    load = case.demanded
    assert load.concurrency is not None
    ttft_s = load.concurrency / rate - load.think_s - one.answer_s
    parts = one.ttft_parts_s
    queue_s = parts["queue"] + ttft_s - one.ttft_s
    wave_s = share = 0.0
    if load.requests is not None:
        share = min(load.concurrency / load.requests, 1.0)
        together_s = (load.concurrency - 1.0) / (2.0 * one.prompts.saturation_rps)
        wave_s = max(together_s - queue_s, 0.0)
    parts["queue"] = queue_s + share * wave_s
    if load.think_s:
        turns = load.turn_sample.mean_turns if load.conversing else 1.0
        thinking = load.think_s * rate / load.concurrency
        rate /= float(ends_later(load.concurrency, share, thinking, turns))
    return _prediction(case, one, first, ttft_s, rate, parts, calm, (share, wave_s))


def _prediction(
    case: Case,
    one: Journey,
    first: Prediction,
    ttft_s: float,
    rate: float,
    parts: Mapping[str, float],
    calm: Journey | None = None,
    wave: tuple[float, float] = (0.0, 0.0),
) -> Prediction:
    """The prediction of a service from its pools'.

    Args:
        case: The case.
        one: What pools make of its requests.
        first: A server that computes prompts.
        ttft_s: Mean time to first token, but for a first wave; infinite where a queue grows without
            end.
        rate: Requests per second that are completed.
        parts: What the time to first token is spent on.
        calm: What its requests' waits differ by; None for the same.
        wave: The share of requests that come in a first wave, and what these wait more, mean.
    """
    load, known = case.demanded, math.isfinite(ttft_s)
    prompts = replace(first.pool, saturation_rps=one.prompts.most_rps)
    pools = prompts.of_all(one.way.first), one.second.pool.of_all(one.way.second)
    whole = replace(one.second.whole, rate=load.rate)
    latencies = {name: row for name, row in whole.latencies.items() if name in ("itl", "tpot")}
    if known:
        requests = one.requests(calm or one, ttft_s, one.answer_s, wave)
        for name, values in (("ttft", requests.ttft_s), ("e2e", requests.e2e_s)):
            of_all = np.percentile(values, PERCENTILES).tolist()
            latencies[name] = dict(zip(STATISTICS, (float(np.mean(values)), *of_all), strict=True))
        whole = replace(whole, requests=requests)
    latencies = {name: latencies[name] for name in METRICS if name in latencies}
    return replace(
        one.second,
        load=load,
        ttft_s=latencies["ttft"]["mean"] if known else None,
        ttft_parts_s=parts if known else {},
        e2e_s=latencies["e2e"]["mean"] if known else None,
        requests_per_s=rate,
        output_tokens_per_s=rate * load.mean_output,
        saturated=not known,
        pools=pools,
        link_rps=one.way.most_rps,
        whole=replace(whole, latencies=latencies),
        scenario=(*case.taken, *taken_of_load(load)),
        assumptions=tuple(
            dict.fromkeys(
                (
                    *first.assumptions,
                    *one.second.assumptions,
                    *_of_turns(case, one.found),
                    *_of_room(case, one),
                )
            )
        ),
    )


def _of_room(case: Case, one: Journey) -> tuple[str, ...]:
    """That the wait for room that is made before prompts are computed is too short, or nothing."""
    most = one.room_rps
    if case.demanded.concurrency is not None or one.rate < _ROOMY * most:
        return ()
    return (
        f"{case.server_of(DECODE).profile.engine} computes a prompt once its pool that decodes has "
        f"room for it, which about {most:.3g} requests/s have: prompts wait longer than predicted, "
        "use --method replay",
    )


def _of_turns(case: Case, found: float) -> tuple[str, ...]:
    """What turns of conversations find, in lines, or none.

    Args:
        case: The case.
        found: Share of what was said before them, beside answers, that they find.
    """
    service = case.service
    if not case.demanded.conversing:
        return ()
    pool = service.pools[0]
    lines = ["turns find the prompts before where these were computed, without answers"]
    if found < ALL_FIT:
        blocks = f"a cache of {pool.server.kv.blocks:,} KV blocks"
        why = f"is evicted until the next one comes, in {blocks}"
        if pool.replicas > 1 and service.router not in BY_PREFIX:
            why += f", or elsewhere, since a router {service.router} sends turns to any server"
        lines.append(f"{max(1.0 - found, 0.0):.0%} of the prompts before turns {why}")
    return tuple(lines)
