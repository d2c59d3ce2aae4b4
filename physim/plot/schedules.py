"""A picture of what a day takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from physim.errors import InputError
from physim.plot.figures import literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.inputs.profile import Window
    from physim.questions.choices import Recommendation

# Pictures of more are hard to read.
_SHOWN = 3


def draw_schedule(recommendation: Recommendation) -> list[Axes]:
    """Draws the rate of a load profile over time, and the GPUs that each window takes.

    Args:
        recommendation: From `physim.recommend` with a profile; the first few of its choices are
            shown, dashed what holds at all times.

    Returns:
        The axes of both.

    Raises:
        InputError: It is not of a profile.
    """
    shown = [
        (one, one.schedule) for one in recommendation.choices[:_SHOWN] if one.schedule is not None
    ]
    if not shown:
        raise InputError("schedule", "is of a load profile", "give it with --profile")
    windows = shown[0][1].windows
    hours = np.array([one.start_s for one in windows] + [_end(windows[-1])]) / 3600
    above, below = new_figure(7.5, 5.5).subplots(2, sharex=True, height_ratios=[2, 3])
    above.stairs([one.rate for one in windows], hours, fill=True, alpha=0.4)
    above.set(ylabel="requests per second", ylim=(0, None))
    for place, (one, schedule) in enumerate(shown):
        server, layout = one.case.server, one.case.server.parallelism
        label = literal(f"{server.model.name.split('/')[-1]} on {server.gpu.key} ({layout})")
        # Later lines are thinner, so that none covers another.
        gpus = schedule.replicas * layout.gpus
        below.stairs(gpus, hours, baseline=None, color=f"C{place}", label=label, lw=5 - 1.5 * place)
        below.axhline(one.gpus, color=f"C{place}", ls="--", lw=1)
    below.set(
        xlabel="hours from the beginning; dashed: servers that are never turned off",
        ylabel="GPUs",
        ylim=(0, None),
        xlim=(hours[0], hours[-1]),
    )
    below.yaxis.get_major_locator().set_params(integer=True)
    below.legend(fontsize=8)
    return [above, below]


def _end(window: Window) -> float:
    return window.start_s + window.duration_s
