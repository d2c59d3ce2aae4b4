"""KV blocks in a tier below the memory of a rank's GPUs, counted and not listed.

The tier is the memory of the host, or a disk below it. The least recently used make room, of a
segment the last blocks first. Where an engine keeps copies of what it computes, a segment has its
first blocks in each tier; where what the GPU evicts moves down, it has those that follow the blocks
in the GPU's memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from physim.engines.host_memory import HostMemory
from physim.replay.segment import Segment


class LowerCache:
    """Which content is in the tier, and how many blocks of it.

    Args:
        blocks: Blocks that it has room for.
        kept: What the engine keeps there.

    Attributes:
        blocks: Blocks that it has room for.
        used: Of them, those that hold content.
        copies: Whether it has copies of what is computed, else what the GPU evicts.
        outputs: Whether generated tokens are kept too.
    """

    __slots__ = ("_queue", "_serial", "blocks", "copies", "outputs", "used")

    def __init__(self, blocks: int, kept: HostMemory) -> None:
        self.blocks, self.used = blocks, 0
        self.copies, self.outputs = kept.copies, kept.outputs
        # Blocks by segment, or of content that no other request has; the oldest first.
        self._queue: OrderedDict[Segment | int, int] = OrderedDict()
        self._serial = 0

    def count(self, segment: Segment) -> int:
        """Blocks of a segment that are here."""
        return self._queue.get(segment, 0)

    def below(self, segment: Segment) -> int:
        """Blocks of a segment that are here and not in the GPU's memory, next to those that are."""
        count = self.count(segment)
        return max(count - segment.present, 0) if self.copies else count

    def put(self, segment: Segment | None, blocks: int) -> None:
        """Content of a segment, or of a request alone, is used last of all that is here.

        Args:
            segment: The segment, of whose blocks there are so many more; None for a request's own.
            blocks: How many.
        """
        if segment is None:
            self._serial += 1
        place = self._serial if segment is None else segment
        self._queue[place] = self._queue.pop(place, 0) + blocks
        self.used += blocks
        while self.used > self.blocks:
            oldest, count = next(iter(self._queue.items()))
            taken = min(count, self.used - self.blocks)
            self.used -= taken
            if taken == count:
                del self._queue[oldest]
            else:
                self._queue[oldest] = count - taken

    def copy(self, path: Sequence[Segment], others: int) -> None:
        """A prompt is computed: there are copies of its blocks, its front used last.

        Args:
            path: Its segments.
            others: Blocks beside them.
        """
        if others:
            self.put(None, others)
        for segment in reversed(path):
            if segment.present:
                self.put(segment, max(segment.present - self._queue.get(segment, 0), 0))

    def remove(self, segment: Segment, blocks: int) -> None:
        """Blocks of a segment, from the first here on, are in the GPU's memory and no longer here.

        Args:
            segment: The segment.
            blocks: How many, at most.
        """
        count = self._queue.get(segment, 0)
        taken = min(count, blocks)
        self.used -= taken
        if taken == count:
            self._queue.pop(segment, None)
        else:
            self._queue[segment] = count - taken
