"""``physim show``: what comes with physim."""

from __future__ import annotations

import typer

from physim.errors import InputError

app = typer.Typer(no_args_is_help=True, help="List the models, GPUs and fits that come along.")


@app.command()
def models() -> None:
    """List the shipped models with their size; a refused one with the reason."""
    from rich.console import Console
    from rich.table import Table

    from physim.inputs.models import load_model, shipped_models

    table = Table(title="model configurations", title_justify="left")
    for column in ("model", "parameters", "active", "layers", "heads", "weights"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in shipped_models():
        try:
            model = load_model(name)
        except InputError as error:
            table.add_row(name, f"refused: {error.what}", style="dim")
            continue
        table.add_row(
            name,
            f"{model.parameters / 1e9:.2f} B",
            f"{model.active_parameters / 1e9:.2f} B",
            str(model.layers),
            f"{model.heads}/{model.kv_heads}",
            (model.formats.experts if model.experts else model.formats.mlp).name,
        )
    Console(highlight=False).print(table)


@app.command()
def gpus() -> None:
    """List the shipped GPUs with their rates, and whether their kernels were measured."""
    from rich.console import Console
    from rich.table import Table

    from physim.grids.store import measured_gpus
    from physim.inputs.hardware import load_hardware, shipped_gpus

    table = Table(title="GPUs", title_justify="left")
    for column in ("GPU", "bf16", "fp8", "memory", "bandwidth", "link", "kernels"):
        table.add_column(column, justify="left" if column in ("GPU", "kernels") else "right")
    for key in shipped_gpus():
        gpu = load_hardware(key)
        fp8 = gpu.peak("fp8")
        table.add_row(
            key,
            f"{(gpu.peak('bfloat16') or 0) / 1e12:.0f} TFLOP/s",
            f"{fp8 / 1e12:.0f} TFLOP/s" if fp8 else "-",
            f"{gpu.memory_bytes / 2**30:.1f} GiB",
            f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
            f"{gpu.link} {gpu.link_bandwidth / 1e9:.0f} GB/s",
            "measured" if key in measured_gpus() else "stand-in",
        )
    Console(highlight=False).print(table)


@app.command()
def fits() -> None:
    """List the shipped fits; `none` is the bare physics."""
    from physim.fits import shipped_fits

    for name in shipped_fits():
        typer.echo(name)
