"""How long prompts and outputs are: a fixed length or a distribution, in whole tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from physim.errors import InputError

KINDS = ("fixed", "normal", "exponential", "empirical")
# Strata by which a distribution is summed: each a sixty-fourth of the requests.
STRATA = 64
_FINE = 64  # points of a stratum


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths. Drawn lengths are rounded to whole tokens, one at least.

    Attributes:
        kind: ``fixed``, ``normal``, ``exponential`` or ``empirical``.
        mean: Mean, tokens; before rounding, and before lengths below one token are raised to it.
        std: Standard deviation of a normal distribution, tokens.
        values: Lengths that an empirical distribution draws from, all as often.

    Raises:
        InputError: A figure is not positive or not finite, or the kind is unknown.
    """

    kind: str
    mean: float
    std: float = 0.0
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(
                "lengths", f"{self.kind!r} is unknown", f"use one of {', '.join(KINDS)}"
            )
        for field, value, least in (("mean", self.mean, 1.0), ("std", self.std, 0.0)):
            if not math.isfinite(value):
                raise InputError(f"lengths: {field}", f"{value} is not finite", "correct it")
            if value < least:
                raise InputError(f"lengths: {field}", f"{value:g} is below {least:g}", "correct it")

    @classmethod
    def fixed(cls, tokens: float) -> Lengths:
        """One length for all; a mean that is no whole number is allowed, and taken as it is."""
        return cls("fixed", float(tokens))

    @classmethod
    def normal(cls, mean: float, std: float) -> Lengths:
        """Normally distributed lengths."""
        return cls("normal", float(mean), float(std))

    @classmethod
    def exponential(cls, mean: float) -> Lengths:
        """Exponentially distributed lengths."""
        return cls("exponential", float(mean))

    @classmethod
    def empirical(cls, values: tuple[float, ...]) -> Lengths:
        """Lengths drawn from observed ones.

        Raises:
            InputError: There are none, or one is no positive number.
        """
        if not values or not all(math.isfinite(value) and value >= 1 for value in values):
            raise InputError("lengths: values", "are empty or not all positive", "correct them")
        return cls("empirical", math.fsum(values) / len(values), values=tuple(map(float, values)))

    @classmethod
    def parse(cls, text: str, name: str = "lengths") -> Tokens:
        """Reads ``248``, ``normal:248:50``, ``exponential:128`` or ``file:lengths.txt``.

        A file has a length on each line.

        Args:
            text: What is read.
            name: The option that it is given for, for messages.

        Raises:
            InputError: It is none of these, or a length is out of range.
        """
        where = f"{name} {text[:60]!r}"
        kind, _, rest = text.partition(":")
        try:
            if not rest:
                return cls.fixed(float(kind)).mean
            if kind == "file":
                words = Path(rest).read_text(encoding="utf-8").split()
                return cls.empirical(tuple(float(word) for word in words))
            if kind in ("normal", "exponential"):
                make = cls.normal if kind == "normal" else cls.exponential
                return make(*(float(number) for number in rest.split(":")))
        except InputError as error:
            raise InputError(
                error.where.replace("lengths", where, 1), error.what, error.remedy
            ) from None
        except OSError as error:
            raise InputError(where, error.strerror or "cannot be read", "check the path") from error
        except (ValueError, TypeError):
            pass
        raise InputError(
            where,
            "cannot be read",
            "use 248, normal:248:50, exponential:128 or file:PATH with a length on each line",
        )

    def sample(self, rng: np.random.Generator, count: int) -> Int[np.ndarray, " count"]:
        """Draws lengths, tokens."""
        if self.kind == "fixed":
            # A mean between two whole lengths is kept by drawing both.
            return np.floor(self.mean + rng.random(count)).astype(np.int64)
        if self.kind == "normal":
            drawn = rng.normal(self.mean, self.std, count)
        elif self.kind == "exponential":
            drawn = rng.exponential(self.mean, count)
        else:
            drawn = rng.choice(np.array(self.values), count)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)

    def strata(self) -> Float[np.ndarray, " strata"]:
        """Mean lengths of `STRATA` equal parts of the requests, from short to long."""
        return self._fine.reshape(STRATA, _FINE).mean(axis=1)

    def share_beyond(self, tokens: float) -> float:
        """Share of the lengths that are longer than so many tokens."""
        return float(np.mean(self._fine > tokens))

    def up_to(self, tokens: float) -> Lengths:
        """The same lengths, but that longer ones end after so many tokens."""
        if not self.share_beyond(tokens):
            return self
        return Lengths.empirical(tuple(np.minimum(self._fine, tokens).tolist()))

    @functools.cached_property
    def _fine(self) -> Float[np.ndarray, " points"]:
        """Lengths of many equal parts of the requests, from short to long."""
        if self.kind == "fixed":
            return np.full(STRATA * _FINE, self.mean)
        share = (np.arange(STRATA * _FINE) + 0.5) / (STRATA * _FINE)
        if self.kind == "normal":
            fine = self.mean + self.std * _normal_quantiles()
        elif self.kind == "exponential":
            fine = -self.mean * np.log1p(-share)
            fine *= self.mean / fine.mean()  # the tail beyond the last point
        else:
            fine = np.quantile(np.array(self.values), share, method="inverted_cdf")
        return np.maximum(fine, 1.0)


@functools.cache
def _normal_quantiles() -> Float[np.ndarray, " points"]:
    """The standard normal distribution's lengths of as many equal parts."""
    from statistics import NormalDist

    share = (np.arange(STRATA * _FINE) + 0.5) / (STRATA * _FINE)
    # The inverse of one half of a symmetric distribution is that of the other.
    half = [NormalDist().inv_cdf(q) for q in share[: len(share) // 2]]
    return np.concatenate([half, -np.array(half[::-1])])


Tokens: TypeAlias = float | Lengths


def lengths(tokens: Tokens) -> Lengths:
    """A number of tokens as a distribution of one length."""
    return tokens if isinstance(tokens, Lengths) else Lengths.fixed(tokens)


def observed(tokens: Sequence[float]) -> Tokens:
    """Some lengths that were observed: a number if they are one."""
    if min(tokens) == max(tokens):
        return float(tokens[0])
    return Lengths.empirical(tuple(map(float, tokens)))
