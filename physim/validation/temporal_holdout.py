"""Cycles of measured steps, fitted to the earlier ones of each run and held against the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from physim.fitting.earned_levels import earned
from physim.fitting.empirical_bayes import solve
from physim.fitting.fit import check_options
from physim.fitting.objective import Problem
from physim.fitting.observations import observe
from physim.fitting.step_cycles import log_cycles, observe_steps
from physim.kept import kept
from physim.validation.crossval import Crossval

# Of each run's time the first 60% are fitted, the last 20% judged; the rest, between them, is for
# whoever has something to choose.
_EARLY, _LATE = (0.0, 0.6), (0.8, 1.0)

_log_cycles = kept(log_cycles)


def crossval_in_time(
    tables: Sequence[str | Path],
    steps: str | Path,
    where: str | None = None,
    frozen: Sequence[str] = (),
    prior_scale: float = 1.0,
) -> Crossval:
    """Fits to all stages and to the first 60% of each run's cycles, and predicts the last 20%.

    Args:
        tables: CSV files in the common form; see `physim.evaluate`.
        steps: Measured steps of runs in the tables; see `physim.measured.step_trace.read_steps`.
        where: Keeps only rows of the tables for which this expression over the columns holds.
        frozen: Corrections that stay at zero.
        prior_scale: Factor on the widths of all priors.

    Returns:
        Rows of the metric ``cycle``, a fold for each run. The summary has the folds' median
        absolute errors, the correlation of predicted and observed cycles over steps that only
        decode (``correlations``), and that of the batch alone with the observed, which is what a
        straight line drawn through those very steps would have (``of_batch``).

    Raises:
        InputError: A file or an option cannot be used.
    """
    check_options(frozen, prior_scale)
    early, late = (observe_steps(steps, tables, share) for share in (_EARLY, _LATE))
    problem = Problem.from_observed(observe(tables, where), early, tuple(frozen), prior_scale)
    problem, parameters, _ = solve(earned(problem)[0], learns_widths=True)
    frame, seen = late.frame, np.exp(np.asarray(late.cycles.observed))
    runs = frame["experiment"].to_numpy(str)
    decoding = (frame["prefill_requests"] == 0).to_numpy()
    batch = frame["decode_requests"].to_numpy(float)
    rows: list[dict[str, Any]] = []
    summary = []
    fitted = problem.corrections(parameters)[problem.run_branch]
    for method, corrections in (("physim", fitted), ("zero-shot", np.zeros_like(fitted))):
        predicted = np.exp(np.asarray(_log_cycles(corrections, late.cycles)))
        errors = 100 * (predicted / seen - 1)
        rows += [
            {
                "method": method,
                "fold": run,
                "experiment": run,
                "step": int(step),
                "metric": "cycle",
                "observed": float(was),
                "predicted": float(value),
                "error_pct": float(error),
            }
            for run, step, was, value, error in zip(
                runs, frame["step"], seen, predicted, errors, strict=True
            )
        ]
        own = {run: runs == run for run in dict.fromkeys(runs.tolist())}
        folds = {run: float(np.median(np.abs(errors[at]))) for run, at in own.items()}
        summary.append(
            {
                "method": method,
                "metric": "cycle",
                "mape": float(np.mean(np.abs(errors))),
                "mean_of_folds": float(np.mean(list(folds.values()))),
                "worst_fold": max(folds, key=lambda run: folds[run]),
                "folds": folds,
                "refused": 0,
                "correlations": {
                    run: _correlation(predicted[at & decoding], seen[at & decoding])
                    for run, at in own.items()
                },
                "of_batch": {
                    run: _correlation(batch[at & decoding], seen[at & decoding])
                    for run, at in own.items()
                },
            }
        )
    return Crossval("time", rows, summary)


def _correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Pearson's; None where either is constant."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])
