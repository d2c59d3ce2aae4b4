"""Pictures of measured efficiency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from physim.plot.figures import axes_or_new, literal, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.grids.efficiency import Grid


# Knots of an axis that are all written out.
_FEW = 8


def draw_surface(surface: Grid, title: str = "", axes: Axes | None = None) -> Axes:
    """Draws efficiency relative to the roofline: a curve over one axis, or colors over two.

    Args:
        surface: A grid with one axis or two.
        title: What it is.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes, 7.0, 4.5)
    efficiency = np.exp(surface.log_efficiency)
    across_name, across = surface.axes[0]
    axes.set(xscale="log", xlabel=across_name.replace("_", " "), title=literal(title))
    if len(surface.axes) == 1:
        axes.plot(across, efficiency, marker="o", markersize=3)
        axes.set(ylabel="efficiency relative to roofline", ylim=(0, None))
        axes.grid(alpha=0.3)
    else:
        up_name, up = surface.axes[1]
        mesh = axes.pcolormesh(
            across, up, np.minimum(efficiency.T, 1.0), shading="nearest", cmap="viridis", vmin=0
        )
        axes.set(yscale="log", ylabel=up_name.replace("_", " "))
        axes.figure.colorbar(mesh, ax=axes, label="efficiency relative to roofline")
    plain_ticks(axes)
    for axis, (_, knots) in zip((axes.xaxis, axes.yaxis), surface.axes, strict=False):
        if len(knots) <= _FEW:
            axis.set_ticks(knots, [f"{knot:g}" for knot in knots])
    return axes
