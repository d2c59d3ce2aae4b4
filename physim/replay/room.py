"""Room in the KV cache of a server that decodes, made before prompts are computed elsewhere.

As SGLang's decode servers make it (disaggregation/decode.py, `DecodePreallocQueue`): first come
first served, with some tokens kept free for the answers of all that have room or run. A request
whose answer has room is not kept from it by others who wait.
"""

from __future__ import annotations

from collections import deque

from physim.replay.config import ReplayConfig
from physim.replay.kv_cache import KVCache
from physim.replay.request import Request
from physim.service.policy import places_of


class Room:
    """Who has room in a rank's KV cache, and who waits for it.

    Args:
        config: The server.
        cache: The rank's KV blocks.

    Attributes:
        asking: Requests that wait for room, the first to come first.
    """

    def __init__(self, config: ReplayConfig, cache: KVCache) -> None:
        self._cache, self._size = cache, config.kv.block_size
        self._reserved_tokens = config.policy.reserved_tokens or 0
        self._most = places_of(config.slots)
        self.asking: deque[Request] = deque()
        self._blocks: dict[Request, int] = {}
        self._expected: set[Request] = set()

    def __len__(self) -> int:
        """Requests that have room or wait for it, and have not come."""
        return len(self._expected)

    def __contains__(self, request: Request) -> bool:
        """Whether a request has room."""
        return request in self._blocks

    def ask(self, request: Request) -> None:
        """A request waits for room.

        Args:
            request: The request.
        """
        self.asking.append(request)
        self._expected.add(request)

    def come(self, request: Request) -> None:
        """A request that has room comes.

        Args:
            request: The request.
        """
        self._expected.discard(request)

    def blocks_for(self, request: Request) -> int:
        """Blocks that are kept for a request."""
        return self._blocks.get(request, 0)

    def make(self, running: int) -> list[Request]:
        """Makes room for those who wait, as far as there is; gives who has it.

        Args:
            running: Requests that run.
        """
        found = []
        while self.asking:
            request, active = self.asking[0], running + len(self._blocks)
            # With the token that the prompt gives.
            blocks = -(-(request.input_tokens + 1) // self._size) + request.fixed
            left = self._cache.free - blocks
            # A request that is alone always fits.
            kept = (active + 1) * self._reserved_tokens if active else 0
            if active >= self._most or left < 0 or left * self._size < kept:
                break
            self.asking.popleft()
            self._cache.take(blocks)
            self._blocks[request] = blocks
            found.append(request)
        return found

    def leave(self, request: Request) -> bool:
        """A request has come and takes its blocks, or it never will: none are kept for it.

        Args:
            request: The request.

        Returns:
            Whether there were any.
        """
        self._expected.discard(request)
        blocks = self._blocks.pop(request, 0)
        if blocks:
            self._cache.give_up((), blocks)
        return blocks > 0
