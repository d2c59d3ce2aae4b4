"""``physim fit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.comma_lists import names_in
from physim.cli.console import by_reason, stdout, table_of
from physim.cli.output_options import AsJson, Plot, print_json, writable, write
from physim.cli.run_tables import name_unread_columns
from physim.cli.subject_options import known_fits
from physim.errors import InputError
from physim.metrics import METRICS

if TYPE_CHECKING:
    from rich.table import Table

    from physim.fitting.fit import Estimate, Outcome
    from physim.fitting.identified import Identified
    from physim.fitting.next_runs import NextRuns
    from physim.inputs.case import Case
    from physim.inputs.load import Load

_FITTED = ("ttft", "itl", "e2e")
_NEXT, _DRIFT = "What to measure next", "Has the server changed?"
_FIELDS = {
    "rate": "rate",
    "concurrency": "concurrency",
    "input": "input_tokens",
    "output": "output_tokens",
}


def fit(
    tables: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="CSV of measured runs; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The fit file to write.", callback=writable)
    ] = None,
    steps: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Measured steps (see `physim data steps`); may be repeated. Name their server "
            "with --server, unless they are a step trace of the runs in --data.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="The server of the steps: model=Qwen/Qwen3-8B,gpu=h100_sxm,tp=1,..."),
    ] = None,
    context: Annotated[
        float | None,
        typer.Option(help="Mean context in tokens, if the steps have none."),
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
    freeze: Annotated[str, typer.Option(help="Corrections to keep fixed, comma-separated.")] = "",
    prior_scale: Annotated[float, typer.Option(help="Factor on the width of all priors.")] = 1.0,
    optimiser: Annotated[
        str, typer.Option(help="levenberg-marquardt, lbfgs or adam.")
    ] = "levenberg-marquardt",
    seed: Annotated[
        int, typer.Option(help="Seed of a random start; 0 starts from the earlier fit.")
    ] = 0,
    count: Annotated[
        int | None,
        typer.Option(
            "--next",
            help="How many measurements to propose.",
            rich_help_panel=_NEXT,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The load to make certain: rate=8,input=2000,output=200, or concurrency=64,...; "
            "the busiest run if not given.",
            rich_help_panel=_NEXT,
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option(
            "--next-kinds", help="Which: steps, loads or steps,loads.", rich_help_panel=_NEXT
        ),
    ] = "steps,loads",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Fit nothing: say whether the server has changed since --from.",
            rich_help_panel=_DRIFT,
        ),
    ] = False,
    false_alarms: Annotated[
        float,
        typer.Option(help="Chance of an alarm if nothing has changed.", rich_help_panel=_DRIFT),
    ] = 0.01,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Fit the corrections to measured runs and steps, and write them with their uncertainty.

    It starts from the default fit and weighs your runs against that fit's. It lists and omits
    runs above capacity. Printed errors are in-sample; `physim crossval` has errors on unseen runs.

    For example:

    physim fit --data runs.csv --freeze residual,experts --out my-gpu.json
    """
    tables, steps = tables or [], steps or []
    name_unread_columns(tables)
    if check:
        asked_of = None if server is None else _server(server)
        _check(tables, base, where, false_alarms, steps, asked_of, context, as_json)
        return
    if out is None:
        raise InputError("--out", "is missing", "name the fit file to write")
    asked = None if count is None else (count, _load(target), names_in(kinds))
    from physim.cli.progress import running
    from physim.fitting.fit import fit as fit_tables

    frozen = names_in(freeze)
    with running("fitting") as say:
        outcome = fit_tables(
            tables,
            steps=steps or None,
            server=None if server is None else _server(server),
            context=context,
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
    told, further = _further(outcome, base, asked)
    if as_json:
        more = {} if further is None else {"next": further.to_dict()}
        print_json(outcome.fit.to_dict() | {"identified": told.to_dict()} | more)
    else:
        _print_outcome(outcome, told, out)
        if further is not None:
            _print_next(further)
    if plot is not None:
        from physim.plot import draw_fit

        write(lambda: draw_fit(outcome), plot)


def _server(text: str) -> Case:
    """A server, such as ``model=Qwen/Qwen3-8B,gpu=h100_sxm,tp=2``."""
    from physim.inputs.case import Case
    from physim.inputs.fleet import REPLICAS, pool_options

    model, *others = [part for part in text.split(",") if part.strip().startswith("model=")] or [""]
    rest = ",".join(part for part in text.split(",") if not part.strip().startswith("model="))
    given = pool_options("--server", rest) if rest else {}
    if not model or others:
        problem = "names several models" if others else "names no model"
        raise InputError("--server", problem, "write model=Qwen/Qwen3-8B,gpu=h100_sxm,tp=1")
    if REPLICAS in given:
        raise InputError("--server: replicas", "is of a fleet", "leave it out")
    return Case.from_options(model.partition("=")[2].strip(), **given)


def _load(target: str | None) -> Load | None:
    """The load that a target is, such as ``rate=8,input=2000,output=200``."""
    from physim.inputs.load import Load

    if target is None:
        return None
    given: dict[str, float] = {}
    for part in target.split(","):
        name, _, value = part.partition("=")
        field = _FIELDS.get(name.strip())
        if field is None or field in given:
            problem = "is there twice" if field else "is unknown"
            known = ", ".join(_FIELDS)
            raise InputError(f"--target: {name.strip()[:40]!r}", problem, f"use {known} once each")
        try:
            given[field] = float(value)
        except ValueError as error:
            problem = f"{value[:40]!r} is not a number"
            raise InputError(f"--target: {name}", problem, "correct it") from error
    for name in ("input_tokens", "output_tokens"):
        if name not in given:
            raise InputError("--target", f"has no {name.partition('_')[0]}", "add it")
    return Load(**given)  # type: ignore[arg-type]


def _further(
    outcome: Outcome, base: str, asked: tuple[int, Load | None, list[str]] | None
) -> tuple[Identified, NextRuns | None]:
    """What a fit's runs told, and what to measure next."""
    from physim.corrections.files import load_fit
    from physim.fitting.identified import identified
    from physim.fitting.next_runs import next_runs

    told = identified(outcome.fit, outcome.case, load_fit(base))
    if asked is None:
        return told, None
    count, load, kinds = asked
    case = outcome.case if load is None else outcome.case.under(load)
    return told, next_runs(case, fit=outcome.fit, count=count, kinds=kinds)


def _print_next(found: NextRuns) -> None:
    console = stdout()
    console.print(f"to make certain: {found.target.demanded.describe()}", highlight=False)
    rows = [["as it is known", *_percents(found.before)]]
    rows += [[run.what, *_percents(run.left)] for run in found.runs]
    labels = [f"{METRICS[metric].label} +-" for metric in found.before]
    console.print(table_of(("after", *labels), rows))
    for command in found.commands:
        console.print(command, soft_wrap=True, highlight=False, markup=False)


def _percents(halves: Mapping[str, float]) -> list[str]:
    import math

    return [f"{math.expm1(half):.1%}" for half in halves.values()]


def _check(
    tables: Sequence[Path],
    base: str,
    where: str | None,
    false_alarms: float,
    steps: Sequence[Path],
    server: Case | None,
    context: float | None,
    as_json: bool,
) -> None:
    from physim.corrections.fields import CORRECTIONS
    from physim.fitting.drift import drift

    found = drift(tables, base, where, false_alarms, steps, server, context)
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    console = stdout()
    for one in found:
        errors = ", ".join(
            f"{METRICS[name].label if name in METRICS else name} {error:+.1f}%"
            for name, error in one.errors.items()
        )
        what = "runs and steps" if tables and steps else "steps" if steps else "runs"
        console.print(f"{one.where}, {one.rows} {what}; {base} predicts {errors}")
        if not one.changed:
            often = f"in {one.p_value:.0%} of checks"
            console.print(f"  no change: {what} of the same server are at least as far off {often}")
            continue
        rarely = f"{1 / max(one.p_value, 1e-9):,.0f}"
        console.print(
            f"  changed: {what} of the same server are as far off in one check of {rarely}",
            style="red",
        )
        best, *others = one.shifts
        console.print(
            f"  {CORRECTIONS[best.name].meaning} ({best.name}) takes {best.factor:.2f} times as "
            f"long, which explains {best.share:.0%} of it"
        )
        if others:
            names = ", ".join(f"{other.name} {other.factor:.2f}" for other in others)
            console.print(f"  as good an explanation: {names}")


def _print_outcome(outcome: Outcome, told: Identified, out: Path) -> None:
    console, losses = stdout(), outcome.losses
    console.print(f"{len(outcome.rows)} rows, {len(losses) - 1} iterations, loss {_curve(losses)}")
    console.print()
    console.print(
        "factors on components that all rows share, with 90% intervals; prior: before any run; "
        "told by: the experiment that tells most, with its share of the information"
    )
    console.print(estimates_table(outcome.estimates))
    console.print("mean absolute error of an experiment, percent, in sample: before and after")
    console.print(_experiments(outcome))
    for line in told.describe():
        console.print(line)
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
    for name in outcome.populations:
        own = outcome.fit.scatter.get(name, {})
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
            rows.append([one.name, prior_interval(0.0), f"{math.exp(one.value):.3f}", "-", ""])
            continue
        most = next(iter(one.moved_by.items()), None)
        mover = "the prior" if most is None else f"{most[1]:.0%} {most[0][:20]}"
        rows.append(
            [
                one.name,
                prior_interval(one.prior),
                f"{math.exp(one.value):.3f}",
                f"{math.exp(one.low):.2f} to {math.exp(one.high):.2f}",
                mover,
            ]
        )
    return table_of(("correction", "prior", "fitted", "90%", "told by"), rows)


def prior_interval(deviation: float) -> str:
    """What a factor may be before any run, 90%.

    Args:
        deviation: Standard deviation of its logarithm.
    """
    import math

    from physim.corrections.calibration import TWO_SIDED_90

    half = TWO_SIDED_90 * deviation
    return f"{math.exp(-half):.2f} to {math.exp(half):.2f}" if half else "1, held"


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
