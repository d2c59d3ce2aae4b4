"""Parts of a load, one after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from physim.errors import InputError
from physim.printable import shown_fields

# Rates that mean something, requests per second: from one in thirty years.
_RATES = (1e-9, 1e9)
# About the largest float: whole numbers may be larger.
MOST = 1e308


@dataclass(frozen=True)
class Stage:
    """A part of a load.

    Attributes:
        rate: Arrivals per second.
        duration_s: For so long, seconds.

    Raises:
        InputError: A figure is not positive.
    """

    rate: float
    duration_s: float

    def __post_init__(self) -> None:
        for field in ("rate", "duration_s"):
            check_positive(f"stage: {field}", getattr(self, field))
        check_rate("stage: rate", self.rate)

    @classmethod
    def parse(cls, text: str) -> Stage:
        """Reads ``RATE:SECONDS``.

        Raises:
            InputError: It is something else.
        """
        rate, _, seconds = text.partition(":")
        try:
            numbers = float(rate), float(seconds)
        except ValueError:
            raise InputError(
                f"stage {text!r}", "is not RATE:SECONDS", "write, say, 8:600"
            ) from None
        return cls(*numbers)


@dataclass(frozen=True)
class RecordedStage(Stage):
    """A stretch of recorded requests, which are longer or shorter than those of all.

    Attributes:
        prompts: Mean prompt tokens to compute, over those of all.
        outputs: Mean generated tokens, over those of all.
    """

    prompts: float = 1.0
    outputs: float = 1.0

    def __repr__(self) -> str:
        return shown_fields(self)


def bounded_rate(rate: float) -> float:
    """The nearest rate that means something, requests per second."""
    least, most = _RATES
    return min(max(rate, least), most)


def check_rate(field: str, rate: float) -> None:
    """Refuses a rate that means nothing.

    Args:
        field: Its name, for the message.
        rate: Requests per second.

    Raises:
        InputError: It is out of range.
    """
    least, most = _RATES
    if not least <= rate <= most:
        raise InputError(field, f"{rate:g} is not between {least:g} and {most:g}", "correct it")


def check_positive(field: str, value: float) -> None:
    """Refuses a figure that is not positive, or not finite.

    Args:
        field: Its name, for the message.
        value: The figure.

    Raises:
        InputError: It is not positive, or larger than a float.
    """
    if not 0 < value < math.inf:
        raise InputError(field, f"{value} is not positive", "correct it")
    # NumPy's short numbers have no room for the bound.
    if float(value) > MOST:
        raise InputError(field, f"is above {MOST:g}", "correct it")
