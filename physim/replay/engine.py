"""An exact replay of an engine, request by request, for any step time.

`physim.replay.scheduler` forms steps. Under asynchronous scheduling a step is formed while the one
before it runs, so it knows nothing that happened since. Between two events a batch only ages, so
the replay jumps from event to event.

Data-parallel ranks each have a scheduler, and take every step together: it ends with the slowest.
A pipeline has as many batches under way as it has stages, one behind the other: a batch is formed
whenever there is room and somebody to run, and its requests decode again when it has passed all.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import fields
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from physim.errors import InputError
from physim.replay.outcome import Engine, Gaps, Replayed, Samples, Work
from physim.replay.scheduler import Microbatch, Scheduler
from physim.replay.step_times import StepTimes
from physim.replay.workload import Request, Workload

# Looks at the engine that are kept of a long replay.
_MOST_SAMPLES = 2**18


def replay(
    workload: Workload,
    times: StepTimes,
    engine: Engine,
    timeout_s: float | None = None,
    horizon_s: float = math.inf,
) -> Replayed:
    """Runs every request of a workload through an engine.

    Args:
        workload: The requests; they are changed, so a workload serves one replay.
        times: Step times.
        engine: The engine.
        timeout_s: Time after which a client gives up on its request; None for never.
        horizon_s: When to stop, whatever is under way.

    Raises:
        InputError: A request would never fit into the KV cache.
    """
    loop = _Loop(workload, times, engine, timeout_s)
    loop.run(horizon_s)
    samples = Samples(*np.frombuffer(loop.samples).reshape(-1, 4).T)
    gaps = Gaps(*np.frombuffer(loop.gaps).reshape(-1, 3).T)
    arrived = [request for request in loop.sent if request.arrival_s <= horizon_s]
    requests = sorted(arrived, key=lambda request: (request.arrival_s, request.number))
    work = Work(*np.frombuffer(loop.work).reshape(-1, len(fields(Work))).T)
    return Replayed(requests, samples, gaps, work, loop.steps, loop.now, engine)


class _Flight(NamedTuple):
    """A step, or a run of them, under way.

    Attributes:
        lane: The batch of each rank.
        ends_s: When the last step ends.
        steps: How many.
        last_s: How long the last takes.
    """

    lane: list[Microbatch]
    ends_s: float
    steps: int
    last_s: float


class _Loop:
    """The state of a replay."""

    def __init__(
        self, workload: Workload, times: StepTimes, engine: Engine, timeout_s: float | None
    ) -> None:
        self.workload = workload
        self.times = times
        self.engine = engine
        self.timeout_s = timeout_s
        layout, limits = engine.parallelism, engine.limits
        # Numbers in a row, since there may be millions.
        self.samples, self.gaps, self.work = array("d"), array("d"), array("d")
        self.ranks = [Scheduler(limits, engine.prefix_caching, self.gaps) for _ in range(layout.dp)]
        # Batches that are not under way, of each rank one, and those that are.
        self.idle = deque(
            [Microbatch(limits.block_size) for _ in self.ranks] for _ in range(layout.pp)
        )
        self.flights: deque[_Flight] = deque()
        # When each stage of the pipeline is free, and when each batch gave its last tokens.
        self.stages = [0.0] * layout.pp
        self.given_s: dict[int, float] = {}
        # Seconds that requests of a batch have waited for prompts since, summed over them.
        self.held_s: dict[int, float] = {}
        # Requests on their way to a scheduler, by when they reach it.
        self.coming: list[tuple[float, int, Request]] = []
        self.sent: list[Request] = []
        for request in workload.requests:
            self._send(request)
        self.deadlines: deque[Request] = deque()
        self.now = engine.warm_up_s
        self.steps = 0
        # Steps that only decode since a look at what has arrived; any prompt's step counts for all.
        self.unseen = 0
        self.runs, self.apart = 0, 1

    def _send(self, request: Request) -> None:
        """A client sends a request, which reaches the scheduler some time later."""
        engine, rank = self.engine, self.ranks[0]
        tokens, room = request.input_tokens + request.output_tokens - 1, engine.limits.kv_blocks
        request.fixed = engine.limits.fixed_blocks(tokens)
        needed = rank.blocks(tokens) + request.fixed
        if needed > room:
            raise InputError(
                f"request {request.number}",
                f"needs {needed} KV blocks and there are {room}",
                "shorten it, or give the engine more of them",
            )
        reaches = request.arrival_s + engine.front_end_s
        reaches += engine.front_end_per_token_s * request.input_tokens
        self.sent.append(request)
        heappush(self.coming, (reaches, request.number, request))

    def run(self, horizon_s: float) -> None:
        """Runs until nothing is left to do, or to the horizon."""
        ahead, every = self.engine.limits.async_scheduling, self.engine.limits.receive_every
        began: float | None = None  # of the step before, if the engine did not pause
        while self.now < horizon_s:
            if self.idle:
                known = self.now if began is None or not ahead else began
                if self.unseen >= every or not any(rank.running for rank in self.ranks):
                    self._arrive(known)
                    self.unseen = 0
                if known == self.now:
                    self._release()
                alone = self._form(self.idle[0])
                self._release()
                if any(batch.chunks or batch.decoding for batch in self.idle[0]):
                    self._look()
                    self.flights.append(self._launch(self.idle.popleft(), alone, horizon_s))
                    continue
            if self.flights:
                began = self._land(self.flights.popleft())
            elif any(rank.waiting or rank.prefilling for rank in self.ranks):
                # All is held by requests that were done when this step was formed.
                began = None
            elif self.coming:
                self.now, began = max(self.now, self.coming[0][0]), None
            else:
                break
        self._arrive(min(self.now, horizon_s))

    def _form(self, lane: list[Microbatch]) -> bool:
        """Every rank forms a step; gives whether it must stay alone, for those who wait."""
        alone = False
        for rank, batch in zip(self.ranks, lane, strict=True):
            preempted = rank.form(batch, self.now)
            # What was given up in this step can be had in the next.
            alone |= (bool(rank.done) or preempted) and bool(rank.waiting)
        return alone

    def _release(self) -> None:
        for rank in self.ranks:
            if rank.done:
                rank.release()

    def _look(self) -> None:
        """Notes the engine's state: that of every run of steps, or in a long replay of fewer."""
        if self.runs % self.apart == 0:
            ranks = self.ranks
            free = sum(rank.cache.free for rank in ranks)
            waiting, running = (
                sum(len(of) for of in kind)
                for kind in ([rank.waiting for rank in ranks], [rank.running for rank in ranks])
            )
            taken = self.engine.kv_blocks - free
            self.samples.extend((self.now, waiting, running, taken))
            if len(self.samples) == 4 * _MOST_SAMPLES:
                self.samples = array("d", np.reshape(self.samples, (-1, 2, 4))[:, 0].ravel())
                self.apart *= 2
        self.runs += 1

    def _arrive(self, known_s: float) -> None:
        """Requests that reach a scheduler, and those whose clients have given up."""
        coming = self.coming
        while coming and coming[0][0] <= known_s:
            request = heappop(coming)[2]
            rank = self.ranks[0]
            if len(self.ranks) > 1:
                rank = min(self.ranks, key=lambda one: one.load)
                request.path = tuple(rank.own(segment) for segment in request.path)
            rank.waiting.append(request)
            if self.timeout_s is not None:
                self.deadlines.append(request)
        while self.deadlines and (
            self.deadlines[0].finished_s is not None or self._deadline_s() <= known_s
        ):
            self._drop(self.deadlines.popleft())

    def _deadline_s(self) -> float:
        """When the next client gives up."""
        if not self.deadlines or self.timeout_s is None:
            return math.inf
        return self.deadlines[0].arrival_s + self.timeout_s

    def _drop(self, request: Request) -> None:
        """The client gives up; a request that is done by then is left alone."""
        if request.finished_s is not None:
            return
        assert self.timeout_s is not None
        request.dropped_s = request.arrival_s + self.timeout_s
        for rank in self.ranks:
            if request in rank.running:
                rank.stop(request)
                rank.give_up(request)
                break
            if request in rank.waiting:
                rank.waiting.remove(request)
                break
        self._follow(request, request.dropped_s)

    def _follow(self, request: Request, now_s: float) -> None:
        following = self.workload.follow(request, now_s)
        if following is not None:
            self._send(following)

    def _launch(self, lane: list[Microbatch], alone: bool, horizon_s: float) -> _Flight:
        """A step, or a run of decode-only steps, is on its way through the stages."""
        steps = 1
        if any(batch.chunks for batch in lane):
            seconds = last = max(self._mixed(*one) for one in self._running(lane))
        else:
            every = self.engine.limits.receive_every
            comes = self.coming[0][0] if self.coming and every == 1 else math.inf
            until = min(self._deadline_s(), horizon_s, comes)
            pairs = [pair for pair in zip(self.ranks, lane, strict=True) if pair[1].decoding]
            others = self.flights or any(batch.decoding for other in self.idle for batch in other)
            if until > self.now and not alone and not others:
                steps = min(batch.most_steps(rank.cache.free) for rank, batch in pairs)
                if every > 1:
                    steps = min(steps, every - self.unseen)
            steps, seconds, last = self._decodes(lane, steps, until - self.now)
            for rank, batch in pairs:
                # The first step's blocks were taken when it was formed.
                rank.cache.take(batch.blocks_after(steps - 1))
        chunks = [chunk for batch in lane for chunk in batch.chunks]
        decoding, tokens = sum(batch.stepping for batch in lane), sum(one.tokens for one in chunks)
        self.work.extend((self.now, steps, seconds / steps, decoding, len(chunks), tokens))
        # Each stage takes its share of a step, once the batch before has left it.
        at, share = self.now + seconds - last, last / len(self.stages)
        for stage, free in enumerate(self.stages):
            at = self.stages[stage] = max(at, free) + share
        return _Flight(lane, at, steps, last)

    def _running(self, lane: list[Microbatch]) -> list[tuple[Microbatch, dict[str, int]]]:
        """Ranks' batches that run, with the tokens of the others where there are others."""
        if len(lane) == 1:
            return [(lane[0], {})]
        tokens = [batch.tokens for batch in lane]
        return [
            (batch, {"elsewhere": sum(tokens) - own})
            for batch, own in zip(lane, tokens, strict=True)
            if own
        ]

    def _mixed(self, batch: Microbatch, others: dict[str, int]) -> float:
        """Time of a step with prefill."""
        tokens = squares = cached = products = 0
        for _, chunk, before, _ in batch.chunks:
            tokens += chunk
            squares += chunk * chunk
            cached += before
            products += chunk * before
        return self.times.step(
            decode_requests=batch.stepping,
            decode_context=batch.context + batch.decoding if batch.stepping else 0,
            prefill_requests=len(batch.chunks),
            prefill_tokens=tokens,
            prefill_squares=squares,
            cached_tokens=cached,
            cached_products=products,
            **others,
        )

    def _decodes(
        self, lane: list[Microbatch], steps: int, until_s: float
    ) -> tuple[int, float, float]:
        """A run of decode-only steps, of the rank whose first step takes longest."""

        def run(batch: Microbatch, others: dict[str, int], most: int) -> tuple[int, float, float]:
            context = batch.context + batch.decoding
            return self.times.decode(batch.decoding, context, most, until_s, **others)

        running = self._running(lane)
        slowest = running[0]
        if len(running) > 1:
            slowest = max(running, key=lambda one: run(one[0], one[1], 1)[2])
        return run(slowest[0], slowest[1], steps)

    def _land(self, flight: _Flight) -> float:
        """A step, or the last of a run, has ended; gives the time at which it began."""
        lane, ended, steps, last = flight
        began, self.now = self.now, ended
        decoding = sum(batch.stepping for batch in lane)
        waiting = sum(batch.decoding for batch in lane) - decoding
        since = self.given_s.get(id(lane), began) if len(self.stages) > 1 else began
        # Steps of prompts alone are a part of the next gap of all that decode.
        self.held_s[id(lane)] = self.held_s.get(id(lane), 0.0) + waiting * (ended - since)
        if decoding:
            gap, held = (ended - since) / steps, self.held_s.pop(id(lane)) / decoding
            first = 1 if held else 0
            if first:
                self.gaps.extend((ended, gap + held, decoding))
            if steps > first:
                self.gaps.extend((ended, gap, (steps - first) * decoding))
        self.given_s[id(lane)] = ended
        self.steps += steps
        has_prompt = any(batch.chunks for batch in lane)
        self.unseen += self.engine.limits.receive_every if has_prompt else steps
        for rank, batch in zip(self.ranks, lane, strict=True):
            late, each = self.engine.output_s, self.engine.output_per_token_s
            for request in rank.ran(batch, steps, ended, last):
                self._follow(request, ended + late + each * request.output_tokens)
        self.idle.appendleft(lane)
        return ended - last
