"""How long prompts and outputs are: a fixed length or a distribution, in whole tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from physim.errors import InputError
from physim.printable import shown, shown_fields

KINDS = ("fixed", "normal", "exponential", "lognormal", "gamma", "empirical")
# Those that have a standard deviation of their own.
_SPREAD = ("normal", "lognormal", "gamma")
# Strata by which a distribution is summed: each a sixty-fourth of the requests.
STRATA = 64
_FINE = 64  # points of a stratum
# Standard deviations that mean something, as a multiple of the mean.
_WIDEST = 100.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths. Drawn lengths are rounded to whole tokens, one at least.

    Attributes:
        kind: ``fixed``, ``normal``, ``exponential``, ``lognormal``, ``gamma`` or ``empirical``.
        mean: Mean, tokens; before rounding, and before lengths below one token are raised to it.
        std: Standard deviation of a normal, log-normal or gamma distribution, tokens; of the
            lengths themselves, not of their logarithms.
        values: Lengths that an empirical distribution draws from, all as often.

    Raises:
        InputError: A figure is not positive or not finite, the kind is unknown, or a log-normal or
            gamma distribution is wider than a hundred means.
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
        if self.kind in ("lognormal", "gamma") and self.std > _WIDEST * self.mean:
            raise InputError(
                "lengths: std", f"{self.std:g} is above {_WIDEST:g} means", "correct it"
            )

    def describe_spread(self) -> str:
        """How lengths vary, such as ``normal, sd 50``; empty where they do not."""
        if self.kind in ("fixed", "empirical"):
            return "" if self.kind == "fixed" else "of many lengths"
        return f"{self.kind}, sd {self.std:g}" if self.std else self.kind

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
    def lognormal(cls, mean: float, std: float) -> Lengths:
        """Log-normally distributed lengths, by their own mean and standard deviation."""
        return cls("lognormal", float(mean), float(std))

    @classmethod
    def gamma(cls, mean: float, std: float) -> Lengths:
        """Gamma-distributed lengths, by their mean and standard deviation."""
        return cls("gamma", float(mean), float(std))

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
    def from_dict(cls, fields: Mapping[str, Any], name: str = "lengths") -> Lengths:
        """A distribution of its fields: kind, mean and std; or of the kind ``empirical``, values.

        Args:
            fields: Such as ``{"kind": "normal", "mean": 248, "std": 50}``.
            name: The option that they are given for, for messages.

        Raises:
            InputError: A field is missing, unknown or of another kind, or out of range.
        """
        for key in fields:
            if key not in ("kind", "mean", "std", "values"):
                problem = "is no field of lengths"
                raise InputError(f"{name}.{key}", problem, "use kind, mean, std or values")
        kind, values = fields.get("kind"), fields.get("values", ())
        if not isinstance(kind, str):
            raise InputError(f"{name}.kind", "is missing", f"use one of {', '.join(KINDS)}")
        try:
            values = tuple(float(value) for value in values)
            given = {key: float(fields[key]) for key in ("mean", "std") if key in fields}
        except (TypeError, ValueError) as error:
            raise InputError(name, "has a figure that is no number", "correct it") from error
        if (kind == "empirical") != bool(values):
            raise InputError(f"{name}.values", "are those of empirical lengths", "correct them")
        if values:
            found = cls.empirical(values)
            if given.get("mean", found.mean) != found.mean or given.get("std", 0.0):
                problem = "is not that of the values"
                raise InputError(f"{name}.mean", problem, "leave it out, and the std")
            return found
        if "mean" not in given:
            raise InputError(f"{name}.mean", "is missing", "give it")
        return cls(kind, given["mean"], given.get("std", 0.0))

    @classmethod
    def parse(cls, text: str, name: str = "lengths") -> Tokens:
        """Reads ``248``, ``exponential:128``, ``file:lengths.txt`` or a kind with two figures.

        Those are ``normal:248:50``, ``lognormal:248:300`` and ``gamma:248:200``: mean and standard
        deviation. A file has a length on each line.

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
            if kind == "exponential" or kind in _SPREAD:
                mean, *std = (float(number) for number in rest.split(":"))
                if len(std) == (kind in _SPREAD):
                    return cls(kind, mean, sum(std))
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
            "use 248, normal:248:50, exponential:128, lognormal:248:300, gamma:248:200 or "
            "file:PATH with a length on each line",
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
        elif self.kind == "lognormal":
            spread = self._log_std
            drawn = rng.lognormal(math.log(self.mean) - spread**2 / 2, spread, count)
        elif self.kind == "gamma" and self.std:
            drawn = rng.gamma(1 / self._cv2, self.mean * self._cv2, count)
        elif self.kind == "gamma":
            drawn = np.full(count, self.mean)
        else:
            drawn = rng.choice(np.array(self.values), count)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)

    def strata(self) -> Float[np.ndarray, " strata"]:
        """Mean lengths of `STRATA` equal parts of the requests, from short to long."""
        if self.alike:
            return np.full(STRATA, float(self.mean))
        return self.fine.reshape(STRATA, _FINE).mean(axis=1)

    def share_beyond(self, tokens: float) -> float:
        """Share of the lengths that are longer than so many tokens."""
        return float(np.mean(self.fine > tokens))

    def up_to(self, tokens: float) -> Lengths:
        """The same lengths, but that longer ones end after so many tokens."""
        if not self.share_beyond(tokens):
            return self
        return Lengths.empirical(tuple(np.minimum(self.fine, tokens).tolist()))

    def below(self, tokens: float) -> Lengths:
        """Those of the lengths that are shorter than so many tokens."""
        return Lengths.empirical(tuple(self.fine[self.fine < tokens].tolist()))

    @functools.cached_property
    def fine(self) -> Float[np.ndarray, " points"]:
        """Lengths of many equal parts of the requests, from short to long."""
        if self.alike:
            return np.full(STRATA * _FINE, float(self.mean))
        if self.kind in ("lognormal", "gamma"):
            shares = np.diff(self._shares_of_tokens())
            # Sorted, since of a narrow distribution parts differ by what is rounded.
            return np.maximum(np.sort(shares) * STRATA * _FINE * self.mean, 1.0)
        share = (np.arange(STRATA * _FINE) + 0.5) / (STRATA * _FINE)
        if self.kind == "normal":
            fine = self.mean + self.std * _normal_quantiles()
        elif self.kind == "exponential":
            fine = -self.mean * np.log1p(-share)
            fine *= self.mean / fine.mean()  # the tail beyond the last point
        else:
            fine = np.quantile(np.array(self.values), share, method="inverted_cdf")
        return np.maximum(fine, 1.0)

    @property
    def alike(self) -> bool:
        """Whether all are of one length."""
        return self.kind == "fixed" or (self.kind in _SPREAD and not self.std)

    @property
    def _cv2(self) -> float:
        """Variance over the square of the mean."""
        return (self.std / self.mean) ** 2

    @property
    def _log_std(self) -> float:
        """Standard deviation of a log-normal distribution's logarithms."""
        return math.sqrt(math.log1p(self._cv2))

    def _shares_of_tokens(self) -> Float[np.ndarray, " edges"]:
        """Share of all tokens that are in the shorter requests, at the edges of `fine`'s parts.

        It is the Lorenz curve, in closed form, so that parts of a heavy tail keep the mean: of a
        log-normal distribution the normal distribution's integral up to its quantile less the
        logarithms' standard deviation, and of a gamma distribution that of the next shape.
        """
        from scipy import special

        edges = np.arange(STRATA * _FINE + 1) / (STRATA * _FINE)
        if self.kind == "lognormal":
            shares = special.ndtr(special.ndtri(edges) - self._log_std)
        else:
            shape = 1 / self._cv2
            shares = special.gammainc(shape + 1, special.gammaincinv(shape, edges))
        # The last quantile is infinite.
        shares[-1] = 1.0
        return shares

    def __repr__(self) -> str:
        if self.values:
            least, most = min(self.values), max(self.values)
            values = f"{len(self.values):,} values from {least:g} to {most:g}"
            return shown(self, f"{self.kind}: mean {self.mean:.6g} tokens, {values}")
        return shown_fields(self)


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


def cached_part(told: str | float, where: str, prompt: Tokens | None = None) -> float:
    """Cached tokens of a prompt, said as a number or as a hit rate, such as ``60%``.

    Args:
        told: The number, or the share of the mean prompt.
        where: The option, for messages.
        prompt: The prompts; None where no share can be taken of them.

    Raises:
        InputError: It is neither, or a share where there are no prompts.
    """
    text = str(told).strip()
    share = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        problem = f"{text[:40]!r} is neither a number of tokens nor a hit rate"
        raise InputError(where, problem, "write 600, or 60%") from None
    if not share:
        return number
    if prompt is None:
        raise InputError(where, f"{text!r} is a share of prompts that differ", "give tokens")
    if not 0 <= number < 100:
        raise InputError(where, f"{text!r} is not from 0 to below 100%", "correct it")
    return number / 100 * lengths(prompt).mean


def observed(tokens: Sequence[float]) -> Tokens:
    """Some lengths that were observed: a number if they are one."""
    if min(tokens) == max(tokens):
        return float(tokens[0])
    return Lengths.empirical(tuple(map(float, tokens)))
