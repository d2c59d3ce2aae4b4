"""A picture of what servers trade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from physim.inputs.case import Case
from physim.plot.figures import literal, new_figure, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.questions.choices import Recommendation
    from physim.questions.pareto import Tradeoff


def draw_pareto(recommendation: Recommendation) -> Axes:
    """Draws tokens per second of a GPU against those of a user, for every layout of every GPU.

    Faint are loads of all servers, a line joins the best of each GPU and format, and circles are
    the recommended deployments under their loads.

    Args:
        recommendation: From `physim.recommend`.

    Returns:
        The axes.
    """
    axes = draw_tradeoff(recommendation.tradeoff, recommendation.servers.cases)
    for place, one in enumerate(recommendation.choices, 1):
        if one.prediction.itl_s is None:
            continue
        at = 1 / one.prediction.itl_s, one.prediction.output_tokens_per_s * one.replicas / one.gpus
        axes.plot(*at, "o", mfc="none", mec="black", ms=9)
        axes.annotate(str(place), at, ha="center", va="center", fontsize=6)
    return axes


def draw_tradeoff(found: Tradeoff, cases: Sequence[Case]) -> Axes:
    """Draws tokens per second of a GPU against those of a user, a line for each GPU and format.

    Args:
        found: From `physim.questions.pareto.tradeoff`,
        cases: and the servers that it is of.

    Returns:
        The axes.
    """
    axes = new_figure(7.5, 5).subplots()
    kinds = [literal(f"{one.model.name.split('/')[-1]} on {one.server.gpu.key}") for one in cases]
    of_points = np.array(kinds)[found.servers]
    colors = {kind: f"C{place % 10}" for place, kind in enumerate(dict.fromkeys(kinds))}
    for kind, color in colors.items():
        own = of_points == kind
        axes.plot(found.of_a_user[own], found.of_a_gpu[own], ".", color=color, alpha=0.12, ms=3)
        best = found.frontier(own)
        axes.plot(found.of_a_user[best], found.of_a_gpu[best], color=color, label=kind)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tokens/s of a user (1 / ITL)",
        ylabel="tokens/s of a GPU",
    )
    plain_ticks(axes)
    axes.legend(fontsize=8)
    return axes
