"""Servers as a router sees them that reads their loads now and then, as scraped metrics are."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from physim.replay.config import ReplayConfig
from physim.replay.segment import Segment
from physim.replay.server import ReplayServer


class _Loads(NamedTuple):
    """What a server had at the end of an interval between looks."""

    interval: int
    requests: int
    waiting: int
    kv_blocks: int


class SeenServer:
    """A server whose loads are those of the router's last look at it.

    Which prompts it has, and what the router sent it, the router itself remembers.

    Args:
        server: The server.
        age_s: Seconds from one look to the next, at multiples of them.

    Attributes:
        config: What it is.
        requests: Requests that waited and that ran.
        waiting: Requests that waited.
        kv_blocks: KV blocks in use.
    """

    def __init__(self, server: ReplayServer, age_s: float) -> None:
        self.config: ReplayConfig = server.config
        self.requests = self.waiting = self.kv_blocks = 0
        self._server, self._age_s = server, age_s
        # Of each interval that has not been looked at since, the last that was noted.
        self._noted: deque[_Loads] = deque()

    @property
    def received(self) -> int:
        """Requests that it was given."""
        return self._server.received

    def found(self, path: Sequence[Segment]) -> int:
        """Blocks of a prompt that are in its prefix cache.

        Args:
            path: Segments of the prompt, as all servers know them.
        """
        return self._server.found(path)

    def note(self) -> None:
        """Notes what the server has now."""
        server, noted = self._server, self._noted
        interval = math.floor(server.now / self._age_s)
        if noted and noted[-1].interval == interval:
            noted.pop()
        noted.append(_Loads(interval, server.requests, server.waiting, server.kv_blocks))

    def see(self, time_s: float) -> None:
        """The router looks at it, if it is time to.

        Args:
            time_s: The time, seconds.
        """
        interval = math.floor(time_s / self._age_s)
        while self._noted and self._noted[0].interval < interval:
            _, self.requests, self.waiting, self.kv_blocks = self._noted.popleft()
