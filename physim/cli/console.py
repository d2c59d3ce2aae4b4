"""What is printed: a console as wide as its reader wants it, lines, and tables that fit.

Names of models, files and runs are printed here and nowhere else, so that no character in them is
taken for markup or obeyed by a terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from physim.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from physim.cli.terminal import Terminal

# Nothing that is printed is so long: a program that reads a pipe finds each row on one line.
_UNFOLDED = 10_000
# So many rows are named one by one.
_NAMED = 3


def stdout() -> Terminal:
    """Stdout: as wide as the terminal or as COLUMNS says, and unfolded in a pipe or file."""
    from physim.cli.terminal import Terminal

    terminal = Terminal()
    if terminal.is_terminal or "COLUMNS" in os.environ:
        return terminal
    return Terminal(width=_UNFOLDED)


def print_line(line: str, *, err: bool = False) -> None:
    """Prints one line in one piece, to be pasted or read by a program.

    Args:
        line: The line.
        err: Whether it goes to stderr.
    """
    typer.echo(printable(line), err=err)


def styled(*pieces: str | tuple[str, str]) -> Text:
    """Text for the console, in styles.

    Args:
        pieces: Strings, or strings with the style of each.
    """
    from rich.text import Text

    pairs = ((piece, "") if isinstance(piece, str) else piece for piece in pieces)
    return Text.assemble(*((printable(text), style) for text, style in pairs))


def milliseconds(seconds: float | None) -> str:
    """A time in a cell of a table; a dash where there is none."""
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def by_reason(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why rows were not used, a line for each reason, with the names of the few or their number.

    Args:
        rows: Rows with ``experiment``, ``stage`` and ``reason``.
    """
    named: dict[str, list[str]] = {}
    for row in rows:
        named.setdefault(row["reason"], []).append(f"{row['experiment']} stage {row['stage']}")
    return [
        f"{', '.join(some) if len(some) <= _NAMED else f'{len(some)} rows'}: {reason}"
        for reason, some in named.items()
    ]


def table_of(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """A table whose first column is text, folded where the line is too short, the others numbers.

    Text gives way before numbers do.

    Args:
        columns: Headings.
        rows: Cells, as many as headings.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    cells = [list(row) for row in rows]
    widths = [
        max(cell_len(printable(str(cell))) for cell in (heading, *(row[index] for row in cells)))
        for index, heading in enumerate(columns)
    ]
    # Each column is followed by one space, and the box adds one to either side.
    left = stdout().width - sum(width + 2 for width in widths[1:]) - 3
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold", max_width=max(left, 8))
    for heading in columns[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    return table
