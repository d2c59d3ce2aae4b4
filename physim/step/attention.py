"""Which measured table stands for attention on a KV cache, with a window or without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from physim.grids.store import load_grid, tables
from physim.mixers.attention import CHUNKED_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION, Attention
from physim.models.formats import BFLOAT16, FP8
from physim.step.better_gpus import Missed, no_faster_note
from physim.step.component import Placement

# The kinds of attention whose kernels these tables are of.
KINDS = (FULL_ATTENTION, SLIDING_ATTENTION, CHUNKED_ATTENTION)


def layers_by_attention(placement: Placement) -> dict[Attention, int]:
    """Layers by their attention on keys and values, those of one shape together.

    A window that no context exceeds is none.

    Args:
        placement: The model on its GPU.
    """
    longest = placement.server.sizes.max_model_len
    found: dict[Attention, int] = {}
    for mixer, layers in placement.model.attention_layers.items():
        if not isinstance(mixer, Attention) or mixer.kind not in KINDS:
            continue
        if mixer.window is not None and mixer.window >= longest:
            mixer = replace(mixer, kind=FULL_ATTENTION, window=None)
        found[mixer] = found.get(mixer, 0) + layers
    return found


def log_efficiency(
    placement: Placement,
    phase: str,
    attention: Attention,
    sequences: np.ndarray,
    tokens: np.ndarray,
) -> np.ndarray:
    """Logarithm of the measured efficiency of attention with the heads of one GPU.

    Args:
        placement: The model on its GPU.
        phase: ``decode_attention`` or ``prefill_attention``.
        attention: The attention of a layer.
        sequences: Requests times the heads that each has: KV heads where it decodes.
        tokens: Tokens of a context that are attended to, or of a prompt.

    Raises:
        InputError: A grid file is damaged.
    """
    heads, kv_heads = attention.on_gpu(placement.tp)
    shape = {"group": heads / kv_heads, "head_dim": float(attention.head_dim)}
    known, window = tables(placement.grids), window_of(attention)
    grid = load_grid(placement.grids, _table(placement, phase))
    axis = "context" if phase == "decode_attention" else "tokens"
    full = grid.sliced(**shape).resampled(sequences=sequences, **{axis: tokens})
    table = _table(placement, f"{phase}_window")
    if window is None or table not in known:
        return full
    # What full attention over as much would take, over what a windowed kernel does.
    slower = load_grid(placement.grids, table).sliced(**shape, window=float(window))
    return full + slower.resampled(sequences=sequences, share=tokens / window)


def window_of(attention: Attention) -> int | None:
    """Tokens that a layer looks back; None where its kernel is that of full attention.

    Chunks of attention are full within.
    """
    return attention.window if attention.kind == SLIDING_ATTENTION else None


def peak_flops(placement: Placement) -> float:
    """Peak FLOP/s of attention: an fp8 cache is multiplied by fp8 queries where a GPU can."""
    fp8 = placement.server.kv_cache_dtype != "bfloat16"
    return placement.peak_flops(FP8 if fp8 else BFLOAT16)


def assumptions(placement: Placement, phase: str) -> list[str]:
    """Where attention was not measured on such a cache or with a window, a line each."""
    what, lines = f"no measured {phase.replace('_', ' ')}", {}
    for attention in layers_by_attention(placement):
        limit = no_faster_note(placement, missed(phase, attention))
        if _lacks_fp8(placement, phase):
            lines["on an fp8 cache"] = f"efficiencies of bfloat16 are used{limit}"
        if _lacks_windows(placement, phase, attention):
            lines["with a window"] = f"efficiencies of full attention are used{limit}"
    return [f"{what} {where}: {taken}" for where, taken in lines.items()]


def missed(phase: str, attention: Attention) -> Missed:
    """How many tables were missed for attention: of an fp8 cache, and of windows.

    Args:
        phase: ``decode_attention`` or ``prefill_attention``.
        attention: The attention of a layer.
    """
    return lambda placement: (
        _lacks_fp8(placement, phase) + _lacks_windows(placement, phase, attention)
    )


def _lacks_fp8(placement: Placement, phase: str) -> bool:
    is_fp8 = placement.server.kv_cache_dtype != "bfloat16"
    return is_fp8 and _table(placement, phase) == phase


def _lacks_windows(placement: Placement, phase: str, attention: Attention) -> bool:
    table = _table(placement, f"{phase}_window")
    return window_of(attention) is not None and table not in tables(placement.grids)


def _table(placement: Placement, name: str) -> str:
    """A table, that of the KV cache's format if there is one."""
    on_fp8 = f"{name}_fp8_kv"
    fp8 = placement.server.kv_cache_dtype != "bfloat16"
    return on_fp8 if fp8 and on_fp8 in tables(placement.grids) else name
