"""A line that says what goes on: on a terminal alone, so that pipes and files stay clean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from physim.cli.console import styled
from physim.printable import printable


@contextlib.contextmanager
def running(what: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows how far it is, on stderr and only while the block runs.

    Args:
        what: What goes on.
    """
    from physim.cli.terminal import Terminal

    with Terminal(stderr=True).status(styled(what)) as status:
        yield lambda text: status.update(styled(f"{what}: {text}"))


@contextlib.contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call before each of so many things: a bar, on a terminal alone.

    Args:
        what: What goes on.
        total: How many there are.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from physim.cli.terminal import Terminal

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = Terminal(stderr=True)
    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as progress:
        task = progress.add_task(what, total=total)
        yield lambda text: progress.update(
            task, advance=1, description=printable(f"{what}: {text}")
        )
