"""``physim predict``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from physim.prediction import Prediction

_LOAD, _ENGINE = "Load", "Engine"


def predict(
    model: Annotated[
        str, typer.Argument(help="A config.json, its folder, a shipped name, or a hub id.")
    ],
    gpu: Annotated[str, typer.Option(help="A GPU of `physim show gpus`, or a JSON file.")],
    input_tokens: Annotated[
        float, typer.Option("--input", help="Prompt tokens, mean.", rich_help_panel=_LOAD)
    ],
    output_tokens: Annotated[
        float, typer.Option("--output", help="Generated tokens, mean.", rich_help_panel=_LOAD)
    ],
    tp: Annotated[int, typer.Option(help="GPUs that share every layer.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(help="Arrivals per second (open loop).", rich_help_panel=_LOAD),
    ] = None,
    concurrency: Annotated[
        float | None,
        typer.Option(
            help="Clients that wait for their answer (closed loop).", rich_help_panel=_LOAD
        ),
    ] = None,
    cached: Annotated[
        float,
        typer.Option(help="Prompt tokens found in the prefix cache.", rich_help_panel=_LOAD),
    ] = 0.0,
    arrival: Annotated[
        str, typer.Option(help="constant or poisson.", rich_help_panel=_LOAD)
    ] = "constant",
    fit: Annotated[
        str, typer.Option(help="A fit of `physim show fits`, a fit file, or none.")
    ] = "none",
    mixed: Annotated[
        str,
        typer.Option(
            help="Steps with prefill and decode: additive, weighted-average or smooth-weighted."
        ),
    ] = "additive",
    max_num_seqs: Annotated[
        int | None,
        typer.Option(help="Requests that run at once.", rich_help_panel=_ENGINE),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a step.", rich_help_panel=_ENGINE)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest context, tokens.", rich_help_panel=_ENGINE)
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of memory the engine may use.", rich_help_panel=_ENGINE)
    ] = 0.9,
    block_size: Annotated[
        int, typer.Option(help="Tokens of a KV block.", rich_help_panel=_ENGINE)
    ] = 16,
    kv_blocks: Annotated[
        int | None,
        typer.Option(help="KV blocks, instead of computing them.", rich_help_panel=_ENGINE),
    ] = None,
    moe_kernel: Annotated[
        str,
        typer.Option(help="fp8 expert kernel: triton or flashinfer.", rich_help_panel=_ENGINE),
    ] = "triton",
    expert_load: Annotated[
        str,
        typer.Option(
            help="Spread over experts: balanced, power_law_1.01 or power_law_1.2.",
            rich_help_panel=_ENGINE,
        ),
    ] = "power_law_1.01",
    async_scheduling: Annotated[
        bool,
        typer.Option(help="Schedule a step while one runs.", rich_help_panel=_ENGINE),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict TTFT, ITL, E2E and throughput of a model on a GPU under a steady load.

    Engine options that are not given take vLLM's defaults for the GPU.

    Example: physim predict Qwen/Qwen3-14B --gpu h100_sxm --tp 2 --rate 6 --input 786 --output 251
    """
    import physim

    prediction = physim.predict(
        model,
        gpu=gpu,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        rate=rate,
        concurrency=concurrency,
        cached_tokens=cached,
        arrival=arrival,
        fit=fit,
        mixed=mixed,
        tp=tp,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
        kv_blocks=kv_blocks,
        moe_kernel=moe_kernel,
        expert_load=expert_load,
        async_scheduling=async_scheduling,
    )
    if as_json:
        typer.echo(json.dumps(prediction.to_dict(), indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for part in _rendered(prediction):
        console.print(part)


def _rendered(prediction: Prediction) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    load = prediction.load
    demand = f"{load.rate:g} req/s {load.arrival}" if load.rate else f"{load.concurrency:g} clients"
    title = Text.assemble(
        (prediction.model, "bold"),
        f" on {prediction.tp} x {prediction.gpu}, {demand}, {load.input_tokens:g} tokens in "
        f"({load.cached_tokens:g} cached), {load.output_tokens:g} out; fit: {prediction.fit}",
    )
    numbers = Table.grid(padding=(0, 2))
    numbers.add_column(justify="left")
    numbers.add_column(justify="right", style="bold")
    numbers.add_column(style="dim")
    for row in _numbers(prediction):
        numbers.add_row(*row)
    lines: list[RenderableType] = [title, "", numbers, "", _bars(prediction)]
    if prediction.saturated:
        lines.append(
            Text(
                f"The load is above capacity ({prediction.capacity_rps:.3g} req/s): the queue "
                "grows without end, so TTFT and E2E have no steady value.",
                style="yellow",
            )
        )
    lines += [Text(f"Note: {line}.", style="yellow") for line in prediction.assumptions]
    return lines


def _numbers(prediction: Prediction) -> list[tuple[str, str, str]]:
    def milliseconds(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value * 1e3:.1f} ms" if value < 10 else f"{value:.1f} s"

    e2e = "-" if prediction.e2e_s is None else f"{prediction.e2e_s:.3f} s"
    capacity = prediction.capacity_rps
    use = prediction.requests_per_s / capacity
    return [
        ("TTFT", milliseconds(prediction.ttft_s), "time to first token, mean"),
        ("ITL", milliseconds(prediction.itl_s), "time between tokens, mean"),
        ("E2E", e2e, "time of a request, mean"),
        (
            "throughput",
            f"{prediction.output_tokens_per_s:.0f} tok/s",
            f"{prediction.requests_per_s:.3g} of at most {capacity:.3g} req/s ({use:.0%})",
        ),
        (
            "batch",
            f"{prediction.batch:.1f}",
            f"requests decode in a step, {prediction.running:.1f} run",
        ),
        ("KV use", f"{prediction.kv_use:.1%}", f"of {prediction.kv_blocks:,} blocks"),
    ]


def _bars(prediction: Prediction, width: int = 30) -> RenderableType:
    from rich.table import Table

    parts: dict[str, Any] = prediction.step_parts_s
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    longest = ranked[0][1]
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    table.add_row("a step", f"{prediction.step_s * 1e3:.2f} ms", "100%", "")
    for name, seconds in ranked:
        share = seconds / prediction.step_s
        if share >= 0.0005:
            bar = "█" * max(round(width * seconds / longest), 1)
            table.add_row(
                f"  {name.replace('_', ' ')}", f"{seconds * 1e3:.2f}", f"{share:.1%}", bar
            )
    return table
