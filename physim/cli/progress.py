"""What goes on, on stderr: a line that changes on a terminal, elsewhere one from time to time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from physim import progress
from physim.cli.console import styled
from physim.printable import printable

if TYPE_CHECKING:
    from physim.cli.terminal import Terminal


@contextlib.contextmanager
def running(what: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows how far it is, on stderr and only while the block runs.

    Args:
        what: What goes on.
    """
    from physim.cli.terminal import Terminal

    console = Terminal(stderr=True)
    if not console.is_terminal:
        with _lines(what, console) as say:
            yield say
        return
    with console.status(styled(what)) as status:
        yield lambda text: status.update(styled(f"{what}: {text}"))


@contextlib.contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call before each of so many things: a bar on a terminal.

    Args:
        what: What goes on.
        total: How many there are.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from physim.cli.terminal import Terminal

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = Terminal(stderr=True)
    if not console.is_terminal:
        with _lines(what, console) as say:
            numbers = itertools.count(1)
            yield lambda text: say(f"{text} ({next(numbers)}/{total})")
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda text: bar.update(task, advance=1, description=printable(f"{what}: {text}"))


@contextlib.contextmanager
def _lines(what: str, console: Terminal) -> Iterator[Callable[[str], None]]:
    """The same where lines stay: one after the first seconds, and then twice a minute."""
    said = [what]

    def tell(seconds: float) -> None:
        console.print(f"physim: {said[0]}, {seconds:.0f} s so far", soft_wrap=True)

    def say(text: str) -> None:
        said[0] = f"{what}: {text}"

    with progress.ticking(tell, progress.PATIENCE_S):
        yield say
