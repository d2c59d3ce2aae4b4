"""The table of steps that physim writes, as CSV or Parquet, and reads again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim import data
from physim.errors import InputError
from physim.measured.condition import filtered
from physim.measured.steps import COLUMNS, MeasuredSteps
from physim.measured.table_files import numbers, read_table

if TYPE_CHECKING:
    import pandas as pd

# What is the same of all steps.
ABOUT = ("clock", "engine", "engine_version")


def write(path: Path, steps: MeasuredSteps) -> None:
    """Writes steps as a table; the file appears whole or not at all.

    Args:
        path: The file, CSV or Parquet by its ending.
        steps: The steps.

    Raises:
        InputError: The file has another ending or cannot be written, or pyarrow is missing.
    """
    import pandas as pd

    check_name(path)
    frame = pd.DataFrame({**steps.columns, **{name: getattr(steps, name) for name in ABOUT}})
    with data.replacing(path) as temporary:
        if path.suffix == ".csv":
            frame.to_csv(temporary, index=False)
            return
        try:
            frame.to_parquet(temporary, index=False)
        except ImportError as error:
            raise InputError(str(path), "needs pyarrow", "write CSV") from error


def check_name(path: Path) -> None:
    """Refuses a file whose ending says neither CSV nor Parquet.

    Raises:
        InputError: It does.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(str(path), "is neither CSV nor Parquet", "end it in .csv or .parquet")


def is_table(frame: pd.DataFrame) -> bool:
    """Whether a table has the columns of such a one."""
    return {*COLUMNS, "clock"} <= set(frame)


def read(path: Path, where: str = "") -> MeasuredSteps:
    """The steps of a table.

    Args:
        path: The file.
        where: Which of its rows; see `physim.measured.condition.filtered`.

    Raises:
        InputError: The file cannot be read, a column is missing or holds something else, or as
            `MeasuredSteps` does.
    """
    frame = read_table(path, ABOUT)
    missing = [name for name in (*COLUMNS, "clock") if name not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    if where:
        frame = filtered(frame, where)
    columns = {name: numbers(path, frame, name) for name in COLUMNS}
    about: dict[str, Any] = {}
    for name in ABOUT:
        told = frame[name].dropna().astype(str).unique().tolist() if name in frame else []
        if len(told) > 1:
            raise InputError(f"{path}: {name}", "differs between rows", "choose with --where")
        about[name] = told[0] if told else None
    return MeasuredSteps.from_columns(columns, about.pop("clock") or "", str(path), **about)
