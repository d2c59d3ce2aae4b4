"""Waits that come once on a machine, and who is told of them. Light: commands start with it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

# Who waits less asks nothing.
_PATIENCE_S = 2.0


class Patience:
    """Time that a process spends on what it does once on a machine.

    Args:
        patience_s: Seconds after which somebody is told, all such work taken together.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._left_s = patience_s
        self._tell: Callable[[], object] | None = None

    def tell(self, listener: Callable[[], object] | None) -> None:
        """Has a function called once the work takes long; at most once.

        Args:
            listener: The function, which another thread calls; None for nobody.
        """
        self._tell = listener

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """The block is such work."""
        if self._tell is None:
            yield
            return
        timer = threading.Timer(max(self._left_s, 0.0), self._told)
        timer.daemon = True
        began = time.monotonic()
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._left_s -= time.monotonic() - began

    def _told(self) -> None:
        listener, self._tell = self._tell, None
        if listener is not None:
            listener()


compiling = Patience()
