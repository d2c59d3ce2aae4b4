"""Parquet files that others wrote, as tables of pandas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from physim import data
from physim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path) -> pd.DataFrame:
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
