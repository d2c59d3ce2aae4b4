"""The scheduler of a replayed engine: who runs, in which batch, and with which KV blocks.

Steps are formed as vLLM V1 forms them: requests that run come first, in the order in which they
started; then waiting ones, first come first served, while slots, KV blocks and the step's token
budget last; prompts longer than what is left of the budget are computed in chunks. A request that
finds no block takes those of the request that started last, which starts over. Where prompts have
steps of their own, as in SGLang, they come before those that decode; where room is kept for whole
requests, as in TensorRT-LLM, none is ever short of blocks.

What a request finds in the memory of the host is always loaded, never computed again, one load
after the other. Where the engine loads asynchronously, a request holds its slot and blocks
meanwhile, and the steps of others go on; else the load is a part of its first step. What only the
disk has comes up to the host's memory before, while the request waits and others go before it.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

from physim.engines.host_memory import ASYNCHRONOUS
from physim.replay.config import ReplayConfig
from physim.replay.kv_cache import KVCache
from physim.replay.lower_cache import LowerCache
from physim.replay.microbatch import Microbatch, PromptChunk
from physim.replay.request import Request
from physim.replay.room import Room
from physim.replay.segment import Segment
from physim.service.phases import DECODE


class Handover(NamedTuple):
    """KV blocks of a request that has left for another server, which stay until it has them.

    Attributes:
        until_s: When it has them, seconds.
        segments: Segments that it held.
        blocks: Blocks that it held beside them.
        kept: Blocks that room was kept for.
    """

    until_s: float
    segments: tuple[Segment, ...]
    blocks: int
    kept: int


class Scheduler:
    """A rank of an engine: its requests, and their slots and KV blocks.

    Attributes:
        cache: Its KV blocks.
        waiting: Requests that wait.
        running: Requests that run, in the order in which they started.
        prefilling: Of them, those whose prompt is not yet computed.
        done: Requests that are done and still hold their slot and blocks.
        handovers: Blocks of requests that are on their way to another server.
        loading: Running requests some of whose blocks come up from the host's memory, and when they
            are there, seconds.
        fetching: Waiting requests some of whose blocks come up from the disk, likewise.
        room: Who has room here before it comes; None where no such room is made.
    """

    def __init__(self, config: ReplayConfig, gaps: array[float]) -> None:
        self.policy, self.kv, self.prefix_caching = config.policy, config.kv, config.prefix_caching
        self._budget, self._slots = config.sizes.max_num_batched_tokens, config.slots
        self._most_blocks = config.most_blocks
        self._decodes = DECODE in config.phases
        lower = [LowerCache(tier.blocks, self.kv.host_memory) for tier in self.kv.tiers[1:]]
        self.cache = KVCache(self.kv.blocks, *lower)
        self.room = Room(config, self.cache) if config.makes_room_first else None
        self.loading: dict[Request, float] = {}
        self.fetching: dict[Request, float] = {}
        # Up to when what has come up is known, and until when the link and the disk are taken.
        self._known_s = self._link_s = self._disk_s = 0.0
        # Whether requests wait for it, and how long the step that is formed takes it otherwise.
        self._waits = self.kv.host is not None and self.kv.host_memory.loads == ASYNCHRONOUS
        self._step_load_s = 0.0
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self.done: list[Request] = []
        self.handovers: list[Handover] = []
        # Time, gap and count of tokens, to which those are added that a preemption held up.
        self._gaps = gaps
        self._starts = 0
        # Where each request that decodes does.
        self._batches: dict[Request, Microbatch] = {}
        # KV blocks that running requests may come to hold, where room is kept for all of them.
        self._kept = 0
        self._own: dict[Segment, Segment] = {}

    @property
    def load(self) -> int:
        """What a balancer of data-parallel ranks compares: who waits counts four times (vLLM's)."""
        return 4 * len(self.waiting) + len(self.running)

    def own_segment(self, segment: Segment) -> Segment:
        """What stands in this rank's cache for content that others may hold as well."""
        if segment not in self._own:
            size = self.kv.block_size
            self._own[segment] = Segment(segment.first * size, segment.end * size, size)
        return self._own[segment]

    def see(self, known_s: float) -> None:
        """Blocks have come up by a time, so that who waited for them can run.

        Args:
            known_s: The time, seconds.
        """
        self._known_s = known_s
        for coming in (self.loading, self.fetching):
            for request in [one for one, ready_s in coming.items() if ready_s <= known_s]:
                del coming[request]

    def receive(self, request: Request, now_s: float) -> None:
        """A request comes, and waits.

        Args:
            request: The request.
            now_s: The time, seconds.
        """
        self.waiting.append(request)
        if self.kv.host_memory.fetches_early:
            self._fetch(request, now_s)

    def blocks(self, tokens: int) -> int:
        """KV blocks of so many tokens."""
        return -(-tokens // self.kv.block_size)

    def form(self, batch: Microbatch, now_s: float) -> bool:
        """Forms a step: gives blocks to those that run, and starts others.

        Args:
            batch: The batch that is to run.
            now_s: The time.

        Returns:
            Whether a request was preempted.
        """
        policy, cache = self.policy, self.cache
        chunks: list[PromptChunk] = []
        batch.chunks = chunks
        self._step_load_s = 0.0
        preempted, batch.decodes = False, True
        if policy.prompts_apart:
            preempted = self._form_prompts(chunks, self._budget, False, now_s)
            batch.decodes = not chunks
        need = batch.blocks_of_next_step() if batch.decodes else 0
        if need > cache.free:
            self._preempt_for_decode(batch, now_s)
            preempted = True
        elif need:
            cache.take(need)
        batch.has_blocks = batch.decodes
        if not policy.prompts_apart:
            left = self._budget - batch.decoding * batch.query_tokens
            preempted = self._form_prompts(chunks, left, preempted, now_s)
        batch.load_s = self._step_load_s
        return preempted

    def _form_prompts(
        self, chunks: list[PromptChunk], left: int, preempted: bool, now_s: float
    ) -> bool:
        """Gives blocks to prompts, those that were begun first; gives whether one was preempted.

        Args:
            chunks: What is computed, to which is added.
            left: Tokens that the step has room for.
            preempted: Whether a request was preempted for it before.
            now_s: The time.
        """
        policy, cache, waiting = self.policy, self.cache, self.waiting
        for request in list(self.prefilling):
            chunk = min(request.target - request.computed, left)
            if request not in self.prefilling or chunk <= 0 or request in self.loading:
                continue
            blocks = self.blocks(request.computed + chunk) - self.blocks(request.computed)
            while blocks > cache.free and request in self.running:
                preempted = True
                self._preempt(next(reversed(self.running)), now_s)
            if request in self.running:
                cache.take(blocks)
                chunks.append(PromptChunk(request, chunk, request.computed, request.started))
                self._compute(request, chunk)
                left -= chunk
        passed: list[Request] = []
        while waiting and left > 0 and not preempted:
            if len(self.running) + len(self.done) >= self._slots:
                break
            request = waiting[0]
            self._fetch(request, now_s)
            if request in self.fetching:
                passed.append(waiting.popleft())
                continue
            found = rising = 0
            if self.prefix_caching and request.path:
                most = (request.target - 1) // self.kv.block_size
                found = cache.found(request.path, most)
                if cache.host is not None and not request.handed_tokens:
                    found, rising = cache.below(request.path, found, most)
            cached = self._cached(request, found)
            waits = self._waits and (bool(rising) or self._comes_s(request, found) > self._known_s)
            chunk = 0 if waits else min(request.target - cached, left)
            held = found - rising
            blocks = self.blocks(cached + chunk) - held + request.fixed
            whole = self.blocks(request.target) - held + request.fixed
            needed = whole if policy.whole_prompts else blocks
            kept = 0 if self.room is None else self.room.blocks_for(request)
            if policy.whole_requests:
                most = self._most_blocks(request.input_tokens, request.output_tokens)
                request.kept = most - held
                if self._kept + request.kept > self.kv.blocks:
                    break
            if needed + (cache.unused(request.path, found) if found else 0) > cache.free + kept:
                if self.room is not None and not kept:
                    # Whoever has room goes before who has lost it.
                    passed.append(waiting.popleft())
                    continue
                break
            waiting.popleft()
            if self.room is not None:
                self.room.leave(request)
            self._kept += request.kept
            self._start(request, found, cached, now_s)
            if rising or waits:
                self._load(request, found, rising, now_s)
            cache.take(blocks)
            if waits:
                continue
            chunks.append(PromptChunk(request, chunk, cached, request.started))
            self._compute(request, chunk)
            left -= chunk
        waiting.extendleft(reversed(passed))
        return preempted

    def _fetch(self, request: Request, now_s: float) -> None:
        """Blocks that only the disk has begin to come up for a waiting request, but once."""
        disk = self.kv.disk
        if disk is None or request.fetched or request.handed_tokens or not self.prefix_caching:
            return
        request.fetched = True
        most = (request.target - 1) // self.kv.block_size
        found = self.cache.fetch(request.path, most)
        blocks = sum(count for _, count in found)
        if blocks:
            self._disk_s = max(now_s, self._disk_s) + blocks * self.kv.load_block_s(disk)
            for segment, _ in found:
                segment.fetched_s = self._disk_s + disk.latency_s
            if request.scheduled_s is None:
                request.fetched_tokens = blocks * self.kv.block_size
        known = [one.fetched_s for one in request.path if one.first < most]
        if known and max(known) > self._known_s:
            self.fetching[request] = max(known)

    def _cached(self, request: Request, found: int) -> int:
        """Tokens of a prompt that are in the cache: of blocks found, or of its own prefix.

        The blocks of its own prefix are taken as new ones, since whose they are by then is not
        known, and hold what they are said to hold.
        """
        if request.handed_tokens:
            return request.handed_tokens
        size = self.kv.block_size
        known = min(request.prefix_tokens, request.target - 1) // size if self.prefix_caching else 0
        return max(found, known) * size

    def _start(self, request: Request, found: int, cached: int, now_s: float) -> None:
        """A waiting request takes a slot, and the blocks that were found in the cache."""
        self.running[request] = self.prefilling[request] = None
        self._starts += 1
        request.started = self._starts
        if request.scheduled_s is None:
            request.scheduled_s = now_s
            request.cached_tokens = cached
        if request.generated and request.first_token_s is None:
            # The token that came with it is given out.
            request.first_token_s = request.stopped_s = now_s
        request.computed = cached
        request.shared = found
        for segment in request.path:
            if segment.first >= found:
                break
            self.cache.hold(segment)
            request.held = (*request.held, segment)

    def _comes_s(self, request: Request, found: int) -> float:
        """When the last of the first ``found`` blocks of a prompt has come up, seconds."""
        if self.cache.host is None:
            return 0.0
        return max((one.ready_s for one in request.path if one.first < found), default=0.0)

    def _load(self, request: Request, found: int, rising: int, now_s: float) -> None:
        """Blocks of a request that has started begin to come up, after those of others."""
        ready_s, host = self._comes_s(request, found), self.kv.host
        if rising and host is not None:
            load_s = rising * self.kv.load_block_s(host)
            if self._waits:
                self._link_s = max(now_s, self._link_s) + load_s
                ready_s = max(ready_s, self._link_s + host.latency_s)
            else:
                self._step_load_s += load_s + host.latency_s
            self.cache.raise_up(request.path, found, ready_s)
            if request.scheduled_s == now_s and not request.preemptions:
                request.loaded_tokens = rising * self.kv.block_size
        if self._waits:
            self.loading[request] = ready_s

    def _compute(self, request: Request, chunk: int) -> None:
        """Tokens of a request are computed; blocks of its path that they fill are shared."""
        before = request.computed // self.kv.block_size
        request.computed += chunk
        if request.path and self.prefix_caching:
            self._share(request, before)

    def _share(self, request: Request, before: int) -> None:
        """Blocks that a request has filled since it had ``before`` become those of its path."""
        full = request.computed // self.kv.block_size
        for segment in request.path:
            have = min(max(before, segment.first), segment.end)
            filled = min(full, segment.end) - have
            # If another request filled them meanwhile, this one's are copies that stay its own.
            if filled <= 0 or segment.first + segment.present != have:
                continue
            if segment not in request.held:
                self.cache.hold(segment)
                request.held = (*request.held, segment)
            self.cache.grow(segment, filled)
            request.shared += filled

    def ran(self, batch: Microbatch, steps: int, now_s: float, output_s: float) -> list[Request]:
        """Steps of a batch have run; gives the requests that are done.

        Args:
            batch: The batch.
            steps: How many steps.
            now_s: When the last ended.
            output_s: How long its tokens then take to be out, seconds.
        """
        batch.ran(steps)
        done = []
        for request, tokens, before, started in batch.chunks:
            # It may have lost its blocks while the step was under way.
            is_there = request in self.prefilling and request.started == started
            is_computed = is_there and before + tokens == request.target
            if is_computed and self._begin_decode(request, batch, now_s, output_s):
                done.append(request)
        finished = batch.finished()
        for request in finished:
            self.stop(request)
        for request in done + finished:
            if request.is_complete:
                request.finished_s, request.last_output_s = now_s, output_s
            if self.kv.host_memory.outputs:
                tokens, size = request.input_tokens + request.generated, self.kv.block_size
                self.cache.copy((), tokens // size - request.target // size)
            self.done.append(request)
            if request.path and self.prefix_caching:
                self._share(request, request.target // self.kv.block_size)
        return done + finished

    def _begin_decode(
        self, request: Request, batch: Microbatch, now_s: float, output_s: float
    ) -> bool:
        """A prompt is computed: its step has given the next token. Gives whether it is the last."""
        del self.prefilling[request]
        if self.cache.host is not None:
            path = request.path if self.prefix_caching else ()
            shared = path[-1].end if path else 0
            self.cache.copy(path, max(request.target // self.kv.block_size - shared, 0))
        if request.first_token_s is None:
            request.first_token_s, request.first_output_s = now_s, output_s
        else:
            self._gaps.extend((now_s, now_s - request.stopped_s, 1))
        request.generated += 1
        if request.is_complete or not self._decodes:
            del self.running[request]
            return True
        self._batches[request] = batch
        batch.join(request)
        return False

    def stop(self, request: Request) -> None:
        """A request runs no more."""
        del self.running[request]
        if request in self.prefilling:
            del self.prefilling[request]
            self.loading.pop(request, None)
        else:
            self._batches.pop(request).leave(request)

    def release(self, now_s: float) -> None:
        """Who is done gives up blocks and slot; blocks of who has left go once they are handed on.

        Args:
            now_s: The time, seconds.
        """
        self.done.sort(key=lambda request: request.started)
        for request in self.done:
            self.give_up(request)
        self.done.clear()
        if self.handovers:
            for one in self.handovers:
                if one.until_s <= now_s:
                    self.cache.give_up(one.segments, one.blocks)
                    self._kept -= one.kept
            self.handovers = [one for one in self.handovers if one.until_s > now_s]

    def give_up(self, request: Request) -> None:
        """A request gives up its blocks."""
        self.cache.give_up(request.held, self._unshared(request))
        self._kept -= request.kept
        request.held = ()
        request.shared = request.ahead = 0

    def hand_over(self, request: Request, until_s: float) -> None:
        """A request that is done leaves, its blocks stay for a while.

        Args:
            request: The request.
            until_s: When another server has them, seconds.
        """
        self.done.remove(request)
        blocks = self._unshared(request)
        self.handovers.append(Handover(until_s, request.held, blocks, request.kept))

    def _unshared(self, request: Request) -> int:
        """Blocks that a request holds beside segments."""
        filled = self.blocks(request.computed) - request.shared
        return filled + request.ahead + request.fixed

    def _preempt_for_decode(self, batch: Microbatch, now_s: float) -> None:
        """Gives blocks to a batch's decoding requests in the order in which they started."""
        for request in list(self.running):
            if request not in self.running or request not in batch:
                continue
            need = batch.blocks_for(request)
            while need > self.cache.free and request in self.running:
                self._preempt(next(reversed(self.running)), now_s)
            if request in self.running:
                self.cache.take(need)

    def _preempt(self, request: Request, now_s: float) -> None:
        """A request loses its blocks and goes to the front of those that wait.

        What was computed stays in the cache until others need the blocks.
        """
        if request not in self.prefilling:
            request.stopped_s = now_s
        self.stop(request)
        request.preemptions += 1
        request.handed_tokens = 0
        request.fetched = False
        size = self.kv.block_size
        end = request.path[-1].end if request.path else 0
        full = request.computed // size
        if self.prefix_caching and full > end and request.shared == end:
            own = Segment(end * size, full * size, size)
            request.path = (*request.path, own)
            self._share(request, end)
        self.give_up(request)
        request.target = request.input_tokens + request.generated
        self.waiting.appendleft(request)
