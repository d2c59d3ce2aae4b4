"""Tables in files: a folder with the table in one of three formats, and its metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.errors import InputError
from physim.tables.look_ups import look_ups
from physim.tables.table import AXES, COSTS, Table

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {"parquet": "table.parquet", "csv": "table.csv.gz", "json": "table.json"}
METADATA = "metadata.json"
# Look-ups with their answers, by which a port is tested.
LOOK_UPS = "look_ups.json"
_SCHEMA_VERSION = 2
# Times are written in microseconds to five digits, far below a table's error.
_UNIT, _DIGITS = 1e-6, 5
# How far the sum of rounded parts may be from the step.
_APART = 1e-3
_STEP, _SUFFIX = "step_us", "_us"


def write(table: Table, folder: Path, kind: str) -> None:
    """Writes a table, its metadata and ten look-ups with their answers into a folder.

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
    answers = json.dumps(look_ups(_as_read(table, kind)), indent=1)
    (folder / LOOK_UPS).write_text(answers + "\n", encoding="utf-8")
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
    if version is None:
        raise InputError(str(place), "is no table of physim", "make one with physim table")
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
    name = metadata.pop("table", None)
    if name not in FORMATS.values():
        raise InputError(
            f"{place / METADATA}: table", f"{name!r} is not a table", "write the table again"
        )
    for field in COSTS:
        _vector([metadata.get(field, 0.0)], f"{place / METADATA}: {field}")
    path = place / str(name)
    if path.suffix == ".json":
        return _from_json(data.read_json(path), metadata, str(path))
    return _from_frame(_frame(path), metadata, str(path))


def _as_read(table: Table, kind: str) -> Table:
    """A table with the rounding of its file, without its parts."""
    digits = np.float32 if kind == "parquet" else np.float64
    axes = [knots.astype(digits).astype(float) for knots in table.axes]
    values = _rounded(table.seconds).astype(digits).astype(float)
    return Table(axes, values * _UNIT, {}, table.metadata)


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with data.reading(path):
            return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(str(path), "needs pyarrow", "pip install pyarrow") from error
    except Exception as error:  # what decoders raise has nothing in common
        raise _damaged(str(path), "cannot be decoded") from error


def _as_frame(table: Table) -> pd.DataFrame:
    """A row for each combination of knots, the last axis running fastest."""
    import pandas as pd

    knots = np.meshgrid(*table.axes, indexing="ij")
    columns = {name: values.ravel() for name, values in zip(AXES, knots, strict=True)}
    columns[_STEP] = _rounded(table.seconds).ravel()
    for name, values in table.parts.items():
        columns[name + _SUFFIX] = _rounded(values).ravel()
    return pd.DataFrame(columns)


def _from_frame(frame: pd.DataFrame, metadata: Mapping[str, Any], where: str) -> Table:
    """A table from rows in any order, of which each combination of knots has one."""
    columns = [str(name) for name in frame.columns]
    for name in (*AXES, _STEP):
        if name not in columns:
            raise _damaged(f"{where}: {name}", "is missing")
    numbers = {
        name: _vector(frame[name].tolist(), f"{where}: {name}")
        for name in columns
        if name in AXES or name.endswith(_SUFFIX)
    }
    axes = [np.unique(numbers[name]) for name in AXES]
    shape = tuple(len(knots) for knots in axes)
    order = np.lexsort([numbers[name] for name in reversed(AXES)])
    knots = np.meshgrid(*axes, indexing="ij")
    for name, own in zip(AXES, knots, strict=True):
        if not np.array_equal(numbers[name][order], own.ravel()):
            raise _damaged(f"{where}: {name}", "has not one row for each combination of knots")
    values = {
        name.removesuffix(_SUFFIX): numbers[name][order].reshape(shape) * _UNIT
        for name in numbers
        if name.endswith(_SUFFIX)
    }
    seconds = values.pop(_STEP.removesuffix(_SUFFIX))
    return _checked(axes, seconds, values, metadata, where)


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


def _from_json(content: Mapping[str, Any], metadata: Mapping[str, Any], where: str) -> Table:
    axes = [_vector(_part(content, where, "axes", name), f"{where}: axes.{name}") for name in AXES]
    lengths = {name: len(knots) for name, knots in zip(AXES, axes, strict=True)}

    def block(values: Any, axis_names: Sequence[str], where: str) -> Float[np.ndarray, "_ _ _ _"]:
        shape = [lengths[axis] if axis in axis_names else 1 for axis in AXES]
        found = _vector(values, where)
        if len(found) != math.prod(shape):
            raise _damaged(where, f"has {len(found)} values, not {math.prod(shape)}")
        return found.reshape(shape) * _UNIT

    parts = {}
    named = _part(content, where, "parts")
    if not isinstance(named, Mapping):
        raise _damaged(f"{where}: parts", "are not named")
    for name in named:
        place, own = f"{where}: parts.{name}", _part(content, where, "parts", name, "axes")
        if not isinstance(own, list) or not all(axis in list(AXES) for axis in own):
            raise _damaged(f"{place}.axes", f"are not of {', '.join(AXES)}")
        values = _part(content, where, "parts", name, "values")
        parts[name.removesuffix(_SUFFIX)] = block(values, own, place)
    seconds = block(_part(content, where, _STEP), list(AXES), f"{where}: {_STEP}")
    return _checked(axes, seconds, parts, metadata, where)


def _part(content: Any, where: str, *keys: str) -> Any:
    """What lies deep in a table."""
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            raise _damaged(f"{where}: {'.'.join(keys)}", "is missing")
        content = content[key]
    return content


def _vector(values: Any, where: str) -> Float[np.ndarray, " _"]:
    """Numbers, none of which is text, a truth value, infinite or absent."""
    kinds = {type(value) for value in values} if isinstance(values, list) else {list}
    if not kinds <= {int, float}:
        raise _damaged(where, "holds something other than numbers")
    try:
        found = np.array(values, float)
    except OverflowError:  # an integer may be too large for a float
        found = np.array([np.inf])
    if not np.all(np.isfinite(found)):
        raise _damaged(where, "holds a number that is not finite")
    return found


def _checked(
    axes: list[Float[np.ndarray, " _"]],
    seconds: Float[np.ndarray, "_ _ _ _"],
    parts: Mapping[str, Float[np.ndarray, "_ _ _ _"]],
    metadata: Mapping[str, Any],
    where: str,
) -> Table:
    for name, knots in zip(AXES, axes, strict=True):
        if len(knots) < 2 or np.any(np.diff(knots) <= 0):
            raise _damaged(f"{where}: {name}", "does not rise")
    if not np.all(seconds > 0):
        raise _damaged(f"{where}: {_STEP}", "has a time that is not positive")
    table = Table(axes, seconds, parts, metadata)
    whole = sum(table.parts.values()) if table.parts else table.seconds
    if not np.allclose(whole, table.seconds, rtol=_APART):
        raise _damaged(where, "has parts that do not add up to the step")
    return table


def _damaged(where: str, how: str) -> InputError:
    return InputError(where, how, "write the table again")


def _rounded(seconds: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Microseconds, rounded to some digits."""
    values = np.asarray(seconds) / _UNIT
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(np.abs(values), where=values != 0, out=np.zeros(values.shape)))
    scale = 10.0 ** (_DIGITS - 1 - exponent)
    return np.round(values * scale) / scale
