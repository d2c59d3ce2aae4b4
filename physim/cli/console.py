"""What is printed: a console as wide as its reader wants it, and tables that fit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Nothing that is printed is so long: a program that reads a pipe finds each row on one line.
_UNFOLDED = 10_000
# So many rows are named one by one.
_NAMED = 3


def stdout() -> Console:
    """Stdout: as wide as the terminal or as COLUMNS says, and unfolded in a pipe or file."""
    from rich.console import Console

    terminal = Console(highlight=False)
    if terminal.is_terminal or "COLUMNS" in os.environ:
        return terminal
    return Console(highlight=False, width=_UNFOLDED)


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
    from rich.table import Table

    cells = [list(row) for row in rows]
    widths = [
        max([len(heading), *(len(str(row[index])) for row in cells)])
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
