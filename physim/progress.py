"""What goes on, for people who wait: in a notebook, and wherever `ticking` is told how."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
# What takes less is not worth a line, and lines that stay come no closer together than this.
PATIENCE_S, LINES_EVERY_S = 2.0, 30.0
# A line that is written over changes as often.
_UPDATES_EVERY_S = 1.0
# The outermost function that tells what it does: those that it calls say nothing.
_telling = threading.local()


@contextlib.contextmanager
def ticking(
    tell: Callable[[float], Any], first_s: float, every_s: float = LINES_EVERY_S
) -> Iterator[None]:
    """Calls a function while the block runs, with the seconds that it has run.

    Args:
        tell: The function, which is called from another thread.
        first_s: When first, seconds.
        every_s: How long after that again, seconds.
    """
    ended, began = threading.Event(), time.monotonic()

    def tick() -> None:
        wait = first_s
        while not ended.wait(min(wait, threading.TIMEOUT_MAX)):
            tell(time.monotonic() - began)
            wait = every_s

    thread = threading.Thread(target=tick, name="physim-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def told_in_notebooks(what: str) -> Callable[[_Function], _Function]:
    """Has a function say what it does in a notebook, if it takes longer than people wait.

    Args:
        what: What it does, such as ``fitting``.
    """

    def decorated(function: _Function) -> _Function:
        @functools.wraps(function)
        def telling(*args: Any, **kwargs: Any) -> Any:
            if not _in_notebook() or getattr(_telling, "now", False):
                return function(*args, **kwargs)
            _telling.now = True
            try:
                with _line(what):
                    return function(*args, **kwargs)
            finally:
                _telling.now = False

        return cast(_Function, telling)

    return decorated


def _in_notebook() -> bool:
    """Whether this is a kernel's process, whose cells show what is displayed."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


@contextlib.contextmanager
def _line(what: str) -> Iterator[None]:
    """A line under a cell with the seconds that something has taken, empty in the end."""
    from IPython import display

    shown: list[Any] = []

    def tell(seconds: float) -> None:
        text = _text(f"physim: {what}, {seconds:.0f} s")
        if shown:
            shown[0].update(text, raw=True)
        else:
            shown.append(display.display(text, raw=True, display_id=True))  # type: ignore[no-untyped-call]

    with ticking(tell, PATIENCE_S, _UPDATES_EVERY_S):
        yield
    if shown:
        shown[0].update(_text(""), raw=True)


def _text(line: str) -> dict[str, str]:
    return {"text/plain": line}
