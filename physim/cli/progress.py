"""A line that says what goes on: on a terminal alone, so that pipes and files stay clean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def running(what: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows how far it is, on stderr and only while the block runs.

    Args:
        what: What goes on.
    """
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(what) as status:
        yield lambda text: status.update(f"{what}: {text}")
