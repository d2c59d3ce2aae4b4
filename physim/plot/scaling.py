"""A picture of what an autoscaler does with a day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from physim.errors import InputError
from physim.plot.figures import literal, new_figure, plain_ticks
from physim.questions.objectives import EACH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.questions.scaled_day import ScaledDay, ScalingRun

# Times of the day over which first tokens are summed up, and their percentiles.
_PARTS = 120
_MEDIAN, _LATE = 50, 99
# Legends that cover nothing.
_ABOVE: dict[str, Any] = {"fontsize": 8, "loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3}


def draw_scaling(day: ScaledDay, start_up_s: float | None = None) -> list[Axes]:
    """Draws the rate over the day, the servers asked for and serving, and times to first token.

    Args:
        day: From `physim.scale`.
        start_up_s: Which of its start-up times is drawn, seconds; the longest if not given.

    Returns:
        The axes of the three.

    Raises:
        InputError: No such start-up time was replayed.
    """
    run = day.runs[-1]
    if start_up_s is not None:
        known = {own.start_up_s: own for own in day.runs}
        if start_up_s not in known:
            times = ", ".join(f"{own.start_up_s:g}" for own in day.runs)
            raise InputError("start-up", f"{start_up_s:g} s is not there", f"use one of {times}")
        run = known[start_up_s]
    windows = day.profile.windows
    begin = windows[0].start_s
    load, servers, ttft = new_figure(7.5, 7.0).subplots(3, sharex=True, height_ratios=[2, 3, 3])
    for one in windows:
        edges = [one.start_s / 3600, (one.start_s + one.duration_s) / 3600]
        load.stairs([one.rate], edges, fill=True, alpha=0.4, color="C0")
    load.set(ylabel="requests/s", ylim=(0, None))
    label = f"{run.name}, start-up {run.start_up_s:g} s: serving"
    for (moments, numbers), name, style in (
        (run.asked(), "asked for", {"color": "C1", "ls": ":", "lw": 1.5}),
        (run.serving(), label, {"color": "C1", "lw": 2}),
        (day.schedule.serving(), day.schedule.name, {"color": "C0", "lw": 1, "ls": "--"}),
    ):
        hours = (begin + np.append(moments, run.end_s)) / 3600
        servers.stairs(numbers, hours, baseline=None, label=literal(name), **style)
    servers.set(ylabel="servers", ylim=(0, None))
    servers.yaxis.get_major_locator().set_params(integer=True)
    servers.legend(**_ABOVE)
    for own, color in ((run, "C1"), (day.schedule, "C0")):
        moments, late, median = _over_time(own)
        hours = (begin + moments) / 3600
        ttft.plot(hours, late, color=color, lw=1.5, label=literal(own.name))
        ttft.plot(hours, median, color=color, lw=0.8, ls=":")
    for bound in day.asked.objectives:
        if bound.metric == "ttft" and bound.statistic == EACH:
            ttft.axhline(bound.seconds, color="C3", ls="--", lw=1, label="asked of each request")
    ttft.set(xlabel="hours from the beginning", yscale="log")
    ttft.set_ylabel(f"TTFT, s (p{_LATE}; dotted p{_MEDIAN})")
    ttft.set_xlim(begin / 3600, (begin + run.end_s) / 3600)
    ttft.legend(**_ABOVE)
    plain_ticks(ttft)
    return [load, servers, ttft]


def _over_time(run: ScalingRun) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Middles of parts of the day, and the late and the median TTFT in each, seconds."""
    edges = np.linspace(0.0, run.end_s, _PARTS + 1)
    place = np.clip(np.searchsorted(edges, run.arrival_s, side="right") - 1, 0, _PARTS - 1)
    middles, late, median = [], [], []
    for part in np.unique(place):
        times = run.ttft_s[place == part]
        middles.append((edges[part] + edges[part + 1]) / 2)
        late.append(np.percentile(times, _LATE))
        median.append(np.percentile(times, _MEDIAN))
    return np.array(middles), np.array(late), np.array(median)
