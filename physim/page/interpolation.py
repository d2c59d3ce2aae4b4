"""Cubic look-up in tables with evenly spaced points; ``page/tables.js`` does the same in a browser.

Between two points runs the cubic whose slopes there are the harmonic means of those on both sides,
or none where these differ in sign, so that it never overshoots: F. N. Fritsch and J. Butland, "A
method for constructing local monotone piecewise cubic interpolants", SIAM J. Sci. Stat. Comput. 5
(1984). Where a table ends, or has no value, the slope goes on as it is.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

Table = Float[np.ndarray, "..."]


def cubic(before: Table, left: Table, right: Table, after: Table, share: Table) -> Table:
    """The value between two points.

    Args:
        before: The value one point further left; NaN for none.
        left: The value at the left point,
        right: and at the right one.
        after: The value one point further right; NaN for none.
        share: How far to the right, from 0 to 1.
    """
    slope = right - left
    start = _harmonic(np.where(np.isnan(before), slope, left - before), slope)
    end = _harmonic(slope, np.where(np.isnan(after), slope, after - right))
    curve = 3 * slope - 2 * start - end + share * (start + end - 2 * slope)
    found = left + share * (start + share * curve)
    # At a point itself nothing is asked of its neighbours.
    return np.where(share == 0, left, np.where(share == 1, right, found))


def look_up(
    table: Table, rows: Int[np.ndarray, " n"], *places: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Values of a table between its points, along all axes but the first.

    Args:
        table: Values; NaN where there is none.
        rows: Where along the first axis.
        *places: Where along each of the others, in points from the first; clipped to the table.
    """
    sides, shares = [], []
    for axis, place in enumerate(places, 1):
        last = table.shape[axis] - 1
        place = np.clip(place, 0, last)
        left = np.minimum(np.floor(place).astype(int), max(last - 1, 0))
        near = left[:, None] + np.arange(-1, 3)
        sides.append((np.clip(near, 0, last), (near < 0) | (near > last)))
        shares.append(place - left)
    every = [rows.reshape(-1, *[1] * len(places))]
    for axis, (near, _) in enumerate(sides):
        every.append(near.reshape(-1, *[4 if other == axis else 1 for other in range(len(places))]))
    found = table[tuple(every)]
    for (_, outside), share in zip(reversed(sides), reversed(shares), strict=True):
        lost = outside.reshape(-1, *[1] * (found.ndim - 2), 4)
        four = np.where(lost, np.nan, found)
        own = share.reshape(-1, *[1] * (found.ndim - 2))
        found = cubic(four[..., 0], four[..., 1], four[..., 2], four[..., 3], own)
    return found


def _harmonic(one: Table, other: Table) -> Table:
    """The harmonic mean of two slopes; zero where they differ in sign."""
    alike = one * other > 0
    return np.where(alike, 2 * one * other / np.where(alike, one + other, 1.0), 0.0)
