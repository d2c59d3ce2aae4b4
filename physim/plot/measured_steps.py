"""A picture of measured steps beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from physim.plot.figures import axes_or_new, literal, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.validation.step_errors import StepComparison

# Points of a kind, at most: more are a blot.
_MOST = 3000
_COLORS = {"decode": "C0", "prompts": "C1", "mixed": "C4"}
_WORDS = {"decode": "only decode", "prompts": "only prompts", "mixed": "both"}


def draw_measured_steps(compared: StepComparison, axes: Axes | None = None) -> Axes:
    """Draws the time of each measured step along its predicted time, by kind of step.

    Args:
        compared: The steps with their predictions, of `physim.compare_steps`.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes, 5.5, 4.5)
    measured, predicted = 1e3 * compared.steps.seconds, 1e3 * compared.predicted_s
    errors = {one.kind: one for one in compared.errors}
    for kind, own in compared.steps.kinds.items():
        places = np.flatnonzero(own)
        if not len(places):
            continue
        places = places[:: -(-len(places) // _MOST)]
        label = (
            f"{_WORDS[kind]}: {errors[kind].mean_pct:.1f}% off, bias {errors[kind].bias_pct:+.1f}%"
        )
        axes.plot(
            predicted[places],
            measured[places],
            ".",
            ms=3,
            alpha=0.4,
            color=_COLORS[kind],
            label=label,
            rasterized=True,
        )
    ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
    axes.plot(ends, ends, color="0.3", lw=0.8)
    within = f"within a tenth: {errors['all'].within_10pct:.0f}%"
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color="0.85", lw=0, zorder=0, label=within)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="predicted time of a step, ms",
        ylabel="measured, ms",
        title=literal(f"{Path(compared.steps.source).name}, fit {compared.fit}"),
    )
    axes.legend(fontsize=8, loc="upper left")
    plain_ticks(axes)
    return axes
