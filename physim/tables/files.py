"""Tables in files: a folder with the table in one of three formats, and its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.errors import InputError
from physim.tables.table import AXES, Table

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {"parquet": "table.parquet", "csv": "table.csv.gz", "json": "table.json"}
METADATA = "metadata.json"
_SCHEMA_VERSION = 1
# Times are written in microseconds to five digits, far below a table's error.
_UNIT, _DIGITS = 1e-6, 5
_STEP, _SUFFIX = "step_us", "_us"


def write(table: Table, folder: Path, kind: str) -> None:
    """Writes a table and its metadata into a folder.

    Args:
        table: The table.
        folder: A folder that is there.
        kind: ``parquet``, ``csv`` or ``json``.

    Raises:
        InputError: The format is unknown, or Parquet without pyarrow.
    """
    if kind not in FORMATS:
        raise InputError("format", f"{kind!r} is unknown", f"use one of {', '.join(FORMATS)}, blis")
    path = folder / FORMATS[kind]
    if kind == "json":
        path.write_text(json.dumps(_as_json(table)) + "\n", encoding="utf-8")
    elif kind == "csv":
        # Without a time in the gzip header equal tables are equal files.
        packed = {"method": "gzip", "compresslevel": 5, "mtime": 0}
        _as_frame(table).to_csv(path, index=False, compression=packed)
    else:
        try:
            _as_frame(table).astype(np.float32).to_parquet(path, index=False, compression="zstd")
        except ImportError as error:
            raise InputError(
                "parquet", "needs pyarrow", "pip install pyarrow, or use csv or json"
            ) from error
    content = {"schema_version": _SCHEMA_VERSION, "table": path.name, **table.metadata}
    (folder / METADATA).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(folder: str | Path) -> Table:
    """Reads a table that `physim table` wrote.

    Args:
        folder: Its folder.

    Raises:
        InputError: There is no table, or one that is damaged or of another version.
    """
    place = Path(folder)
    metadata = data.read_json(place / METADATA)
    version = metadata.pop("schema_version", None)
    if version != _SCHEMA_VERSION:
        raise InputError(
            f"{place / METADATA}: schema_version",
            f"{version!r} is unknown",
            f"physim reads {_SCHEMA_VERSION}",
        )
    if "kernel_profile" in metadata and "table" not in metadata:
        raise InputError(
            str(place), "is a folder for BLIS, not a table", "write csv, parquet or json"
        )
    path = place / str(metadata.pop("table", ""))
    if path.name not in FORMATS.values():
        raise InputError(
            f"{place / METADATA}: table", f"{path.name!r} is not a table", "write the table again"
        )
    try:
        if path.suffix == ".json":
            return _from_json(data.read_json(path), metadata)
        return _from_frame(_frame(path), metadata)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), "is damaged", "write the table again") from error


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError as error:
        raise InputError(str(path), "needs pyarrow", "pip install pyarrow") from error
    except (OSError, EOFError) as error:
        what = getattr(error, "strerror", None) or "is damaged"
        raise InputError(str(path), what, "write the table again") from error


def _as_frame(table: Table) -> pd.DataFrame:
    """A row for each combination of knots, the last axis running fastest."""
    import pandas as pd

    knots = np.meshgrid(*table.axes, indexing="ij")
    columns = {name: values.ravel() for name, values in zip(AXES, knots, strict=True)}
    columns[_STEP] = _rounded(table.seconds).ravel()
    for name, values in table.parts.items():
        columns[name + _SUFFIX] = _rounded(values).ravel()
    return pd.DataFrame(columns)


def _from_frame(frame: pd.DataFrame, metadata: Mapping[str, Any]) -> Table:
    axes = [np.unique(frame[name].to_numpy(float)) for name in AXES]
    shape = tuple(len(knots) for knots in axes)

    def values(column: str) -> Float[np.ndarray, "_ _ _ _"]:
        return frame[column].to_numpy(float).reshape(shape) * _UNIT

    columns = [str(name) for name in frame.columns]
    parts = [name for name in columns if name.endswith(_SUFFIX) and name != _STEP]
    return _checked(
        axes,
        values(_STEP),
        {name.removesuffix(_SUFFIX): values(name) for name in parts},
        metadata,
    )


def _as_json(table: Table) -> dict[str, Any]:
    """Axes once, then values with the last axis running fastest; parts on their own axes alone."""
    parts = {}
    for name, values in table.parts.items():
        # An axis that was broadcast has no stride.
        kept = [axis for axis in range(4) if values.strides[axis]]
        own = values[tuple(slice(None) if axis in kept else slice(1) for axis in range(4))]
        parts[name + _SUFFIX] = {
            "axes": [list(AXES)[axis] for axis in kept],
            "values": _rounded(own).ravel().tolist(),
        }
    return {
        "axes": {name: knots.tolist() for name, knots in zip(AXES, table.axes, strict=True)},
        _STEP: _rounded(table.seconds).ravel().tolist(),
        "parts": parts,
    }


def _from_json(content: Mapping[str, Any], metadata: Mapping[str, Any]) -> Table:
    axes = [np.array(content["axes"][name], float) for name in AXES]
    lengths = {name: len(knots) for name, knots in zip(AXES, axes, strict=True)}
    parts = {}
    for name, part in content["parts"].items():
        shape = [lengths[axis] if axis in part["axes"] else 1 for axis in AXES]
        parts[name.removesuffix(_SUFFIX)] = np.array(part["values"], float).reshape(shape) * _UNIT
    seconds = np.array(content[_STEP], float).reshape(tuple(lengths.values())) * _UNIT
    return _checked(axes, seconds, parts, metadata)


def _checked(
    axes: list[Float[np.ndarray, " _"]],
    seconds: Float[np.ndarray, "_ _ _ _"],
    parts: Mapping[str, Float[np.ndarray, "_ _ _ _"]],
    metadata: Mapping[str, Any],
) -> Table:
    if not (np.all(np.isfinite(seconds)) and np.all(seconds > 0)):
        raise ValueError("a time is not positive")
    if any(len(knots) < 2 or np.any(np.diff(knots) <= 0) for knots in axes):
        raise ValueError("an axis does not rise")
    return Table(axes, seconds, parts, metadata)


def _rounded(seconds: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Microseconds, rounded to some digits."""
    values = np.asarray(seconds) / _UNIT
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(np.abs(values), where=values != 0, out=np.zeros(values.shape)))
    scale = 10.0 ** (_DIGITS - 1 - exponent)
    return np.round(values * scale) / scale
