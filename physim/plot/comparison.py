"""A picture of deployments side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from physim.metrics import METRICS
from physim.models.parallelism import on_gpus
from physim.plot.figures import COLORS, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.questions.comparison import Comparison


def draw_comparison(comparison: Comparison) -> list[Axes]:
    """Draws TTFT, ITL, E2E and what each deployment costs, or what it can serve at most.

    What cannot serve the load has no bar.

    Args:
        comparison: Deployments, from `physim.compare`.

    Returns:
        Four axes, with a bar for each deployment from the best at the top.
    """
    rows = comparison.rows
    panels = [
        (f"{one.label}, {one.unit}", f"{name}_s", one.scale, COLORS[name])
        for name, one in METRICS.items()
        if name != "tpot"
    ]
    if any(row["cost_per_million_tokens"] is not None for row in rows):
        panels.append(("price of a million tokens", "cost_per_million_tokens", 1.0, "C4"))
    else:
        panels.append(("saturation, requests/s", "saturation_rps", 1.0, "C4"))
    figure = new_figure(11, 1.4 + 0.32 * len(rows))
    drawn = list(np.atleast_1d(figure.subplots(1, len(panels), sharey=True)))
    names = [literal(f"{row['model'].split('/')[-1]}, {_servers(row)}") for row in rows]
    places = np.arange(len(rows))
    for axes, (label, column, scale, color) in zip(drawn, panels, strict=True):
        values = [scale * (row[column] or 0.0) for row in rows]
        bars = axes.barh(places, values, color=color)
        axes.bar_label(bars, [f"{x:.3g}" if x else "-" for x in values], padding=2, fontsize=8)
        axes.set_xlabel(label)
        # Room for the numbers beside the bars.
        axes.set_xlim(0, 1.25 * max([*values, 1e-9]))
        axes.spines[["top", "right"]].set_visible(False)
    drawn[0].set_yticks(places, names)
    drawn[0].invert_yaxis()
    return drawn


def _servers(row: Mapping[str, Any]) -> str:
    """The servers of a deployment, as people write them."""
    if row["servers"] == 1:
        return on_gpus(row["gpu"], row)
    return f"{row['gpu']}: {row['layout']}"
