"""Records in files that others wrote: what their fields may hold, and one line for what is wrong.

A format is a `Record` of a table's row, whose cells are text, or a `Document` of JSON, whose values
have JSON's own types. Readers take their values from these alone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from physim import data
from physim.errors import InputError

# Beyond anything that is measured, in any unit of a row.
_MOST = 1e9
# Seconds since 1970, and for longer than any log.
_LATEST_S = 1e11
# What is written for nothing into a cell.
_EMPTY = ("", "nan", "NaN", "NA", "N/A", "null", "NULL", "None")
# Characters of a name, and of a value that a message shows.
_LONGEST = 1000
_SHOWN = 40


def _number(value: Any) -> Any:
    """What may be a number: pydantic takes flags for 0 and 1, and JSON writes 3 as 3.0 too."""
    if isinstance(value, bool):
        raise PydanticCustomError("flag", "is a flag")
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole and abs(value) <= _LATEST_S else value


def _printable(name: str) -> str:
    """A name that a terminal shows as it is."""
    if not name.isprintable():
        raise PydanticCustomError("unprintable", "holds control characters")
    return name


_Float = Annotated[float, BeforeValidator(_number)]
_Int = Annotated[int, BeforeValidator(_number)]

Text = Annotated[
    str, StringConstraints(min_length=1, max_length=_LONGEST), AfterValidator(_printable)
]
Count = Annotated[_Int, Field(ge=0, le=_MOST)]
Whole = Annotated[_Int, Field(gt=0, le=_MOST)]
# More than another number, or fewer.
Difference = Annotated[_Int, Field(ge=-_MOST, le=_MOST)]
Spread = Annotated[_Float, Field(ge=0, le=_MOST)]
Positive = Annotated[_Float, Field(gt=0, le=_MOST)]
Length = Annotated[_Float, Field(ge=1, le=_MOST)]
Share = Annotated[_Float, Field(gt=0, le=1)]
# A share that may be none.
Portion = Annotated[_Float, Field(ge=0, le=1)]
Moment = Annotated[_Float, Field(ge=0, le=_LATEST_S)]
# Bytes, or bytes per second.
Amount = Annotated[_Float, Field(gt=0, le=2**53)]
# What a counter has counted.
Total = Annotated[_Float, Field(ge=0, le=2**63)]
# A whole number of nanoseconds or microseconds on some clock.
Ticks = Annotated[_Int, Field(ge=0, lt=2**63)]


class Record(BaseModel):
    """A row of a table, or values found in text; what is empty is None."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_none(cls, row: Mapping[Any, Any]) -> dict[Any, Any]:
        return {column: _given(value) for column, value in row.items()}


class Document(BaseModel):
    """A JSON object: numbers are numbers, flags are flags and text is text."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, strict=True)


R = TypeVar("R", bound=BaseModel)
RowT = TypeVar("RowT", bound=Record)
DocumentT = TypeVar("DocumentT", bound=Document)


def checked(kind: type[R], content: Mapping[Any, Any], where: str, source: str = "") -> R:
    """A record with its values as they are meant.

    Args:
        kind: Its type.
        content: Its fields as they were read; those that the type does not have are not looked at.
        where: What it is in, for messages.
        source: What to pass where a field is missing.

    Raises:
        InputError: A value is missing, of another type or out of range, or contradicts another.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, problem, remedy = _in_words(first, source)
        raise InputError(f"{where}: {field}", problem, remedy) from None


def disagreement(field: str | int, problem: str, remedy: str) -> PydanticCustomError:
    """What a record's own check raises where its values contradict each other.

    Args:
        field: The field at fault, or within one its entry; empty for what the check is of.
        problem: What is wrong with it.
        remedy: What to do about it.
    """
    return PydanticCustomError(
        "disagreement", "values disagree", {"field": field, "problem": problem, "remedy": remedy}
    )


def read_document(kind: type[DocumentT], path: Path, source: str) -> DocumentT:
    """A JSON object from a file.

    Args:
        kind: Its type.
        path: The file.
        source: What to pass where a field is missing.

    Raises:
        InputError: The file cannot be read or is no JSON object, or as `checked` says.
    """
    return checked(kind, data.read_json(path), str(path), source)


def read_rows(kind: type[RowT], path: Path) -> Iterator[tuple[str, RowT]]:
    """The rows of a CSV, each with its place for messages.

    Args:
        kind: Their type.
        path: The file.

    Raises:
        InputError: The file cannot be read or is no table, lacks a column, or as `checked` says.
    """
    names = required(kind)
    for place, row in read_cells(path):
        if names:
            missing = [name for name in names if name not in row]
            if missing:
                raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
            names = ()
        yield place, checked(kind, row, place)


def required(kind: type[Record]) -> tuple[str, ...]:
    """The columns that a table of records cannot do without."""
    fields = kind.model_fields.items()
    return tuple(field.alias or name for name, field in fields if field.is_required())


def read_cells(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV, which may be compressed (``.gz``), as text by column, with their places.

    Raises:
        InputError: The file cannot be read, or is no table: without a header, with a column twice,
            without rows, or with a row that is longer or shorter than the header.
    """
    try:
        with data.opened(path) as file:
            lines = csv.reader(file, strict=True)
            header = [name.strip() for name in next(lines, [])]
            twice = {name for name in header if header.count(name) > 1}
            if not header or twice:
                name = _shown(min(twice, default="")) or "without a name"
                what = f"has a column {name} twice" if twice else "is not a CSV table"
                raise InputError(str(path), what, "pass one with a header")
            count = 0
            for cells in lines:
                if not cells:
                    continue
                count += 1
                place = f"{path}, line {lines.line_num}"
                if len(cells) != len(header):
                    raise InputError(
                        place, f"has {len(cells)} cells for {len(header)} columns", "correct it"
                    )
                yield place, dict(zip(header, cells, strict=True))
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not a CSV table in UTF-8", "pass one") from error
    except csv.Error as error:
        raise InputError(
            str(path), f"is not a CSV table ({error})", "pass one with a header"
        ) from error
    if not count:
        raise InputError(str(path), "holds no row", "add some")


def _given(value: Any) -> Any:
    """None for what is empty in a table."""
    if isinstance(value, str):
        value = value.strip()
        return None if value in _EMPTY else value
    return None if value != value else value


def _in_words(error: ErrorDetails, source: str) -> tuple[str, str, str]:
    """The field, what is wrong with it, and what to do."""
    about, kind, given = error.get("ctx", {}), error["type"], error["input"]
    field = _field([*error["loc"], about["field"]] if kind == "disagreement" else error["loc"])
    if kind == "disagreement":
        return field, about["problem"], about["remedy"]
    if kind == "missing":
        return field, "is missing", f"pass {source}" if source else "add it"
    if given in (None, ""):
        return field, "is empty", "fill it in"
    problem = {
        "bool_parsing": "is neither true nor false",
        "bool_type": "is neither true nor false",
        "dict_type": "is not an object",
        "extra_forbidden": "is of a field that is unknown",
        "greater_than": "is not positive",
        "greater_than_equal": f"is below {about.get('ge'):g}" if "ge" in about else "",
        "int_from_float": "is not a whole number",
        "int_parsing": "is not a whole number",
        "int_type": "is not a whole number",
        "less_than": f"is not below {about.get('lt')}",
        "less_than_equal": f"is above {about.get('le'):g}" if "le" in about else "",
        "list_type": "is not a list",
        "literal_error": f"is unknown; use one of {about.get('expected')}",
        "model_type": "is not an object",
        "string_pattern_mismatch": "is not a name",
        "string_too_long": f"is longer than {_LONGEST} characters",
        "string_type": "is not text",
        "too_long": "has too many entries",
        "too_short": "has too few entries",
        "tuple_type": "is not a list",
        "unprintable": "holds control characters",
    }.get(kind, "is not a number")
    # JSON's "4" is text, where a table's is a number.
    shown = repr(given) if isinstance(given, str) and kind.endswith("_type") else given
    return field, f"{_shown(shown)} {problem}", "correct it"


def _field(way: Sequence[str | int]) -> str:
    """The way to a field, such as ``benchmarks[0].duration``."""
    named = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in way if key != "")
    return "".join(named).lstrip(".")


def _shown(value: Any) -> str:
    """A value on one line, and not all of a long one."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
