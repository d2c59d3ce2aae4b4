"""``physim grids``: build and look at measured efficiency."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from physim.grids.efficiency import Grid

app = typer.Typer(no_args_is_help=True, help="Build and look at the grids of measured efficiency.")


@app.command()
def build(
    gpus: Annotated[
        list[str] | None, typer.Option("--gpu", help="GPU to build; all known ones if not given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, instead of the shipped one.")
    ] = None,
) -> None:
    """Build the grids of GPUs from NVIDIA's measured tables (extra `grids`).

    Each table is built twice: from all rows, which is what is written, and without a tenth of
    them, on which the look-up's error is then measured and printed.
    """
    from rich.console import Console

    from physim import data
    from physim.grids.build import build_gpu
    from physim.grids.store import measured_gpus
    from physim.inputs.hardware import load_hardware

    console = Console(highlight=False)
    folder = out or data.folder("bench_data")
    for key in gpus or measured_gpus():
        gpu = load_hardware(key)
        for table in build_gpu(gpu, folder / gpu.key):
            console.print(
                f"{gpu.key}/{table.table}: {table.rows} rows, {table.cells} cells, error on "
                f"{table.held_out_rows} rows left out: median {table.held_out_median_pct:.1f}%, "
                f"95th percentile {table.held_out_p95_pct:.1f}%"
            )


@app.command()
def show(
    gpu: Annotated[str, typer.Argument(help="A GPU with measured kernels.")],
    table: Annotated[str | None, typer.Argument(help="A table; all are listed if not given.")] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Fixes an axis, such as k=4096; two axes stay. May be repeated."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the surface to this file (extra `plot`).")
    ] = None,
) -> None:
    """Print a table's efficiency over two axes, and draw the surface; or list a GPU's tables.

    Example: physim grids show h100_sxm gemm_bfloat16 --at k=4096 --plot gemm.png
    """
    from rich.console import Console

    from physim.grids.surface import surface_of

    console = Console(highlight=False)
    if table is None:
        _list(console, gpu)
        return
    surface, fixed = surface_of(gpu, table, at or [])
    _print_surface(console, f"{gpu}/{table}", surface, fixed)
    if plot:
        from physim.grids.picture import draw_surface

        draw_surface(surface, f"{gpu} {table}{_described(fixed)}", plot)


def _list(console: Console, gpu: str) -> None:
    from rich.table import Table

    from physim.grids.store import provenance

    record = provenance(gpu)
    table = Table(title=f"{gpu}, from {record['package']}", title_justify="left")
    columns = ("table", "rows", "cells", "filled", "error: median", "95th")
    for column in columns:
        table.add_column(column, justify="left" if column == "table" else "right")
    for entry in record["tables"]:
        table.add_row(
            entry["table"],
            str(entry["rows"]),
            str(entry["cells"]),
            f"{entry['filled_share']:.0%}",
            f"{entry['held_out_median_pct']:.1f}%",
            f"{entry['held_out_p95_pct']:.1f}%",
        )
    console.print(table)
    console.print(f"[dim]errors of the look-up's time; {record['held_out']}[/dim]")


def _print_surface(console: Console, title: str, surface: Grid, fixed: dict[str, float]) -> None:
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    rows_name, rows = surface.axes[0]
    columns_name, columns = surface.axes[1] if len(surface.axes) > 1 else ("", np.ones(1))
    values = np.exp(surface.log_efficiency).reshape(len(rows), len(columns))
    # As many columns as a terminal holds, spread over the axis.
    shown = np.unique(np.linspace(0, len(columns) - 1, 11).round().astype(int))
    table = Table(
        title=f"{title}: efficiency relative to roofline{_described(fixed)}",
        title_justify="left",
        caption=f"down: {rows_name}, across: {columns_name}" if columns_name else None,
    )
    table.add_column(rows_name, justify="right")
    for column in shown:
        table.add_column(f"{columns[column]:g}" if columns_name else "", justify="right")
    for row, knot in enumerate(rows):
        cells: list[Any] = [
            Text(f"{value:.3f}", style=_shade(value)) for value in values[row, shown]
        ]
        table.add_row(f"{knot:g}", *cells)
    console.print(table)


def _shade(efficiency: float) -> str:
    level = min(max(efficiency, 0.0), 1.0)
    return f"rgb({round(220 * (1 - level)) + 20},{round(180 * level) + 40},80)"


def _described(fixed: dict[str, float]) -> str:
    return " at " + ", ".join(f"{name} {value:g}" for name, value in fixed.items()) if fixed else ""
