"""Measured runs in the common form: a CSV with a row for each load stage."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from physim.data import paths_of
from physim.errors import InputError
from physim.measured.condition import filtered
from physim.measured.recorded_traffic import check_traces
from physim.measured.schema import COLUMNS, REQUIRED, RunRow, checked
from physim.records import read_cells

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = ("ttft_mean", "e2e_mean", "itl_mean")
# Columns that are for people, or for conditions: remarks, and percentiles beside the means.
_FOR_PEOPLE = re.compile(r"note|part|\w+_p\d+")
# Keywords of physim, and words of other tools, for columns that have another name here.
_KEYWORDS = {
    "gpu": "hardware",
    "rate": "rate_rps",
    "request_rate": "rate_rps",
    "input_tokens": "input_len_mean",
    "prompt_tokens": "input_len_mean",
    "output_tokens": "output_len",
}

# Of a digest so many digits keep ten thousand rows apart, but for a chance of 1 in 10^12.
_DIGITS = 16
Key = TypeVar("Key")


@dataclass(frozen=True)
class TableRow:
    """A checked row of a table of measured runs.

    Attributes:
        row: What it says.
        table: The table's file, from whose folder on the row's paths go; by default there is none,
            and they go from the working directory.
    """

    row: RunRow
    table: Path = Path()

    @property
    def campaign(self) -> str:
        """The name of the table."""
        return self.table.stem

    @property
    def run(self) -> str:
        """The run that the row is a stage of: of clients each stage is a run of its own."""
        row = self.row
        return row.experiment if row.concurrency is None else f"{row.experiment} {row.stage}"

    @property
    def digest(self) -> str:
        """What the row says, in a few characters; the names of its table and run are of no account.

        Of rows that say the same, one is the other.
        """
        said = self.row.model_dump_json(exclude={"experiment", "stage", "note", "left_out"})
        return hashlib.sha256(said.encode()).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class RunTable:
    """Rows of tables of measured runs, as they are picked and as they are used.

    Attributes:
        frame: All columns of the files, the checked ones as they are meant; ``table`` and ``run``
            are added. Its index is where a row is in ``rows``.
        rows: The rows.
    """

    frame: pd.DataFrame
    rows: Sequence[TableRow]

    def first(self) -> RunTable:
        """Each stage once: of several tables that hold it the first counts."""
        return replace(self, frame=self.frame.drop_duplicates(["experiment", "stage"]))

    def where(self, condition: str | None) -> list[TableRow]:
        """The rows for which a condition over the columns holds; all of them for None.

        Raises:
            InputError: The condition is none, or holds for no row.
        """
        frame = self.frame if condition is None else filtered(self.frame, condition)
        return [self.rows[place] for place in frame.index]


def read_tables(paths: str | Path | Iterable[str | Path]) -> RunTable:
    """Tables of measured rows, one below the other, checked.

    Args:
        paths: CSV files.

    Raises:
        InputError: There is none, or a file cannot be read, lacks a column, or holds a value that
            is missing, out of range or in contradiction with another or with the trace that it
            names, or a stage twice.
    """
    import pandas as pd

    tables = [_read(path) for path in paths_of(paths, "tables")]
    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    return RunTable(frame, [row for table in tables for row in table.rows])


def _remedy(frame: pd.DataFrame, missing: Sequence[str]) -> str:
    """What to do about columns that a table lacks."""
    if len(frame.columns) == 1 and ";" in str(frame.columns[0]):
        return "separate columns by commas"
    renamed = [
        f"{own} to {column}"
        for own, column in _KEYWORDS.items()
        if own in frame and column in missing
    ]
    return f"rename {', '.join(renamed)}, and add the others" if renamed else "add it"


def _read(path: Path) -> RunTable:
    import pandas as pd

    places = [place for place, _ in read_cells(path)]
    try:
        # As text, for what a value is meant to be is the schema's to say: 0.10 is a version.
        frame = pd.read_csv(path, dtype=dict.fromkeys(COLUMNS, object))
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise InputError(str(path), "is not a CSV table with a header", "pass one") from error
    missing = [column for column in REQUIRED if column not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", _remedy(frame, missing))
    rows = checked(frame.to_dict("records"), lambda number: places[number])
    for own, place in zip(rows, places, strict=True):
        check_traces(own, place, path.parent)
    for column in COLUMNS:
        if column in frame or column in _MEASURED:
            values = [getattr(row, column) for row in rows]
            frame[column] = [math.nan if value is None else value for value in values]
    again = frame.duplicated(["experiment", "stage"])
    if again.any():
        number = int(again.to_numpy().argmax())
        row = rows[number]
        raise InputError(
            f"{places[number]}: stage",
            f"{row.stage} of {row.experiment!r} is there twice",
            "remove one of the rows, or number the stages",
        )
    found = [TableRow(row, path) for row in rows]
    return RunTable(frame.assign(table=str(path), run=[one.run for one in found]), found)


def unread_columns(paths: Iterable[str | Path]) -> dict[str, str]:
    """Columns of tables that nothing is taken from but by conditions, and what each may stand for.

    Args:
        paths: CSV files.

    Returns:
        For each such column the one that is read and has nearly its name; empty where none has.

    Raises:
        InputError: A file cannot be read.
    """
    found = {}
    for path in paths:
        _, first = next(read_cells(Path(path)))
        for name in first:
            if name not in COLUMNS and not _FOR_PEOPLE.fullmatch(name):
                found[name] = next(iter(difflib.get_close_matches(name, COLUMNS, n=1)), "")
    return found


def grouped(rows: Iterable[TableRow], key: Callable[[TableRow], Key]) -> dict[Key, list[TableRow]]:
    """Rows by something of theirs, such as their run, in the order in which each comes first.

    Args:
        rows: The rows.
        key: Says what a row goes by.
    """
    found: dict[Key, list[TableRow]] = {}
    for one in rows:
        found.setdefault(key(one), []).append(one)
    return found
