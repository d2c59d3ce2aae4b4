"""Options of the engine, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

_PANEL = "Engine"

MaxNumSeqs = Annotated[
    int | None, typer.Option(help="Requests that run at once.", rich_help_panel=_PANEL)
]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option(help="Tokens of a step.", rich_help_panel=_PANEL)
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Longest context, tokens.", rich_help_panel=_PANEL)
]
GpuMemoryUtilization = Annotated[
    float, typer.Option(help="Share of memory the engine may use.", rich_help_panel=_PANEL)
]
BlockSize = Annotated[int, typer.Option(help="Tokens of a KV block.", rich_help_panel=_PANEL)]
KvBlocks = Annotated[
    int | None,
    typer.Option(help="KV blocks, instead of computing them.", rich_help_panel=_PANEL),
]
MoeKernel = Annotated[
    str,
    typer.Option(help="fp8 expert kernel: triton or flashinfer.", rich_help_panel=_PANEL),
]
ExpertLoad = Annotated[
    str,
    typer.Option(
        help="Spread over experts: balanced, power_law_1.01 or power_law_1.2.",
        rich_help_panel=_PANEL,
    ),
]
AsyncScheduling = Annotated[
    bool, typer.Option(help="Schedule a step while one runs.", rich_help_panel=_PANEL)
]
Sampling = Annotated[
    str,
    typer.Option(
        help="model (its generation_config.json), plain, truncated (top-k, top-p), penalised.",
        rich_help_panel=_PANEL,
    ),
]

_FIELDS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "block_size",
    "kv_blocks",
    "moe_kernel",
    "expert_load",
    "async_scheduling",
    "sampling",
)


def engine_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `physim.Deployment` among a command's options, its ``locals()``."""
    return {name: options[name] for name in _FIELDS if name in options}
