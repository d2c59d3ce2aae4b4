"""``physim crossval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from physim.cli.comma_lists import names_in
from physim.cli.console import stdout, table_of
from physim.cli.output_options import AsJson, Out, Plot, print_json, writable, write
from physim.cli.run_tables import name_unread_columns

if TYPE_CHECKING:
    from rich.table import Table

    from physim.validation.crossval import Crossval


def crossval(
    tables: Annotated[
        list[Path],
        typer.Option("--data", metavar="FILE", help="CSV of measured runs; may be repeated."),
    ],
    leave_out: Annotated[
        str,
        typer.Option(
            help="campaign, model, workload, tp, hardware or experiment; "
            "or time: the last steps of each run."
        ),
    ] = "model",
    steps: Annotated[
        Path | None, typer.Option(help="Measured steps of runs in the tables (Parquet or CSV).")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: physim, unfitted (the fit that it starts from), zero-shot, all "
            "levels; the baselines blackbox, ridge, boosted; the ablations no residual, constant "
            "MFU, additive host and, of zero-shot, weighted-average, smooth-weighted."
        ),
    ] = "physim,unfitted,zero-shot",
    where: Annotated[
        str | None, typer.Option(help='Only rows for which this holds, such as "tp == 2".')
    ] = None,
    base: Annotated[
        str,
        typer.Option(
            "--from",
            help="The fit to start from, as in `physim fit`; it must not know the rows.",
        ),
    ] = "default",
    freeze: Annotated[str, typer.Option(help="Corrections to keep fixed, comma-separated.")] = "",
    prior_scale: Annotated[float, typer.Option(help="Factor on the width of all priors.")] = 1.0,
    csv_out: Annotated[
        Path | None,
        typer.Option("--csv", help="Write the left-out rows here.", callback=writable),
    ] = None,
    as_json: AsJson = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Estimate the error on unseen runs: leave out each group in turn, fit the rest, predict it.

    For example:

    physim crossval --data runs.csv --leave-out model --plot folds.png
    """
    from physim import data
    from physim.cli.progress import running
    from physim.errors import InputError
    from physim.validation.crossval import crossval as validate
    from physim.validation.temporal_holdout import crossval_in_time

    name_unread_columns(tables)
    frozen = names_in(freeze)
    with running("cross-validating") as say:
        if leave_out == "time":
            if steps is None:
                raise InputError("leave-out", "time needs measured steps", "pass --steps")
            found = crossval_in_time(tables, steps, where, frozen, prior_scale)
        else:
            found = validate(
                tables,
                leave_out=leave_out,
                where=where,
                methods=names_in(methods),
                frozen=frozen,
                prior_scale=prior_scale,
                steps=steps,
                base=base,
                progress=lambda method, fold: say(f"{method} without {fold}"),
            )
    if out is not None:
        data.write_json(out, found.to_dict())
    if csv_out is not None:
        with data.replacing(csv_out) as temporary:
            found.to_frame().to_csv(temporary, index=False)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_crossval(found)
    if plot is not None:
        from physim.plot import draw_folds

        write(lambda: draw_folds(found), plot)


def _print_crossval(found: Crossval) -> None:
    console = stdout()
    if found.leave_out == "time":
        console.print("median absolute error of the last fifth of each run's step cycles, percent")
        console.print(_in_time(found))
    else:
        console.print(f"mean absolute error, percent, of rows whose {found.leave_out} was left out")
        console.print(_summary(found))


def _summary(found: Crossval) -> Table:
    rows = []
    for one in found.summary:
        worst = one["worst_fold"]
        rows.append(
            [
                one["method"],
                one["metric"].upper(),
                f"{one['mape']:.2f}",
                f"{one['mean_of_folds']:.2f}",
                f"{one['folds'][worst]:.1f} {worst.split('/')[-1][:16]}",
                f"{one['coverage']:.0%}" if "coverage" in one else "-",
                str(one["refused"] or "-"),
            ]
        )
    columns = ("method", "metric", "mean of rows", "of folds", "worst fold", "in 90%", "refused")
    return table_of(columns, rows)


def _in_time(found: Crossval) -> Table:
    fitted, bare = found.summary
    rows = [
        [
            run.split("/")[-1],
            f"{bare['folds'][run]:.1f}",
            f"{error:.1f}",
            *(
                "-" if (r := fitted[kind][run]) is None else f"{r:.2f}"
                for kind in ("correlations", "of_batch")
            ),
        ]
        for run, error in fitted["folds"].items()
    ]
    return table_of(("run", "zero-shot", "fitted", "r, decode-only", "r of the batch"), rows)
