"""Content that several requests may hold, as a replay counts it."""

from __future__ import annotations


class Segment:
    """A stretch of tokens that several requests may hold, following what came before it.

    A block belongs to the segment that holds its last token, as a block's hash covers all tokens up
    to that one.

    Attributes:
        first: Number of its first block.
        end: Number after its last block.
        present: Blocks that are in the cache, from the first on.
        holders: Running requests that use it.
        ready_s: When those that come up from a lower tier are there, seconds.
        fetched_s: When those that come up from the disk are in the host's memory, seconds.
    """

    __slots__ = ("end", "fetched_s", "first", "holders", "present", "ready_s")

    def __init__(self, start_token: int, end_token: int, block_size: int) -> None:
        self.first = start_token // block_size
        self.end = end_token // block_size
        self.present = 0
        self.holders = 0
        self.ready_s = self.fetched_s = 0.0
