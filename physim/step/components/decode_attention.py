"""Attention of decoding requests over their cached context."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.mixers.attention import Attention
from physim.step.attention import (
    KINDS,
    assumptions,
    layers_by_attention,
    log_efficiency,
    missed,
    peak_flops,
)
from physim.step.better_gpus import no_faster
from physim.step.component import Component, Part, Placement
from physim.step.components.elementwise import KERNEL_S
from physim.step.curves import CONTEXT, REQUESTS, rising_log_seconds
from physim.step.rows import DecodeRow, Row

# Share of the memory bandwidth that the largest measured batches reach (128 requests of 2,048
# tokens on the H100). Small ones were timed again and again on keys and values that stayed in the
# L2 cache, up to twice as fast; in an engine a layer's come from memory every time.
FROM_MEMORY = 0.92


def _lower(placement: Placement) -> Iterator[Row]:
    kv_bytes = placement.server.kv_cache_bytes
    for attention, layers in layers_by_attention(placement).items():
        (heads, kv_heads), dim = attention.on_gpu(placement.tp), attention.mean_dim
        yield DecodeRow(
            name="decode_attention",
            part="decode_attention",
            count=layers,
            window=attention.window,
            pair_flops=4 * heads * dim,
            pair_bytes=2 * kv_heads * dim * kv_bytes,
            request_bytes=2 * heads * dim * roofline.BYTES_16_BIT,
            peak_flops=peak_flops(placement),
            bandwidth=placement.gpu.memory_bandwidth,
            log_seconds=no_faster(
                placement,
                missed("decode_attention", attention),
                functools.partial(_log_seconds, attention=attention),
            ),
            correction="decode_attention",
            exponent="decode_context",
        )


def _log_seconds(placement: Placement, attention: Attention) -> np.ndarray:
    """Logarithm of the time of a layer, over `REQUESTS` and `CONTEXT`."""
    heads, kv_heads = attention.on_gpu(placement.tp)
    efficiency = log_efficiency(
        placement, "decode_attention", attention, REQUESTS * kv_heads, CONTEXT
    )
    peak, bandwidth = peak_flops(placement), placement.gpu.memory_bandwidth
    work = roofline.decode_attention(
        *(REQUESTS[:, None], CONTEXT, heads, kv_heads, attention.mean_dim),
        placement.server.kv_cache_bytes,
    )
    return np.maximum(
        rising_log_seconds(efficiency, np.asarray(roofline.seconds(work, peak, bandwidth))),
        np.log(2 * KERNEL_S + work[1] / (FROM_MEMORY * bandwidth)),
    )


COMPONENT = Component(
    name="decode_attention",
    parts=(Part("decode_attention", "decode attention"),),
    lower=_lower,
    source="generation attention tables of aiconfigurator-core 0.12.0",
    attention_kinds=KINDS,
    assumptions=lambda placement: assumptions(placement, "decode_attention"),
)
