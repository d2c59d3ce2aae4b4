"""Straight lines between knots, as other software looks its tables up."""

from __future__ import annotations

import numpy as np

from physim.exports.form_error import Steps


def cell(knots: np.ndarray, x: Steps) -> tuple[np.ndarray, Steps]:
    """The knot below, and how far along the way to the next; beyond the ends lines go on.

    Args:
        knots: The knots, rising, two at least.
        x: Where to look.
    """
    low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    return low, (x - knots[low]) / (knots[low + 1] - knots[low])


def between(knots: list[np.ndarray], values: np.ndarray, where: list[Steps]) -> Steps:
    """Values between knots of several axes, linear in each.

    Args:
        knots: The knots of each axis.
        values: At all combinations of knots.
        where: Where to look, on each axis.
    """
    cells = [cell(own, x) for own, x in zip(knots, where, strict=True)]
    found = np.zeros(len(where[0]))
    for corner in np.ndindex(*(2,) * len(knots)):
        ends = list(zip(cells, corner, strict=True))
        weight = np.prod([share if end else 1 - share for (_, share), end in ends], axis=0)
        found += weight * values[tuple(low + end for (low, _), end in ends)]
    return found
