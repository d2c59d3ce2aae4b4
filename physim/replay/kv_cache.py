"""KV blocks of an engine, with the prefix cache, as vLLM V1 keeps them.

Blocks are counted, not listed. Content that requests may share is a `Segment` of a prompt, whose
blocks are filled from its front and given up from its back, so that a count says which are there.
What is evicted may still be in the memory of the host or on a disk below it, each a `LowerCache`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from physim.replay.lower_cache import LowerCache
from physim.replay.segment import Segment


class KVCache:
    """Counts of blocks, and which unused ones still hold content.

    Unused blocks are a queue: those given up first are taken first, and lose their content.

    Args:
        blocks: How many there are.
        host: The host's memory below them; None for none.
        disk: The disk below that; None for none.

    Attributes:
        free: Blocks that no running request holds.
        host: The host's memory below them; None for none.
        disk: The disk below that; None for none.
    """

    __slots__ = ("_queue", "_serial", "disk", "free", "host")

    def __init__(
        self, blocks: int, host: LowerCache | None = None, disk: LowerCache | None = None
    ) -> None:
        self.free, self.host, self.disk = blocks, host, disk
        # Unused blocks in the order in which they are taken: a segment's, or how many without.
        self._queue: OrderedDict[Segment | int, int] = OrderedDict({0: blocks})
        self._serial = 0

    def found(self, path: Sequence[Segment], most: int) -> int:
        """Blocks of a prompt that are in the cache.

        Args:
            path: Its segments.
            most: Blocks that may be taken from the cache.
        """
        blocks = 0
        for segment in path:
            blocks = segment.first + segment.present
            if segment.first + segment.present < segment.end:
                break
        return min(blocks, most)

    def below(self, path: Sequence[Segment], found: int, most: int) -> tuple[int, int]:
        """Blocks of a prompt that are in the cache or below it, and how many must come up for it.

        Args:
            path: Its segments.
            found: Blocks that are in the cache, next to one another.
            most: Blocks that may be taken from either.
        """
        host, blocks, rising = self.host, found, 0
        if host is None or found >= most:
            return found, 0
        for segment in path:
            if segment.end <= found:
                continue
            if blocks < segment.first:
                break
            here = segment.first + segment.present
            blocks = min(here + host.below(segment), most)
            rising += max(blocks - max(here, found), 0)
            if blocks < segment.end:
                break
        return max(blocks, found), rising

    def fetch(self, path: Sequence[Segment], most: int) -> list[tuple[Segment, int]]:
        """Blocks of a prompt that only the disk has come up, into the host's memory.

        Args:
            path: Its segments.
            most: Blocks that may be taken from any tier.

        Returns:
            Those of each segment of which some do, up to the first block that no tier has.
        """
        host, disk = self.host, self.disk
        found: list[tuple[Segment, int]] = []
        if host is None or disk is None:
            return found
        for segment in path:
            if segment.first >= most:
                break
            here = segment.present + host.below(segment)
            reach = max(here, min(disk.count(segment), most - segment.first))
            if reach > here:
                host.put(segment, reach - host.count(segment))
                found.append((segment, reach - here))
            if segment.first + reach < segment.end:
                break
        return found

    def copy(self, path: Sequence[Segment], others: int) -> None:
        """Content is computed: tiers that keep copies have it, used last of all.

        Args:
            path: Its segments.
            others: Blocks beside them.
        """
        for tier in (self.host, self.disk):
            if tier is not None and tier.copies:
                tier.copy(path, others)

    def raise_up(self, path: Sequence[Segment], blocks: int, ready_s: float) -> None:
        """Blocks of a prompt come up from below, into blocks that are taken for them.

        Args:
            path: Its segments, held.
            blocks: Of the prompt that are then in the cache, from the front.
            ready_s: When they are there, seconds.
        """
        for segment in path:
            rising = min(blocks, segment.end) - segment.first - segment.present
            if rising > 0:
                self.grow(segment, rising)
                segment.ready_s = ready_s

    def grow(self, segment: Segment, blocks: int) -> None:
        """More blocks of a segment are in the cache.

        Args:
            segment: The segment, held.
            blocks: How many.
        """
        segment.present += blocks
        if self.host is not None and not self.host.copies:
            self.host.remove(segment, blocks)

    def unused(self, path: Sequence[Segment], blocks: int) -> int:
        """Of the first ``blocks`` of a prompt, those that no running request holds."""
        return sum(s.present for s in path if not s.holders and s.present and s.first < blocks)

    def hold(self, segment: Segment) -> None:
        """A running request begins to use a segment."""
        if not segment.holders and segment.present:
            del self._queue[segment]
            self.free -= segment.present
        segment.holders += 1

    def take(self, blocks: int) -> None:
        """Takes blocks that are free; those that hold content lose it."""
        self.free -= blocks
        queue = self._queue
        while blocks:
            oldest, count = next(iter(queue.items()))
            taken = min(count, blocks)
            blocks -= taken
            if isinstance(oldest, Segment):
                oldest.present -= taken
            if self.host is not None and not self.host.copies and oldest != 0:
                self.host.put(oldest if isinstance(oldest, Segment) else None, taken)
            if taken == count:
                del queue[oldest]
            else:
                queue[oldest] = count - taken

    def give_up(self, segments: Sequence[Segment], others: int) -> None:
        """A request gives up its blocks, the last first.

        Args:
            segments: Those it holds, from the front of its prompt.
            others: Blocks it holds beside them.
        """
        queue = self._queue
        if others:
            self.free += others
            newest = next(reversed(queue), None)
            # The first of them never held anything.
            if isinstance(newest, int) and newest:
                queue[newest] += others
            else:
                self._serial += 1
                queue[self._serial] = others
        for segment in reversed(segments):
            segment.holders -= 1
            if not segment.holders and segment.present:
                self.free += segment.present
                queue[segment] = segment.present
