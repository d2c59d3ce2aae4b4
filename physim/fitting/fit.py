"""``physim.fit``: from tables of measured runs to a fit and a report on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from physim.corrections.fields import Corrections, flat, labels
from physim.corrections.files import DEFAULT_FIT, TWO_SIDED_90, Fit, load_fit
from physim.errors import InputError
from physim.fitting.objective import Problem, Vector
from physim.fitting.observations import METRICS, NOISE, Observed, observe
from physim.fitting.optimise import minimise
from physim.fitting.shrinkage import Shrinkage, shrinkage
from physim.fitting.step_cycles import observe_steps
from physim.fitting.uncertainty import covariance, unseen
from physim.prediction.intervals import quantities
from physim.prediction.many import predict_cases

# From so many standard deviations on a row is distrusted.
_DISTRUST = 3.0


@dataclass(frozen=True)
class Estimate:
    """A fitted correction, as a logarithm.

    Attributes:
        name: Its name.
        prior: Standard deviation of its prior, whose mean is zero.
        value: What the fit found; zero if it was held fast.
        low: The 5th percentile of what it may be.
        high: The 95th.
        moved_by: Experiments that determine it most, each with its share in what is known of it.
    """

    name: str
    prior: float
    value: float
    low: float
    high: float
    moved_by: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """A fit, and what there is to say of it.

    Attributes:
        fit: The fit, ready to be written.
        estimates: Its corrections; of the residual only whether it is used.
        rows: Each measured stage with its errors before and after, percent, in sample.
        distrusted: Rows that the fit bends away from.
        left_out: Rows that were not used, each with the reason.
        losses: The loss after each step.
        shrinkage: What runs that were held back say of it; None if none were.
    """

    fit: Fit
    estimates: Sequence[Estimate]
    rows: Sequence[Mapping[str, Any]]
    distrusted: Sequence[Mapping[str, Any]]
    left_out: Sequence[Mapping[str, Any]]
    losses: Sequence[float]
    shrinkage: Shrinkage | None = None


def fit(
    tables: Sequence[str | Path],
    steps: str | Path | None = None,
    where: str | None = None,
    frozen: Sequence[str] = (),
    prior_scale: float = 1.0,
    seed: int = 0,
    name: str = "fit",
    progress: Callable[[int, float], Any] = lambda *_: None,
) -> Outcome:
    """Fits the corrections to measured runs, as far as that predicts runs held back.

    Groups of runs are held back in turn (`physim.fitting.shrinkage`); where a fit to the rest does
    not predict them better than none for sure, the corrections stay at their prior.

    Args:
        tables: CSV files in the common form; see `physim.evaluate`.
        steps: Measured steps of runs in the tables; see `physim.measured.step_trace.read_steps`.
        where: Keeps only rows for which this expression over the columns holds.
        frozen: Corrections that stay at zero.
        prior_scale: Factor on the widths of all priors.
        seed: Seed of the residual's first weights, beside the prior's centre; 0 for the centre.
        name: Name of the fit.
        progress: Called after each step with its number and the loss.

    Raises:
        InputError: A file or an option cannot be used, or no row is left.
    """
    check_options(frozen, prior_scale)
    if seed < 0:
        raise InputError("seed", f"{seed} is negative", "use 0 or more")
    observed = observe(tables, where)
    cycles = observe_steps(steps, tables)[0] if steps is not None else None
    whole = Problem.of(observed.stages, cycles, tuple(frozen), prior_scale)
    shrunk = shrinkage(whole, observed.rows)
    problem = shrunk.of(whole)
    parameters, losses = solve(problem, seed, progress)
    record = {
        "physim_version": version("physim-llm"),
        "data": {
            Path(path).name: _hash(Path(path)) for path in (*tables, *([steps] if steps else []))
        },
        "where": where,
        "frozen": list(frozen),
        "prior_scale": prior_scale,
        "seed": seed,
        "shrinkage": asdict(shrunk),
    }
    return concluded(observed, problem, parameters, losses, name, record, shrunk)


def check_options(frozen: Sequence[str], prior_scale: float) -> None:
    """Refuses what cannot be fitted so.

    Raises:
        InputError: A correction is unknown, or the scale is not positive.
    """
    known = list(dict.fromkeys(label.partition("[")[0] for label in labels()))
    for correction in frozen:
        if correction not in known:
            raise InputError(
                f"freeze: {correction!r}", "is not a correction", f"use one of {', '.join(known)}"
            )
    if not (np.isfinite(prior_scale) and prior_scale > 0):
        raise InputError("prior scale", f"{prior_scale:g} is not positive", "correct it")


def solve(
    problem: Problem, seed: int = 0, progress: Callable[[int, float], Any] = lambda *_: None
) -> tuple[Vector, list[float]]:
    """The solution of a problem, from the prior's centre or, with a seed, from beside it."""
    start = np.zeros(len(problem.widths))
    if seed:
        start = 0.1 * np.random.default_rng(seed).normal(size=len(start)) * (problem.widths > 0)
    return minimise(problem, start, progress)


def concluded(
    observed: Observed,
    problem: Problem,
    parameters: Vector,
    losses: Sequence[float],
    name: str,
    record: Mapping[str, Any],
    shrunk: Shrinkage | None = None,
) -> Outcome:
    """A solved problem as a fit with a report.

    Args:
        observed: The stages.
        problem: The problem.
        parameters: Its solution.
        losses: How it was found.
        name: Name of the fit.
        record: What else the fit's file is to say.
        shrunk: What runs that were held back say of it.
    """
    corrections = problem.corrections(parameters)
    # Corrections that all stay at their prior say nothing of their spread but what rows scatter.
    found = covariance(problem, parameters) if np.any(problem.widths) else None
    before, after = _errors(problem, np.zeros_like(parameters)), _errors(problem, parameters)
    rows = [
        {
            "experiment": row["experiment"],
            "stage": int(row["stage"]),
            "model": row["model"],
            **{
                f"{metric}_{when}": round(float(errors[place, column]), 2)
                for column, metric in enumerate(METRICS)
                for when, errors in (("before", before), ("after", after))
                if observed.stages.known[place, column]
            },
        }
        for place, row in enumerate(observed.rows)
    ]
    known = observed.stages.known
    metrics = {
        metric: {
            when: round(float(np.mean(np.abs(errors[known[:, column], column]))), 2)
            for when, errors in (("before", before), ("after", after))
        }
        for column, metric in enumerate(METRICS)
        if np.any(known[:, column])
    }
    distrusted = [
        {"experiment": row["experiment"], "stage": int(row["stage"]), "metric": metric}
        | {"error_pct": round(float(after[place, column]), 1)}
        for place, row in enumerate(observed.rows)
        for column, metric in enumerate(METRICS)
        if known[place, column]
        and abs(np.log1p(after[place, column] / 100)) > _DISTRUST * NOISE[column]
    ]
    result = Fit(
        name=name,
        corrections=corrections,
        covariance=found,
        # What the runs do not tell is as uncertain as before them.
        scatter={**load_fit(DEFAULT_FIT).scatter, **unseen(problem, parameters, observed.rows)},
        ranges=_ranges(observed, corrections),
        gpus=sorted({case.gpu.key for case in observed.cases}),
        record={
            **record,
            "rows": len(observed.rows),
            "in_sample_mape": metrics,
            "distrusted": distrusted,
            "left_out": list(observed.left_out),
            "losses": [round(loss, 3) for loss in losses],
        },
    )
    estimates = _estimates(observed, problem, parameters, result)
    return Outcome(result, estimates, rows, distrusted, observed.left_out, losses, shrunk)


def _errors(problem: Problem, parameters: Vector) -> np.ndarray:
    """Errors of the stages, percent."""
    values = problem.deviations(parameters).sizes[: problem.stages.observed.size]
    logs = values.reshape(problem.stages.observed.shape) * NOISE
    return np.asarray(100 * np.expm1(logs))


def _ranges(observed: Observed, corrections: Corrections) -> dict[str, tuple[float, float]]:
    """Least and largest of what the stages covered."""
    predictions = predict_cases(observed.cases, corrections)
    found = [
        quantities(case, prediction)
        for case, prediction in zip(observed.cases, predictions, strict=True)
    ]
    return {
        name: (min(one[name] for one in found), max(one[name] for one in found))
        for name in found[0]
    }


def _estimates(
    observed: Observed, problem: Problem, parameters: Vector, result: Fit
) -> list[Estimate]:
    """Corrections with intervals, and the experiments that determine each.

    An experiment's share is that of the curvature along the correction which its rows make up.
    """
    _, slopes = problem.deviations(parameters).bent()
    count = problem.stages.observed.size
    experiments = np.repeat([str(row["experiment"]) for row in observed.rows], len(METRICS))
    values = flat(result.corrections)
    known = result.covariance
    spreads = np.zeros_like(values) if known is None else np.sqrt(np.diag(known))
    estimates = []
    for place, label in enumerate(labels()):
        if "[" in label:
            continue
        squares = slopes[:, place] ** 2
        shares = {
            str(experiment): float(np.sum(squares[:count][experiments == experiment]))
            for experiment in dict.fromkeys(experiments)
        }
        shares["steps"] = float(np.sum(squares[count:]))
        # What the prior contributes, whose curvature is one.
        whole = sum(shares.values()) + 1.0
        ranked = sorted(shares.items(), key=lambda item: -item[1])[:3]
        half = TWO_SIDED_90 * spreads[place]
        estimates.append(
            Estimate(
                name=label,
                prior=float(problem.widths[place]),
                value=float(values[place]),
                low=float(values[place] - half),
                high=float(values[place] + half),
                moved_by={n: share / whole for n, share in ranked if share > 0.05 * whole},
            )
        )
    return estimates


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
