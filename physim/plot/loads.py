"""Pictures of loads: latencies against the rate, and an engine over time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions
from physim.inputs.load import Load
from physim.metrics import METRICS
from physim.options import named_options
from physim.plot.figures import COLORS, literal, new_figure, plain_ticks, readable_seconds
from physim.prediction.intervals import predict_with_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from physim.corrections.calibration import Calibration
    from physim.prediction.results import Prediction
    from physim.questions.objectives import Objective

Sizes = Float[np.ndarray, " loads"]
_RATES = 24
# How far above all else a picture ends, and where what has no end is drawn.
_ROOM, _BEYOND = 2.0, 1e3
# Requests from which on an engine is not idle.
_BUSY = 0.05


@named_options
def draw_load(
    model: str | Path | Case,
    *,
    metrics: Sequence[str] = ("ttft", "itl", "e2e"),
    objectives: Sequence[Objective] = (),
    mark: float | None = None,
    fit: str | Path = DEFAULT_FIT,
    axes: Sequence[Axes] | None = None,
    **options: Unpack[CaseOptions],
) -> list[Axes]:
    """Draws latencies against the rate, with 90% intervals and the capacity.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it. The rate of its load is of no account; with clients (``concurrency``)
            latencies are drawn against their number, up to four times as many.
        metrics: Of ``ttft``, ``itl``, ``tpot`` and ``e2e``, one picture each.
        objectives: Bounds to draw; where one is of a percentile, that is drawn too.
        mark: A rate, or a number of clients, to mark.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: As many axes as metrics; None for a new figure.
        **options: GPU, deployment and load; see `CaseOptions`.

    Returns:
        The axes.
    """
    case = Case.from_options(model, **options)
    one = replace(case.demanded, requests=None)
    if one.concurrency is None:
        one = replace(one, stages=(), rate=one.rate or 1.0)
    case = case.under(one)
    known = load_fit(fit).on(case)
    most, sizes, loads = _loads(case, known)
    found = [predict_with_interval(case.under(load), known) for load in loads]
    figure = None
    if axes is None:
        figure = new_figure(max(3.3 * len(metrics), 5.0), 3.5)
        axes = list(np.atleast_1d(figure.subplots(1, len(metrics))))
    # With clients there is no load above capacity.
    ends = [p.intervals["saturation_rps"][0] for p in found if "saturation_rps" in p.intervals]
    sure = math.inf if most is None or not ends else min(ends)
    for metric, own in zip(metrics, axes, strict=True):
        bounds = [objective for objective in objectives if objective.metric == metric]
        _draw_metric(own, metric, sizes, found, bounds, sure)
        own.set_xlabel("clients" if most is None else "requests per second")
        if most is not None:
            own.axvline(most, color="0.5", lw=1, ls=":", label="saturation")
        if mark is not None:
            marked = f"{mark:.3g} clients" if most is None else f"{mark:.3g}/s"
            own.axvline(mark, color="C3", lw=1.2, label=marked)
            # A rate far beyond the capacity would leave the curve no room.
            own.set_xlim(0, 1.05 * min(max(sizes[-1], mark), 2 * sizes[-1]))
        own.legend(fontsize=7, loc="lower right")
    plain_ticks(*axes)
    title = literal(case.what)
    if most is not None:
        title = f"{title}: {most:.3g} requests/s at most"
    lengths = (
        f"{one.mean_input:g} tokens in ({one.cached_tokens:g} cached), {one.mean_output:g} out"
    )
    if figure is not None and len(axes) > 1:
        figure.suptitle(f"{title}; {lengths}", fontsize=9)
    else:
        axes[0].set_title(f"{title}\n{lengths}", fontsize=9)
    return list(axes)


def _draw_metric(
    axes: Axes,
    metric: str,
    sizes: Sizes,
    found: Sequence[Prediction],
    objectives: Sequence[Objective],
    sure: float,
) -> None:
    """A latency against rates or clients: mean, interval, and percentiles that are bounded.

    Beyond the load that is ``sure`` to be below capacity, intervals are hatched.
    """
    label, scale, unit = METRICS[metric].label, METRICS[metric].scale, METRICS[metric].unit
    name, color = f"{metric}_s", COLORS[metric]
    served = [(x, p) for x, p in zip(sizes, found, strict=True) if getattr(p, name) is not None]
    x, means = [x for x, _ in served], [scale * getattr(p, name) for _, p in served]
    axes.plot(x, means, color=color, label="mean")
    known = [(x, *p.intervals[name]) for x, p in served if name in p.intervals]
    if known:
        where, low, high = (np.array(column) for column in zip(*known, strict=True))
        # An interval without an upper end leaves the picture.
        high = np.minimum(scale * high, _BEYOND * max(means))
        _draw_band(axes, where, scale * low, high, int(np.sum(where <= sure)), color)
    highest = max(means)
    for objective in objectives:
        if objective.statistic != "mean":
            values = [scale * objective.latency_s(p) for _, p in served]
            axes.plot(x, values, "--", color=color, label=objective.statistic)
            highest = max(highest, *values)
        bound = scale * objective.seconds
        axes.axhline(bound, color="0.3", lw=0.8, ls="-.", label=f"{objective.statistic} at most")
        highest = max(highest, bound)
    axes.set(ylabel=f"{label}, {unit}", yscale="log")
    axes.set_ylim(top=_ROOM * highest)
    axes.grid(alpha=0.3)


def _draw_band(
    axes: Axes,
    where: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    sure: int,
    color: str,
) -> None:
    """A 90% interval, hatched from the load on that may be above capacity.

    Args:
        axes: Where to draw.
        where: Loads.
        low: Lower ends.
        high: Upper ends.
        sure: How many of the loads are below capacity for sure.
        color: Its colour.
    """
    if sure:
        kept = slice(sure)
        axes.fill_between(
            where[kept], low[kept], high[kept], color=color, alpha=0.2, lw=0, label="90%"
        )
    if sure < len(where):
        # From the last that is sure on, so that there is no gap.
        kept = slice(max(sure - 1, 0), None)
        axes.fill_between(
            where[kept],
            low[kept],
            high[kept],
            facecolor="none",
            edgecolor=(color, 0.35),
            hatch="////",
            lw=0,
            label="90%, may be above capacity",
        )


def _loads(case: Case, fit: Calibration) -> tuple[float | None, Sizes, list[Load]]:
    """The capacity of an open loop; rates or clients up to where to draw; and loads of as many."""
    load = case.demanded
    if load.concurrency is not None:
        sizes = np.unique(np.geomspace(1, 4 * load.concurrency, _RATES).round())
        return None, sizes, [replace(load, concurrency=int(clients)) for clients in sizes]
    # As the others are predicted, so that one compiled function serves all.
    most = predict_with_interval(case, fit).saturation_rps
    sizes = most * np.linspace(0.02, 0.995, _RATES)
    return most, sizes, [replace(load, rate=float(rate)) for rate in sizes]


def draw_timeline(prediction: Prediction) -> list[Axes]:
    """Draws an engine over time: the queue, the batch, the KV cache and TTFT.

    Args:
        prediction: Of a load that ends.

    Returns:
        The four axes.

    Raises:
        InputError: The load does not end, or matplotlib is not installed.
    """
    timeline = prediction.timeline
    if timeline is None:
        raise InputError(
            "plot", "needs a load that ends", "give stages, or a number of requests to a rate"
        )
    figure = new_figure(7, 7)
    queue, batch, cache, first = figure.subplots(4, sharex=True)
    # A replay is known at some times, and stays as it is between them.
    step: Any = "steps-post" if prediction.method == "replay" else "default"
    filled: Any = "post" if prediction.method == "replay" else None
    time = timeline.time_s
    queue.fill_between(time, timeline.waiting, color="C3", alpha=0.4, linewidth=0, step=filled)
    queue.plot(time, timeline.waiting, color="C3", linewidth=1, drawstyle=step)
    queue.set_ylabel("waiting\n(requests)")
    batch.plot(time, timeline.running, color="C0", linewidth=1, drawstyle=step)
    batch.set_ylabel("running\n(requests)")
    used = [100 * use for use in timeline.kv_use]
    cache.plot(time, used, color="C2", linewidth=1, drawstyle=step)
    cache.set_ylabel("KV cache\n(% of blocks)")
    scale, unit = readable_seconds(timeline.ttft_s)
    waits = [scale * wait for wait in timeline.ttft_s]
    first.plot(timeline.arrival_s, waits, ".", color="C1", markersize=3)
    first.set_ylabel(f"TTFT ({unit}), by\ntime of arrival")
    first.set_xlabel("time (s)")
    for axes in (queue, batch, cache, first):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    # The highest points are not cut by the frame.
    first.set_ylim(top=1.05 * first.get_ylim()[1])
    queue.set_ylim(top=max(queue.get_ylim()[1], 1.0))
    busy = [now for now, count in zip(time, timeline.running, strict=True) if count > _BUSY]
    first.set_xlim(0, 1.02 * max([*busy, *timeline.arrival_s]))
    where = f"{prediction.model} on {prediction.gpus}, {prediction.method}"
    what = prediction.load.describe() if prediction.load is not None else "a trace"
    figure.suptitle(f"{literal(where)}, {what}\n{prediction.figures}", fontsize=9)
    return [queue, batch, cache, first]
