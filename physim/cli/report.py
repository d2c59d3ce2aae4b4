"""``physim report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import print_line
from physim.cli.engine_options import ENGINE, LAYOUT
from physim.cli.fleet_options import FLEET
from physim.cli.load_options import ONE_RATE, load_bundle, load_options
from physim.cli.output_options import html_file
from physim.cli.subject_options import FitName, Gpu, Model, Tp


@with_bundles(load=load_bundle(ONE_RATE), engine={**LAYOUT, **ENGINE, **FLEET})
def report(
    model: Model,
    gpu: Gpu,
    out: Annotated[Path, typer.Option(help="The HTML file to write.", callback=html_file)],
    tp: Tp = 1,
    fit: FitName = "default",
    *,
    load: Given,
    engine: Given,
) -> None:
    """Write a report on a deployment under a load: numbers and pictures in one HTML file.

    For example:

    physim report Qwen3-8B --gpu h100 --rate 6 --input 99 --output 99 --out a.html
    """
    load = load_options(load)
    from physim.cli.progress import running
    from physim.plot.report import write_report

    with running("predicting and drawing"):
        write_report(model, out, fit=fit, gpu=gpu, tp=tp, **load, **engine)
    print_line(f"written to {out}")
