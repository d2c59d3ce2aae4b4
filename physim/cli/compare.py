"""``physim compare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.comma_lists import degrees_in, names_in
from physim.cli.console import milliseconds, stdout, table_of
from physim.cli.engine_options import ENGINE, layout_lists
from physim.cli.fleet_options import FLEETS, POOLS, fleets_in
from physim.cli.load_options import CLIENTS, RATE, WORKLOAD, load_bundle, load_options
from physim.cli.output_options import AsJson, Plot, print_json, write
from physim.cli.prices import Price, prices_in
from physim.cli.subject_options import FitName, Models
from physim.models.parallelism import on_gpus

if TYPE_CHECKING:
    from physim.questions.comparison import Comparison


@with_bundles(
    load=load_bundle(RATE, CLIENTS, WORKLOAD),
    layouts=layout_lists(),
    fleets=FLEETS,
    engine=ENGINE,
)
def compare(
    models: Models,
    gpus: Annotated[str, typer.Option(help="GPUs, comma-separated.")],
    price: Price = None,
    sort: Annotated[str | None, typer.Option(help="cost, ttft, itl, e2e or saturation.")] = None,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    load: Given,
    layouts: Given,
    fleets: Given,
    engine: Given,
) -> None:
    """Predict models on GPUs in several layouts under one load, side by side.

    --replicas adds several servers, --prefill and --decode separate pools.

    For example:

    physim compare Qwen3-8B --gpus h100,a100 --rate 4 --input 786 --output 251
    """
    load = load_options(load)
    import physim
    from physim.cli.progress import running

    prices = prices_in(price)
    with running("comparing"):
        found = physim.compare(
            [name for text in models for name in names_in(text)],
            names_in(gpus),
            **degrees_in(layouts),
            fleets=fleets_in(fleets),
            prices=prices,
            order=sort,
            fit=fit,
            **load,
            **engine,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print_comparison(found)
    if plot is not None:
        from physim.plot import draw_comparison

        write(lambda: draw_comparison(found), plot)


def _print_comparison(found: Comparison) -> None:
    console = stdout()
    console.print(_compared(found))
    common = found.common_extrapolations()
    notes = [
        "use: share of the saturation throughput that this load takes",
        "most/s: that throughput, requests/s",
    ]
    if _has_costs(found):
        notes.append("per 1M: price of a million generated tokens at this load")
    if any(set(row["extrapolations"]) - common for row in found.rows):
        notes.append("*: further beyond what the fit was measured on than others (--json)")
    console.print("; ".join(notes), style="dim")
    for line in sorted(common):
        console.print(f"All are beyond what was measured: {line}.", style="yellow")
    for line in dict.fromkeys(_left_out(row) for row in found.refused):
        console.print(f"left out {line}", style="yellow")


def _left_out(row: Mapping[str, Any]) -> str:
    """What cannot be deployed, and why."""
    subject = f"{row['model']} on {on_gpus(row['gpu'], row)}"
    reason = row["reason"].removeprefix(f"{subject}: ")
    fleet = ", ".join(f"{name} {row[name]}" for name in FLEETS if row.get(name))
    if any(row.get(pool) for pool in POOLS):
        # Pools have layouts of their own.
        subject = f"{row['model']} on {row['gpu']}"
    return f"{subject} ({fleet}): {reason}" if fleet else f"{subject}: {reason}"


def _has_costs(found: Comparison) -> bool:
    return any(row["cost_per_million_tokens"] is not None for row in found.rows)


def _compared(found: Comparison) -> Any:
    columns = ["model", "GPU", "layout", "TTFT ms", "ITL ms", "E2E s", "tok/s", "use", "most/s"]
    costs, common = _has_costs(found), found.common_extrapolations()
    several = any(row["servers"] > 1 for row in found.rows)
    columns += ["GPUs", "tok/s/GPU"] if several else []
    rows = []
    for row in found.rows:
        cells = [
            row["model"].split("/")[-1] + (" *" if set(row["extrapolations"]) - common else ""),
            row["gpu"],
            row["layout"],
            milliseconds(row["ttft_s"]),
            milliseconds(row["itl_s"]),
            "-" if row["e2e_s"] is None else f"{row['e2e_s']:.2f}",
            f"{row['output_tokens_per_s']:.0f}",
            f"{row['use']:.0%}",
            f"{row['saturation_rps']:.3g}",
        ]
        if several:
            cells += [str(row["gpus"]), f"{row['output_tokens_per_s_per_gpu']:.0f}"]
        if costs:
            cost = row["cost_per_million_tokens"]
            cells.append("-" if cost is None else f"{cost:.2f}")
        rows.append(cells)
    return table_of([*columns, "per 1M"] if costs else columns, rows)
