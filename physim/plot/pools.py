"""Pools of a service over time."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from physim.errors import InputError
from physim.plot.figures import literal, new_figure, readable_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.prediction.results import PoolTimeline, Prediction

# Requests from which on servers are not idle, and characters of a line of the title.
_BUSY, _WIDTH = 0.05, 110
_COLORS = {"waiting": "C3", "running": "C0", "kv_use": "C2"}


def draw_pools(prediction: Prediction) -> list[Axes]:
    """Draws the pools of a service over time: who waits and runs, and the KV caches of each.

    Below them is the time to first token of requests, by when they arrived.

    Args:
        prediction: A replay of pools apart.

    Returns:
        Three axes of each pool, one below the other, and that of first tokens.

    Raises:
        InputError: There is one pool, or the load was not replayed, or matplotlib is not installed.
    """
    timeline = prediction.timeline
    if timeline is None or not timeline.pools:
        problem = "needs pools apart over time"
        raise InputError("plot", problem, "give prefill and decode, and replay the load")
    pools = list(zip(prediction.pools, timeline.pools, strict=True))
    figure = new_figure(4.6 * len(pools), 7.5)
    grid = figure.add_gridspec(4, len(pools))
    drawn: list[Axes] = []
    for place, (pool, over_time) in enumerate(pools):
        column = [figure.add_subplot(grid[row, place]) for row in range(3)]
        title = f"{' and '.join(pool.phases)} on {literal(pool.pool.where)}"
        column[0].set_title(textwrap.fill(title, 48), fontsize=9)
        _draw_pool(column, over_time)
        drawn += column
    for axes, label in zip(
        drawn[:3],
        ("waiting\n(requests)", "running\n(requests)", "KV cache\n(% of blocks)"),
        strict=True,
    ):
        axes.set_ylabel(label)
    first = figure.add_subplot(grid[3, :])
    scale, unit = readable_seconds(timeline.ttft_s)
    waits = [scale * wait for wait in timeline.ttft_s]
    first.plot(timeline.arrival_s, waits, ".", color="C1", markersize=3)
    first.set_ylabel(f"TTFT ({unit}), by\ntime of arrival")
    end_s = _end_s(timeline.pools, timeline.arrival_s)
    for axes in (*drawn, first):
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, 1.02 * end_s)
        axes.grid(alpha=0.3)
    for axes in (*drawn[2::3], first):
        axes.set_xlabel("time (s)")
    what = prediction.load.describe() if prediction.load is not None else "a trace"
    title = f"{prediction.model} on {prediction.gpus}, {what}"
    figure.suptitle(textwrap.fill(literal(title), _WIDTH), fontsize=10)
    return [*drawn, first]


def _draw_pool(column: list[Axes], pool: PoolTimeline) -> None:
    """Who waits and runs at a pool, and its KV caches."""
    rows = (pool.waiting, pool.running, [100 * use for use in pool.kv_use])
    for axes, values, color in zip(column, rows, _COLORS.values(), strict=True):
        # It is known at some times, and stays as it is between them.
        axes.plot(pool.time_s, values, color=color, linewidth=1, drawstyle="steps-post")
        if color == _COLORS["waiting"]:
            axes.fill_between(pool.time_s, values, color=color, alpha=0.4, linewidth=0, step="post")
            axes.set_ylim(top=max(axes.get_ylim()[1], 1.0))
        axes.tick_params(labelbottom=axes is column[-1])


def _end_s(pools: tuple[PoolTimeline, ...], arrival_s: list[float]) -> float:
    """Until when something is done, seconds."""
    busy = [
        now
        for pool in pools
        for now, count in zip(pool.time_s, pool.running, strict=True)
        if count > _BUSY
    ]
    return max([*busy, *arrival_s, 1e-9])
