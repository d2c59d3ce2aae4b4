"""What public measurements do not say of their servers, and which of their rows no fit sees.

Both are tables of ``bench_data`` with a line and its source for each rule. A line is for the rows
for which all its conditions hold; a condition on what is not known of a row does not hold.
"""

from __future__ import annotations

import datetime
import functools
import math
import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from physim import data
from physim.errors import InputError
from physim.records import (
    Difference,
    Document,
    Positive,
    Text,
    Whole,
    disagreement,
    read_document,
)

_SETTLED, _HELD_OUT = "public_runs.json", "held_out.json"
# What conditions end in that bound a number or a date.
_BOUNDS = {"from": operator.ge, "until": operator.le, "below": operator.lt}


def _listed(value: Any) -> Any:
    """Several of which one must be, or one alone."""
    return value if isinstance(value, list) else [value]


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise disagreement("", f"{text[:40]} is not a date", "write it like 2026-01-31") from None


_Names = Annotated[list[str] | None, BeforeValidator(_listed)]
_Date = Annotated[datetime.date, BeforeValidator(_date)]
_Numbers = Annotated[list[int] | None, BeforeValidator(_listed)]


class _Conditions(Document):
    """What must be known of a row: a name or number, one of several, or a bound.

    A ``source`` is the file that a row was taken from, or ``database``; a ``version`` is
    ``unstated``, or a ``build`` without a number; a ``precision`` that is not stated is empty.
    ``load`` is ``unstated`` where a source does not say how many clients there were.
    Degrees of parallelism are as the row states them. ``serving`` is ``disaggregated`` where others
    decode than compute prompts; ``phase`` is then ``prefill`` or ``decode`` where one of the two
    kinds of servers is asked about, whose degrees they are, and ``config`` the id of a row's
    servers in its source.
    """

    model_config = ConfigDict(extra="forbid")

    serving: _Names = None
    phase: _Names = None
    config: _Numbers = None
    prefill_workers: _Numbers = None
    decode_workers: _Numbers = None
    origin: _Names = None
    source: _Names = None
    gateway: _Names = None
    engine: _Names = None
    version: _Names = None
    engine_version: _Names = None
    image: _Names = None
    measured_from: _Date | None = None
    measured_until: _Date | None = None
    model: _Names = None
    model_path: _Names = None
    task: _Names = None
    precision: _Names = None
    load: _Names = None
    hardware: _Names = None
    gpu_multiplies: Text | None = None
    tp: _Numbers = None
    dp: _Numbers = None
    ep: _Numbers = None
    prompt: _Numbers = None
    output: _Numbers = None
    request_tokens: Whole | None = None
    first_wave_tokens_from: Positive | None = None
    clients: _Numbers = None
    clients_from: Positive | None = None
    clients_below: Positive | None = None

    @functools.cached_property
    def _asked(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def hold(self, known: Mapping[str, Any]) -> bool:
        """Whether all of them hold."""
        return all(_holds(name, wanted, known) for name, wanted in self._asked.items())


class _Tokens(Document):
    """A number that goes by the row's own clients and tokens, rounded up to whole steps.

    Where prompts are never divided (``whole_prompts``), only as much of ``more`` counts as further
    prompts fill.
    """

    tokens_of: list[Literal["clients", "prompt", "output"]]
    more: Difference = 0
    in_steps_of: Whole = 1
    whole_prompts: bool = False

    def of_row(self, known: Mapping[str, Any]) -> int:
        """The number for a row."""
        more = self.more
        if self.whole_prompts:
            more -= more % known["prompt"]
        tokens = sum(known[name] for name in self.tokens_of) + more
        return math.ceil(tokens / self.in_steps_of) * self.in_steps_of


class _Line(Document):
    """A rule: for which rows it is, the columns that it sets, and why."""

    conditions: Annotated[_Conditions, Field(alias="for")]
    sets: dict[str, bool | int | float | str | _Tokens] = Field(default={})
    source: Text


class _Table(Document):
    form: Text
    lines: list[_Line]


def told(column: str, known: Mapping[str, Any]) -> Any:
    """What the first line says that fits a row and sets a column; None where there is no such line.

    Args:
        column: The column, of a row of a public measurement that does not state it.
        known: What is known of the row, by the names of conditions; ``clients``, ``prompt`` and
            ``output`` (tokens) besides.
    """
    for line in _lines(_SETTLED):
        if column in line.sets and line.conditions.hold(known):
            value = line.sets[column]
            return value.of_row(known) if isinstance(value, _Tokens) else value
    return None


def settled(column: str, known: Mapping[str, Any]) -> Any:
    """As `told`, of a column that no row goes without.

    Args:
        column: The column.
        known: What is known of the row.

    Raises:
        InputError: There is no line for the row.
    """
    value = told(column, known)
    if value is None:
        about = ", ".join(f"{name} {own}" for name, own in known.items())
        raise InputError(f"{_SETTLED}: {column}", f"has no line for {about[:200]}", "add one")
    return value


def held_out(known: Mapping[str, Any]) -> bool:
    """Whether no fit sees a row, whatever else it is.

    Args:
        known: What is known of the row, by the names of conditions.
    """
    return any(line.conditions.hold(known) for line in _lines(_HELD_OUT))


@functools.lru_cache
def _lines(name: str) -> tuple[_Line, ...]:
    table = read_document(_Table, data.folder("bench_data") / name, "")
    return tuple(table.lines)


def _holds(name: str, wanted: Any, known: Mapping[str, Any]) -> bool:
    what, _, bound = name.rpartition("_")
    if bound in _BOUNDS:
        own = known.get(what)
        return own is not None and _BOUNDS[bound](own, wanted)
    own = known.get(name)
    if name == "gpu_multiplies":
        return own is not None and wanted in own
    return own in wanted if isinstance(wanted, list) else bool(own == wanted)
