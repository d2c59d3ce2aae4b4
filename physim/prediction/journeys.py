"""What a request passes where prefill and decode are apart, and how long that takes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from physim.batching.guards import SMALL, TINY
from physim.batching.prompt_caches import EVICTION_PASSES, LONG_S, PromptCaches
from physim.batching.room_ahead import RoomAhead
from physim.fluid.passage import chance_of_clients, on_link_s
from physim.fluid.prompt_queue import PromptSteps, PromptWait
from physim.inputs.case import Case
from physim.kept import kept
from physim.prediction.requests import Requests
from physim.prediction.results import Prediction
from physim.service.phases import DECODE, PREFILL
from physim.service.service import Pool, Transfer

_found = kept(PromptCaches.found)
_wait_for_prompts = kept(PromptSteps.wait)
_wait_for_room = kept(RoomAhead.wait)


@dataclass(frozen=True)
class Way:
    """What a request passes where prefill and decode are apart.

    Attributes:
        first: The pool that computes its prompt,
        second: and the one that generates.
        transfer: What carries its KV blocks from one to the other.
        tokens: Tokens that these are of, mean.
        room: What the second makes room in before prompts are computed; None where it makes none.
    """

    first: Pool
    second: Pool
    transfer: Transfer
    tokens: float
    room: RoomAhead | None

    @classmethod
    def of_case(cls, case: Case) -> Way:
        """The way of a case's requests."""
        service, load = case.service, case.demanded
        first, second = (service.pool_of(phase) for phase in (PREFILL, DECODE))
        assert service.link is not None
        transfer = service.link.transfer(first.server, second.server)
        room = RoomAhead.of_pool(second, load)
        return cls(first, second, transfer, load.mean_input, room)

    @property
    def most_rps(self) -> float:
        """Requests per second whose KV blocks are sent at most."""
        return self.first.replicas / (self.transfer.per_token_s * self.tokens)

    def between_s(self, prefill_s: float, rate: float, others: float) -> float:
        """Time from the end of a prompt until its KV blocks are in the other pool, mean, seconds.

        Args:
            prefill_s: How long its prompt is computed.
            rate: Requests per second.
            others: Prompts that end in the same step, mean.
        """
        exposed_s, latency_s = (
            self.transfer.exposed_s(self.tokens, prefill_s),
            self.transfer.latency_s,
        )
        return float(on_link_s(exposed_s, latency_s, rate, self.first.replicas, others))


@dataclass(frozen=True)
class PromptQueue:
    """Servers that compute prompts: a queue of them, each before its one stay.

    Attributes:
        lone: A server whose prompts come alone.
        steps: Its steps.
        servers: How many servers there are.
        arrival_cv2: Squared coefficient of variation of the times between their arrivals,
        prompt_cv2: and of the tokens that are computed of them.
        prompt_tokens: How many these are, mean.
    """

    lone: Prediction
    steps: PromptSteps
    servers: int
    arrival_cv2: float
    prompt_cv2: float
    prompt_tokens: float

    def evicted(self, other: PromptQueue, found: float) -> PromptQueue:
        """The queue where only some of the prompts find what was said before them.

        Args:
            other: That where none does.
            found: The share that do.
        """
        both = np.array([found, 1.0 - found])

        def mean(one: float, two: float) -> float:
            return float(both @ [one, two])

        tokens = mean(self.prompt_tokens, other.prompt_tokens)
        squares = mean(*((1.0 + x.prompt_cv2) * x.prompt_tokens**2 for x in (self, other)))
        parts, others = self.lone.ttft_parts_s, other.lone.ttft_parts_s
        lone = replace(
            self.lone,
            ttft_s=mean(self.stay_s, other.stay_s),
            ttft_parts_s={name: mean(parts[name], others[name]) for name in parts},
            whole=replace(
                self.lone.whole,
                requests=self.lone.whole.requests.some_of(other.lone.whole.requests, found),
            ),
        )
        return replace(
            self,
            lone=lone,
            steps=self.steps.mixed(other.steps, found),
            prompt_cv2=squares / tokens**2 - 1.0,
            prompt_tokens=tokens,
        )

    @functools.cached_property
    def most_rps(self) -> float:
        """Prompts per second of a server, at most."""
        return float(self.steps.most_rps)

    @property
    def saturation_rps(self) -> float:
        """Prompts per second of all servers, at most."""
        return self.servers * self.most_rps

    @property
    def stay_s(self) -> float:
        """Mean time to first token of a prompt that comes alone, seconds."""
        return self.lone.ttft_s or 0.0

    @property
    def computed_s(self) -> float:
        """How long such a prompt is computed, mean, seconds."""
        parts = self.lone.ttft_parts_s
        return parts["prefill"] + parts["launches"]

    def wait(self, rate: float, chance: float) -> PromptWait:
        """What prompts wait for others.

        Args:
            rate: Prompts per second, of all servers.
            chance: How far they come by chance, from 0 to 1.
        """
        own = rate / self.servers
        return _wait_for_prompts(self.steps, own, chance * self.arrival_cv2, self.prompt_cv2)


@dataclass(frozen=True)
class Journey:
    """What pools make of the requests that pass them.

    Attributes:
        way: The pools and what is between them.
        rate: Requests per second that come.
        prompts: The servers that compute prompts.
        second: A server that generates.
        answer_cv2: Of clients, the squared coefficient of variation of their answers' lengths; None
            for requests that come at a rate.
        found: Share of the turns of conversations that find the prompt before.
    """

    way: Way
    rate: float
    prompts: PromptQueue
    second: Prediction
    answer_cv2: float | None = None
    found: float = 1.0

    def with_evictions(self, missed: PromptQueue, caches: PromptCaches) -> Journey:
        """The same, of whose turns only those find the prompt before that come in time.

        The less is found, the longer prompts wait and the more is evicted: from all found on, that
        is followed a few times.

        Args:
            missed: The servers that compute prompts, where turns find no prompt.
            caches: What these keep.
        """
        away_s, passed = self.second.e2e_s or 0.0, self
        for _ in range(EVICTION_PASSES):
            own = passed.prompts
            waited_s = min(passed.wait_s, LONG_S)
            stay_s = own.computed_s + passed.between_s
            found = float(_found(caches, self.rate, stay_s, waited_s, away_s))
            passed = replace(self, prompts=self.prompts.evicted(missed, found), found=found)
        return passed

    @property
    def saturation_rps(self) -> float:
        """Requests per second that all pools and what is between them can do."""
        second = self.way.second.replicas * self.second.pool.saturation_rps
        return min(self.way.most_rps, self.prompts.saturation_rps, second)

    def saturating_as(self, other: Journey) -> Journey:
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
        others = float(self.wait.others)
        return self.way.between_s(self.prompts.computed_s, self.requests_per_s, others)

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
        """How far prompts come by chance, from 0 to 1."""
        if self.answer_cv2 is None or not math.isfinite(self.answer_s):
            return 1.0
        return chance_of_clients(self.answer_cv2, self.rate, self.answer_s)

    @functools.cached_property
    def wait(self) -> PromptWait:
        """What prompts wait for others."""
        return self.prompts.wait(self.rate, self.chance)

    @property
    def wait_s(self) -> float:
        """Mean time that they do, seconds; infinite where more come than can be computed."""
        return math.inf if self.rate >= self.prompts.saturation_rps else float(self.wait.mean_s)

    @property
    def before_s(self) -> float:
        """How long a prompt waits for others, is computed and sent, mean, seconds."""
        return self.prompts.stay_s + self.wait_s + self.between_s

    @property
    def room_rps(self) -> float:
        """Requests per second for which there is room before prompts are computed."""
        if self.way.room is None:
            return math.inf
        return float(self.way.room.rps(self.before_s, self.answer_s))

    @functools.cached_property
    def room_wait(self) -> tuple[float, float]:
        """How long requests that come at a rate wait for it, mean, seconds; and which share do.

        Clients that wait for it send nothing, so that their rate follows from how many have room.
        """
        if self.way.room is None or self.answer_cv2 is not None or self.rate >= self.room_rps:
            return 0.0, 0.0
        wait_s, chance = _wait_for_room(self.way.room, self.rate, self.before_s, self.answer_s)
        return float(wait_s), float(chance)

    @property
    def ttft_s(self) -> float:
        """Mean time to first token, seconds; infinite where a queue grows without end."""
        if self.second.ttft_s is None or self.rate >= min(self.way.most_rps, self.room_rps):
            return math.inf
        return self.room_wait[0] + self.before_s + self.second.ttft_s - self.handed_s

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
        parts["queue"] += self.room_wait[0] + self.wait_s
        admission_s = sum(self.second.ttft_parts_s.values()) - self.handed_s
        return parts | {"transfer": self.between_s, "admission": admission_s}

    def requests(
        self, calm: Journey, ttft_s: float, answer_s: float, wave: tuple[float, float]
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
        ttft += _waits_for_prompts_s(calm.wait, count)
        ttft += _waits_s(*self.room_wait, count, seed=2)
        ttft = np.maximum(ttft + ttft_s - np.mean(ttft), 0.0)
        share, later_s = wave
        first = rng.permutation(count)[: round(share * count)]
        ttft[first] += np.linspace(0.0, 2.0 * later_s, len(first))
        answer = (theirs.e2e_s - theirs.ttft_s)[others]
        answer = np.maximum(answer + answer_s - np.mean(answer), 0.0)
        return Requests(ttft, theirs.tpot_s[others], ttft + answer, mine.input_tokens)


def _waits_for_prompts_s(wait: PromptWait, count: int) -> Float[np.ndarray, " n"]:
    """What some prompts wait that stand for all, seconds: a part of a step, or of a queue beside.

    Args:
        wait: What they wait.
        count: How many prompts.
    """
    rng = np.random.default_rng(1)
    varied = max(float(wait.varied), SMALL)
    steps_s = float(wait.step_s) * rng.gamma(1.0 / varied, varied, count)
    longer = float(wait.longer_s) / max(float(wait.step_s), TINY)
    found = rng.permutation(count) < float(wait.chance) * count
    waits_s = found * steps_s * (float(wait.rest) * rng.random(count) + longer)
    return waits_s + _waits_s(float(wait.behind_s), float(wait.taken), count, seed=3)


def _waits_s(mean_s: float, share: float, count: int, seed: int) -> Float[np.ndarray, " n"]:
    """What some requests wait that stand for all, seconds: most nothing, a share of them longer.

    Those that wait do so for an exponential time, as where most servers' time is taken.

    Args:
        mean_s: What all wait, mean, seconds.
        share: Share of them that wait at all.
        count: How many requests.
        seed: Seed of the order in which they come.
    """
    some = max(share, TINY)
    places = (np.arange(count) + 0.5) / count
    beyond = np.maximum(places - (1.0 - share), 0.0) / some
    return np.random.default_rng(seed).permutation(-mean_s / some * np.log1p(-beyond))
