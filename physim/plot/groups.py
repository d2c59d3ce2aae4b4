"""A picture of errors by group: predicted against observed, a colour for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from physim.metrics import METRICS
from physim.plot.figures import literal, new_figure, plain_ticks
from physim.validation.by_group import group_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.validation.evaluation import Evaluation

_SHOWN = ("ttft", "itl", "e2e")
# Groups that have a colour of their own, those of the most rows; the others are grey.
_COLORED = 10


def draw_groups(found: Evaluation, names: Sequence[str]) -> list[Axes]:
    """Draws predicted against observed times, with the mean error of each group.

    Args:
        found: Predictions beside what was measured; with at least one row.
        names: What rows are grouped by; of `physim.validation.by_group.GROUPS`.

    Returns:
        Axes of the metrics that were measured.
    """
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(found.rows):
        groups.setdefault(group_of(row, names), []).append(place)
    ranked = sorted(groups, key=lambda name: -len(groups[name]))
    shown = [metric for metric in _SHOWN if found.summary[f"{metric}_mean"]["n"]]
    figure = new_figure(4.6 * len(shown) + 0.4, 5.6)
    every = figure.subplots(1, len(shown), squeeze=False)[0]
    for metric, axes in zip(shown, every, strict=True):
        ends: list[float] = []
        for rank, name in enumerate(ranked):
            pairs = [found.rows[i]["metrics"].get(f"{metric}_mean") for i in groups[name]]
            seen = np.array([pair["observed"] for pair in pairs if pair])
            if not seen.size:
                continue
            value = np.array([pair["predicted"] for pair in pairs if pair])
            off = 100 * float(np.mean(np.abs(value / seen - 1)))
            own = rank < _COLORED
            axes.plot(
                *(seen, value, "."),
                ms=4,
                alpha=0.7,
                color=f"C{rank}" if own else "0.6",
                label=literal(f"{name}: {off:.0f}%") if own else None,
            )
            ends += [float(seen.min()), float(seen.max())]
        diagonal = np.array([min(ends), max(ends)])
        axes.plot(diagonal, diagonal, color="0.5", lw=0.8)
        axes.fill_between(diagonal, 0.8 * diagonal, 1.25 * diagonal, color="0.92", zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="observed, s", ylabel="predicted, s")
        axes.set_title(
            f"{METRICS[metric].label}: mean errors; within a fifth is shaded", fontsize=9
        )
        plain_ticks(axes)
        axes.legend(fontsize=7, loc="upper left")
    return list(every)
