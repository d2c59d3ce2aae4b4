"""Deployments, listed: each of some choices is a case, or there is a reason why it is none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions, check_names
from physim.inputs.fleet_request import FleetRequest
from physim.models.parallelism import Parallelism, check_degree
from physim.options import options_of

_DEGREES = tuple(options_of(Parallelism))
_FLEET = tuple(options_of(FleetRequest))
_OWN = ("gpu", *_DEGREES)
# What is asked for beside lists of these, which are named after them.
_SHARED = tuple(f"{name}s" if name in _OWN else name for name in CaseOptions.__annotations__)


@dataclass(frozen=True)
class Attempt:
    """A deployment that was asked for.

    Attributes:
        choice: What sets it apart from the others, options of a case and its ``model`` by name.
        case: The case; None where it cannot be.
        refusal: Why it cannot be; None where it can.
    """

    choice: Mapping[str, Any]
    case: Case | None = None
    refusal: InputError | None = None


def choices(**axes: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Every combination of some values; those of the last axis change first.

    Args:
        **axes: The values of each option.
    """
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def check_lists(**lists: Any) -> None:
    """Refuses a single value where several are to be tried.

    Args:
        **lists: The values of each argument, by its name.

    Raises:
        InputError: One is no list.
    """
    for name, values in lists.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            shown = f"the case {values.what}" if isinstance(values, Case) else repr(values)[:80]
            raise InputError(name, f"{shown} is no list", "put it into one: [...]")


def layout_axes(
    tps: Sequence[int], pps: Sequence[int], dps: Sequence[int], eps: Sequence[int]
) -> dict[str, Sequence[int]]:
    """The layouts to try, as axes of `choices`: every combination of some degrees.

    Args:
        tps: Degrees ``tp`` of `physim.Parallelism`.
        pps: Degrees ``pp``.
        dps: Degrees ``dp``.
        eps: Degrees ``ep``.

    Raises:
        InputError: One is no list of positive integers.
    """
    check_lists(tps=tps, pps=pps, dps=dps, eps=eps)
    lists = dict(zip(_DEGREES, (tps, pps, dps, eps), strict=True))
    for name, degrees in lists.items():
        for degree in degrees:
            check_degree(f"{name}s", degree)
    return lists


def check_shared(options: Iterable[str]) -> None:
    """Refuses options of several deployments that are unknown, or of which each has its own.

    Args:
        options: Names of options.

    Raises:
        InputError: There is such an option.
    """
    check_names(options, _SHARED)


def refuse_fleets(
    options: Iterable[str],
    what: str,
    remedy: str = "ask about one server, under its share of the load",
) -> None:
    """Refuses options of several servers where one is asked about.

    Args:
        options: Names of options.
        what: What is made of one server, in words.
        remedy: What to do instead.

    Raises:
        InputError: There is such an option.
    """
    for name in options:
        if name in _FLEET:
            raise InputError(name, f"is of several servers, and {what} is of one", remedy)


def attempts(
    wanted: Iterable[Mapping[str, Any]],
    options: Mapping[str, Any],
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Iterator[Attempt]:
    """A case for each choice, or the reason why there is none.

    Args:
        wanted: Options of each, its ``model`` among them.
        options: Those of all.
        read: Makes options of what they were written as.
    """
    for choice in wanted:
        try:
            own = read({**options, **choice})
            found = Attempt(choice, Case.attempted(own.pop("model"), **own))
        except InputError as error:
            found = Attempt(choice, refusal=error)
        yield found
