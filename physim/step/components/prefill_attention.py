"""Causal attention of prefill chunks: among their own tokens, and to those in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.grids.store import load_grid
from physim.inputs.architecture import CHUNKED_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION
from physim.inputs.quantization import BFLOAT16
from physim.step.component import Component, Part, Placement
from physim.step.curves import CHUNK, REQUESTS, rising_log_seconds
from physim.step.rows import PrefillRow, Row

# Of windowed attention a chunk is taken to see all before it: contexts are kept within the window.
_KINDS = (FULL_ATTENTION, SLIDING_ATTENTION, CHUNKED_ATTENTION)


def _lower(placement: Placement) -> Iterator[Row]:
    counts: Counter[tuple[int, int, int]] = Counter()
    for attention, layers in placement.model.attention_layers.items():
        if attention.kind in _KINDS:
            counts[*placement.heads(attention), attention.head_dim] += layers
    peak, bandwidth = placement.peak_flops(BFLOAT16), placement.gpu.memory_bandwidth
    for (heads, kv_heads, dim), layers in counts.items():
        grid = load_grid(placement.grids, "prefill_attention").at(
            group=heads / kv_heads, head_dim=float(dim)
        )
        work = roofline.prefill_attention(REQUESTS[:, None], CHUNK, heads, kv_heads, dim)
        pair_flops, cached_bytes = roofline.cached_attention(
            1.0, 1.0, heads, kv_heads, dim, placement.model.formats.kv_cache_bytes
        )
        yield PrefillRow(
            name="prefill_attention",
            part="prefill_attention",
            count=layers,
            pair_flops=float(pair_flops),
            token_bytes=2 * roofline.BYTES_16_BIT * dim * (heads + kv_heads),
            cached_bytes=float(cached_bytes),
            peak_flops=peak,
            bandwidth=bandwidth,
            log_seconds=rising_log_seconds(
                grid.resampled(sequences=REQUESTS * heads, tokens=CHUNK),
                np.asarray(roofline.seconds(work, peak, bandwidth)),
            ),
            correction="prefill_attention",
            cached_correction="cached_attention",
        )


COMPONENT = Component(
    name="prefill_attention",
    parts=(
        Part(
            "prefill_attention",
            "prefill attention",
            sweep="prompts",
            blis_table="context_attention",
        ),
    ),
    lower=_lower,
    source="context attention tables of aiconfigurator-core 0.12.0",
    attention_kinds=_KINDS,
)
