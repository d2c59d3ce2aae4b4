"""``physim capacity``, ``physim compare`` and ``physim explain``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.engine import Engine, with_engine
from physim.cli.lists import degrees_in, names_in
from physim.cli.load import (
    Arrival,
    Burstiness,
    Cached,
    Concurrency,
    Input,
    Output,
    Prefixes,
    Rate,
    load_of,
)
from physim.cli.outputs import Plot, write
from physim.cli.screen import stdout, table_of
from physim.cli.subject import FitName, Gpu, Model, Models, Tp

if TYPE_CHECKING:
    from physim.questions.capacity import Capacity
    from physim.questions.comparison import Comparison
    from physim.questions.elasticities import Elasticities

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@with_engine
def capacity(
    model: Model,
    gpu: Gpu,
    input_tokens: Input,
    output_tokens: Output,
    slo: Annotated[
        list[str],
        typer.Option(
            help="An upper bound, such as ttft_p99=500ms or itl_mean=25ms: ttft, itl or e2e; mean, "
            "p50, p90 or p99; may be repeated."
        ),
    ],
    tp: Tp = 1,
    cached: Cached = 0.0,
    prefixes: Prefixes = 1,
    arrival: Arrival = "poisson",
    burstiness: Burstiness = 1.0,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    engine: Engine,
) -> None:
    """Find the highest rate of requests that keeps to objectives on latency.

    Example: physim capacity Qwen/Qwen3-14B --gpu h100_sxm --tp 2 --input 786 --output 251
    --slo ttft_p99=500ms --slo itl_mean=25ms
    """
    engine = {"tp": tp, **engine}
    import physim
    from physim.cli.progress import running

    with running("searching"):
        found = physim.capacity(
            model,
            gpu=gpu,
            input_tokens=physim.Lengths.parse(input_tokens),
            output_tokens=physim.Lengths.parse(output_tokens),
            slo=slo,
            cached_tokens=cached,
            prefixes=prefixes,
            arrival=arrival,
            burstiness=burstiness,
            fit=fit,
            **engine,
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _print_capacity(found)
    if plot is not None:
        from physim.plot import draw_load

        load = found.prediction.load
        assert load is not None
        write(
            lambda: draw_load(
                model,
                load,
                gpu=gpu,
                metrics=list(dict.fromkeys(one.metric for one in found.objectives)),
                objectives=found.objectives,
                mark=found.rate_rps,
                fit=fit,
                **engine,
            ),
            plot,
        )


def _print_capacity(found: Capacity) -> None:
    console = stdout()
    prediction = found.prediction
    console.print(
        f"{prediction.model} on {prediction.tp} x {prediction.gpu}: up to "
        f"[bold]{found.rate_rps:.4g} requests/s[/bold], then {found.limited_by} is reached"
    )
    rows = [
        [one.name, f"{one.seconds * 1e3:g} ms", f"{one.latency_s(prediction) * 1e3:.1f} ms"]
        for one in found.objectives
    ]
    console.print(table_of(("objective", "at most", "at that rate"), rows))
    assert prediction.load is not None
    console.print(
        f"{prediction.output_tokens_per_s:.0f} tokens/s; the server can serve "
        f"{prediction.capacity_rps:.4g} requests/s in all ({prediction.load.arrival} arrivals)"
    )
    for line in prediction.extrapolations:
        console.print(f"Beyond what was measured: {line}.", style="yellow")


@with_engine
def compare(
    models: Models,
    gpus: Annotated[str, typer.Option(help="GPUs, by commas.")],
    input_tokens: Input,
    output_tokens: Output,
    tps: Annotated[str, typer.Option(help="GPUs that share every layer, by commas.")] = "1",
    rate: Rate = None,
    concurrency: Concurrency = None,
    cached: Cached = 0.0,
    prefixes: Prefixes = 1,
    arrival: Arrival = "constant",
    burstiness: Burstiness = 1.0,
    price: Annotated[
        list[str] | None,
        typer.Option(help="GPU=PRICE of one GPU for an hour, such as h100_sxm=2.5; repeat it."),
    ] = None,
    sort: Annotated[str | None, typer.Option(help="cost, ttft, itl, e2e or capacity.")] = None,
    fit: FitName = "default",
    as_json: AsJson = False,
    *,
    engine: Engine,
) -> None:
    """Predict models on GPUs at several tp under one load, side by side.

    Example: physim compare Qwen/Qwen3-14B Qwen/Qwen3-32B --gpus h100_sxm,a100_sxm --tps 1,2,4
    --rate 4 --input 786 --output 251 --price h100_sxm=2.5 --price a100_sxm=1.5
    """
    load = load_of(locals())
    from physim.cli.progress import running
    from physim.questions.comparison import compare as side_by_side

    prices = _prices(price or [])
    with running("comparing"):
        found = side_by_side(
            models,
            names_in(gpus),
            degrees_in(tps),
            load,
            prices=prices,
            order=sort,
            fit=fit,
            **engine,
        )
    if as_json:
        typer.echo(json.dumps({"rows": found.rows, "refused": found.refused}, indent=1))
        return
    console = stdout()
    console.print(_compared(found))
    console.print(
        "use: share of the capacity that this load takes; most/s: the capacity, requests/s; "
        "per 1M: price of a million generated tokens at this load; *: beyond what the fit was "
        "measured on (--json says in what)",
        style="dim",
    )
    for row in found.refused:
        console.print(
            f"left out {row['model']} on {row['tp']} x {row['gpu']}: {row['reason']}",
            style="yellow",
        )


def _prices(texts: list[str]) -> dict[str, float]:
    from physim.errors import InputError

    prices = {}
    for text in texts:
        gpu, _, value = text.partition("=")
        try:
            prices[gpu.strip()] = float(value)
        except ValueError as error:
            raise InputError(
                f"price {text!r}", "is no price", "write it like h100_sxm=2.5"
            ) from error
    return prices


def _compared(found: Comparison) -> Any:
    def milliseconds(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1e3:.1f}"

    columns = ["model", "GPU", "tp", "TTFT ms", "ITL ms", "E2E s", "tok/s", "use", "most/s"]
    costs = any(row["cost_per_million_tokens"] is not None for row in found.rows)
    rows = []
    for row in found.rows:
        cells = [
            row["model"].split("/")[-1] + (" *" if row["extrapolations"] else ""),
            row["gpu"],
            str(row["tp"]),
            milliseconds(row["ttft_s"]),
            milliseconds(row["itl_s"]),
            "-" if row["e2e_s"] is None else f"{row['e2e_s']:.2f}",
            f"{row['output_tokens_per_s']:.0f}",
            f"{row['use']:.0%}",
            f"{row['capacity_rps']:.3g}",
        ]
        if costs:
            cost = row["cost_per_million_tokens"]
            cells.append("-" if cost is None else f"{cost:.2f}")
        rows.append(cells)
    return table_of([*columns, "per 1M"] if costs else columns, rows)


@with_engine
def explain(
    model: Model,
    gpu: Gpu,
    input_tokens: Input,
    output_tokens: Output,
    tp: Tp = 1,
    rate: Rate = None,
    concurrency: Concurrency = None,
    cached: Cached = 0.0,
    prefixes: Prefixes = 1,
    arrival: Arrival = "constant",
    burstiness: Burstiness = 1.0,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    engine: Engine,
) -> None:
    """Say what latencies and capacity depend on: percent for one percent of each part.

    Example: physim explain Qwen/Qwen3-14B --gpu h100_sxm --tp 2 --rate 20 --input 786 --output 251
    """
    load = load_of(locals())
    import physim
    from physim.cli.progress import running

    with running("differentiating"):
        found = physim.explain(
            model,
            load,
            gpu=gpu,
            fit=fit,
            tp=tp,
            **engine,
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _print_elasticities(found)
    if plot is not None:
        from physim.plot import draw_elasticities

        write(lambda: draw_elasticities(found), plot)


def _print_elasticities(found: Elasticities) -> None:
    from physim.questions.elasticities import METRICS

    console = stdout()
    metrics: Mapping[str, float] = found.metrics
    console.print(
        f"{found.case.model.name} on {found.case.deployment.tp} x {found.case.gpu.key}: TTFT "
        f"{metrics['ttft'] * 1e3:.1f} ms, ITL {metrics['itl'] * 1e3:.1f} ms, E2E "
        f"{metrics['e2e']:.3f} s, capacity {metrics['capacity']:.3g} requests/s"
    )
    console.print("percent that each follows one percent more of")
    rows = [
        # Adding zero takes the sign from one that is rounded away.
        [part, *(f"{round(row[metric], 2) + 0.0:+.2f}" for metric in METRICS)]
        for part, row in found.notable().items()
    ]
    console.print(table_of(("", *(metric.upper() for metric in METRICS[:3]), "capacity"), rows))
