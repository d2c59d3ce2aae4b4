"""Cross-validation: every fold is predicted by a fit that has not seen it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim.corrections.calibration import TWO_SIDED_90
from physim.corrections.files import NO_FIT, load_fit
from physim.corrections.levels import population_of
from physim.data import paths_of
from physim.errors import InputError
from physim.fitting.earned_levels import earned
from physim.fitting.empirical_bayes import solve
from physim.fitting.fit import check_options, merged, new_to, unknown_to
from physim.fitting.objective import Problem
from physim.fitting.observations import METRICS, Observed, groups, observe, weights_of
from physim.fitting.step_cycles import Trace, observe_steps
from physim.fitting.uncertainty import unseen, variance_of
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks
from physim.validation.ablations import ABLATIONS, BLENDS, ablated
from physim.validation.baselines import BASELINES, require_packages

if TYPE_CHECKING:
    import pandas as pd

# A fit whose levels are all open, whether they help rows left out or not.
ALL_LEVELS = "all levels"
# The fit that each starts from, as it is.
UNFITTED = "unfitted"
LEAVE_OUT = ("campaign", "model", "workload", "tp", "hardware", "experiment")


@dataclass(frozen=True)
class Crossval:
    """Left-out rows with their predictions.

    Attributes:
        leave_out: What a fold leaves out.
        rows: For each row and method its fold, what was observed and predicted (seconds), and for
            physim's the interval that nine of ten rows should be in; without a prediction where the
            fold's fit puts the load above capacity.
        summary: For each method and metric the mean of the folds' mean absolute errors and of all
            rows', percent, how many rows have no prediction, and for physim's the share of rows
            within their interval.
    """

    leave_out: str
    rows: Sequence[dict[str, Any]]
    summary: Sequence[dict[str, Any]]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Rows and summary, as JSON holds them."""
        return {"leave_out": self.leave_out, "rows": self.rows, "summary": self.summary}

    def __repr__(self) -> str:
        rows = [("method", "metric", "error %", "mean of folds %", "without")]
        for row in self.summary:
            errors = (f"{row['mape']:.1f}", f"{row['mean_of_folds']:.1f}")
            rows.append((row["method"], row["metric"], *errors, str(row["refused"])))
        return shown(
            self, f"{self.leave_out} left out, {len(self.rows):,} predictions", *aligned(rows)
        )


@told_in_notebooks("cross-validating")
def crossval(
    tables: str | Path | Sequence[str | Path],
    leave_out: str = "model",
    where: str | None = None,
    methods: Sequence[str] = ("physim", "zero-shot"),
    frozen: Sequence[str] = (),
    prior_scale: float = 1.0,
    steps: str | Path | None = None,
    base: str | Path = NO_FIT,
    progress: Callable[[str, str], Any] = lambda *_: None,
) -> Crossval:
    """Leaves out a group of rows at a time, fits to the others, and predicts it.

    Args:
        tables: CSV files in the common form; see `physim.evaluate`.
        leave_out: ``campaign`` (the rows of a table), ``model``, ``workload`` (runs of equal prompt
            and output lengths), ``tp``, ``hardware`` or ``experiment``.
        where: Keeps only rows for which this expression over the columns holds.
        methods: ``physim``, ``zero-shot``, ``unfitted`` (the base as it is), ``all levels`` (a fit
            none of whose levels had to be earned), a baseline of
            `physim.validation.baselines.BASELINES`, or an ablation of
            `physim.validation.ablations.ABLATIONS` or, without a fit, of ``BLENDS``.
        frozen: Corrections that stay at zero.
        prior_scale: Factor on the widths of all priors.
        steps: Measured steps of runs in the tables, which each fit learns from too, but for those
            of runs that it leaves out; see `physim.measured.step_trace.read_steps`.
        base: Name or path of the fit that each starts from, which should not know the rows.
        progress: Called before each fold with the method's and the fold's name.

    Raises:
        InputError: A table or an option cannot be used, or there are less than two folds.
    """
    if leave_out not in LEAVE_OUT:
        raise InputError(
            "leave-out", f"{leave_out!r} is unknown", f"use one of {', '.join(LEAVE_OUT)}"
        )
    check_options(frozen, prior_scale)
    known = ("physim", "zero-shot", UNFITTED, ALL_LEVELS, *BASELINES, *ABLATIONS, *BLENDS)
    for method in methods:
        if method not in known:
            raise InputError("method", f"{method!r} is unknown", f"use one of {', '.join(known)}")
        require_packages(method)
    tables = paths_of(tables, "tables")
    before = load_fit(base)
    unknown_to(before, tables)
    observed = new_to(before, observe(tables, where))
    folds = groups(observed.rows, leave_out)
    if len(set(folds)) < 2:
        raise InputError(
            "leave-out", f"all rows are of one {leave_out}", "pass more data, or leave out another"
        )
    trace = observe_steps(steps, tables) if steps is not None else None
    rows = []
    for method in methods:
        predict = _predictor(method, observed, trace, tuple(frozen), prior_scale, base)
        for fold in dict.fromkeys(folds):
            progress(method, fold)
            outside = np.array(folds) == fold
            logs, half = predict(outside)
            rows += _rows(observed, method, fold, outside, logs, half)
    return Crossval(leave_out, rows, _summary(rows, methods))


Predictor = Callable[
    [np.ndarray],
    tuple[Float[np.ndarray, "rows metrics"], Float[np.ndarray, "rows metrics"] | None],
]


def _predictor(
    method: str,
    observed: Observed,
    trace: Trace | None,
    frozen: tuple[str, ...],
    prior_scale: float,
    base: str | Path,
) -> Predictor:
    """A function from the rows left out to logarithms of all predictions and intervals' halves."""
    if method in BASELINES:
        return lambda outside: (BASELINES[method](observed, ~outside), None)
    before = load_fit(base)
    problem = Problem.from_observed(observed, trace, frozen, prior_scale, before)
    if method in (*ABLATIONS, *BLENDS):
        problem = ablated(method, problem)
    shape, stages = observed.stages.observed.shape, slice(observed.stages.observed.size)
    populations = [population_of(case) for case in observed.cases]
    if method in ("zero-shot", UNFITTED, *BLENDS):
        bare = problem
        if method != UNFITTED:
            bare = replace(problem, start=np.zeros_like(problem.start))
        values = bare.deviations(bare.centre).sizes[stages].reshape(shape)
        return lambda _: (observed.stages.observed + values * problem.noise[problem.source], None)

    def fitted(outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = np.zeros(len(outside))
        weight[~outside] = weights_of([observed.rows[i] for i in np.flatnonzero(~outside).tolist()])
        known = observed.column("experiment")[~outside].tolist()
        own = replace(
            problem,
            stages=replace(problem.stages, weight=weight),
            cycles=trace.of_experiments(known).cycles if trace else None,
        )
        if before.evidence is None and method != ALL_LEVELS:
            own, _ = earned(own)
        own, parameters, _ = solve(own, before.evidence is None)
        known_of = own.spread(own.deviations(parameters))
        # Deviations of rows without weight are not counted, so all rows are asked apart.
        found = replace(own, stages=problem.stages, cycles=None).deviations(parameters)
        noise = own.noise[own.source]
        off = found.sizes[stages].reshape(shape) * noise
        variance = variance_of(
            known_of, observed.branches, found.slopes[stages].reshape(*shape, -1)
        )
        scatters = merged(before.scatter, unseen(own, parameters, observed))
        scattered = np.array(
            [[scatters.get(one, {}).get(m, 0.0) for m in METRICS] for one in populations]
        )
        half = np.sqrt(variance * noise**2 + scattered**2)
        return observed.stages.observed + off, TWO_SIDED_90 * half

    return fitted


def _rows(
    observed: Observed,
    method: str,
    fold: str,
    outside: np.ndarray,
    logs: np.ndarray,
    half: np.ndarray | None,
) -> list[dict[str, Any]]:
    rows = []
    for place in np.flatnonzero(outside).tolist():
        row = observed.rows[place].row
        for column, metric in enumerate(METRICS):
            if not observed.stages.known[place, column]:
                continue
            seen, log = float(np.exp(observed.stages.observed[place, column])), logs[place, column]
            entry = {
                "method": method,
                "fold": fold,
                "experiment": row.experiment,
                "stage": row.stage,
                "metric": metric,
                "observed": seen,
            }
            rows.append(entry)
            if not np.isfinite(log):
                continue
            entry["predicted"] = float(np.exp(log))
            entry["error_pct"] = float(np.exp(log) / seen - 1) * 100
            if half is not None:
                entry["low"] = float(np.exp(log - half[place, column]))
                entry["high"] = float(np.exp(log + half[place, column]))
    return rows


def _summary(rows: Sequence[dict[str, Any]], methods: Sequence[str]) -> list[dict[str, Any]]:
    summary = []
    for method in methods:
        for metric in METRICS:
            asked = [row for row in rows if row["method"] == method and row["metric"] == metric]
            own = [row for row in asked if "error_pct" in row]
            if not own:
                continue
            folds: dict[str, list[float]] = {}
            for row in own:
                folds.setdefault(row["fold"], []).append(abs(row["error_pct"]))
            entry: dict[str, Any] = {
                "method": method,
                "metric": metric,
                "mape": float(np.mean([abs(row["error_pct"]) for row in own])),
                "mean_of_folds": float(np.mean([np.mean(errors) for errors in folds.values()])),
                "worst_fold": max(folds, key=lambda fold: float(np.mean(folds[fold]))),
                "folds": {fold: float(np.mean(errors)) for fold, errors in folds.items()},
                "refused": len(asked) - len(own),
            }
            bounded = [row for row in own if "low" in row]
            if bounded:
                within = [row["low"] <= row["observed"] <= row["high"] for row in bounded]
                entry["coverage"] = float(np.mean(within))
            summary.append(entry)
    return summary
