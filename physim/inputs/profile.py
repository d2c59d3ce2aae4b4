"""A load that changes over a day: windows of time, each with a load that stays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from physim.errors import InputError
from physim.inputs.lengths import Tokens, lengths
from physim.inputs.load import Load

_SHORTEST_S = 1e-6


@dataclass(frozen=True)
class Window:
    """A stretch of time.

    Attributes:
        start_s: When it begins, seconds from the beginning of the profile.
        duration_s: How long it lasts, seconds.
        rate: Arrivals per second.
        input_tokens: Prompt length, tokens: a number, or a distribution.
        output_tokens: Generated length, likewise.
        cached_tokens: Prompt tokens that are found in the prefix cache.
        prefixes: Different cached prefixes.

    Raises:
        InputError: A time is negative or not finite, or the load cannot be used.
    """

    start_s: float
    duration_s: float
    rate: float
    input_tokens: Tokens
    output_tokens: Tokens
    cached_tokens: float = 0.0
    prefixes: int = 1

    def __post_init__(self) -> None:
        for field, least in (("start_s", 0.0), ("duration_s", _SHORTEST_S)):
            value = getattr(self, field)
            if not least <= value < math.inf:
                raise InputError(f"window: {field}", f"{value} is below {least:g}", "correct it")
        self.load()

    def load(self, arrival: str = "poisson", burstiness: float = 1.0) -> Load:
        """Its load, as if it went on.

        Raises:
            InputError: It cannot be used.
        """
        return Load(
            self.input_tokens,
            self.output_tokens,
            rate=self.rate,
            cached_tokens=self.cached_tokens,
            prefixes=self.prefixes,
            arrival=arrival,
            burstiness=burstiness,
        )

    @property
    def demands(self) -> tuple[float, float, float]:
        """Arrivals, and prompt tokens to compute and tokens to generate, per second."""
        new = lengths(self.input_tokens).mean - self.cached_tokens
        return self.rate, self.rate * new, self.rate * lengths(self.output_tokens).mean


@dataclass(frozen=True)
class LoadProfile:
    """A load over a day, or any other time.

    Attributes:
        windows: Those in which requests arrive, in order.
        notes: What is not known of it, one line each.

    Raises:
        InputError: There are none, or one begins before the one before it has ended.
    """

    windows: tuple[Window, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.windows:
            raise InputError("load profile", "has no window with requests", "give a longer one")
        for before, after in itertools.pairwise(self.windows):
            # Ends are sums, so rounded.
            if after.start_s < before.start_s + 0.999 * before.duration_s:
                raise InputError(
                    f"load profile: window at {after.start_s:g} s",
                    f"begins before that at {before.start_s:g} s has ended",
                    "put them in order",
                )

    @property
    def hours(self) -> float:
        """From the beginning of the first window to the end of the last."""
        last = self.windows[-1]
        return (last.start_s + last.duration_s - self.windows[0].start_s) / 3600

    def peaks(self, most: int) -> list[Window]:
        """Windows that may need most servers, the busiest first.

        They are those of which no other demands more in every way: of arrivals, of prompt tokens
        and of generated tokens. A window that is beyond another by a fiftieth at most is left out.

        Args:
            most: How many at most.
        """

        def work(window: Window) -> float:
            # Each token that is generated takes a step's share, which a few of a prompt take too.
            _, prompt, output = window.demands
            return prompt / 8 + output

        found: list[Window] = []
        for window in sorted(self.windows, key=work, reverse=True):
            if not any(_covers(one, window) for one in found):
                found.append(window)
        return found[:most]


def _covers(one: Window, other: Window, slack: float = 1.02) -> bool:
    """Whether one window demands about as much as another in every way, or more."""
    pairs: Sequence[tuple[float, float]] = list(zip(one.demands, other.demands, strict=True))
    return all(mine * slack >= theirs for mine, theirs in pairs)
