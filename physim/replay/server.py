"""A server of a replay: one engine, step by step, for any step time.

`physim.replay.scheduler` forms steps. Under asynchronous scheduling a step is formed while the one
before it runs, so it knows nothing that happened since.

Data-parallel ranks each have a scheduler, and take every step together: it ends with the slowest.
A pipeline has as many batches under way as it has stages, one behind the other: a batch is formed
whenever there is room and somebody to run, and its requests decode again when it has passed all.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

import numpy as np

from physim.engines.host_memory import LAYERED
from physim.replay.config import ReplayConfig
from physim.replay.drafted_tokens import DraftedTokens
from physim.replay.microbatch import Microbatch, SingleTokens
from physim.replay.request import Request
from physim.replay.scheduler import Scheduler
from physim.replay.segment import Segment
from physim.replay.step_times import StepTimes

# Looks at the engine that are kept of a long replay.
_MOST_SAMPLES = 2**18


class Outside(Protocol):
    """What a server knows of what is outside of it."""

    def next_arrival_s(self, server: ReplayServer) -> float:
        """From when on a request may come that a server does not know of, seconds."""

    def follow(self, request: Request, now_s: float) -> None:
        """The client of a request that has ended sends another, if it has one."""

    def pass_on(self, request: Request, source: ReplayServer) -> float:
        """A request goes on at another server; gives when that has its KV blocks, seconds."""


@dataclass(eq=False, slots=True)
class _Lane:
    """Batches that pass the stages together.

    Attributes:
        batches: The batch of each rank.
        given_s: When they gave their last tokens, seconds; None before the first.
        held_s: Seconds that requests have waited for prompts since, summed over them.
    """

    batches: list[Microbatch]
    given_s: float | None = None
    held_s: float = 0.0

    @property
    def has_prompts(self) -> bool:
        """Whether prompts are computed in the step that was formed last."""
        for batch in self.batches:  # noqa: SIM110 (asked at every step; `any` takes twice as long)
            if batch.chunks:
                return True
        return False

    @property
    def decodes(self) -> bool:
        """Whether any request decodes."""
        for batch in self.batches:  # noqa: SIM110
            if batch.decoding:
                return True
        return False


class _Flight(NamedTuple):
    """A step, or a run of them, under way.

    Attributes:
        lane: What runs.
        ends_s: When the last step ends.
        steps: How many.
        last_s: How long the last takes.
    """

    lane: _Lane
    ends_s: float
    steps: int
    last_s: float


def _microbatch(config: ReplayConfig, rng: np.random.Generator) -> Microbatch:
    """A batch of a rank, with nobody in it."""
    if config.draft is None:
        return SingleTokens(config.kv.block_size)
    longest = config.sizes.max_model_len
    return DraftedTokens(config.draft, config.kv.block_size, longest, rng)


def _asked(rank: Scheduler) -> int:
    """Requests that wait for room in a rank before they come."""
    return 0 if rank.room is None else len(rank.room.asking)


class ReplayServer:
    """A server and its state.

    Args:
        times: Step times.
        config: What it is.
        timeout_s: Time after which a client gives up on its request; None for never.
        seed: Seed of what is accepted of drafts.

    Attributes:
        config: What it is.
        now: Its time, seconds: it has acted up to then.
        asleep: Whether it has nothing to do until a request comes.
        steps: Steps that it has run.
        received: Requests that it was given.
        content_is_shared: Whether what requests share may also be in other servers' caches.
        samples: Time, requests that wait and that run, and KV blocks in use until the next, of
            each look at it.
        gaps: Time, gap and count of tokens, of each gap between tokens.
        work: A row of `physim.replay.outcome.Work` for each run of steps.
    """

    def __init__(
        self, times: StepTimes, config: ReplayConfig, timeout_s: float | None, seed: int = 0
    ) -> None:
        self.config = config
        self.now, self.asleep, self.steps, self.received = config.warm_up_s, False, 0, 0
        self.content_is_shared = config.parallelism.dp > 1
        # Numbers in a row, since there may be millions.
        self.samples, self.gaps, self.work = array("d"), array("d"), array("d")
        self._times, self._timeout_s = times, timeout_s
        self._kv_blocks = config.kv_blocks
        layout = config.parallelism
        self._ranks = [Scheduler(config, self.gaps) for _ in range(layout.dp)]
        # Not the stream of numbers that requests are drawn from with this seed.
        rng = np.random.default_rng((seed, 1))
        # Batches that are not under way, of each rank one, and those that are.
        self._idle = deque(
            _Lane([_microbatch(config, rng) for _ in self._ranks]) for _ in range(layout.pp)
        )
        self._flights: deque[_Flight] = deque()
        # When each stage of the pipeline is free.
        self._stages = [0.0] * layout.pp
        self._has_host = any(rank.cache.host is not None for rank in self._ranks)
        # Requests that were given to it and that its schedulers have not yet seen.
        self._inbox: list[tuple[float, int, Request]] = []
        self._deadlines: deque[Request] = deque()
        # When the step before began, if the engine did not pause.
        self._began: float | None = None
        # Steps that only decode since a look at what has arrived; any prompt's step counts for all.
        self._unseen = 0
        # How long the two steps before took, where the engine did not pause.
        self._lasted_s = (0.0, 0.0)
        self._runs, self._apart = 0, 1

    @property
    def waiting(self) -> int:
        """Requests that wait, those among them that have room before they come."""
        return len(self._inbox) + sum(
            len(rank.waiting) + len(rank.room or ()) for rank in self._ranks
        )

    @property
    def requests(self) -> int:
        """Requests that wait and that run."""
        return self.waiting + sum(len(rank.running) for rank in self._ranks)

    def found(self, path: Sequence[Segment]) -> int:
        """Blocks of a prompt that are in its prefix cache: in that of the rank with most of them.

        Args:
            path: Segments of the prompt, as all servers know them.
        """
        if not path:
            return 0
        if not self.content_is_shared:
            return self._ranks[0].cache.found(path, path[-1].end)
        return max(
            rank.cache.found([rank.own_segment(one) for one in path], path[-1].end)
            for rank in self._ranks
        )

    @property
    def kv_blocks(self) -> int:
        """KV blocks in use."""
        used = self._kv_blocks
        for rank in self._ranks:
            used -= rank.cache.free
        return used

    @property
    def next_end_s(self) -> float:
        """Until when none of its requests ends, seconds."""
        return self._flights[0].ends_s if self._flights else self.now

    def ask(self, request: Request) -> None:
        """A request whose prompt is yet to be computed elsewhere waits for room.

        Args:
            request: The request.
        """
        rank = min(self._ranks, key=lambda one: one.load + len(one.room or ()))
        assert rank.room is not None
        rank.room.ask(request)

    def make_room(self) -> list[Request]:
        """Makes room for those who wait for it, as far as there is; gives who has it."""
        found = []
        for rank in self._ranks:
            # Those who have lost their blocks come first.
            room = rank.room
            if room is not None and room.asking and all(one in room for one in rank.waiting):
                found += room.make(len(rank.running))
        return found

    def forget(self, request: Request) -> bool:
        """A request will not come, or has come: no room is kept for it. Gives whether any was.

        Args:
            request: The request.
        """
        return any(rank.room.leave(request) for rank in self._ranks if rank.room is not None)

    def receive(self, request: Request, reaches_s: float) -> None:
        """A request is on its way to a scheduler.

        Args:
            request: The request.
            reaches_s: When it is there, seconds.
        """
        self.received += 1
        for rank in self._ranks:
            if rank.room is not None:
                rank.room.come(request)
        heappush(self._inbox, (reaches_s, request.number, request))
        if self.asleep:
            self.now, self.asleep = max(self.now, reaches_s), False

    def act(self, outside: Outside, horizon_s: float) -> None:
        """Forms a step if a batch is free, else ends one; sleeps where there is nothing to do.

        Args:
            outside: What is outside of it.
            horizon_s: When the replay stops, seconds.
        """
        policy = self.config.policy
        began = self._began
        if self._idle:
            known = self.now if began is None or not policy.async_scheduling else began
            if self._unseen >= policy.receive_every or not any(
                len(rank.running) > len(rank.loading) for rank in self._ranks
            ):
                self.arrive(outside, known)
                self._unseen = 0
            if self._has_host:
                for rank in self._ranks:
                    rank.see(known)
            if known == self.now:
                self._release()
            lane = self._idle[0]
            alone = self._form(lane)
            self._release()
            if lane.has_prompts or lane.decodes:
                blocks = self.kv_blocks
                comes_s = outside.next_arrival_s(self)
                if self._inbox:
                    comes_s = min(comes_s, self._inbox[0][0])
                self._idle.popleft()
                self._flights.append(self._launch(lane, alone, comes_s, horizon_s))
                # Requests take blocks all along a run of steps.
                self.look((blocks + self.kv_blocks) / 2)
                return
        if self._flights:
            self._began = self._land(self._flights.popleft(), outside)
        elif any(rank.waiting or rank.prefilling for rank in self._ranks):
            # All is held by requests that were done when this step was formed, or that have left.
            self._began, self._lasted_s = None, (0.0, 0.0)
            if not any(rank.done for rank in self._ranks):
                held = [one.until_s for rank in self._ranks for one in rank.handovers]
                held += self._next_events(outside)
                self.now = max(self.now, min(held, default=self.now))
        else:
            self._began, self._lasted_s = None, (0.0, 0.0)
            if self._inbox:
                self.now = max(self.now, self._inbox[0][0])
            else:
                self.asleep = True

    def _next_loaded_s(self) -> float:
        """When blocks that come up from a lower tier are next there, seconds."""
        if not self._has_host:
            return math.inf
        return min(
            (
                ready_s
                for rank in self._ranks
                for coming in (rank.loading, rank.fetching)
                for ready_s in coming.values()
            ),
            default=math.inf,
        )

    def _next_events(self, outside: Outside) -> list[float]:
        """When somebody may run again, where all there are wait for their blocks to come up."""
        loaded_s = self._next_loaded_s()
        # Those who have lost their blocks wait for those who have room to come and go.
        if loaded_s == math.inf and not any(rank.room for rank in self._ranks):
            return []
        comes = [outside.next_arrival_s(self), *(one[0] for one in self._inbox[:1])]
        times = [loaded_s, *(time_s for time_s in comes if time_s > self.now)]
        return [time_s for time_s in times if time_s < math.inf]

    def _form(self, lane: _Lane) -> bool:
        """Every rank forms a step; gives whether it must stay alone, for those who wait."""
        alone = False
        for rank, batch in zip(self._ranks, lane.batches, strict=True):
            preempted = rank.form(batch, self.now)
            # What was given up in this step can be had in the next.
            alone |= (bool(rank.done) or preempted) and bool(rank.waiting)
        return alone

    def _release(self) -> None:
        for rank in self._ranks:
            if rank.done or rank.handovers:
                rank.release(self.now)

    def look(self, kv_blocks: float) -> None:
        """Notes the engine's state: that of every run of steps, or in a long replay of fewer.

        Args:
            kv_blocks: KV blocks in use until the next look, mean.
        """
        if self._runs % self._apart == 0:
            waiting = running = 0
            for rank in self._ranks:
                waiting += len(rank.waiting) + _asked(rank)
                running += len(rank.running)
            self.samples.extend((self.now, waiting, running, kv_blocks))
            if len(self.samples) == 4 * _MOST_SAMPLES:
                self.samples = array("d", np.reshape(self.samples, (-1, 2, 4))[:, 0].ravel())
                self._apart *= 2
        self._runs += 1

    def arrive(self, outside: Outside, known_s: float) -> None:
        """Requests reach a scheduler, and those leave whose clients have given up.

        Args:
            outside: What is outside of it.
            known_s: Up to when that is known, seconds.
        """
        inbox = self._inbox
        while inbox and inbox[0][0] <= known_s:
            request = heappop(inbox)[2]
            rank = self._ranks[0]
            if len(self._ranks) > 1:
                rank = min(self._ranks, key=lambda one: one.load)
                # Or the one that has room for it.
                rooms = (one for one in self._ranks if one.room is not None and request in one.room)
                rank = next(rooms, rank)
            if self.content_is_shared:
                request.path = tuple(rank.own_segment(segment) for segment in request.path)
            # One of the last two it found under way; the other is as long as any, where steps that
            # are found are longer. What is known up to a step's start came in the one before it.
            request.beside_s = self._lasted_s[1 if self.config.policy.async_scheduling else 0]
            rank.receive(request, self.now)
            if self._timeout_s is not None:
                self._deadlines.append(request)
        while self._deadlines and (
            self._deadlines[0].finished_s is not None or self._deadline_s() <= known_s
        ):
            self._drop(self._deadlines.popleft(), outside)

    def _deadline_s(self) -> float:
        """When the next client gives up."""
        if not self._deadlines or self._timeout_s is None:
            return math.inf
        return self._deadlines[0].arrival_s + self._timeout_s

    def _drop(self, request: Request, outside: Outside) -> None:
        """The client gives up; a request that is done by then is left alone."""
        if request.finished_s is not None:
            return
        for rank in self._ranks:
            if request in rank.running:
                rank.stop(request)
                rank.give_up(request)
                break
            if request in rank.waiting:
                rank.waiting.remove(request)
                rank.fetching.pop(request, None)
                break
        else:
            # It goes on at another server.
            return
        assert self._timeout_s is not None
        request.dropped_s = request.arrival_s + self._timeout_s
        outside.follow(request, request.dropped_s)

    def _launch(self, lane: _Lane, alone: bool, comes_s: float, horizon_s: float) -> _Flight:
        """A step, or a run of decode-only steps, is on its way through the stages."""
        steps = 1
        if lane.has_prompts:
            seconds = last = max(self._mixed(*one) for one in self._running(lane))
        else:
            every = self.config.policy.receive_every
            comes_s = comes_s if every == 1 else math.inf
            until = min(self._deadline_s(), horizon_s, comes_s, self._next_loaded_s())
            pairs = [one for one in zip(self._ranks, lane.batches, strict=True) if one[1].decoding]
            others = self._flights or any(other.decodes for other in self._idle)
            if until > self.now and not alone and not others:
                steps = min([batch.most_steps(rank.cache.free) for rank, batch in pairs])
                if every > 1:
                    steps = min(steps, every - self._unseen)
            steps, seconds, last = self._decodes(lane, steps, until - self.now)
            for rank, batch in pairs:
                # The first step's blocks were taken when it was formed.
                rank.cache.take(batch.blocks_after(steps - 1))
        decoding = given = prompts = tokens = 0
        for batch in lane.batches:
            decoding += batch.stepping
            given += batch.coming(steps)
            for chunk in batch.chunks:
                prompts += 1
                tokens += chunk.tokens
        step_s, each = seconds / steps, given / steps
        self.work.extend((self.now, steps, step_s, decoding, each, prompts, tokens))
        # Each stage takes its share of a step, once the batch before has left it.
        at, share = self.now + seconds - last, last / len(self._stages)
        for stage, free in enumerate(self._stages):
            at = self._stages[stage] = max(at, free) + share
        return _Flight(lane, at, steps, last)

    def _running(self, lane: _Lane) -> list[tuple[Microbatch, dict[str, int]]]:
        """Ranks' batches that run, with the tokens of the others where there are others."""
        batches = lane.batches
        if len(batches) == 1:
            return [(batches[0], {})]
        tokens = [batch.tokens for batch in batches]
        most = max(tokens)
        total = len(tokens) * most if most <= self.config.padded_tokens else sum(tokens)
        return [
            (batch, {"elsewhere": total - own})
            for batch, own in zip(batches, tokens, strict=True)
            if own
        ]

    def _mixed(self, batch: Microbatch, others: dict[str, int]) -> float:
        """Time of a step with prefill."""
        decodes, context = batch.stepping, batch.attended if batch.stepping else 0
        prompts = tokens = squares = cached = products = 0
        for request, chunk, before, _ in batch.chunks:
            if request.handed_tokens:
                # One query over the keys and values that came with it, as those that decode have.
                decodes, context = decodes + 1, context + before + chunk
                continue
            prompts += 1
            tokens += chunk
            squares += chunk * chunk
            cached += before
            products += chunk * before
        seconds = self._times.step(
            decode_requests=decodes,
            decode_context=context,
            prefill_requests=prompts,
            prefill_tokens=tokens,
            prefill_squares=squares,
            cached_tokens=cached,
            cached_products=products,
            **others,
        )
        if self.config.kv.host_memory.loads == LAYERED:
            return max(seconds, batch.load_s)
        return seconds + batch.load_s

    def _decodes(self, lane: _Lane, steps: int, until_s: float) -> tuple[int, float, float]:
        """A run of decode-only steps, of the rank whose first step takes longest."""

        def run(batch: Microbatch, others: dict[str, int], most: int) -> tuple[int, float, float]:
            return batch.run(self._times, most, until_s, others)

        running = self._running(lane)
        slowest = running[0]
        if len(running) > 1:
            slowest = max(running, key=lambda one: run(one[0], one[1], 1)[2])
        return run(slowest[0], slowest[1], steps)

    def _land(self, flight: _Flight, outside: Outside) -> float:
        """A step, or the last of a run, has ended; gives the time at which it began."""
        lane, ended, steps, last = flight
        began, self.now = self.now, ended
        self._lasted_s = self._lasted_s[1], last
        decoding = given = waiting = answered = 0
        for batch in lane.batches:
            stepping = batch.stepping
            decoding += stepping
            given += batch.coming(steps)
            waiting += batch.decoding - stepping
            answered += batch.answered
        since = began
        if len(self._stages) > 1 and lane.given_s is not None:
            since = lane.given_s
        # Steps of prompts alone are a part of the next gap of all that decode.
        lane.held_s += waiting * (ended - since)
        if decoding:
            gap, held = (ended - since) / steps, lane.held_s / decoding
            lane.held_s = 0.0
            first = 1 if held else 0
            if first:
                self.gaps.extend((ended, gap + held, decoding))
            if steps > first:
                self.gaps.extend((ended, gap, (steps - first) * decoding))
            # The tokens that a step gives a request come at once.
            if given > steps * decoding:
                self.gaps.extend((ended, 0.0, given - steps * decoding))
        lane.given_s = ended
        self.steps += steps
        config = self.config
        self._unseen += config.policy.receive_every if lane.has_prompts else steps
        late = config.output_s + config.output_per_request_s * answered
        for rank, batch in zip(self._ranks, lane.batches, strict=True):
            for request in rank.ran(batch, steps, ended, late):
                if request.is_complete:
                    more = config.output_per_token_s * request.output_tokens
                    outside.follow(request, ended + late + more)
                else:
                    rank.hand_over(request, outside.pass_on(request, self))
                    request.leave(config.policy.hands_first_token)
        self._idle.appendleft(lane)
        return ended - last
