"""``physim fit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.comma_lists import names_in
from physim.cli.console import by_reason, stdout, table_of
from physim.cli.output_options import AsJson, Plot, print_json, writable, write
from physim.metrics import METRICS

if TYPE_CHECKING:
    from rich.console import RenderableType
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
    freeze: Annotated[str, typer.Option(help="Corrections that stay at zero, by commas.")] = "",
    prior_scale: Annotated[float, typer.Option(help="Factor on the width of all priors.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Where to start; 0 at the prior's centre.")] = 0,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Fit the corrections to measured runs and write them with their covariance.

    Rows of overloaded stages are left out, and listed. The errors printed are in sample: for those
    on unseen runs use `physim crossval`.

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
            frozen=frozen,
            prior_scale=prior_scale,
            seed=seed,
            name=out.stem,
            progress=lambda step, loss: say(f"step {step + 1}, loss {loss:.2f}"),
        )
    outcome.fit.write(out)
    if as_json:
        print_json(outcome.fit.to_dict())
    else:
        console = stdout()
        for part in _rendered(outcome, out):
            console.print(part)
    if plot is not None:
        from physim.plot import draw_fit

        write(lambda: draw_fit(outcome), plot)


def _rendered(outcome: Outcome, out: Path) -> list[RenderableType]:
    from rich.text import Text

    losses = outcome.losses
    lines: list[RenderableType] = [
        Text(f"{len(outcome.rows)} rows, {len(losses) - 1} iterations, loss {_curve(losses)}"),
        *_held_back(outcome),
        "",
        *_estimates(outcome),
        Text("mean absolute error of an experiment, percent, in sample: before and after"),
        _experiments(outcome),
    ]
    lines += [Text(f"left out {line}", style="yellow") for line in by_reason(outcome.left_out)]
    if outcome.distrusted:
        lines.append(Text("Outliers, which count less:", style="yellow"))
        lines += [
            Text(
                f"  {row['experiment']} stage {row['stage']}: "
                f"{METRICS[row['metric']].label} {row['error_pct']:+.1f}%",
                style="yellow",
            )
            for row in outcome.distrusted
        ]
    scatter = ", ".join(
        f"{METRICS[name].label} {value:.1%}" for name, value in outcome.fit.scatter.items()
    )
    lines.append(f"scatter of unseen runs, beyond the fit's own uncertainty: {scatter}")
    lines.append(f"written to {out}")
    return lines


def _estimates(outcome: Outcome) -> list[RenderableType]:
    from rich.text import Text

    if outcome.shrinkage is not None and outcome.shrinkage.earns_nothing:
        return []
    title = "factors on components: prior and fitted, 90% interval, and who determined it"
    return [Text(title), estimates_table(outcome.estimates)]


def _held_back(outcome: Outcome) -> list[RenderableType]:
    """What runs that were held back say of the fit."""
    from rich.text import Text

    found = outcome.shrinkage
    if found is None:
        return []
    if found.held_back is None:
        line = (
            "Fewer than three experiments: nothing could be held back, so it is not known whether "
            "the fit holds for other runs."
        )
        return [Text(line, style="yellow")]
    errors = ", ".join(
        f"{METRICS[metric].label} {found.before[metric]:.1f} to {found.after[metric]:.1f}"
        for metric in found.after
    )
    if found.earns_nothing:
        line = (
            f"Held back one {found.held_back} at a time: fits to the rest did not predict it "
            "significantly better (95%) than no fit, so the corrections stay at their prior."
        )
        return [Text(line, style="yellow")]
    widths = ", ".join(f"{block} {scale:g}" for block, scale in found.scales.items() if scale)
    return [
        Text(f"held back one {found.held_back} at a time: mean error, percent, {errors}"),
        Text(f"widths of priors scaled by: {widths}"),
    ]


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
