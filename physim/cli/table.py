"""``physim table``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.comma_lists import degrees_in, names_in
from physim.cli.console import stdout
from physim.cli.engine_options import ENGINE, ONE_LAYOUT, layout_lists
from physim.cli.load_options import RATE, STAGES, is_given, load_bundle, load_options
from physim.cli.output_options import AsJson, Plot, print_json, write
from physim.cli.subject_options import FitName, OptionalGpu, OptionalModel

if TYPE_CHECKING:
    from physim.tables.writer import Made

# Linear models with a larger error, percent, are advised against.
_USABLE_PCT = 10.0
# The group of options for them.
_MANY = "Many tables"


@with_bundles(
    load=load_bundle(RATE, STAGES),
    layout=ONE_LAYOUT,
    layouts=layout_lists(default=None, panel=_MANY),
    engine=ENGINE,
)
def table(
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    model: OptionalModel = None,
    gpu: OptionalGpu = None,
    kind: Annotated[
        str,
        typer.Option(
            "--format", help="parquet, csv or json; blis for files of BLIS of August 2026."
        ),
    ] = "csv",
    tolerance: Annotated[
        float, typer.Option(help="Interpolation error of 99% of steps, as a share of their time.")
    ] = 0.01,
    fit: FitName = "default",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    models: Annotated[
        Path | None,
        typer.Option(help="A file with a model on each line.", rich_help_panel=_MANY),
    ] = None,
    gpus: Annotated[str, typer.Option(help="GPUs, comma-separated.", rich_help_panel=_MANY)] = "",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    load: Given,
    layout: Given,
    layouts: Given,
    engine: Given,
) -> None:
    """Write a model's step times as a table for a serving simulator, with its error.

    With a load, which blis needs, it adds linear models. They hold for that load alone: its rates,
    lengths and cached tokens. --models and --gpus make a folder for each combination of these with
    --tps, --pps, --dps and --eps (by default 1), and keep folders that exist.

    For example:

    physim table Qwen3-8B --gpu h100 --tolerance 0.02 --out tables/qwen
    """
    load = load_options(load) if is_given(load) else {}
    from physim.cli.progress import running
    from physim.errors import InputError
    from physim.tables.writer import write_table

    if plot is not None and (models is not None or kind == "blis"):
        raise InputError("--plot", "draws one table", "leave it out, or --models and blis")
    options: dict[str, Any] = {
        "kind": kind,
        "tolerance": tolerance,
        "fit": fit,
        **load,
        "force": force,
        **engine,
    }
    if models is not None:
        if any(one is not None for one in (model, gpu, *layout.values())):
            raise InputError(
                "--models",
                "cannot be combined with a model, --gpu or --tp (--pp, --dp, --ep)",
                "use --gpus and --tps (--pps, --dps, --eps)",
            )
        _many(models, gpus, layouts, out, options, as_json)
        return
    if gpus or any(layouts.values()):
        raise InputError(
            "--gpus and --tps (--pps, --dps, --eps)",
            "need --models",
            "give it, or --gpu and --tp (--pp, --dp, --ep)",
        )
    if model is None or gpu is None:
        raise InputError("model and --gpu", "are missing", "give both, or --models and --gpus")
    with running("tabulating"):
        about = write_table(model, out, gpu=gpu, **layout, **options)
    if as_json:
        print_json(about)
    else:
        _print_table(about, out)
    if plot is not None:
        from physim.plot import draw_table
        from physim.tables import load as read

        write(lambda: draw_table(read(out)), plot)


def _print_table(about: Mapping[str, Any], out: Path) -> None:
    console = stdout()
    error = about.get("interpolation_error_pct")
    if error is not None:
        knots = " x ".join(str(count) for count in about["knots"].values())
        console.print(
            f"{knots} knots; interpolation error: median {error['median']}%, "
            f"99% of {error['batches']:,} steps within {error['p99']}%, most {error['max']}%"
        )
        several = about.get("several_prompts_error_pct")
        if several is not None:
            console.print(
                f"several prompts in a step: median {several['median']}%, 99% of "
                f"{several['batches']:,} steps within {several['p99']}%, most {several['max']}%"
            )
        if error["p99"] > about["tolerance_pct"]:
            missed = f"more than 1% of steps miss the tolerance of {about['tolerance_pct']:g}%"
            console.print(f"Note: {missed}.", style="yellow")
    profile = about.get("kernel_profile")
    if profile is not None:
        console.print(
            f"kernel profile: {profile['error_pct']['decode_steps']}% mean error of steps that "
            f"only decode, {profile['error_pct']['mixed_steps']}% of others"
        )
    coefficients = about.get("coefficients")
    if coefficients is not None:
        console.print(f"linear models over {coefficients['load']}:")
        for name in ("blackbox", "trained_physics"):
            off = coefficients[name]["error_pct"]
            half, double = (
                one[name]["mean"] for one in coefficients["error_pct_at_times_the_rate"].values()
            )
            console.print(
                f"  {name.replace('_', ' ')}: {off['mean']}% mean error of a step, "
                f"{off['all_steps']:+}% of their sum; at half the rate a step is {half}% off, at "
                f"double {double}%"
            )
            if off["mean"] > _USABLE_PCT:
                console.print("  too far off to be used: a line does not fit", style="yellow")
        for line in coefficients["warnings"]:
            console.print(f"Note: {line}.", style="yellow")
    for line in about["assumptions"]:
        console.print(f"Note: {line}.", style="yellow")
    console.print(f"written to {out}")


def models_in(path: Path) -> list[str]:
    """The names of models in a file, one on each line, without comments.

    Raises:
        InputError: The file cannot be read.
    """
    from physim import data
    from physim.errors import InputError

    try:
        with data.reading(path):
            lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not UTF-8 text", "write a name on each line") from error
    names = (line.strip() for line in lines)
    return [name for name in names if name and not name.startswith("#")]


def _many(
    models: Path, gpus: str, layouts: Given, out: Path, options: dict[str, Any], as_json: bool
) -> None:
    from physim.cli.progress import counting
    from physim.errors import InputError
    from physim.tables.writer import write_tables

    names, keys = models_in(models), names_in(gpus)
    if not names or not keys:
        raise InputError("--models and --gpus", "name nothing", "give at least one of each")
    degrees = {"tps": [1], **degrees_in(layouts)}
    tables = []
    count = math.prod(map(len, (names, keys, *degrees.values())))
    with counting("tabulating", count) as say:
        for one in write_tables(names, keys, folder=out, progress=say, **degrees, **options):
            tables.append(one)
            if not as_json:
                _print_made(one)
    if as_json:
        print_json([one.to_dict() for one in tables])
    else:
        left = sum(one.folder is None for one in tables)
        made = sum(not one.reason for one in tables)
        kept = len(tables) - left - made
        stdout().print(f"{made} made, {kept} there already, {left} left out; in {out}")
    if all(one.folder is None for one in tables):
        raise InputError(str(out), "got no table", "see above what was left out, and why")


def _print_made(one: Made) -> None:
    """Says what became of one of many tables; of one that was there already, nothing."""
    console = stdout()
    if one.folder is None:
        reason = one.reason.removeprefix(f"{one.name}: ")
        console.print(f"left out {one.name}: {reason}", style="yellow", soft_wrap=True)
    elif not one.reason:
        within = "" if one.error_pct is None else f", 99% within {one.error_pct}%"
        console.print(f"{one.name}: {one.folder.name}{within}")
        for line in one.warnings:
            console.print(f"  Note: {line}.", style="yellow")
