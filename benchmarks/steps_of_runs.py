"""What steps alone say of a server's runs: fits to steps, held against later steps and the runs.

Usage: python benchmarks/steps_of_runs.py STEPS.parquet RUNS.csv

STEPS is a trace of steps of experiments that RUNS has the measured stages of
(`physim.measured.step_trace`). For each experiment a fit to the first half of its steps, from
nothing, predicts the second half, and its stages; beside it is a fit to the stages themselves,
whose errors are in sample.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from physim.corrections.files import NO_FIT, Fit, load_fit
from physim.errors import InputError
from physim.fitting.fit import fit
from physim.fitting.observations import METRICS, Observed, observe
from physim.inputs.case import Case
from physim.measured import step_table
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import grouped, read_tables
from physim.measured.step_files import read_step_files
from physim.measured.step_trace import read_steps
from physim.measured.steps import MeasuredSteps
from physim.prediction.many import predict_cases
from physim.validation.step_errors import compare_steps

_HEADER = (
    "| experiment | steps | later steps: no fit, % | fitted, % | TTFT, ITL, E2E: no fit, % | "
    "fit to steps, % | fit to the runs, in sample, % |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    trace, table = Path(sys.argv[1]), Path(sys.argv[2])
    runs = grouped(read_tables([table]).rows, lambda one: one.row.experiment)
    traced = set(read_steps(trace)["experiment"])
    print(_HEADER)
    every: list[list[list[float]]] = []
    for name, rows in runs.items():
        condition = f"experiment == {name!r}"
        if name not in traced:
            continue
        steps, case = read_step_files([trace], where=condition), case_of(rows, None)
        try:
            observed = observe([table], condition)
        except InputError:
            continue  # overloaded throughout
        every.append(_row(name, steps, case, observed, table, condition))
    mean = np.mean(every, axis=0)
    print("| mean | | | | " + " | ".join(_triple(own) for own in mean) + " |")


def _row(
    name: str, steps: MeasuredSteps, case: Case, observed: Observed, table: Path, condition: str
) -> list[list[float]]:
    steps = steps.completed(case.server.kv.tokens, _context(case))
    half = len(steps) // 2
    with tempfile.TemporaryDirectory() as folder:
        early = Path(folder) / "early.csv"
        step_table.write(early, steps[slice(0, half)])
        of_steps = fit(steps=early, server=case, base=NO_FIT).fit
        of_runs = fit([table], where=condition, base=NO_FIT).fit
        path = Path(folder) / "fit.json"
        of_steps.write(path)
        later = steps[slice(half, None)]
        shown = [_of_steps(later, case, fitted) for fitted in (NO_FIT, str(path))]
    errors = [_errors(observed, one) for one in (load_fit(NO_FIT), of_steps, of_runs)]
    cells = [name, str(len(steps)), *shown, *(_triple(own) for own in errors)]
    print(f"| {' | '.join(cells)} |", flush=True)
    return errors


def _context(case: Case) -> float | None:
    """The mean of the run's load, where the trace does not tell how full the cache is."""
    load = case.demanded
    return load.mean_input + load.mean_output / 2


def _of_steps(steps: MeasuredSteps, case: Case, name: str) -> str:
    whole = compare_steps(steps, case, fit=name).errors[-1]
    return f"{whole.mean_pct:.1f} ({whole.bias_pct:+.1f})"


def _errors(observed: Observed, known: Fit) -> list[float]:
    """Mean absolute errors of stages by metric, percent."""
    corrections = [known.on(case).corrections for case in observed.cases]
    found = predict_cases(observed.cases, corrections)
    values = np.array(
        [[getattr(one, f"{metric}_s") or np.nan for metric in METRICS] for one in found]
    )
    off = np.abs(np.expm1(np.log(values) - np.asarray(observed.stages.observed)))
    known_of = np.where(np.asarray(observed.stages.known), off, np.nan)
    return (100 * np.nanmean(known_of, axis=0)).tolist()


def _triple(errors: Sequence[float]) -> str:
    return ", ".join(f"{error:.1f}" for error in errors)


if __name__ == "__main__":
    main()
