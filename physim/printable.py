"""Names as text in which no character acts, for wherever they are shown, and records as such text.

What a session shows of a record (`shown`, `shown_fields`) fits on a screen, whatever it holds.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

# Of what a session shows of a record, of a cell of its table, and of a list.
_COLUMNS, _LINES, _CELL, _ENTRIES = 100, 12, 36, 6


def printable(text: str) -> str:
    r"""Text on one line, whose control characters are seen rather than obeyed.

    Whatever Python does not call printable is written as in its strings, such as ``\x1b``: control
    characters, ends of lines, marks that turn the direction of text, halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shown(record: object, *lines: str) -> str:
    """A record as sessions show it: its class, and what it says in a few lines.

    Args:
        record: The record.
        lines: What it says. Lines longer than a hundred columns go on in the next, and after the
            twelfth there are none.
    """
    first, *others = lines
    folded = [f"<{type(record).__name__} {printable(first)}"]
    folded += [f"  {printable(line)}" for line in others]
    folded = [part for line in folded for part in _folded(line)]
    if len(folded) > _LINES:
        folded = [*folded[: _LINES - 1], "  ..."]
    return "\n".join(folded) + ">"


def shown_fields(record: Any) -> str:
    """A dataclass as it would be made, without the fields that are as by default.

    Args:
        record: The dataclass.
    """
    given = ", ".join(
        f"{one.name}={_value(getattr(record, one.name))}"
        for one in dataclasses.fields(record)
        if one.repr and not _is_default(one, getattr(record, one.name))
    )
    return "\n".join(_folded(f"{type(record).__name__}({given})"))


def aligned(rows: Sequence[Sequence[str]], most: int = 8) -> list[str]:
    """Rows as lines with columns one below the other, the first to the left, others to the right.

    Args:
        rows: The rows, each with as many cells; the first is the header.
        most: So many below the header are shown, and how many more there are.
    """
    cells = [[_short(printable(cell)) for cell in row] for row in rows[: most + 1]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    left = len(rows) - 1 - most
    return [*lines, f"and {left} more"] if left > 0 else lines


def _value(value: object) -> str:
    """A field's value, of a long list its first ones and how many there are."""
    if not isinstance(value, tuple) or len(value) <= _ENTRIES:
        return repr(value)
    first = ", ".join(map(repr, value[:_ENTRIES]))
    return f"({first}, ... {len(value) - _ENTRIES:,} more)"


def _folded(line: str) -> list[str]:
    """A line as lines of a hundred columns at most, less one for what ends the last."""
    if len(line) < _COLUMNS:
        return [line]
    return textwrap.wrap(line, _COLUMNS - 1, subsequent_indent="  ") or [""]


def _short(cell: str) -> str:
    return cell if len(cell) <= _CELL else f"{cell[: _CELL - 3]}..."


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and bool(value == field.default)
