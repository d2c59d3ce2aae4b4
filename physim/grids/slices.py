"""A surface over two axes of a table, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from physim.errors import InputError
from physim.grids.aiconfigurator import EXPERT_SHAPE
from physim.grids.efficiency import ExpertGrid, Grid
from physim.grids.store import load_expert_grid, load_grid

# Query heads for each KV head, and their width, in most models.
_USUAL = {"group": 4.0, "head_dim": 128.0}


def surface_of(gpu: str, table: str, fixes: Sequence[str]) -> tuple[Grid, dict[str, float]]:
    """A table with all but two axes fixed, and the values that they were fixed at.

    Args:
        gpu: A GPU with grids.
        table: Name of a table.
        fixes: ``axis=value`` for axes to fix. Axes beyond two that none names are fixed as in
            most models, or at their middle knot. Of expert tables the nearest measured shape is
            taken.

    Raises:
        InputError: The GPU or table is unknown, or a fix names no axis or no positive number.
    """
    if table.startswith("moe_"):
        return _expert_curve(load_expert_grid(gpu, table), fixes)
    grid = load_grid(gpu, table)
    fixed = _parse(fixes, [name for name, _ in grid.axes])
    free = [name for name, _ in grid.axes if name not in fixed]
    for name in free[2:]:
        knots = grid.knots(name)
        usual = _USUAL.get(name, float(knots[len(knots) // 2]))
        fixed[name] = float(knots[np.argmin(np.abs(np.log(knots / usual)))])
    return grid.sliced(**fixed), fixed


def _expert_curve(grid: ExpertGrid, fixes: Sequence[str]) -> tuple[Grid, dict[str, float]]:
    middle = dict(zip(EXPERT_SHAPE, np.median(grid.shapes, axis=0), strict=True))
    wanted = middle | _parse(fixes, list(EXPERT_SHAPE))
    shape = [wanted[name] for name in EXPERT_SHAPE]
    measured = map(float, grid.shapes[grid.nearest_row(*shape)])
    return grid.nearest(*shape), dict(zip(EXPERT_SHAPE, measured, strict=True))


def _parse(fixes: Sequence[str], axes: Sequence[str]) -> dict[str, float]:
    fixed = {}
    for fix in fixes:
        name, _, text = fix.partition("=")
        if name not in axes:
            raise InputError(f"--at {fix}", "names no axis", f"the axes are {', '.join(axes)}")
        try:
            fixed[name] = float(text)
        except ValueError:
            fixed[name] = -1.0
        if not (np.isfinite(fixed[name]) and fixed[name] > 0):
            raise InputError(f"--at {fix}", "gives no positive number", f"write {name}=NUMBER")
    return fixed
