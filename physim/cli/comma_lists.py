"""Options that list several things by commas."""

from __future__ import annotations

from physim.errors import InputError


def names_in(text: str) -> list[str]:
    """The names, without what is empty."""
    return [name.strip() for name in text.split(",") if name.strip()]


def degrees_in(text: str) -> list[int]:
    """Degrees of tensor parallelism.

    Raises:
        InputError: One is no positive integer.
    """
    words = [one.strip() for one in text.split(",")]
    for one in words:
        if not (one.isdecimal() and len(one) < 10 and int(one)):
            raise InputError(f"--tps: {one[:60]!r}", "is not a positive integer", "correct it")
    return [int(one) for one in words]
