"""An exact replay of a vLLM V1 engine, request by request, for any step time.

Steps are formed as vLLM forms them: requests that run come first, in the order in which they
started; then waiting ones, first come first served, while slots, KV blocks and the step's token
budget last; prompts longer than what is left of the budget are computed in chunks. A request that
finds no block takes those of the request that started last, which starts over. Under asynchronous
scheduling a step is formed while the one before it runs, so it knows nothing that happened since.

Between two events the batch only ages, so the replay jumps from event to event.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from physim.errors import InputError
from physim.inputs.deployment import Limits
from physim.metrics import METRICS, PERCENTILES, STATISTICS
from physim.replay.kv_cache import KVCache, Segment
from physim.replay.step_times import StepTimes
from physim.replay.workload import Request, Workload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Engine:
    """An engine, and what a request spends outside of it.

    Attributes:
        limits: What the engine allows.
        prefix_caching: Whether blocks of known content are found again.
        front_end_s: Time before a request reaches the scheduler, seconds,
        front_end_per_token_s: and more of it for each prompt token.
        output_s: Time from the end of a step until its tokens are out, seconds; the engine does
            not wait for it.
        output_steps: More of it, in units of the step that gave the first token.
        output_per_token_s: Time that every token of a request adds to that of the others, seconds.
    """

    limits: Limits
    prefix_caching: bool = True
    front_end_s: float = 0.0
    front_end_per_token_s: float = 0.0
    output_s: float = 0.0
    output_steps: float = 0.0
    output_per_token_s: float = 0.0


@dataclass(frozen=True)
class Samples:
    """The engine at the starts of its runs of steps, or of some of them, for a picture over time.

    Attributes:
        time_s: Time, seconds.
        waiting: Requests that wait.
        running: Requests that run.
        kv_blocks: KV blocks in use.
    """

    time_s: np.ndarray
    waiting: np.ndarray
    running: np.ndarray
    kv_blocks: np.ndarray


@dataclass(frozen=True)
class Gaps:
    """Times from a token to the next, of all requests.

    Attributes:
        time_s: When a token came, seconds; of a run of steps, the last.
        gap_s: How long after the one before, in the mean of a run of steps.
        tokens: How many came so.
    """

    time_s: np.ndarray
    gap_s: np.ndarray
    tokens: np.ndarray


_MOST_SAMPLES = 2**18
_STATES = ("completed", "queued", "running", "dropped")


class Replayed:
    """What a replay gave.

    Attributes:
        requests: All requests that arrived, in the order of arrival.
        samples: The engine over time.
        gaps: Times from a token to the next.
        steps: Steps that ran.
        end_s: When the last thing happened, seconds.
        engine: The engine.
    """

    def __init__(
        self,
        requests: list[Request],
        samples: Samples,
        gaps: Gaps,
        steps: int,
        end_s: float,
        engine: Engine,
    ) -> None:
        self.requests = requests
        self.samples = samples
        self.gaps = gaps
        self.steps = steps
        self.end_s = end_s
        self.engine = engine

    def to_frame(self) -> pd.DataFrame:
        """A row for each request: times in seconds, empty where there is none.

        ``ttft_s`` and ``e2e_s`` are as the client sees them; ``tpot_s`` is a request's mean time
        from a token to the next, empty where it has one token; ``wait_s`` is the time from its
        arrival at the scheduler to its first step.
        """
        import pandas as pd

        count = len(self.requests)

        def column(name: str, kind: type) -> np.ndarray:
            values = (getattr(request, name) for request in self.requests)
            if kind is float:
                values = (math.nan if value is None else value for value in values)
            return np.fromiter(values, kind, count)

        kinds: dict[str, type] = {"number": int, "stage": int, "arrival_s": float}
        kinds |= dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens"), int)
        kinds |= dict.fromkeys(("scheduled_s", "first_token_s", "finished_s", "dropped_s"), float)
        frame = pd.DataFrame({name: column(name, kind) for name, kind in kinds.items()}, copy=False)
        engine, arrival = self.engine, frame["arrival_s"]
        before = engine.front_end_s + engine.front_end_per_token_s * frame["input_tokens"]
        steps = column("first_step_s", float)
        after = engine.output_s + engine.output_steps * steps + engine.output_per_token_s
        more = engine.output_per_token_s * (frame["output_tokens"] - 1)
        frame["wait_s"] = frame["scheduled_s"] - arrival - before
        frame["ttft_s"] = frame["first_token_s"] - arrival + after
        frame["e2e_s"] = frame["finished_s"] - arrival + after + more
        gaps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
        frame["tpot_s"] = (frame["e2e_s"] - frame["ttft_s"]) / gaps
        frame["preemptions"] = column("preemptions", int)
        frame["state"] = [_state(request) for request in self.requests]
        return frame

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean and percentiles of TTFT, ITL, TPOT and E2E, seconds.

        Those of ITL are over the gaps between all tokens, the others over completed requests.
        """
        return self.latencies(completed_of(self.to_frame()))

    def latencies(
        self, frame: pd.DataFrame, begin_s: float = 0.0, end_s: float = math.inf
    ) -> dict[str, dict[str, float]]:
        """Mean and percentiles of the latencies of some requests, seconds.

        Args:
            frame: Rows of `to_frame`.
            begin_s: Of the tokens, those that came from then on count for ITL,
            end_s: and until then.
        """
        found = {}
        gaps = self.gaps
        own = slice(*np.searchsorted(gaps.time_s, (begin_s, end_s)))
        for metric in METRICS:
            if metric == "itl":
                values = gaps.gap_s[own] + self.engine.output_per_token_s
                weights = gaps.tokens[own]
            else:
                values = frame[f"{metric}_s"].dropna().to_numpy()
                weights = np.ones(len(values))
            if len(values):
                percentiles = _quantiles(values, weights).tolist()
                mean = float(np.average(values, weights=weights))
                found[metric] = dict(zip(STATISTICS, (mean, *percentiles), strict=True))
        return found

    def counts(self) -> dict[str, int]:
        """How many requests are completed, queued, running and dropped."""
        states = [_state(request) for request in self.requests]
        return {state: states.count(state) for state in _STATES}


def completed_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of completed requests; the frame itself, of which there may be much, if all are."""
    done = frame["state"] == "completed"
    return frame if done.all() else frame[done]


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`PERCENTILES` of values that stand for several each, between which lines are straight."""
    order = np.argsort(values)
    ends = np.cumsum(weights[order])
    places = np.array(PERCENTILES) / 100 * (ends[-1] - 1)
    below, above = (
        values[order[np.searchsorted(ends, rank(places), side="right")]]
        for rank in (np.floor, np.ceil)
    )
    return below + places % 1 * (above - below)


def _state(request: Request) -> str:
    if request.dropped_s is not None:
        return "dropped"
    if request.finished_s is not None:
        return "completed"
    return "queued" if request.scheduled_s is None else "running"


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
    return Replayed(requests, samples, gaps, loop.steps, loop.now, engine)


class _Loop:
    """The state of a replay."""

    def __init__(
        self, workload: Workload, times: StepTimes, engine: Engine, timeout_s: float | None
    ) -> None:
        self.workload = workload
        self.times = times
        self.engine = engine
        self.limits = engine.limits
        self.timeout_s = timeout_s
        self.cache = KVCache(engine.limits.kv_blocks)
        # Requests on their way to the scheduler, by when they reach it.
        self.coming: list[tuple[float, int, Request]] = []
        self.sent: list[Request] = []
        for request in workload.requests:
            self._send(request)
        self.waiting: deque[Request] = deque()
        # Requests that run, in the order in which they started; of them, those whose prompt is not
        # yet computed; those that are done and still hold their slot and blocks.
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self.done: list[Request] = []
        # Decoding requests age together: a count of decode steps stands for all their ages. By it,
        # when requests finish, and how many need a new block next.
        self.age = 0
        self.finishing: list[tuple[int, int, Request]] = []
        self.phases = [0] * engine.limits.block_size
        self.decoding = 0
        self.context = 0
        self.deadlines: deque[Request] = deque()
        self.now = 0.0
        self.steps = 0
        self.starts = 0
        # Numbers in a row, since there may be millions.
        self.samples = array("d")
        self.runs, self.apart = 0, 1
        self.gaps = array("d")

    def _send(self, request: Request) -> None:
        """A client sends a request, which reaches the scheduler some time later."""
        engine = self.engine
        tokens, room = request.input_tokens + request.output_tokens - 1, self.limits.kv_blocks
        request.fixed = self.limits.fixed_blocks(tokens)
        needed = self._blocks(tokens) + request.fixed
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
        ahead = self.limits.async_scheduling
        began: float | None = None  # of the step before, if the engine did not pause
        while self.now < horizon_s:
            known = self.now if began is None or not ahead else began
            self._arrive(known)
            if known == self.now:
                self._release()
            chunks, preempted = self._schedule()
            # What was given up in this step can be had in the next.
            alone = bool(self.done) or preempted
            self._release()
            if not chunks and not self.decoding:
                if self.waiting or self.prefilling:
                    # All is held by requests that were done when this step was formed.
                    began = None
                    continue
                if not self.coming:
                    break
                self.now, began = max(self.now, self.coming[0][0]), None
                continue
            self._look()
            began = self._step(chunks, alone, horizon_s)
        self._arrive(min(self.now, horizon_s))

    def _look(self) -> None:
        """Notes the engine's state: that of every run of steps, or in a long replay of fewer."""
        if self.runs % self.apart == 0:
            taken = self.limits.kv_blocks - self.cache.free
            self.samples.extend((self.now, len(self.waiting), len(self.running), taken))
            if len(self.samples) == 4 * _MOST_SAMPLES:
                self.samples = array("d", np.reshape(self.samples, (-1, 2, 4))[:, 0].ravel())
                self.apart *= 2
        self.runs += 1

    def _arrive(self, known_s: float) -> None:
        """Requests that reach the scheduler, and those whose clients have given up."""
        coming = self.coming
        while coming and coming[0][0] <= known_s:
            request = heappop(coming)[2]
            self.waiting.append(request)
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
        if request in self.running:
            self._stop(request)
            self._give_up(request)
        else:
            self.waiting.remove(request)
        self._follow(request, request.dropped_s)

    def _follow(self, request: Request, now_s: float) -> None:
        following = self.workload.follow(request, now_s)
        if following is not None:
            self._send(following)

    def _schedule(self) -> tuple[list[tuple[Request, int]], bool]:
        """Forms a step: gives blocks to those that run, and starts others.

        Returns:
            The chunks to prefill, and whether a request was preempted.
        """
        limits, cache, waiting = self.limits, self.cache, self.waiting
        caching = self.engine.prefix_caching
        chunks: list[tuple[Request, int]] = []
        preempted = False
        need = self.phases[-self.age % limits.block_size]
        if need > cache.free:
            preempted = self._preempt_for_decode()
        elif need:
            cache.take(need)
        left = limits.max_num_batched_tokens - self.decoding
        for request in list(self.prefilling):
            chunk = min(request.target - request.computed, left)
            if request not in self.prefilling or chunk <= 0:
                continue
            blocks = self._blocks(request.computed + chunk) - self._blocks(request.computed)
            while blocks > cache.free and request in self.running:
                preempted = True
                self._preempt(next(reversed(self.running)))
            if request in self.running:
                cache.take(blocks)
                self._compute(request, chunk)
                chunks.append((request, chunk))
                left -= chunk
        while waiting and left > 0 and not preempted:
            if len(self.running) + len(self.done) >= limits.max_num_seqs:
                break
            request = waiting[0]
            found = 0
            if caching and request.path:
                found = cache.found(request.path, (request.target - 1) // limits.block_size)
            cached = found * limits.block_size
            chunk = min(request.target - cached, left)
            blocks = self._blocks(cached + chunk) - found + request.fixed
            whole = self._blocks(request.target) - found + request.fixed
            needed = whole if limits.whole_prompts else blocks
            if needed + (cache.unused(request.path, found) if found else 0) > cache.free:
                break
            waiting.popleft()
            self._start(request, found)
            cache.take(blocks)
            self._compute(request, chunk)
            chunks.append((request, chunk))
            left -= chunk
        return chunks, preempted

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _start(self, request: Request, found: int) -> None:
        """A waiting request takes a slot, and the blocks that were found in the cache."""
        self.running[request] = self.prefilling[request] = None
        self.starts += 1
        request.started = self.starts
        if request.scheduled_s is None:
            request.scheduled_s = self.now
            request.cached_tokens = found * self.limits.block_size
        request.computed = found * self.limits.block_size
        request.shared = found
        for segment in request.path:
            if segment.first >= found:
                break
            self.cache.hold(segment)
            request.held = (*request.held, segment)

    def _compute(self, request: Request, chunk: int) -> None:
        """Tokens of a request are computed; blocks of its path that they fill are shared."""
        before = request.computed // self.limits.block_size
        request.computed += chunk
        if request.path and self.engine.prefix_caching:
            self._share(request, before)

    def _share(self, request: Request, before: int) -> None:
        """Blocks that a request has filled since it had ``before`` become those of its path."""
        full = request.computed // self.limits.block_size
        for segment in request.path:
            have = min(max(before, segment.first), segment.end)
            filled = min(full, segment.end) - have
            # If another request filled them meanwhile, this one's are copies that stay its own.
            if filled <= 0 or segment.first + segment.present != have:
                continue
            if segment not in request.held:
                self.cache.hold(segment)
                request.held = (*request.held, segment)
            segment.present += filled
            request.shared += filled

    def _step(self, chunks: list[tuple[Request, int]], alone: bool, horizon_s: float) -> float:
        """Runs a step, or a run of decode-only steps; gives the time at which the last began."""
        context = self.context + self.decoding
        if chunks:
            tokens = squares = cached = products = 0
            for request, chunk in chunks:
                before = request.computed - chunk
                tokens += chunk
                squares += chunk * chunk
                cached += before
                products += chunk * before
            last = seconds = self.times.step(
                decode_requests=self.decoding,
                decode_context=context,
                prefill_requests=len(chunks),
                prefill_tokens=tokens,
                prefill_squares=squares,
                cached_tokens=cached,
                cached_products=products,
            )
            steps = 1
        else:
            until = min(
                self._deadline_s(), horizon_s, self.coming[0][0] if self.coming else math.inf
            )
            steps = 1 if until <= self.now or (alone and self.waiting) else self._most_steps()
            steps, seconds, last = self.times.decode(
                self.decoding, context, steps, until - self.now
            )
            # The first step's blocks were taken when it was formed.
            self.cache.take(self._new_blocks(steps - 1))
        self.now += seconds
        if self.decoding:
            self.gaps.extend((self.now, seconds / steps, steps * self.decoding))
        self.steps += steps
        self.age += steps
        self.context += steps * self.decoding
        for request, _ in chunks:
            if request.computed == request.target:
                request.first_step_s = request.first_step_s or last
                self._begin_decode(request)
        while self.finishing and self.finishing[0][0] <= self.age:
            if self._finishes(*self.finishing[0]):
                self._stop(self.finishing[0][2])
                self._finish(self.finishing[0][2])
            heappop(self.finishing)
        return self.now - last

    def _finishes(self, age: int, _: int, request: Request) -> bool:
        """Whether a request still decodes and finishes at an age: it may have lost its place."""
        decodes = request in self.running and request not in self.prefilling
        return decodes and request.began + request.output_tokens == age

    def _most_steps(self) -> int:
        """Decode-only steps until a request finishes or there may be too few blocks."""
        while not self._finishes(*self.finishing[0]):
            heappop(self.finishing)
        steps = self.finishing[0][0] - self.age
        # Every request takes a block in as many steps as a block has tokens.
        size, free = self.limits.block_size, self.cache.free
        rounds = free // self.decoding
        safe, needed = 1 + rounds * size, rounds * self.decoding
        while safe < steps:
            needed += self.phases[-(self.age + safe) % size]
            if needed > free:
                break
            safe += 1
        return min(steps, safe)

    def _new_blocks(self, steps: int) -> int:
        """Blocks that decoding requests need for some steps after the next."""
        rounds, rest = divmod(steps, len(self.phases))
        more = (self.phases[-(self.age + 1 + i) % len(self.phases)] for i in range(rest))
        return rounds * self.decoding + sum(more)

    def _begin_decode(self, request: Request) -> None:
        """A prompt is computed: its step has given the next token."""
        del self.prefilling[request]
        if request.first_token_s is None:
            request.first_token_s = self.now
        else:
            self.gaps.extend((self.now, self.now - request.stopped_s, 1))
        request.generated += 1
        # The age at which it would have begun with no token generated.
        request.began = self.age - request.generated
        if request.generated == request.output_tokens:
            del self.running[request]
            self._finish(request)
            return
        self.decoding += 1
        self.context += request.computed
        self.phases[(request.computed - self.age) % len(self.phases)] += 1
        heappush(self.finishing, (request.began + request.output_tokens, request.number, request))

    def _stop(self, request: Request) -> None:
        """A request leaves the batch; its counts of tokens are brought up to date."""
        del self.running[request]
        if request in self.prefilling:
            del self.prefilling[request]
            return
        new = self.age - request.began - request.generated
        request.generated += new
        request.computed += new
        self.decoding -= 1
        self.context -= request.computed
        self.phases[(request.computed - self.age) % len(self.phases)] -= 1

    def _finish(self, request: Request) -> None:
        """A request that was stopped has all its tokens; it gives up its blocks when released."""
        request.finished_s = self.now
        self.done.append(request)
        if request.path and self.engine.prefix_caching:
            self._share(request, request.target // self.limits.block_size)
        late = self.engine.output_s + self.engine.output_per_token_s * request.output_tokens
        self._follow(request, self.now + late)

    def _release(self) -> None:
        """Requests that are done give up their blocks and slots."""
        self.done.sort(key=lambda request: request.started)
        for request in self.done:
            self._give_up(request)
        self.done.clear()

    def _give_up(self, request: Request) -> None:
        own = self._blocks(request.computed) - request.shared + request.fixed
        self.cache.give_up(request.held, own)
        request.held = ()
        request.shared = 0

    def _preempt_for_decode(self) -> bool:
        """Gives blocks to decoding requests in the order in which they started; True."""
        size = self.limits.block_size
        for request in list(self.running):
            if request not in self.running or request in self.prefilling:
                continue
            tokens = request.computed + self.age - request.began - request.generated
            if tokens % size:
                continue
            while not self.cache.free and request in self.running:
                self._preempt(next(reversed(self.running)))
            if request in self.running:
                self.cache.take(1)
        return True

    def _preempt(self, request: Request) -> None:
        """A request loses its blocks and goes to the front of those that wait.

        What was computed stays in the cache until others need the blocks.
        """
        if request not in self.prefilling:
            request.stopped_s = self.now
        self._stop(request)
        request.preemptions += 1
        size = self.limits.block_size
        end = request.path[-1].end if request.path else 0
        full = request.computed // size
        if self.engine.prefix_caching and full > end and request.shared == end:
            own = Segment(end * size, full * size, size)
            request.path = (*request.path, own)
            self._share(request, end)
        self._give_up(request)
        request.target = request.input_tokens + request.generated
        self.waiting.appendleft(request)
