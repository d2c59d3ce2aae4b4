"""Lines of a program, and their text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]

# What a line takes, and each number that it finds, about, seconds.
_LINE_S, _NUMBER_S = 1.5e-6, 1e-9
# Turns of a loop that ends when it is done: the mean of root searches, and those of other cases.
TURNS = 8.0


@dataclass(frozen=True)
class Value:
    """What a name stands for.

    An axis along which all numbers are alike may be of length one, whatever it is for JAX, since
    NumPy spreads it where it meets a longer one.

    Attributes:
        name: The name.
        shape: Its shape.
        depth: In how many loops it changes.
        known: The array itself, of a constant.
    """

    name: str
    shape: Shape
    depth: int
    known: np.ndarray | None = field(default=None, compare=False)


@dataclass
class Line:
    """A line: what it sets, and what of; nothing if it leaves a loop or adds to a list."""

    target: Value | None
    text: str
    reads: Sequence[Value]


@dataclass
class Loop:
    """A loop.

    Attributes:
        head: Its first line.
        begins: What the names that it changes are before it,
        changes: and these.
        ends: What they are set to at the end of each turn.
        after: What they are called after it.
        turns: How often it is done, about.
        lists: Names of lists that it adds to.
        results: Arrays of these, one of each,
        turned: and whether they are in the opposite order.
        inside: Its lines.
    """

    head: str
    begins: Sequence[Value]
    changes: Sequence[Value]
    ends: Sequence[Value] = ()
    after: Sequence[Value] = ()
    turns: float = TURNS
    lists: Sequence[str] = ()
    results: Sequence[Value] = ()
    turned: bool = False
    inside: list[Line | Loop] = field(default_factory=list)


def rendered(lines: Sequence[Line | Loop], live: set[str], depth: int) -> tuple[list[str], float]:
    """The text of lines without those that nothing needs, and how long they take, seconds.

    Args:
        lines: The lines.
        live: Names that are needed after them; those that they need are added.
        depth: By how many spaces they are set in.
    """
    found: list[str] = []
    total_s = 0.0
    margin = " " * depth
    for line in reversed(lines):
        if isinstance(line, Line):
            if line.target is None or line.target.name in live:
                live.update(one.name for one in line.reads)
                sets = f"{line.target.name} = " if line.target else ""
                found.append(f"{margin}{sets}{line.text}")
                size = math.prod(line.target.shape) if line.target else 1
                total_s += _LINE_S + _NUMBER_S * size
            continue
        named = (*line.after, *line.results)
        if not any(one.name in live for one in named):
            continue
        needed = {one.name for one in line.ends}
        inside, turn_s = rendered(line.inside, needed, depth + 1)
        total_s += turn_s * line.turns
        live |= needed
        live.update(one.name for one in line.begins)
        after = [
            f"{margin}{own.name} = array({name}{'[::-1]' if line.turned else ''})"
            for own, name in zip(line.results, line.lists, strict=True)
        ]
        found += reversed(
            [
                *(f"{margin}{name} = []" for name in line.lists),
                *_set(line.changes, line.begins, margin),
                f"{margin}{line.head}",
                *inside,
                *(_set(line.changes, line.ends, margin + " ") or [f"{margin} pass"]),
                *_set(line.after, line.changes, margin),
                *after,
            ]
        )
    return found[::-1], total_s


def _set(names: Sequence[Value], values: Sequence[Value], margin: str) -> list[str]:
    """A line that sets names to values all at once."""
    pairs = [pair for pair in zip(names, values, strict=True) if pair[0] != pair[1]]
    if not pairs:
        return []
    left, right = (", ".join(one.name for one in side) for side in zip(*pairs, strict=True))
    return [f"{margin}{left} = {right}"]
