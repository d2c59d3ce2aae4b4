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
