"""How many drafts a model accepts: as a user says it, or as it was measured of its family."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from physim import data
from physim.errors import InputError

# What an acceptance is given as: a chance, a length, or chances by position; or as text.
Acceptance = float | str | Sequence[float]
MOST_DRAFTS = 16
_SUFFIX = ".json"
_REMEDY = (
    "give one chance (0.7), a length of 1 to the draft tokens and one more (2.4), or the chances "
    "that all drafts up to each are accepted (0.8,0.6,0.4)"
)


@dataclass(frozen=True)
class MeasuredAcceptance:
    """Mean acceptance lengths that were measured of a family of models.

    Attributes:
        families: The classes of these models.
        method: What proposed the tokens, of `physim.models.drafts.METHODS`.
        content: What was written.
        source: Where it was measured.
        lengths: Tokens that a step gave a request, by how many were proposed, from one on.
    """

    families: tuple[str, ...]
    method: str
    content: str
    source: str
    lengths: tuple[float, ...]

    def by_position(self, tokens: int) -> tuple[float, ...]:
        """Chance that all proposed tokens up to each are accepted.

        A longer draft begins as a shorter one does, so each position adds what the length grows by;
        what noise takes back is shared out, so that the length is as measured.

        Args:
            tokens: Tokens that are proposed.
        """
        grown = np.diff(np.array((1.0, *self.lengths[:tokens])))
        grown = np.minimum.accumulate(np.maximum(grown, 0.0))
        return tuple((grown * ((self.lengths[tokens - 1] - 1.0) / np.sum(grown))).tolist())


@functools.lru_cache
def measured_acceptance() -> tuple[MeasuredAcceptance, ...]:
    """The shipped acceptance lengths, a file each in ``acceptance``."""
    folder = data.folder("acceptance")
    return tuple(_read(folder / f"{name}{_SUFFIX}") for name in data.names("acceptance", _SUFFIX))


def _read(path: Path) -> MeasuredAcceptance:
    fields: Mapping[str, Any] = data.read_json(path)
    try:
        return MeasuredAcceptance(
            families=tuple(fields["families"]),
            method=str(fields["method"]),
            content=str(fields["content"]),
            source=str(fields["source"]),
            lengths=tuple(float(length) for length in fields["lengths"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), f"is damaged ({error})", "reinstall physim") from error


def acceptance_of_family(family: str, method: str, tokens: int) -> tuple[tuple[float, ...], str]:
    """The acceptance by position that was measured of a family of models, and of what content.

    Args:
        family: The class of the model.
        method: What proposes tokens.
        tokens: How many it proposes.

    Raises:
        InputError: Nothing was measured of the family with so many drafts.
    """
    for one in measured_acceptance():
        if family in one.families and method == one.method and tokens <= len(one.lengths):
            return one.by_position(tokens), one.content
    raise InputError(
        "draft_acceptance",
        f"is not known for {family} with {method} and {tokens} draft tokens: it depends on the "
        "model and on what is written",
        f"{_REMEDY}; engines log it as the mean acceptance length",
    )


def by_position(acceptance: Acceptance, tokens: int) -> tuple[float, ...]:
    """Chance that all proposed tokens up to each are accepted.

    One chance holds for each token whose predecessors were accepted; a length is that of the one
    chance that gives it.

    Args:
        acceptance: As `Acceptance` has it.
        tokens: Tokens that are proposed.

    Raises:
        InputError: It is none of these, or out of range.
    """
    some = _numbers(acceptance)
    if len(some) > 1:
        if len(some) != tokens:
            raise _wrong(acceptance, f"has {len(some)} chances for {tokens} draft tokens")
        falls = all(before >= after for before, after in zip((1.0, *some), some, strict=False))
        if not falls or some[-1] < 0:
            raise _wrong(acceptance, "has chances that are not from 1 to 0 and falling")
        return tuple(some)
    (number,) = some
    if not 0 <= number <= tokens + 1:
        raise _wrong(acceptance, "is neither a chance nor a length")
    if number == 1 and tokens > 0:
        raise InputError(
            "draft_acceptance",
            "of 1 may be a chance, so that all is accepted, or a length, so that nothing is",
            f"give 0 for nothing, or {','.join(['1'] * tokens)} for all",
        )
    chance = number if number <= 1 else _chance_of(number, tokens)
    return tuple(chance ** (place + 1) for place in range(tokens))


def _numbers(acceptance: Acceptance) -> list[float]:
    some: Any = acceptance.split(",") if isinstance(acceptance, str) else acceptance
    entries = [some] if isinstance(some, Real) else some
    if isinstance(acceptance, bool):
        raise _wrong(acceptance, "is a flag")
    try:
        numbers = [float(entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise _wrong(acceptance, "is not made of numbers") from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise _wrong(acceptance, "is not made of numbers")
    return numbers


def _chance_of(length: float, tokens: int) -> float:
    """The chance of each token for a mean length: the root of ``1 + a + ... + a^k = length``."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_less = sum(middle**place for place in range(tokens + 1)) < length
        low, high = (middle, high) if is_less else (low, middle)
    return high


def _wrong(acceptance: object, problem: str) -> InputError:
    return InputError("draft_acceptance", f"{repr(acceptance)[:60]} {problem}", _REMEDY)
