"""Options that list several things by commas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from physim.errors import InputError


def names_in(text: str) -> list[str]:
    """The names, without what is empty."""
    return [name.strip() for name in text.split(",") if name.strip()]


def degrees_in(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Degrees of parallelism by the names of their options, without options that are not given.

    Raises:
        InputError: One is no positive integer.
    """
    return {name: _degrees(f"--{name}", text) for name, text in texts.items() if text is not None}


def _degrees(option: str, text: str) -> list[int]:
    words = [one.strip() for one in text.split(",")]
    for one in words:
        if not (one.isdecimal() and len(one) < 10 and int(one)):
            raise InputError(f"{option}: {one[:60]!r}", "is not a positive integer", "correct it")
    return [int(one) for one in words]


def seconds_list(option: str, text: str) -> list[float]:
    """Times, seconds.

    Args:
        option: What it is of, for the message.
        text: Numbers by commas.

    Raises:
        InputError: One is no number.
    """
    return [_number(option, word) for word in names_in(text)]


def hours_in(option: str, text: str) -> tuple[float, float]:
    """A stretch of hours, from and to.

    Args:
        option: What it is of, for the message.
        text: Such as ``8:10``.

    Raises:
        InputError: It is none.
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise InputError(f"{option} {text[:60]!r}", "is not FROM:TO", "write, say, 8:10")
    found = _number(option, first), _number(option, last)
    if not 0 <= found[0] < found[1]:
        raise InputError(f"{option} {text[:60]!r}", "is no stretch of time", "write, say, 8:10")
    return found


def _number(option: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        problem = f"{word[:60]!r} is not a number"
        raise InputError(option, problem, "correct it") from None
