"""``physim evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from physim.evaluate import Evaluation

_LABELS = {"e2e_mean": "E2E", "ttft_mean": "TTFT", "itl_mean": "ITL"}


def evaluate(
    tables: Annotated[
        list[Path], typer.Option("--data", help="CSV of measured runs; may be repeated.")
    ],
    fit: Annotated[
        str, typer.Option(help="A fit of `physim show fits`, a fit file, or none.")
    ] = "none",
    where: Annotated[
        str | None, typer.Option(help="Only rows for which this holds, such as \"tp == 2\".")
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write rows, summary and skipped rows here.")
    ] = None,
    worst: Annotated[int, typer.Option(help="How many of the worst rows to print.")] = 10,
) -> None:
    """Predict every row of tables of measured runs and compare.

    Example: physim evaluate --data runs.csv --where "stage >= 0" --json errors.json
    """
    import physim
    from physim.errors import InputError

    evaluation = physim.evaluate(tables, fit, where)
    if json_out:
        evaluation.write_json(json_out)
    if not evaluation.rows:
        reasons = sorted({row["reason"] for row in evaluation.skipped})
        raise InputError(
            ", ".join(map(str, tables)), "has no row to predict", "; ".join(reasons) or "fill it"
        )
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_rows(evaluation, worst))
    console.print(_summary(evaluation))
    reasons: dict[str, int] = {}
    for row in evaluation.skipped:
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    for reason, count in reasons.items():
        console.print(f"skipped {count} row{'s'[: count > 1]}: {reason}", style="yellow")


def _rows(evaluation: Evaluation, worst: int) -> Table:
    from rich.table import Table

    table = Table(title=f"worst of {len(evaluation.rows)} rows by E2E", title_justify="left")
    table.add_column("experiment", overflow="ellipsis", no_wrap=True)
    table.add_column("stage", justify="right")
    for label in _LABELS.values():
        table.add_column(f"{label} s", justify="right")
        table.add_column("error", justify="right", style="bold")
    ranked = sorted(
        evaluation.rows, key=lambda row: -abs(row["metrics"]["e2e_mean"]["error_pct"])
    )
    for row in ranked[:worst]:
        cells = [row["experiment"], str(row["stage"])]
        for metric in _LABELS:
            values = row["metrics"].get(metric)
            cells += ["-", "-"] if values is None else [
                f"{values['observed']:.4g}",
                f"{values['error_pct']:+.1f}%",
            ]
        table.add_row(*cells)
    return table


def _summary(evaluation: Evaluation) -> Table:
    from rich.table import Table

    table = Table(title="errors, percent", title_justify="left")
    for column in ("metric", "rows", "mean", "median", "worst", "bias", "within 10%"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for metric, label in _LABELS.items():
        values = evaluation.summary[metric]
        if values["n"]:
            table.add_row(
                label,
                f"{values['n']:.0f}",
                f"{values['mape']:.2f}",
                f"{values['median_ape']:.2f}",
                f"{values['max_ape']:.1f}",
                f"{values['bias_pct']:+.2f}",
                f"{values['within_10pct']:.0f}%",
            )
    return table
