"""Pictures of fits and evaluations: what was learned, and what is still off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from physim.corrections.calibration import TWO_SIDED_90
from physim.corrections.fields import flat, labels
from physim.plot.figures import COLORS, axes_or_new, literal, new_figure, plain_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from physim.corrections.files import Fit
    from physim.fitting.fit import Outcome
    from physim.validation.crossval import Crossval
    from physim.validation.evaluation import Evaluation


# Errors from which on a row is named, percent, and how many at the most.
_FAR_PCT, _FARTHEST = 15.0, 5
# Rows up to which each is named in a picture, and the characters of a name.
_NAMED_ROWS, _NAME = 40, 32


def draw_fit(outcome: Outcome) -> list[Axes]:
    """Draws a fit: corrections with priors, errors before and after, and the loss.

    Args:
        outcome: The fit with its report.

    Returns:
        The three axes.
    """
    figure = new_figure(13, 5)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1.2, 0.8))
    return [
        draw_corrections(outcome.fit, left),
        draw_errors(outcome, middle),
        draw_losses(outcome, right),
    ]


def draw_corrections(fit: Fit, axes: Axes | None = None) -> Axes:
    """Draws each correction as a factor: its prior (grey), the fit's and its 90% interval.

    It is that of what all of the fit's runs have in common. Corrections that were held fast are
    left out.

    Args:
        fit: The fit.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes, 6.0, 5.0)
    about = fit.at_branch(fit.common)
    values = flat(about.corrections)
    spreads = None if about.covariance is None else np.sqrt(np.diag(about.covariance))
    frozen = fit.record.get("frozen", ())
    shown = [
        (place, name)
        for place, name in enumerate(labels())
        if "[" not in name and name not in frozen
    ][::-1]
    for height, (place, _) in enumerate(shown):
        prior = TWO_SIDED_90 * fit.prior[place]
        ends = np.exp([-prior, prior])
        axes.plot(ends, [height] * 2, color="0.8", lw=7, solid_capstyle="butt")
        if spreads is not None:
            ends = np.exp(values[place] + TWO_SIDED_90 * spreads[place] * np.array([-1, 1]))
            axes.plot(ends, [height] * 2, color="C0", lw=2)
        axes.plot([np.exp(values[place])], [height], "o", color="C0")
    axes.axvline(1, color="0.5", lw=0.8)
    axes.set_yticks(range(len(shown)), [name.replace("_", " ") for _, name in shown])
    axes.set(
        xscale="log", xlabel="factor: before a fit (grey) and after, 90%", title=literal(fit.name)
    )
    plain_ticks(axes)
    return axes


def draw_errors(outcome: Outcome, axes: Axes | None = None) -> Axes:
    """Draws the errors of each measured stage before and after a fit, in sample.

    Args:
        outcome: The fit with its report.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes)
    for metric in ("ttft", "itl", "e2e"):
        for when, marker in (("before", "x"), ("after", "o")):
            name = f"{metric}_{when}"
            known = [(row[name], number) for number, row in enumerate(outcome.rows) if name in row]
            axes.plot(
                [error for error, _ in known],
                [number for _, number in known],
                marker,
                ms=4,
                color=COLORS[metric],
                alpha=0.9 if when == "after" else 0.35,
                label=f"{metric.upper()} {when}",
            )
    axes.axvline(0, color="0.5", lw=0.8)
    axes.set_xlabel("error of each row, percent (in sample)")
    names = [literal(f"{row['experiment'][:_NAME]} {row['stage']}") for row in outcome.rows]
    few = names if len(names) <= _NAMED_ROWS else []
    axes.set_yticks(range(len(few)), few, fontsize=6)
    axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return axes


def draw_losses(outcome: Outcome, axes: Axes | None = None) -> Axes:
    """Draws the loss after each step of a fit.

    Args:
        outcome: The fit with its report.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes)
    axes.plot(range(len(outcome.losses)), outcome.losses, "o-", ms=3)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    return axes


def draw_folds(found: Crossval) -> list[Axes]:
    """Draws a cross-validation: predicted against observed, and the error of each fold.

    Args:
        found: The cross-validation.

    Returns:
        The two axes.
    """
    figure = new_figure(12, 5)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.3))
    return [draw_observed(found, left), draw_fold_errors(found, right)]


def draw_observed(found: Crossval, axes: Axes | None = None) -> Axes:
    """Draws predicted against observed, of rows that their fold's fit has not seen.

    Args:
        found: The cross-validation.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes, 5.0, 5.0)
    rows = [row for row in found.rows if row["method"] == "physim" and "predicted" in row]
    for metric, color in COLORS.items():
        of_metric = [row for row in rows if row["metric"] == metric]
        if of_metric:
            seen = [row["observed"] for row in of_metric]
            value = [row["predicted"] for row in of_metric]
            below = [row["predicted"] - row.get("low", row["predicted"]) for row in of_metric]
            above = [row.get("high", row["predicted"]) - row["predicted"] for row in of_metric]
            style: dict[str, Any] = {"fmt": "o", "ms": 3, "lw": 0.7, "color": color}
            axes.errorbar(seen, value, [below, above], label=metric.upper(), **style)
    _finish_observed(axes, [row["observed"] for row in rows])
    axes.set_ylabel("predicted, s, and 90%")
    return axes


def draw_evaluation(found: Evaluation, axes: Axes | None = None) -> Axes:
    """Draws predicted against observed, of measured rows; those farthest off are named.

    Args:
        found: Predictions beside what was measured; with at least one row.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes, 5.0, 5.0)
    ends = []
    for metric in ("ttft", "itl", "e2e"):
        pairs = [row["metrics"].get(f"{metric}_mean") for row in found.rows]
        if not any(pairs):
            continue
        seen = [pair["observed"] for pair in pairs if pair]
        value = [pair["predicted"] for pair in pairs if pair]
        off = found.summary[f"{metric}_mean"]["mape"]
        label = f"{metric.upper()}, {off:.1f}% off"
        axes.plot(seen, value, "o", ms=4, color=COLORS[metric], alpha=0.8, label=label)
        ends += seen
    far = [
        (abs(pair["error_pct"]), row, pair)
        for row in found.rows
        for metric, pair in row["metrics"].items()
        # TPOT's means are ITL's.
        if metric != "tpot_mean" and abs(pair["error_pct"]) > _FAR_PCT
    ]
    for _, row, pair in sorted(far, key=lambda one: -one[0])[:_FARTHEST]:
        axes.annotate(
            literal(f" {row['experiment'][:_NAME]} {row['stage']}: {pair['error_pct']:+.0f}%"),
            (pair["observed"], pair["predicted"]),
            fontsize=6,
            va="center",
        )
    _finish_observed(axes, ends)
    axes.set_ylabel("predicted, s")
    axes.set_title(f"{len(found.rows)} rows", fontsize=9)
    return axes


def _finish_observed(axes: Axes, seen: Sequence[float]) -> None:
    """The diagonal, a tenth to either side of it, scales and a legend."""
    ends = np.array([min(seen), max(seen)])
    axes.plot(ends, ends, color="0.5", lw=0.8)
    axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="0.9", zorder=0, label="within 10%")
    axes.set(xscale="log", yscale="log", xlabel="observed, s")
    plain_ticks(axes)
    axes.legend(fontsize=8)


def draw_fold_errors(found: Crossval, axes: Axes | None = None) -> Axes:
    """Draws the error of each fold, for each method.

    Args:
        found: The cross-validation.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes)
    shown = "cycle" if found.leave_out == "time" else "e2e"
    methods = [one for one in found.summary if one["metric"] == shown]
    names = list(methods[0]["folds"]) if methods else []
    height = 0.8 / max(len(methods), 1)
    for number, one in enumerate(methods):
        places = [place + number * height for place in range(len(names))]
        values = [one["folds"].get(name, 0.0) for name in names]
        axes.barh(places, values, height, label=one["method"])
    middle = [place + 0.4 - height / 2 for place in range(len(names))]
    axes.set_yticks(middle, [literal(name.split("/")[-1][:30]) for name in names], fontsize=7)
    what = "median error of cycles" if shown == "cycle" else "mean absolute error of E2E"
    axes.set_xlabel(f"{what}, percent, {found.leave_out} left out")
    axes.legend(fontsize=7)
    return axes
