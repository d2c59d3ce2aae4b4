"""``physim report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from physim.cli.console import print_line
from physim.cli.engine_options import Engine, with_engine
from physim.cli.load_options import (
    Arrival,
    Burstiness,
    Cached,
    Input,
    Output,
    Prefixes,
    Requests,
    load_options,
)
from physim.cli.output_options import html_file
from physim.cli.subject_options import FitName, Gpu, Model, Tp


@with_engine
def report(
    model: Model,
    gpu: Gpu,
    rate: Annotated[float, typer.Option(help="Arrivals per second.", rich_help_panel="Load")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.", callback=html_file)],
    input_tokens: Input = None,
    output_tokens: Output = None,
    lengths: Requests = None,
    tp: Tp = 1,
    cached: Cached = 0.0,
    prefixes: Prefixes = 1,
    arrival: Arrival = "constant",
    burstiness: Burstiness = 1.0,
    fit: FitName = "default",
    *,
    engine: Engine,
) -> None:
    """Write a page on a deployment under a load: numbers and pictures in one HTML file.

    For example:

    physim report Qwen3-8B --gpu h100 --rate 6 --input 99 --output 99 --out a.html
    """
    load = load_options(locals())
    from physim.cli.progress import running
    from physim.plot.report import write_report

    with running("predicting and drawing"):
        write_report(model, out, fit=fit, gpu=gpu, tp=tp, **load, **engine)
    print_line(f"written to {out}")
