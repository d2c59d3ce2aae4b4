"""How often requests have each of the prefixes that they share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from physim.errors import InputError

IN_TURN, UNIFORM = "in-turn", "uniform"
_ZIPF = "zipf"
# Beyond it the second prefix is hardly ever asked for.
_STEEPEST = 10.0
# Classes of prefixes of like popularity, of which the first hold one prefix each: with twice as
# many the hit rates of tests/test_prefix_cache.py move by less than 0.001.
CLASSES, _SINGLE = 24, 8


@dataclass(frozen=True)
class Popularity:
    """In which order requests have the prefixes that there are.

    Attributes:
        in_turn: Whether they have them one after the other, over and over, as inference-perf sends
            a shared-prefix load; else each has one by chance.
        exponent: By chance the prefix of rank ``i`` is chosen in proportion to ``i ** -exponent``
            (Zipf): all alike for 0.
    """

    in_turn: bool = True
    exponent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Popularity:
        """Reads ``in-turn``, ``uniform`` or ``zipf:EXPONENT``.

        Raises:
            InputError: It is something else.
        """
        kind, _, number = text.partition(":")
        if text in (IN_TURN, UNIFORM):
            return cls(text == IN_TURN)
        try:
            exponent = float(number) if kind == _ZIPF else math.nan
        except ValueError:
            exponent = math.nan
        if not 0 < exponent <= _STEEPEST:
            remedy = f"use {IN_TURN}, {UNIFORM} or zipf:EXPONENT, up to {_STEEPEST:g}"
            raise InputError("popularity", f"{text!r} is unknown", remedy)
        return cls(False, exponent)

    def classes(
        self, prefixes: int
    ) -> tuple[Float[np.ndarray, " classes"], Float[np.ndarray, " classes"]]:
        """Prefixes in `CLASSES` classes of like popularity.

        Args:
            prefixes: How many there are.

        Returns:
            How many prefixes are in each class, and the share of the requests that have a given one
            of them; nothing in classes that are not needed.
        """
        if not self.exponent:
            first = np.eye(CLASSES)[0]
            return first * prefixes, first / prefixes
        singles = min(prefixes, _SINGLE)
        more = CLASSES - singles if prefixes > _SINGLE else 0
        ends = np.append(
            np.arange(singles) + 1.0, np.rint(np.geomspace(singles, prefixes, more + 1))[1:]
        )
        begins = np.append(0.0, ends[:-1])
        # A sum over ranks by the midpoint rule, whose error is largest for the first of them.
        weight = _integral(ends + 0.5, self.exponent) - _integral(begins + 0.5, self.exponent)
        weight[:singles] = ends[:singles] ** -self.exponent
        count, weight = (np.pad(x, (0, CLASSES - len(x))) for x in (ends - begins, weight))
        return count, weight / np.maximum(count, 1.0) / weight.sum()

    def repeated(self, prefixes: int, requests: float) -> float:
        """Share of some requests that are not the first with their prefix, mean.

        Args:
            prefixes: How many prefixes there are.
            requests: How many requests.
        """
        if self.in_turn:
            return 1.0 - min(prefixes, requests) / requests
        count, share = self.classes(prefixes)
        return 1.0 - float(np.sum(count * (1.0 - (1.0 - share) ** requests))) / requests

    def drawn(
        self, rng: np.random.Generator, prefixes: int, requests: int
    ) -> Int[np.ndarray, " requests"]:
        """The number of the prefix that each of some requests has.

        Args:
            rng: Generator of chance, which is not used where prefixes come in turn.
            prefixes: How many there are.
            requests: How many requests.
        """
        if self.in_turn:
            return np.arange(requests) % prefixes
        if not self.exponent:
            return rng.integers(prefixes, size=requests)
        weight = np.arange(1.0, prefixes + 1) ** -self.exponent
        return rng.choice(prefixes, requests, p=weight / weight.sum())


def _integral(rank: Float[np.ndarray, " n"], exponent: float) -> Float[np.ndarray, " n"]:
    """Of ``rank ** -exponent``, up to a constant."""
    if exponent == 1.0:
        return np.log(rank)
    return rank ** (1.0 - exponent) / (1.0 - exponent)
