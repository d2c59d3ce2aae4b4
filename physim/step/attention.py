"""Which measured table stands for attention on a KV cache."""

from __future__ import annotations

from physim.grids.efficiency import Grid
from physim.grids.store import load_grid, tables
from physim.inputs.architecture import Attention
from physim.inputs.quantization import BFLOAT16, FP8
from physim.step.component import Placement


def measured_attention(placement: Placement, phase: str, attention: Attention) -> Grid:
    """Measured efficiency of attention with the heads of one GPU.

    Args:
        placement: The model on its GPU.
        phase: ``decode_attention`` or ``prefill_attention``.
        attention: The attention of a layer.

    Raises:
        InputError: A grid file is damaged.
    """
    heads, kv_heads = placement.heads(attention)
    table = f"{phase}_fp8_kv" if _has_fp8_table(placement, phase) else phase
    grid = load_grid(placement.grids, table)
    return grid.at(group=heads / kv_heads, head_dim=float(attention.head_dim))


def peak_flops(placement: Placement) -> float:
    """Peak FLOP/s of attention: an fp8 cache is multiplied by fp8 queries where a GPU can."""
    fp8 = placement.deployment.kv_cache_dtype == "fp8"
    return placement.peak_flops(FP8 if fp8 else BFLOAT16)


def assumptions(placement: Placement, phase: str) -> list[str]:
    """What is said where attention on an fp8 cache was not measured on the GPU."""
    if placement.deployment.kv_cache_dtype != "fp8" or _has_fp8_table(placement, phase):
        return []
    what = phase.replace("_", " ")
    return [f"no measured {what} on an fp8 cache: efficiencies of bfloat16 are used"]


def _has_fp8_table(placement: Placement, phase: str) -> bool:
    """Whether the cache is in fp8 and attention on it was measured."""
    if placement.deployment.kv_cache_dtype != "fp8":
        return False
    return f"{phase}_fp8_kv" in tables(placement.grids)
