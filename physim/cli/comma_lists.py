"""Options that list several things by commas, or the two ends of a range."""

from __future__ import annotations

import math
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


def numbers_in(option: str, text: str) -> list[float]:
    """The numbers of a list.

    Args:
        option: What it is of, for the message.
        text: Numbers by commas.

    Raises:
        InputError: One is no number.
    """
    try:
        return [float(word) for word in names_in(text)]
    except ValueError:
        problem = "is not numbers by commas"
        raise InputError(f"{option} {text[:60]!r}", problem, "write, say, 0,60,120") from None


def ends_in(option: str, text: str, example: str) -> tuple[float, float]:
    """A range.

    Args:
        option: What it is of, for the message.
        text: Its ends.
        example: What to write, say.

    Raises:
        InputError: The text is none.
    """
    first, _, last = text.partition(":")
    try:
        ends = float(first), float(last)
    except ValueError:
        ends = (math.nan, math.nan)
    if not all(map(math.isfinite, ends)):
        raise InputError(f"{option} {text[:60]!r}", "is not FROM:TO", f"write, say, {example}")
    return ends
