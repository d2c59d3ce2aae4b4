"""Pictures of predictions and of fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim import data
from physim.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from physim.fitting.crossval import Crossval
    from physim.fitting.fit import Outcome
    from physim.results import Prediction

_COLORS = {"ttft": "C1", "itl": "C0", "e2e": "C2", "cycle": "C4"}


def draw_timeline(prediction: Prediction, path: Path) -> None:
    """Draws an engine over time: the queue, the batch, the KV cache and TTFT.

    Args:
        prediction: Of a load that ends.
        path: Where to write, a PNG or SVG by its name; the file appears whole or not at all.

    Raises:
        InputError: The load does not end, matplotlib is not installed, the name has another ending,
            or the file cannot be written.
    """
    timeline = prediction.timeline
    if timeline is None:
        raise InputError(
            "plot", "needs a load that ends", "give stages, or a number of requests to a rate"
        )
    figure = _figure(path, 7, 7)
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
    _write(figure, path)


def draw_fit(outcome: Outcome, path: Path) -> None:
    """Draws a fit: corrections with priors, predicted over observed, and the loss.

    Args:
        outcome: The fit with its report.
        path: The picture to write; its suffix chooses the format.

    Raises:
        InputError: The picture cannot be written.
    """
    figure = _figure(path, 13, 5)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1.2, 0.8))
    places = range(len(outcome.estimates))
    for place, one in zip(places, reversed(outcome.estimates), strict=True):
        left.plot([-1.645 * one.prior, 1.645 * one.prior], [place] * 2, color="0.8", lw=7)
        left.plot([one.low, one.high], [place] * 2, color="C0", lw=2)
        left.plot([one.value], [place], "o", color="C0")
    left.axvline(0, color="0.5", lw=0.8)
    left.set_yticks(list(places), [one.name for one in reversed(outcome.estimates)])
    left.set_xlabel("logarithm of the factor: prior (grey) and fit, 90%")
    for metric, color in _COLORS.items():
        for when, marker in (("before", "x"), ("after", "o")):
            errors = [row.get(f"{metric}_{when}") for row in outcome.rows]
            rows = [number for number, error in enumerate(errors) if error is not None]
            middle.plot(
                [errors[row] for row in rows],
                rows,
                marker,
                ms=4,
                color=color,
                alpha=0.9 if when == "after" else 0.35,
                label=f"{metric.upper()} {when}",
            )
    middle.axvline(0, color="0.5", lw=0.8)
    middle.set_xlabel("error of each row, percent (in sample)")
    middle.set_yticks([])
    middle.legend(fontsize=7)
    right.plot(range(len(outcome.losses)), outcome.losses, "o-", ms=3)
    right.set(xlabel="step", ylabel="loss", yscale="log")
    _write(figure, path)


def draw_folds(found: Crossval, path: Path) -> None:
    """Draws a cross-validation: predicted against observed, and the error of each fold.

    Args:
        found: The cross-validation.
        path: The picture to write; its suffix chooses the format.

    Raises:
        InputError: The picture cannot be written.
    """
    figure = _figure(path, 12, 5)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.3))
    for metric, color in _COLORS.items():
        rows = [
            row
            for row in found.rows
            if row["metric"] == metric and row["method"] == "physim" and "predicted" in row
        ]
        if rows:
            seen = [row["observed"] for row in rows]
            value = [row["predicted"] for row in rows]
            below = [row["predicted"] - row.get("low", row["predicted"]) for row in rows]
            above = [row.get("high", row["predicted"]) - row["predicted"] for row in rows]
            style: dict[str, Any] = {"fmt": "o", "ms": 3, "lw": 0.7, "color": color}
            left.errorbar(seen, value, [below, above], label=metric.upper(), **style)
    ends = [row["observed"] for row in found.rows]
    left.plot([min(ends), max(ends)], [min(ends), max(ends)], color="0.5", lw=0.8)
    left.set(xscale="log", yscale="log", xlabel="observed, s", ylabel="predicted, s, and 90%")
    left.legend()
    shown = "cycle" if found.leave_out == "time" else "e2e"
    methods = [one for one in found.summary if one["metric"] == shown]
    names = list(methods[0]["folds"]) if methods else []
    height = 0.8 / max(len(methods), 1)
    for number, one in enumerate(methods):
        places = [place + number * height for place in range(len(names))]
        values = [one["folds"].get(name, 0.0) for name in names]
        right.barh(places, values, height, label=one["method"])
    middle = [place + 0.4 - height / 2 for place in range(len(names))]
    right.set_yticks(middle, [name.split("/")[-1][:30] for name in names], fontsize=7)
    what = "median error of cycles" if shown == "cycle" else "mean absolute error of E2E"
    right.set_xlabel(f"{what}, percent, {found.leave_out} left out")
    right.legend(fontsize=7)
    _write(figure, path)


def _figure(path: Path, width: float, height: float) -> Figure:
    """An empty figure for a file, inches.

    Raises:
        InputError: The name has another ending, or matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg"):
        raise InputError(str(path), "is no name of a picture", "end it in .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "plot", "needs matplotlib", "run pip install 'physim-llm[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _write(figure: Figure, path: Path) -> None:
    """Writes a figure; the file appears whole or not at all."""
    with data.replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
