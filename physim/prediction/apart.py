"""Predictions of services that compute prompts in one pool and generate answers in another.

A request passes both: what leaves the first comes to the second, and its client has its first token
when the second has its KV blocks and room for it. Of clients, who wait for answers, the rate
follows from how long a request takes (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.inputs.scenario import taken_of_load
from physim.metrics import METRICS, PERCENTILES, STATISTICS
from physim.prediction.requests import Requests
from physim.prediction.results import Prediction
from physim.service.phases import DECODE, PREFILL
from physim.service.server import Server
from physim.service.service import Pool

Predict = Callable[[Sequence[Case], Sequence[Corrections]], list[Prediction]]
"""Predicts cases of one server each."""

# Shares of the saturation throughput between which a rate of clients is looked for, and how many
# halvings of what lies between, in logarithm, find it within a tenth of a percent. Beyond the most,
# where queues of requests that come by chance are long, as many come as are served.
_LEAST, _MOST, _HALVINGS = 1e-5, 0.95, 14
# Requests per second of which none meets another.
_ALONE_RPS = 1e-4
# Slots for each client at which none waits for one, though they come by chance.
_MORE_SLOTS = 16
# Where a server is nearly full, requests of clients all wait about as long, so that what they wait
# differs as where it is full to so much.
_CALM = 0.7


@dataclass(frozen=True)
class _Way:
    """What a request passes where prefill and decode are apart.

    Attributes:
        first: The pool that computes its prompt,
        second: and the one that generates.
        transfer_s: How long its KV blocks take to be sent, all of them, seconds.
        latency_s: What it waits between the pools beside that, seconds.
        hidden: Share of them that may be sent while its prompt is computed.
    """

    first: Pool
    second: Pool
    transfer_s: float
    latency_s: float
    hidden: float

    @classmethod
    def of_case(cls, case: Case) -> _Way:
        """The way of a case's requests."""
        service, load = case.service, case.demanded
        first, second = (service.pool_of(phase) for phase in (PREFILL, DECODE))
        link = service.link
        assert link is not None
        layers = case.model.layers if link.by_layer else 1
        each_s = link.token_s(first.server, second.server)
        return cls(first, second, each_s * load.mean_input, link.latency_s, 1.0 - 1.0 / layers)

    @property
    def most_rps(self) -> float:
        """Requests per second whose KV blocks are sent at most."""
        return self.first.replicas / self.transfer_s

    def between_s(self, prefill_s: float, rate: float) -> float:
        """Time from the end of a prompt until its KV blocks are in the other pool, mean, seconds.

        Servers send those of one request after the other; as many wait as in an M/D/1 queue.

        Args:
            prefill_s: How long its prompt is computed.
            rate: Requests per second.
        """
        exposed_s = max(self.transfer_s - prefill_s, (1.0 - self.hidden) * self.transfer_s)
        busy = min(rate * exposed_s / self.first.replicas, _MOST)
        return self.latency_s + exposed_s * (1.0 + busy / (2.0 * (1.0 - busy)))


@dataclass(frozen=True)
class _Prompts:
    """Servers that compute prompts: a queue of them, each before its one stay.

    Their wait is that of a queue with one server, by the variation of the times between arrivals
    and of the prompts (Allen and Cunneen's approximation; Allen, Probability, Statistics and
    Queueing Theory, 1990): data-parallel ranks have a queue each.

    Attributes:
        lone: A server whose prompts come alone.
        servers: How many servers there are.
        arrival_cv2: Squared coefficient of variation of the times between their arrivals,
        prompt_cv2: and of the tokens that are computed of them.
    """

    lone: Prediction
    servers: int
    arrival_cv2: float
    prompt_cv2: float

    @property
    def saturation_rps(self) -> float:
        """Prompts per second of all servers, at most."""
        return self.servers * self.lone.pool.saturation_rps

    @property
    def stay_s(self) -> float:
        """Mean time to first token of a prompt that comes alone, seconds."""
        return self.lone.ttft_s or 0.0

    @property
    def computed_s(self) -> float:
        """How long such a prompt is computed, mean, seconds."""
        parts = self.lone.ttft_parts_s
        return parts["prefill"] + parts["launches"]

    def wait_s(self, rate: float, chance: float) -> float:
        """Mean time that prompts wait for others, seconds; infinite where more come than can.

        Args:
            rate: Prompts per second, of all servers.
            chance: How far they come by chance, from 0 to 1.
        """
        busy = rate / self.saturation_rps
        if busy >= 1.0:
            return math.inf
        ranks = self.lone.pool.server.parallelism.dp
        each_s = ranks / self.lone.pool.saturation_rps
        return busy / (1.0 - busy) * each_s * (chance * self.arrival_cv2 + self.prompt_cv2) / 2.0

    def waits_s(self, rate: float, chance: float, count: int) -> Float[np.ndarray, " n"]:
        """What some prompts wait that stand for all, seconds: of a share nothing, of others longer.

        Those that wait do so for an exponential time, as where most servers' time is taken.

        Args:
            rate: Prompts per second, of all servers.
            chance: How far they come by chance, from 0 to 1.
            count: How many prompts.
        """
        mean, busy = self.wait_s(rate, chance), rate / self.saturation_rps
        places = (np.arange(count) + 0.5) / count
        beyond = np.maximum(places - (1.0 - busy), 0.0) / max(busy, 1e-9)
        waits = -mean / max(busy, 1e-9) * np.log1p(-beyond)
        return np.random.default_rng(1).permutation(waits)


@dataclass(frozen=True)
class _Journey:
    """What pools make of the requests that pass them.

    Attributes:
        way: The pools and what is between them.
        rate: Requests per second that come.
        prompts: The servers that compute prompts.
        second: A server that generates.
        answer_cv2: Of clients, the squared coefficient of variation of their answers' lengths; None
            for requests that come at a rate.
    """

    way: _Way
    rate: float
    prompts: _Prompts
    second: Prediction
    answer_cv2: float | None = None

    @property
    def saturation_rps(self) -> float:
        """Requests per second that all pools and what is between them can do."""
        second = self.way.second.replicas * self.second.pool.saturation_rps
        return min(self.way.most_rps, self.prompts.saturation_rps, second)

    def saturating_as(self, other: _Journey) -> _Journey:
        """The same, with the server that generates of another and its saturation throughput.

        Args:
            other: The other.
        """
        known = other.second.pool
        pool = replace(self.second.pool, server=known.server, saturation_rps=known.saturation_rps)
        return replace(self, second=replace(self.second, pools=(pool,)))

    @property
    def requests_per_s(self) -> float:
        """Requests per second that are completed."""
        return min(self.rate, self.saturation_rps)

    @property
    def between_s(self) -> float:
        """Time between the pools, mean, seconds."""
        return self.way.between_s(self.prompts.computed_s, self.requests_per_s)

    @property
    def handed_s(self) -> float:
        """Time from when a request has room in the second pool until its step there ends.

        A token that came with it is given out before.
        """
        if not self.way.second.server.policy.hands_first_token:
            return 0.0
        parts = self.second.ttft_parts_s
        return parts.get("prefill", 0.0) + parts.get("launches", 0.0)

    @property
    def chance(self) -> float:
        """How far prompts come by chance, from 0 to 1.

        Clients whose answers take as long come back in the order and at the distances in which
        their prompts were computed; the more their answers differ, in times between prompts, the
        less is left of that.
        """
        if self.answer_cv2 is None:
            return 1.0
        apart = self.answer_cv2 * (self.rate * self.answer_s) ** 2
        return apart / (1.0 + apart) if math.isfinite(apart) else 1.0

    @property
    def ttft_s(self) -> float:
        """Mean time to first token, seconds; infinite where a queue grows without end."""
        if self.second.ttft_s is None or self.rate > self.way.most_rps:
            return math.inf
        before_s = (
            self.prompts.stay_s + self.prompts.wait_s(self.rate, self.chance) + self.between_s
        )
        return before_s + self.second.ttft_s - self.handed_s

    @property
    def answer_s(self) -> float:
        """Mean time from the first token to the last, seconds."""
        if self.second.e2e_s is None or self.second.ttft_s is None:
            return math.inf
        return self.second.e2e_s - self.second.ttft_s + self.handed_s

    @property
    def e2e_s(self) -> float:
        """Mean time of a request, seconds; infinite where a queue grows without end."""
        return self.ttft_s + self.answer_s

    @property
    def ttft_parts_s(self) -> dict[str, float]:
        """What the time to first token is spent on, seconds."""
        parts = dict(self.prompts.lone.ttft_parts_s)
        parts["queue"] += self.prompts.wait_s(self.rate, self.chance)
        admission_s = sum(self.second.ttft_parts_s.values()) - self.handed_s
        return parts | {"transfer": self.between_s, "admission": admission_s}

    def requests(
        self, calm: _Journey, ttft_s: float, answer_s: float, wave: tuple[float, float]
    ) -> Requests:
        """Requests that stand for all, whose waits at the pools say nothing of each other.

        Args:
            calm: What their waits differ by.
            ttft_s: Their mean time to first token, but for the first wave,
            answer_s: and from it to the last.
            wave: The share of requests in a first wave, and what these wait more, mean, seconds.
        """
        mine, theirs = self.prompts.lone.whole.requests, calm.second.whole.requests
        rng, count = np.random.default_rng(0), len(mine.ttft_s)
        others = rng.permutation(count)
        ttft = mine.ttft_s + theirs.ttft_s[others]
        ttft += self.prompts.waits_s(calm.rate, calm.chance, count)
        ttft = np.maximum(ttft + ttft_s - np.mean(ttft), 0.0)
        share, later_s = wave
        first = rng.permutation(count)[: round(share * count)]
        ttft[first] += np.linspace(0.0, 2.0 * later_s, len(first))
        answer = (theirs.e2e_s - theirs.ttft_s)[others]
        answer = np.maximum(answer + answer_s - np.mean(answer), 0.0)
        return Requests(ttft, theirs.tpot_s[others], ttft + answer, mine.input_tokens)


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
        load = cases[row].demanded
        if load.dispersion is not None or not load.endless:
            problem = "that ends or changes is only replayed where prefill and decode are apart"
            raise InputError("load", problem, "use --method replay, or a rate without end")
    found: dict[int, Prediction] = {}
    for rows, predicted in ((coming, _of_rates), (of_clients, _of_clients)):
        if rows:
            own = [cases[row] for row in rows], [corrections[row] for row in rows]
            found.update(zip(rows, predicted(*own, predict), strict=True))
    return [found[row] for row in range(len(cases))]


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
        self.cases = [replace(case, load=_at_rate(case.demanded)) for case in cases]
        self._corrections, self._predict = corrections, predict
        self._ways = [_Way.of_case(case) for case in cases]
        # Clients of a data-parallel rank that generates, were all of them there at once.
        self._together = [
            _clients_of_rank(case, way.second) for case, way in zip(cases, self._ways, strict=True)
        ]
        self._answers_cv2 = [
            None if case.demanded.concurrency is None else case.demanded.moments().output_cv2
            for case in cases
        ]
        own = [case.of_pool(way.first) for case, way in zip(self.cases, self._ways, strict=True)]
        # Of requests that hardly come, each comes alone.
        alone = predict(
            [replace(case, load=replace(case.demanded, rate=_ALONE_RPS)) for case in own],
            corrections,
        )
        self.prompts = [
            _Prompts(
                one,
                way.first.replicas,
                case.demanded.arrival_cv2,
                case.demanded.moments().new_cv2,
            )
            for one, way, case in zip(alone, self._ways, own, strict=True)
        ]

    def at_rates(self, rates: Sequence[float], slots: bool = True) -> list[_Journey]:
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
            passed.append(own if slots else own.with_server(_with_slots(own.server, together)))
        seconds = self._predict(passed, self._corrections)
        columns = every, seconds, self._answers_cv2
        return [
            _Journey(way, rate, prompts, second, answer_cv2)
            for (_, way, prompts, rate), second, answer_cv2 in zip(*columns, strict=True)
        ]

    def firsts(self, rates: Sequence[float]) -> list[Prediction]:
        """A server of each case that computes prompts, at so many requests per second."""
        some = [
            replace(case, load=replace(case.demanded, rate=rate)).of_pool(way.first)
            for case, way, rate in zip(self.cases, self._ways, rates, strict=True)
        ]
        return self._predict(some, self._corrections)


def _clients_of_rank(case: Case, pool: Pool) -> int:
    """Clients of a data-parallel rank of a pool, were all of them there at once."""
    return math.ceil(
        (case.demanded.concurrency or 0.0) / pool.replicas / pool.server.parallelism.dp
    )


def _with_slots(server: Server, requests: int) -> Server:
    """A server whose ranks have slots for so many requests, however these come."""
    slots = max(server.sizes.max_num_seqs, _MORE_SLOTS * requests)
    return replace(server, sizes=replace(server.sizes, max_num_seqs=slots))


def _at_rate(load: Load) -> Load:
    """A load as requests that come at a rate: those of clients by chance."""
    if load.concurrency is None:
        return load
    return replace(
        load,
        concurrency=None,
        requests=None,
        warm_up_s=0.0,
        think_s=0.0,
        rate=1.0,
        arrival="poisson",
    )


def _of_rates(
    cases: Sequence[Case], corrections: Sequence[Corrections], predict: Predict
) -> list[Prediction]:
    """Predictions of loads in open loop."""
    services = _Services(cases, corrections, predict)
    rates = [case.demanded.rate or 0.0 for case in cases]
    every = zip(cases, services.at_rates(rates), services.firsts(rates), strict=True)
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
    fewest = services.at_rates([_ALONE_RPS] * len(cases))
    slots = np.array([_slots(one.way.second) for one in fewest], float)
    # Prompts queue by chance before they are as many as can be; of slots as many wait as there are
    # more clients.
    ends = np.array([min(one.prompts.saturation_rps, one.way.most_rps) for one in fewest])
    low, high = np.log(_LEAST * ends), np.log(_MOST * ends)
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
    answered = rates * np.array([one.answer_s for one in found])
    served = np.where(answered < _MOST * slots, all_come, rates)
    found = [one.saturating_as(other) for one, other in zip(found, fewest, strict=True)]
    columns = cases, found, calm, services.firsts(rates.tolist()), served.tolist()
    return [_of_waits(*row) for row in zip(*columns, strict=True)]


def _slots(pool: Pool) -> int:
    """Requests that all servers of a pool let run."""
    server = pool.server
    return pool.replicas * server.parallelism.dp * server.sizes.max_num_seqs


def _of_waits(
    case: Case, one: _Journey, calm: _Journey, first: Prediction, rate: float
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
    return _prediction(case, one, first, ttft_s, rate, parts, calm, (share, wave_s))


def _prediction(
    case: Case,
    one: _Journey,
    first: Prediction,
    ttft_s: float,
    rate: float,
    parts: Mapping[str, float],
    calm: _Journey | None = None,
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
    pools = tuple(
        replace(
            own.pool,
            saturation_rps=pool.replicas * own.pool.saturation_rps,
            replicas=pool.replicas,
            phases=pool.phases,
        )
        for pool, own in ((one.way.first, first), (one.way.second, one.second))
    )
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
        whole=replace(whole, latencies=latencies),
        scenario=(*case.taken, *taken_of_load(load)),
        assumptions=tuple(dict.fromkeys((*first.assumptions, *one.second.assumptions))),
    )
