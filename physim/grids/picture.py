"""Draws efficiency surfaces."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from physim import data
from physim.errors import InputError
from physim.grids.efficiency import Grid


def draw_surface(surface: Grid, title: str, path: Path) -> None:
    """Draws a curve over one axis or a coloured surface over two, to PNG, SVG or PDF.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--plot", "needs matplotlib", "pip install 'physim-llm[plot]'") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    efficiency = np.exp(surface.log_efficiency)
    across_name, across = surface.axes[0]
    axes.set(xscale="log", xlabel=across_name.replace("_", " "), title=title)
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
        figure.colorbar(mesh, label="efficiency relative to roofline")
    kind = path.suffix.removeprefix(".")
    if kind not in figure.canvas.get_supported_filetypes():
        raise InputError(str(path), "is no picture format", "end it in .png, .svg or .pdf")
    with data.replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150)
