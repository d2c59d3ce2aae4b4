"""``physim evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from physim.cli.console import by_reason, stdout, table_of
from physim.cli.output_options import AsJson, Out, Plot, print_json, write
from physim.cli.subject_options import FitName
from physim.metrics import METRICS

if TYPE_CHECKING:
    from rich.table import Table

    from physim.validation.evaluation import Evaluation

_SHOWN = ("e2e", "ttft", "itl")


def evaluate(
    tables: Annotated[
        list[Path], typer.Option("--data", help="CSV of measured runs; may be repeated.")
    ],
    fit: FitName = "default",
    where: Annotated[
        str | None, typer.Option(help='Only rows for which this holds, such as "tp == 2".')
    ] = None,
    method: Annotated[
        str, typer.Option(help="fluid, or replay for every request one by one.")
    ] = "fluid",
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which the clients gave up.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of replayed requests.")] = 0,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst rows to print.")] = 10,
    as_json: AsJson = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Predict every row of tables of measured runs and compare.

    For example:

    physim evaluate --data runs.csv --where "stage >= 0" --out errors.json
    """
    import physim
    from physim import data
    from physim.cli.progress import running
    from physim.errors import InputError

    with running("predicting"):
        evaluation = physim.evaluate(tables, fit, where, method, timeout, seed)
    if out is not None:
        data.write_json(out, evaluation.to_dict())
    if not evaluation.rows:
        reasons = sorted({row["reason"] for row in evaluation.skipped})
        raise InputError(
            ", ".join(map(str, tables)), "has no row to predict", "; ".join(reasons) or "fill it"
        )
    if as_json:
        print_json(evaluation.to_dict())
    else:
        _print_evaluation(evaluation, worst)
    if plot is not None:
        from physim.plot import draw_evaluation

        write(lambda: draw_evaluation(evaluation), plot)


def _print_evaluation(evaluation: Evaluation, worst: int) -> None:
    from rich.text import Text

    console = stdout()
    if worst > 0:
        count = len(evaluation.rows)
        console.print(
            f"{min(worst, count)} worst of {count} rows: observed, and error of the prediction"
        )
        console.print(_rows(evaluation, worst))
    console.print("errors, percent")
    console.print(_summary(evaluation))
    for line in by_reason(evaluation.skipped):
        console.print(Text(f"skipped {line}", style="yellow"))


def _rows(evaluation: Evaluation, worst: int) -> Table:
    columns = ["experiment", "stage"]
    for metric in _SHOWN:
        columns += [f"{METRICS[metric].label} {METRICS[metric].unit}", "error"]
    # By E2E where it was measured, else by what was.
    ranked = sorted(
        evaluation.rows, key=lambda row: -abs(next(iter(row["metrics"].values()))["error_pct"])
    )
    rows = []
    for row in ranked[:worst]:
        cells = [row["experiment"], str(row["stage"])]
        for metric in _SHOWN:
            values, scale = row["metrics"].get(f"{metric}_mean"), METRICS[metric].scale
            if values is None:
                cells += ["-", "-"]
            else:
                cells += [f"{values['observed'] * scale:.2f}", f"{values['error_pct']:+.1f}%"]
        rows.append(cells)
    return table_of(columns, rows)


def _summary(evaluation: Evaluation) -> Table:
    rows = []
    for metric in _SHOWN:
        values = evaluation.summary[f"{metric}_mean"]
        if values["n"]:
            rows.append(
                (
                    METRICS[metric].label,
                    f"{values['n']:.0f}",
                    f"{values['mape']:.2f}",
                    f"{values['median_ape']:.2f}",
                    f"{values['max_ape']:.1f}",
                    f"{values['bias_pct']:+.2f}",
                    f"{values['within_10pct']:.0f}%",
                )
            )
    return table_of(("metric", "rows", "mean", "median", "worst", "bias", "within 10%"), rows)
