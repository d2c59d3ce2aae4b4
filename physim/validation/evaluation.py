"""Predictions held against a table of measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.corrections.levels import population_of
from physim.engines.profile import DEFAULT_ENGINE
from physim.errors import InputError
from physim.inputs.case import Case
from physim.measured.run_cases import (
    WHOLE_RUN,
    case_of,
    degrees_of,
    lasting,
    measured,
    stages_of,
)
from physim.measured.runs_csv import TableRow, grouped, read_tables
from physim.measured.schema import RunRow
from physim.prediction.apart import check_stays
from physim.prediction.intervals import predict_with_intervals
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction, StageLatencies
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks

if TYPE_CHECKING:
    import pandas as pd

# Mean times between tokens and of requests' means of them are one number, by either name.
METRICS = ("e2e_mean", "ttft_mean", "itl_mean", "tpot_mean")
# Upper ends of the batches that are told apart: a small one hangs on memory and what kernels cost
# at least, a large one on arithmetic and on what is done for each request.
_BATCH_ENDS = (16, 64, 256)
_BATCHES = ("1 to 16", "17 to 64", "65 to 256", "more than 256")


@dataclass(frozen=True)
class Evaluation:
    """Measured rows beside their predictions.

    Attributes:
        rows: For each row that could be predicted its identity and, by metric, what was observed
            and predicted (seconds), the error (percent) and, if asked for, the ends ``low`` and
            ``high`` of the interval that nine of ten rows should be in.
        summary: For each metric the number of rows and statistics of their errors, percent.
        skipped: Rows that could not be predicted, each with its identity and the reason.
        cases: The case of each of the rows, under the load of its stage alone.
        left_out: Rows that no error above counts, like ``rows``, each with the reason.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, dict[str, float]]
    skipped: list[dict[str, Any]]
    cases: Sequence[Case] = field(default=(), repr=False)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table, a column for each metric's observed, predicted and error."""
        import pandas as pd

        flat = []
        for row in self.rows:
            metrics = {
                f"{metric}_{kind}": value
                for metric, values in row["metrics"].items()
                for kind, value in values.items()
            }
            flat.append({k: v for k, v in row.items() if k != "metrics"} | metrics)
        return pd.DataFrame(flat)

    def to_dict(self) -> dict[str, Any]:
        """Rows, summary, and rows that are skipped or left out, as JSON holds them."""
        return {
            "rows": self.rows,
            "summary": self.summary,
            "skipped": self.skipped,
            "left_out": self.left_out,
        }

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("metric", "rows", "mean error %", "median %", "bias %")]
        for metric, own in self.summary.items():
            if own.get("n"):
                errors = (f"{own[name]:.1f}" for name in ("mape", "median_ape", "bias_pct"))
                rows.append((metric, f"{own['n']:g}", *errors))
        others = f"{len(self.skipped)} skipped, {len(self.left_out)} left out"
        return shown(self, f"{len(self.rows):,} rows, {others}", *aligned(rows))


@told_in_notebooks("predicting measured runs")
def evaluate(
    tables: str | Path | Sequence[str | Path],
    fit: str | Path = DEFAULT_FIT,
    where: str | None = None,
    method: str = "fluid",
    timeout_s: float | None = None,
    seed: int = 0,
    intervals: bool = False,
) -> Evaluation:
    """Predicts every row of tables of measured runs and compares.

    The stages of a run follow one another, so that a queue is carried from one to the next; its
    overall row (stage -1) is compared with all its requests. Rows that a table leaves out
    (``left_out``), and those of speculative decoding, are predicted and counted apart.

    Args:
        tables: CSV files of one row for each stage of a run, in the common form: identity
            (``experiment``, ``stage``, ``model``, ``hardware``, ``tp``), the server's limits, the
            load (``arrival``, ``rate_rps``, ``duration_s``, ``prefix_caching``, ``prompt_groups``,
            ``input_len_mean``, ``output_len``) and what was measured (``ttft_mean`` and
            ``e2e_mean``, or ``itl_mean``), in seconds and tokens.
            A row may name the trace of its requests in ``lengths``, and that of its arrivals in
            ``arrival``. `physim.measured.schema.RunRow` has all columns, their units and which may
            be left out.
        fit: Name or path of a fit, ``default``, or ``none`` for the physics alone.
        where: Keeps only rows for which this expression over the columns holds.
        method: ``fluid`` or ``replay``.
        timeout_s: Time after which the clients gave up; None for never.
        seed: Seed of the replay's requests.
        intervals: Whether to give each prediction its interval, which takes some thirty more; only
            of the fluid's.

    Raises:
        InputError: A file cannot be read, lacks a column, or holds a value that is missing, out
            of range or in contradiction with another; or the replay is asked for intervals.
    """
    if intervals and method != "fluid":
        raise InputError("intervals", f"are not known for the {method}", "use --method fluid")
    table = read_tables(tables)
    runs = grouped(table.rows, _run)
    cases, skipped, wanted = [], [], []
    for key, some in grouped(table.where(where), _run).items():
        try:
            case = case_of(runs[key], timeout_s)
            if method == "fluid" and len(case.service.pools) > 1:
                check_stays(case)
            cases.append(case)
            wanted.append(some)
        except InputError as error:
            skipped += [_identity(one.row) | {"reason": str(error)} for one in some]
    known = load_fit(fit)
    fits = [known.on(case) for case in cases]
    if intervals:
        predictions = predict_with_intervals(cases, fits)
    else:
        corrections = [fit.corrections for fit in fits]
        predictions = predict_cases(cases, corrections, str(fit), method=method, seed=seed)
    rows, of_rows, left_out = [], [], []
    for some, case, prediction in zip(wanted, cases, predictions, strict=True):
        for one in some:
            part = _part_of(one.row, runs[_run(one)], prediction)
            compared = _compared(one.row, part, prediction) | {
                "population": population_of(case),
                "batch": batch_of(prediction.pools[-1].running),
            }
            if one.row.left_out:
                left_out.append(compared | {"reason": one.row.left_out})
            else:
                rows.append(compared)
                of_rows.append(lasting(case, one.row))
    summary = {metric: summary_of(rows, metric) for metric in METRICS}
    return Evaluation(rows, summary, skipped, of_rows, left_out)


def batch_of(requests: float) -> str:
    """What a number of running requests is called where rows are grouped by it."""
    return _BATCHES[sum(requests > end for end in _BATCH_ENDS)]


def _run(one: TableRow) -> tuple[Path, str]:
    """What a row is a stage of: a run of its own table."""
    return one.table, one.run


def _part_of(row: RunRow, run: Sequence[TableRow], prediction: Prediction) -> StageLatencies:
    """The part of a run's prediction that a row is about."""
    if row.stage == WHOLE_RUN or not prediction.stages:
        return prediction.whole
    return prediction.stages[[one.row.stage for one in stages_of(run)].index(row.stage)]


def _identity(row: RunRow) -> dict[str, Any]:
    """What a row is of."""
    degrees = {name: degree for name, degree in degrees_of(row).items() if degree > 1}
    layout = " ".join(f"{name}{degree}" for name, degree in degrees.items()) or "tp1"
    return {
        "experiment": row.experiment,
        "stage": row.stage,
        "model": row.model,
        "hardware": row.hardware,
        "tp": row.tp,
        "layout": layout if row.replicas in (None, 1) else f"{layout} x{row.replicas}",
        "engine": row.engine or DEFAULT_ENGINE,
        "engine_version": row.engine_version,
        "concurrency": row.concurrency,
    }


def _compared(row: RunRow, part: StageLatencies, prediction: Prediction) -> dict[str, Any]:
    means = {metric: values["mean"] for metric, values in part.latencies.items()}
    seen = measured(row)
    observed = {f"{metric}_mean": value for metric, value in seen.items()}
    predicted = {f"{metric}_mean": means[metric] for metric in seen if metric != "itl"}
    if "itl" in means:
        observed["tpot_mean"] = observed["itl_mean"]
        predicted["itl_mean"] = predicted["tpot_mean"] = means["tpot"]
    metrics = {
        metric: {
            "observed": observed[metric],
            "predicted": predicted[metric],
            "error_pct": (predicted[metric] / observed[metric] - 1) * 100,
            **_ends(metric, predicted[metric], prediction),
        }
        for metric in METRICS
        if metric in observed
    }
    return _identity(row) | {"metrics": metrics}


def _ends(metric: str, predicted: float, prediction: Prediction) -> dict[str, float]:
    """The ends of the interval of a row's mean, as far apart as those of the run's."""
    name = {"tpot_mean": "itl_s"}.get(metric, metric.replace("_mean", "_s"))
    value = getattr(prediction, name)
    if value is None or name not in prediction.intervals:
        return {}
    low, high = prediction.intervals[name]
    return {"low": predicted * low / value, "high": predicted * high / value}


def summary_of(rows: Sequence[dict[str, Any]], metric: str) -> dict[str, float]:
    """Number of the rows that have a metric, and statistics of their errors, percent.

    Args:
        rows: Rows of an `Evaluation`.
        metric: One of `METRICS`.
    """
    import statistics

    pairs = [row["metrics"][metric] for row in rows if metric in row["metrics"]]
    errors = [pair["error_pct"] for pair in pairs]
    if not errors:
        return {"n": 0}
    absolute = [abs(error) for error in errors]
    within = [pair["low"] <= pair["observed"] <= pair["high"] for pair in pairs if "low" in pair]
    bounded = {"in_interval_pct": 100 * statistics.fmean(within)} if within else {}
    return bounded | {
        "n": len(errors),
        "mape": statistics.fmean(absolute),
        "median_ape": statistics.median(absolute),
        "max_ape": max(absolute),
        "bias_pct": statistics.fmean(errors),
        "within_10pct": 100 * sum(error <= 10 for error in absolute) / len(absolute),
    }
