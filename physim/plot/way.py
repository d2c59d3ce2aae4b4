"""What a request of a service with pools apart spends its time on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from physim.plot.figures import axes_or_new, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.prediction.results import Prediction

# Shares of the time to first token that are too small to see, and characters of a line.
_LEAST, _WIDTH = 0.002, 100


def draw_way(prediction: Prediction, axes: Axes | None = None) -> Axes:
    """Draws what a mean request spends its time on, in the order of time.

    Above is its time to first token, by part; below the request, of which that is the first.

    Args:
        prediction: A prediction with parts of the time to first token.
        axes: Where; None for a new figure.
    """
    from physim.prediction.results import FIRST_TOKEN_PARTS, WAY_PARTS

    axes = axes_or_new(axes, 7.5, 2.6)
    ttft_s, e2e_s = prediction.ttft_s or 0.0, prediction.e2e_s or 0.0
    found = prediction.ttft_parts_s.items()
    parts = {name: own for name, own in found if own > _LEAST * ttft_s}
    start = 0.0
    for place, (name, what) in enumerate((FIRST_TOKEN_PARTS | WAY_PARTS).items()):
        if seconds := parts.get(name):
            share = 100 * seconds / ttft_s
            label = f"{what}, {_time(seconds)}"
            axes.barh(1, share, left=start, color=f"C{place}", label=label)
            start += share
    first = 100 * ttft_s / e2e_s if e2e_s else 0.0
    axes.barh(0, first, color="0.35")
    axes.barh(0, 100 - first, left=first, color="0.8")
    axes.text(99, 0, f"answer, {_time(e2e_s - ttft_s)}", ha="right", va="center", fontsize=8)
    axes.set_yticks([0, 1], [f"request\n{_time(e2e_s)}", f"first token\n{_time(ttft_s)}"])
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the time")
    title = textwrap.fill(literal(prediction.describe()), _WIDTH)
    axes.set_title(title, fontsize=8, pad=10 + 13 * ((len(parts) + 1) // 2))
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, frameon=False)
    return axes


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
