"""Causal attention of prefill chunks: among their own tokens, and to those in the cache."""

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
    window_of,
)
from physim.step.better_gpus import no_faster
from physim.step.component import Component, Part, Placement
from physim.step.curves import CHUNK, REQUESTS, rising_log_seconds
from physim.step.rows import PrefillRow, Row


def _lower(placement: Placement) -> Iterator[Row]:
    kv_bytes = placement.server.kv_cache_bytes
    for attention, layers in layers_by_attention(placement).items():
        (heads, kv_heads), dim = attention.on_gpu(placement.tp), attention.mean_dim
        pair_flops, cached_bytes = roofline.cached_attention(
            1.0, 1.0, heads, kv_heads, dim, kv_bytes
        )
        yield PrefillRow(
            name="prefill_attention",
            part="prefill_attention",
            count=layers,
            window=window_of(attention),
            pair_flops=float(pair_flops),
            token_bytes=2 * dim * (heads * roofline.BYTES_16_BIT + kv_heads * kv_bytes),
            cached_bytes=float(cached_bytes),
            peak_flops=peak_flops(placement),
            bandwidth=placement.gpu.memory_bandwidth,
            log_seconds=no_faster(
                placement,
                missed("prefill_attention", attention),
                functools.partial(_log_seconds, attention=attention),
            ),
            correction="prefill_attention",
            cached_correction="cached_attention",
        )


def _log_seconds(placement: Placement, attention: Attention) -> np.ndarray:
    """Logarithm of the time of a layer with nothing cached, over `REQUESTS` and `CHUNK`."""
    heads, kv_heads = attention.on_gpu(placement.tp)
    efficiency = log_efficiency(placement, "prefill_attention", attention, REQUESTS * heads, CHUNK)
    work = roofline.prefill_attention(
        *(REQUESTS[:, None], CHUNK, heads, kv_heads, attention.mean_dim),
        placement.server.kv_cache_bytes,
        window_of(attention) or np.inf,
    )
    bound = roofline.seconds(work, peak_flops(placement), placement.gpu.memory_bandwidth)
    return rising_log_seconds(efficiency, np.asarray(bound))


COMPONENT = Component(
    name="prefill_attention",
    parts=(Part("prefill_attention", "prefill attention"),),
    lower=_lower,
    source="context attention tables of aiconfigurator-core 0.12.0",
    attention_kinds=KINDS,
    assumptions=lambda placement: assumptions(placement, "prefill_attention"),
)
