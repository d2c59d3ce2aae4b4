"""``physim fit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.comma_lists import names_in
from physim.cli.console import by_reason, stdout, table_of
from physim.cli.output_options import AsJson, Plot, print_json, writable, write
from physim.cli.subject_options import known_fits
from physim.metrics import METRICS

if TYPE_CHECKING:
    from rich.table import Table

    from physim.fitting.fit import Estimate, Outcome

_FITTED = ("ttft", "itl", "e2e")


def fit(
    tables: Annotated[
        list[Path], typer.Option("--data", help="CSV of measured runs; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="The fit file to write.", callback=writable)],
    steps: Annotated[
        Path | None, typer.Option(help="Measured steps of runs in the tables (Parquet or CSV).")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='Only rows for which this holds, such as "tp == 2".')
    ] = None,
    base: Annotated[
        str,
        typer.Option(
            "--from",
            help="The fit to start from: default, another, or none.",
            autocompletion=known_fits,
        ),
    ] = "default",
    freeze: Annotated[str, typer.Option(help="Corrections that stay as they are, by commas.")] = "",
    prior_scale: Annotated[float, typer.Option(help="Factor on the width of all priors.")] = 1.0,
    optimiser: Annotated[
        str, typer.Option(help="levenberg-marquardt, lbfgs or adam.")
    ] = "levenberg-marquardt",
    seed: Annotated[int, typer.Option(help="Where to start; 0 where the fit before is.")] = 0,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Fit the corrections to measured runs and write them with what is known of them.

    It starts from the default fit, and moves it as far as the runs can tell beside those that it
    knows. Rows of overloaded stages are left out, and listed. The errors printed are in sample: for
    those on unseen runs use `physim crossval`.

    For example:

    physim fit --data runs.csv --freeze residual,experts --out my-gpu.json
    """
    from physim.cli.progress import running
    from physim.fitting.fit import fit as fit_tables

    frozen = names_in(freeze)
    with running("fitting") as say:
        outcome = fit_tables(
            tables,
            steps=steps,
            where=where,
            base=base,
            frozen=frozen,
            prior_scale=prior_scale,
            optimiser=optimiser,
            seed=seed,
            name=out.stem,
            progress=lambda step, loss: say(f"step {step + 1}, loss {loss:.2f}"),
        )
    outcome.fit.write(out)
    if as_json:
        print_json(outcome.fit.to_dict())
    else:
        _print_outcome(outcome, out)
    if plot is not None:
        from physim.plot import draw_fit

        write(lambda: draw_fit(outcome), plot)


def _print_outcome(outcome: Outcome, out: Path) -> None:
    console, losses = stdout(), outcome.losses
    console.print(f"{len(outcome.rows)} rows, {len(losses) - 1} iterations, loss {_curve(losses)}")
    console.print()
    console.print(
        "factors on components of what all rows have in common: before and after the fit, 90%"
    )
    console.print(estimates_table(outcome.estimates))
    console.print("mean absolute error of an experiment, percent, in sample: before and after")
    console.print(_experiments(outcome))
    for line in by_reason(outcome.left_out):
        console.print(f"left out {line}", style="yellow")
    if outcome.distrusted:
        console.print("Outliers, which count less:", style="yellow")
    for row in outcome.distrusted:
        console.print(
            f"  {row['experiment']} stage {row['stage']}: "
            f"{METRICS[row['metric']].label} {row['error_pct']:+.1f}%",
            style="yellow",
        )
    for one in outcome.fit.record.get("earned", ()):
        console.print(
            f"{one['correction']} of {one['node']} may move: errors of rows left out fall by "
            f"{one['gain']:.1%} (standard error {one['error']:.1%})"
        )
    console.print("scatter of unseen runs, beyond the fit's own uncertainty:")
    for name, own in outcome.fit.scatter.items():
        values = ", ".join(f"{METRICS[metric].label} {value:.1%}" for metric, value in own.items())
        console.print(f"  {name}: {values}")
    console.print(f"written to {out}")


def _curve(losses: Sequence[float]) -> str:
    shown = [*losses] if len(losses) <= 6 else [*losses[:4], None, losses[-1]]
    return " > ".join("..." if value is None else f"{value:.1f}" for value in shown)


def estimates_table(estimates: Sequence[Estimate]) -> Table:
    """The corrections as factors.

    Args:
        estimates: The corrections.
    """
    import math

    rows = []
    for one in estimates:
        if one.prior == 0:
            rows.append([one.name, "-", "1", "held", ""])
            continue
        most = next(iter(one.moved_by.items()), None)
        mover = "the prior" if most is None else f"{most[1]:.0%} {most[0][:20]}"
        rows.append(
            [
                one.name,
                f"1 x/ {math.exp(one.prior):.2f}",
                f"{math.exp(one.value):.3f}",
                f"{math.exp(one.low):.2f} to {math.exp(one.high):.2f}",
                mover,
            ]
        )
    return table_of(("correction", "prior", "fitted", "90%", "most by"), rows)


def _experiments(outcome: Outcome) -> Table:
    experiments: dict[str, list[Mapping[str, Any]]] = {}
    for row in outcome.rows:
        experiments.setdefault(row["experiment"], []).append(row)
    columns = ["experiment"]
    for metric in _FITTED:
        columns += [METRICS[metric].label, "after"]

    def cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
        shown = []
        for metric in _FITTED:
            for when in ("before", "after"):
                name = f"{metric}_{when}"
                errors = [abs(row[name]) for row in rows if name in row]
                shown.append(f"{sum(errors) / len(errors):.1f}" if errors else "-")
        return shown

    table = [[name, *cells(rows)] for name, rows in experiments.items()]
    table.append(["mean of all rows", *cells(outcome.rows)])
    return table_of(columns, table)
