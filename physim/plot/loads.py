"""Pictures of loads: latencies against the rate, and an engine over time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim.cases import Case
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.intervals import predict_with_interval
from physim.plot.sheet import COLORS, new_figure, plain_ticks
from physim.prediction import predict_cases
from physim.serving.load import Load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from physim.fits import Fit
    from physim.questions.capacity import Objective
    from physim.results import Prediction

Sizes = Float[np.ndarray, " loads"]
_RATES = 24
_LABELS = {"ttft": ("TTFT", 1e3, "ms"), "itl": ("ITL", 1e3, "ms"), "e2e": ("E2E", 1.0, "s")}


def draw_load(
    model: str | Path,
    load: Load,
    *,
    gpu: str,
    metrics: Sequence[str] = ("ttft", "itl", "e2e"),
    objectives: Sequence[Objective] = (),
    mark: float | None = None,
    fit: str | Path = DEFAULT_FIT,
    axes: Sequence[Axes] | None = None,
    **deployment: Any,
) -> list[Axes]:
    """Draws latencies against the rate, with 90% intervals and the capacity.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        load: The load, whose rate is of no account; with clients (``concurrency``) latencies are
            drawn against their number, up to four times as many.
        gpu: Key of a GPU, or a JSON file.
        metrics: Of ``ttft``, ``itl`` and ``e2e``, one picture each.
        objectives: Bounds to draw; where one is of a percentile, that is drawn too.
        mark: A rate, or a number of clients, to mark.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: As many axes as metrics; None for a new figure.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Returns:
        The axes.
    """
    one = replace(load, stages=(), requests=None)
    if one.concurrency is None:
        one = replace(one, rate=1.0)
    case = Case.of(model, gpu, Deployment(**deployment), one)
    known = load_fit(fit, case.gpu.key)
    most, sizes, loads = _loads(case, known)
    cases = [replace(case, load=load) for load in loads]
    found = [predict_with_interval(c, known, "additive", "fluid", 0) for c in cases]
    if axes is None:
        figure = new_figure(3.3 * len(metrics), 3.3)
        axes = list(np.atleast_1d(figure.subplots(1, len(metrics))))
    for metric, own in zip(metrics, axes, strict=True):
        label, scale, unit = _LABELS[metric]
        name = f"{metric}_s"
        served = [(r, p) for r, p in zip(sizes, found, strict=True) if getattr(p, name) is not None]
        x = [size for size, _ in served]
        own.plot(
            x, [scale * getattr(p, name) for _, p in served], color=COLORS[metric], label="mean"
        )
        bounds = [(r, p.intervals[name]) for r, p in served if name in p.intervals]
        if bounds:
            top = max(scale * getattr(p, name) for _, p in served) * 10
            own.fill_between(
                [size for size, _ in bounds],
                [scale * low for _, (low, _) in bounds],
                [min(scale * high, top) for _, (_, high) in bounds],
                color=COLORS[metric],
                alpha=0.2,
                linewidth=0,
                label="90%",
            )
        for objective in objectives:
            if objective.metric != metric:
                continue
            if objective.statistic != "mean":
                values = [scale * objective.latency_s(p) for _, p in served]
                own.plot(x, values, "--", color=COLORS[metric], label=objective.statistic)
            bound = f"{objective.statistic} at most"
            own.axhline(scale * objective.seconds, color="0.3", lw=0.8, ls="-.", label=bound)
        if most is not None:
            own.axvline(most, color="0.5", lw=1, ls=":", label="capacity")
        if mark is not None:
            marked = f"{mark:.3g} clients" if most is None else f"{mark:.3g}/s"
            own.axvline(mark, color="C3", lw=1.2, label=marked)
            # A rate far beyond the capacity would leave the curve no room.
            own.set_xlim(0, 1.05 * min(max(sizes[-1], mark), 2 * sizes[-1]))
        own.set(
            xlabel="clients" if most is None else "requests per second",
            ylabel=f"{label}, {unit}",
            yscale="log",
        )
        own.grid(alpha=0.3, which="both")
        own.legend(fontsize=7)
    plain_ticks(*axes)
    axes[0].set_title(f"{case.model.name} on {case.deployment.tp} x {case.gpu.key}", fontsize=9)
    return list(axes)


def _loads(case: Case, fit: Fit) -> tuple[float | None, Sizes, list[Load]]:
    """The capacity of an open loop; rates or clients up to where to draw; and loads of as many."""
    load = case.load
    if load.concurrency is not None:
        sizes = np.unique(np.geomspace(1, 4 * load.concurrency, _RATES).round())
        return None, sizes, [replace(load, concurrency=int(clients)) for clients in sizes]
    most = predict_cases([case], fit.corrections)[0].capacity_rps
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
    queue.fill_between(timeline.time_s, timeline.waiting, color="C3", alpha=0.4, linewidth=0)
    queue.plot(timeline.time_s, timeline.waiting, color="C3", linewidth=1)
    queue.set_ylabel("waiting\n(requests)")
    batch.plot(timeline.time_s, timeline.running, color="C0", linewidth=1)
    batch.set_ylabel("running\n(requests)")
    cache.plot(timeline.time_s, [100 * use for use in timeline.kv_use], color="C2", linewidth=1)
    cache.set_ylabel("KV cache\n(% of blocks)")
    first.plot(timeline.arrival_s, timeline.ttft_s, ".", color="C1", markersize=3)
    first.set_ylabel("TTFT (s), by\ntime of arrival")
    first.set_xlabel("time (s)")
    for axes in (queue, batch, cache, first):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    where = f"{prediction.model} on {prediction.tp} x {prediction.gpu}, {prediction.method}"
    what = prediction.load.describe() if prediction.load is not None else "a trace"
    figure.suptitle(f"{where}\n{what}", fontsize=10)
    return [queue, batch, cache, first]
