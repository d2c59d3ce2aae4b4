"""Look-ups of a table with their answers, for whoever ports the look-up to another language."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from physim.tables.table import AXES, Table, prefill_context

# Of the ten, those between knots that are drawn.
_DRAWN = 5


def look_ups(table: Table) -> list[dict[str, float]]:
    """Ten look-ups: each axis, with ``prompts`` and ``cached_tokens``, and ``step_us``.

    The first five are an empty step, one on knots, one beyond the end of every axis, several
    prompts of which nothing is cached (whose context is below zero), and several that are cached.

    Args:
        table: The table, as it is read from its file.
    """
    mean = [float(knots[len(knots) // 2]) for knots in table.axes]
    most = [float(2 * knots[-1] + 1) for knots in table.axes]
    new = max(round(table.axes[2][-1] / 4), 1)
    decodes, context = float(table.axes[0][-1] / 2), float(table.axes[1][-1] / 2)
    cached = float(table.axes[3][-1] / 8)
    rows = [
        _row([0.0, 0.0, 0.0, 0.0]),
        _row(mean),
        _row(most),
        _row(_prompts(decodes, context, 4, new, 0.0), 4, 0.0),
        _row(_prompts(decodes, context, 3, new, cached), 3, 3 * cached),
        *(_row(where.tolist()) for where in _between(table)),
    ]
    return [{**row, "step_us": _microseconds(table, row)} for row in rows]


def _prompts(decodes: float, context: float, count: int, new: float, cached: float) -> list[float]:
    before = prefill_context(count * new, count * new**2, count * new * cached)
    return [decodes, context, count * new, before]


def _row(where: list[float], prompts: float = 1.0, cached_tokens: float = 0.0) -> dict[str, float]:
    axes = dict(zip(AXES, where, strict=True))
    return {**axes, "prompts": prompts, "cached_tokens": cached_tokens}


def _between(table: Table) -> Float[np.ndarray, "rows 4"]:
    """Places between knots, drawn evenly over the knots of each axis."""
    places = np.random.default_rng(0).uniform(size=(_DRAWN, len(AXES)))
    columns = [
        np.interp(place * (len(knots) - 1), np.arange(len(knots)), knots)
        for place, knots in zip(places.T, table.axes, strict=True)
    ]
    return np.round(np.stack(columns, axis=1), 1)


def _microseconds(table: Table, row: dict[str, Any]) -> float:
    seconds = table(*(row[name] for name in AXES))
    return 1e6 * (seconds + table.more_prompts_s(row["prompts"], row["cached_tokens"]))
