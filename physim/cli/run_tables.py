"""What commands say of tables of measured runs before they use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from physim.cli.console import print_line


def name_unread_columns(tables: Sequence[Path]) -> None:
    """Names the columns that nothing is taken from, on stderr, with what each may stand for.

    Args:
        tables: CSV files of measured runs.

    Raises:
        InputError: One cannot be read.
    """
    from physim.measured.runs_csv import unread_columns

    # What is no file can be read once, or not at all, as the command itself will say.
    found = unread_columns([path for path in tables if path.is_file()])
    meant = [f"{name} ({near}?)" for name, near in found.items() if near]
    others = [name for name, near in found.items() if not near]
    if found:
        names = ", ".join([*meant, *others])
        print_line(f"physim: columns that only --where reads: {names}", err=True)
