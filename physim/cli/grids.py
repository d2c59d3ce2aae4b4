"""``physim grids``: build and look at measured efficiency."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.console import stdout, styled, table_of
from physim.cli.output_options import AsJson, Plot, print_json, write

if TYPE_CHECKING:
    from physim.cli.terminal import Terminal
    from physim.grids.efficiency import Grid

app = typer.Typer(no_args_is_help=True, help="Build and look at the grids of measured efficiency.")


@app.command()
def build(
    gpus: Annotated[
        list[str] | None, typer.Option("--gpu", help="GPU to build; all known ones if not given.")
    ] = None,
    engines: Annotated[
        list[str] | None, typer.Option("--engine", help="Engine; all with tables if not given.")
    ] = None,
    older: Annotated[
        str | None, typer.Option(help="Version of the engine whose older tables are built.")
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="Unpacked wheel of aiconfigurator 0.10.0, which has older tables."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder to make; it appears whole, or not at all.")],
) -> None:
    """Build the grids of GPUs from NVIDIA's measured tables (extra `grids`).

    Each table is built twice: from all rows, which is written, and without a tenth of them, which
    measures the look-up's error.

    For example:

    physim grids build --gpu h100_sxm --out grids
    """
    from physim import data
    from physim.engines.profile import shipped_engines
    from physim.errors import InputError
    from physim.grids.aiconfigurator import Older
    from physim.grids.build import build_gpu
    from physim.grids.store import grids_of, measured_gpus, older_grids
    from physim.service.hardware import load_hardware

    if (older is None) != (wheel is None):
        raise InputError("older", "goes with --wheel", "give both, or neither")
    tables = Older(wheel, older) if older and wheel else None
    console = stdout()
    wanted = [load_hardware(key) for key in gpus or measured_gpus()]
    with data.replacing_folder(out, remedy="name a folder that is not there yet") as folder:
        for gpu, engine in itertools.product(wanted, engines or shipped_engines()):
            grids = older_grids(gpu.key, engine, older) if older else grids_of(gpu.key, engine)
            for table in build_gpu(gpu, folder / grids, engine, tables):
                console.print(
                    f"{grids}/{table.table}: {table.rows} rows, {table.cells} cells, "
                    f"error on {table.held_out_rows} rows left out: median "
                    f"{table.held_out_median_pct:.1f}%, 95th percentile "
                    f"{table.held_out_p95_pct:.1f}%"
                )


@app.command()
def show(
    gpu: Annotated[str, typer.Argument(help="A GPU with measured kernels.")],
    table: Annotated[
        str | None, typer.Argument(help="A table; all are listed if not given.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Fixes an axis, such as k=4096; two axes stay. May be repeated."),
    ] = None,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Print a table's efficiency over two axes, and draw the surface; or list a GPU's tables.

    For example:

    physim grids show h100_sxm gemm_bfloat16 --at k=4096 --plot gemm.png
    """
    from physim.grids.slices import surface_of
    from physim.grids.store import provenance

    console = stdout()
    if table is None:
        record = provenance(gpu)
        if as_json:
            print_json(record)
        else:
            _print_tables(console, gpu, record)
        return
    surface, fixed = surface_of(gpu, table, at or [])
    if as_json:
        print_json(_as_record(surface, fixed))
    else:
        _print_surface(console, f"{gpu}/{table}", surface, fixed)
    if plot is not None:
        from physim.plot import draw_surface

        title = f"{gpu} {table}{_described(fixed)}"
        write(lambda: draw_surface(surface, title), plot)


def _print_tables(console: Terminal, gpu: str, record: Mapping[str, Any]) -> None:
    rows = [
        (
            entry["table"],
            str(entry["rows"]),
            str(entry["cells"]),
            f"{entry['filled_share']:.0%}",
            f"{entry['held_out_median_pct']:.1f}%",
            f"{entry['held_out_p95_pct']:.1f}%",
        )
        for entry in record["tables"]
    ]
    console.print(f"{gpu}, from {record['package']}")
    console.print(table_of(("table", "rows", "cells", "filled", "median", "95th"), rows))
    console.print(
        f"median and 95th percentile of the error of the look-up's time: {record['held_out']}",
        style="dim",
    )


def _print_surface(console: Terminal, title: str, surface: Grid, fixed: dict[str, float]) -> None:
    import numpy as np

    rows_name, knots = surface.axes[0]
    columns_name, columns = surface.axes[1] if len(surface.axes) > 1 else ("efficiency", np.ones(1))
    values = np.exp(surface.log_efficiency).reshape(len(knots), len(columns))
    # As many knots as a terminal holds, spread over the axes.
    widest = max(len(f"{column:g}") for column in columns)
    fitting = max((console.width - len(rows_name) - 6) // (max(widest, 5) + 2), 1)
    shown = np.unique(np.linspace(0, len(columns) - 1, min(fitting, 9)).round().astype(int))
    lines = np.unique(np.linspace(0, len(knots) - 1, 40).round().astype(int))
    headings = [f"{columns[column]:g}" for column in shown] if len(columns) > 1 else [columns_name]
    console.print(f"{title}: efficiency relative to roofline{_described(fixed)}")
    if len(columns) > 1:
        console.print(f"down {rows_name}, across {columns_name}")
    rows = [
        [f"{knots[row]:g}"]
        + [styled((f"{value:.3f}", _shade(value))) for value in values[row, shown]]
        for row in lines
    ]
    console.print(table_of([rows_name, *headings], rows))
    if np.max(values) > 1:
        console.print(
            "above 1 the kernel, run again and again, found its operands in the GPU's cache; "
            "predictions take the roofline there",
            style="dim",
        )


def _as_record(surface: Grid, fixed: dict[str, float]) -> dict[str, Any]:
    import numpy as np

    return {
        "fixed": fixed,
        "axes": {name: knots.tolist() for name, knots in surface.axes},
        "efficiency": np.exp(surface.log_efficiency).tolist(),
    }


def _shade(efficiency: float) -> str:
    level = min(max(efficiency, 0.0), 1.0)
    return f"rgb({round(220 * (1 - level)) + 20},{round(180 * level) + 40},80)"


def _described(fixed: dict[str, float]) -> str:
    return " at " + ", ".join(f"{name} {value:g}" for name, value in fixed.items()) if fixed else ""
