"""Tables that others wrote, CSV or Parquet, as those of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from physim import data
from physim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(path: Path) -> pd.DataFrame:
    """The table in a Parquet file.

    Raises:
        InputError: The file cannot be read, is no table or holds no row, or pyarrow is missing.
    """
    import pandas as pd

    with data.reading(path), path.open("rb") as file:
        try:
            frame = pd.read_parquet(file)
        except ImportError as error:
            raise InputError(str(path), "needs pyarrow", "pip install pyarrow") from error
        except ValueError as error:  # so are pyarrow's errors of form
            raise InputError(
                str(path), "is not a table", "pass Parquet, or CSV with a header"
            ) from error
    if frame.empty:
        raise InputError(str(path), "holds no row", "add some")
    return frame


def read_table(path: Path, text: Sequence[str]) -> pd.DataFrame:
    """The table in a file, CSV or Parquet by its ending.

    Args:
        path: The file; a CSV may be compressed (``.gz``).
        text: Columns of a CSV that are text, whatever they look like.

    Raises:
        InputError: The file cannot be read, is no table or holds no row, or pyarrow is missing.
    """
    import pandas as pd

    if path.suffix == ".parquet":
        return read_parquet(path)
    try:
        with data.opened(path) as file:
            frame = pd.read_csv(file, dtype=dict.fromkeys(text, object))
    except InputError:
        raise
    except (ValueError, OverflowError) as error:  # so are pandas' errors of form
        raise InputError(str(path), "is not a CSV table", "pass one with a header") from error
    if frame.empty:
        raise InputError(str(path), "holds no row", "add some")
    return frame


def numbers(path: Path, frame: pd.DataFrame, column: str) -> Float[np.ndarray, " rows"]:
    """A column of a table as numbers; NaN where it is empty.

    Args:
        path: The table's file, for messages.
        frame: The table.
        column: The column's name.

    Raises:
        InputError: A cell holds something else.
    """
    import pandas as pd

    given = frame[column]
    try:
        values = pd.to_numeric(given, errors="coerce").to_numpy(float, na_value=np.nan)
    except OverflowError:  # of whole numbers of hundreds of digits
        values = np.full(len(given), np.nan)
    wrong = np.isnan(values) & given.notna().to_numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{path}, row {row + 1}: {column}", "is no number", "correct it")
    return values
