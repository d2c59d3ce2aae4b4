"""KV blocks of an engine, with the prefix cache, as vLLM V1 keeps them.

Blocks are counted, not listed. Content that requests may share is a `Segment` of a prompt, whose
blocks are filled from its front and given up from its back, so that a count says which are there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Segment:
    """A stretch of tokens that several requests may hold, following what came before it.

    A block belongs to the segment that holds its last token, as a block's hash covers all tokens up
    to that one.

    Attributes:
        first: Number of its first block.
        end: Number after its last block.
        present: Blocks that are in the cache, from the first on.
        holders: Running requests that use it.
    """

    __slots__ = ("end", "first", "holders", "present")

    def __init__(self, start_token: int, end_token: int, block_size: int) -> None:
        self.first = start_token // block_size
        self.end = end_token // block_size
        self.present = 0
        self.holders = 0


class KVCache:
    """Counts of blocks, and which unused ones still hold content.

    Unused blocks are a queue: those given up first are taken first, and lose their content.

    Attributes:
        free: Blocks that no running request holds.
    """

    __slots__ = ("_queue", "_serial", "free")

    def __init__(self, blocks: int) -> None:
        self.free = blocks
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
            if isinstance(newest, int):
                queue[newest] += others
            else:
                self._serial += 1
                queue[self._serial] = others
        for segment in reversed(segments):
            segment.holders -= 1
            if not segment.holders and segment.present:
                self.free += segment.present
                queue[segment] = segment.present
