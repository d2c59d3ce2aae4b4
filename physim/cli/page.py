"""``physim page``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.comma_lists import degrees_in, ends_in, names_in
from physim.cli.console import print_line
from physim.cli.engine_options import ENGINE, layout_lists
from physim.cli.load_options import LOAD, beside_lengths, requests_named
from physim.cli.output_options import html_file
from physim.cli.prices import Price, prices_in
from physim.cli.subject_options import FitName, Model


@with_bundles(
    load={
        "lengths": LOAD["lengths"],
        **beside_lengths("poisson, constant or gamma.", ("turns", "think_s")),
    },
    layouts=layout_lists(tps="1,2,4,8"),
    engine=ENGINE,
)
def page(
    model: Model,
    out: Annotated[Path, typer.Option(help="The HTML file to write.", callback=html_file)],
    gpus: Annotated[
        str, typer.Option(help="GPUs to choose from, comma-separated.")
    ] = "a100_sxm,h100_sxm,h200_sxm,b200_sxm",
    inputs: Annotated[
        str, typer.Option("--input", help="Prompt tokens, FROM:TO.", rich_help_panel="Load")
    ] = "128:16384",
    outputs: Annotated[
        str, typer.Option("--output", help="Generated tokens, FROM:TO.", rich_help_panel="Load")
    ] = "16:2048",
    price: Price = None,
    fit: FitName = "default",
    *,
    load: Given,
    layouts: Given,
    engine: Given,
) -> None:
    """Write a page with sliders for the load and the deployment: one HTML file, no server.

    It interpolates about 100,000 predictions and states its error.
    With --lengths, requests vary around the means that the sliders set. For example:

    physim page Qwen3-14B --gpus h100_sxm,a100_sxm --price h100_sxm=2.5 --out page.html
    """
    from physim.cli.progress import running
    from physim.inputs.lengths import cached_part
    from physim.page.build import predicted
    from physim.page.document import write_page

    lengths = load.pop("lengths")
    joint = requests_named(lengths, load["cached_tokens"])
    # Of sliders no share is known.
    load["cached_tokens"] = cached_part(load["cached_tokens"], "--cached")
    with running("predicting"):
        found = predicted(
            model,
            gpus=names_in(gpus),
            **degrees_in(layouts),
            inputs=ends_in("--input", inputs, "128:8192"),
            outputs=ends_in("--output", outputs, "128:8192"),
            prices=prices_in(price),
            # Called as it was typed, so that the page's command finds it.
            lengths=None if joint is None else replace(joint, name=str(lengths)),
            fit=fit,
            **load,
            **engine,
        )
    write_page(found, out)
    for line in found.refused:
        print_line(f"left out: {line}", err=True)
    print_line(f"written to {out}: {len(found.servers)} servers")
