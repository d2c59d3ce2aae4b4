"""``physim evaluate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.comma_lists import names_in
from physim.cli.console import by_reason, stdout, table_of
from physim.cli.load_options import check_seed
from physim.cli.output_options import AsJson, Out, Plot, print_json, write
from physim.cli.run_tables import name_unread_columns
from physim.cli.subject_options import FitName
from physim.metrics import METRICS

if TYPE_CHECKING:
    from rich.table import Table

    from physim.validation.evaluation import Evaluation

_SHOWN = ("e2e", "ttft", "itl")


def evaluate(
    tables: Annotated[
        list[Path],
        typer.Option("--data", metavar="FILE", help="CSV of measured runs; may be repeated."),
    ],
    fit: FitName = "default",
    where: Annotated[
        str | None, typer.Option(help='Only rows for which this holds, such as "tp == 2".')
    ] = None,
    method: Annotated[str, typer.Option(help="fluid, or replay (request by request).")] = "fluid",
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which the clients gave up.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of replayed requests; 0 by default.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst rows to print.")] = 10,
    by: Annotated[
        str,
        typer.Option(
            help="Errors by group, comma-separated: model, gpu, backend, version, layout, "
            "concurrency, population, batch."
        ),
    ] = "",
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Count the rows within their 90% interval, too.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what would explain each of the worst rows.")
    ] = False,
    as_json: AsJson = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Predict every row of tables of measured runs and compare.

    For example:

    physim evaluate --data runs.csv --where "stage >= 0" --by model,gpu
    """
    import physim
    from physim import data
    from physim.cli.progress import running
    from physim.errors import InputError
    from physim.validation.by_group import by_group, check_names

    check_seed(seed, method == "replay", "--method replay")
    names = names_in(by)
    check_names(names)
    name_unread_columns(tables)
    with running("predicting"):
        evaluation = physim.evaluate(tables, fit, where, method, timeout, seed or 0, intervals)
    content = evaluation.to_dict()
    if names:
        content["groups"] = by_group(evaluation, names)
    if out is not None:
        data.write_json(out, content)
    if not evaluation.rows:
        reasons = sorted({row["reason"] for row in evaluation.skipped})
        raise InputError(
            ", ".join(map(str, tables)), "has no row to predict", "; ".join(reasons) or "fill it"
        )
    if as_json:
        print_json(content)
    else:
        _print_evaluation(evaluation, worst, names, content.get("groups", []), explain)
    if plot is not None:
        from physim.plot import draw_evaluation, draw_groups

        write(
            lambda: draw_groups(evaluation, names) if names else draw_evaluation(evaluation), plot
        )


def _print_evaluation(
    evaluation: Evaluation,
    worst: int,
    names: Sequence[str],
    groups: Sequence[Mapping[str, Any]],
    explain: bool,
) -> None:
    from physim.validation.doubts import doubts

    console = stdout()
    if worst > 0:
        count = len(evaluation.rows)
        console.print(
            f"{min(worst, count)} worst of {count} rows: observed, and error of the prediction"
        )
        console.print(_rows(evaluation, worst, explain))
    console.print("errors, percent")
    console.print(_summary(evaluation))
    if groups:
        console.print("mean errors by group, percent")
        console.print(_groups(names, groups))
    for line in doubts(evaluation.rows, evaluation.cases):
        console.print(line, style="yellow")
    for line in by_reason(evaluation.skipped):
        console.print(f"skipped {line}", style="yellow")
    for line in _left_out(evaluation):
        console.print(f"not counted above: {line}", style="yellow")


def _left_out(evaluation: Evaluation) -> Iterator[str]:
    """How many rows are left out of the errors, why, and how large theirs are."""
    from physim.validation.evaluation import summary_of

    for reason in dict.fromkeys(row["reason"] for row in evaluation.left_out):
        rows = [row for row in evaluation.left_out if row["reason"] == reason]
        errors = [
            f"{METRICS[metric].label} {found['mape']:.0f}%"
            for metric in _SHOWN
            if (found := summary_of(rows, f"{metric}_mean"))["n"]
        ]
        yield f"{len(rows)} x {reason} ({', '.join(errors)})"


def _rows(evaluation: Evaluation, worst: int, explain: bool) -> Table:
    columns = ["experiment", "stage"]
    for metric in _SHOWN:
        columns += [f"{METRICS[metric].label} {METRICS[metric].unit}", "error"]
    if explain:
        from physim.validation.suspects import suspect

        columns.append("explained by")
    # By E2E where it was measured, else by what was.
    first = [next(iter(row["metrics"].items())) for row in evaluation.rows]
    ranked = sorted(range(len(first)), key=lambda place: -abs(first[place][1]["error_pct"]))
    rows = []
    for place in ranked[:worst]:
        row = evaluation.rows[place]
        cells = [row["experiment"], str(row["stage"])]
        for metric in _SHOWN:
            values, scale = row["metrics"].get(f"{metric}_mean"), METRICS[metric].scale
            if values is None:
                cells += ["-", "-"]
            else:
                cells += [f"{values['observed'] * scale:.2f}", f"{values['error_pct']:+.1f}%"]
        if explain:
            metric, pair = first[place]
            ratio = pair["observed"] / pair["predicted"]
            found = suspect(evaluation.cases[place], metric.removesuffix("_mean"), ratio)
            cells.append("-" if found is None else f"{found.name} x {found.factor:.2f}")
        rows.append(cells)
    return table_of(columns, rows)


def _groups(names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> Table:
    bounded = any("in_interval_pct" in group["ttft_mean"] for group in groups)
    columns = [*names, "rows", "predicted"]
    for metric in _SHOWN:
        columns += [METRICS[metric].label, "median", *(["within"] if bounded else [])]
    rows = []
    for group in groups:
        cells = [*(group[name] for name in names), str(group["rows"])]
        cells.append(f"{group['predicted_pct']:.0f}%")
        for metric in _SHOWN:
            values = group[f"{metric}_mean"]
            kinds = ["mape", "median_ape", *(["in_interval_pct"] if bounded else [])]
            cells += [
                f"{values[kind]:.0f}%"
                if kind == "in_interval_pct" and kind in values
                else f"{values[kind]:.1f}"
                if kind in values
                else "-"
                for kind in kinds
            ]
        rows.append(cells)
    return table_of(columns, rows)


def _summary(evaluation: Evaluation) -> Table:
    bounded = any("in_interval_pct" in values for values in evaluation.summary.values())
    columns = ["metric", "rows", "mean", "median", "worst", "bias", "within 10%"]
    columns += ["in interval"] if bounded else []
    rows = []
    for metric in _SHOWN:
        values = evaluation.summary[f"{metric}_mean"]
        if values["n"]:
            row = [
                METRICS[metric].label,
                f"{values['n']:.0f}",
                f"{values['mape']:.2f}",
                f"{values['median_ape']:.2f}",
                f"{values['max_ape']:.1f}",
                f"{values['bias_pct']:+.2f}",
                f"{values['within_10pct']:.0f}%",
            ]
            if bounded:
                share = values.get("in_interval_pct")
                row.append("-" if share is None else f"{share:.0f}%")
            rows.append(row)
    return table_of(columns, rows)
