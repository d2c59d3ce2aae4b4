"""Work of each operation of a transformer step: FLOP and the least bytes that must move.

Every function returns ``(flops, bytes)`` and is plain arithmetic, so that it takes floats, NumPy
arrays and traced JAX arrays alike. `seconds` turns work into the roofline time of Williams,
Waterman and Patterson (CACM 52(4), 2009): whichever of the two resources takes longer.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

T = TypeVar("T")
BYTES_16_BIT = 2.0


def gemm(tokens: T, n: T, k: T, weight_bytes: T, activation_bytes: T) -> tuple[T, T]:
    """``[tokens, k] @ [k, n]``: weights read once, activations read, a 16-bit result written."""
    flops = 2 * tokens * n * k
    moved = weight_bytes * n * k + activation_bytes * tokens * k + BYTES_16_BIT * tokens * n
    return flops, moved


def decode_attention(requests: T, context: T, heads: T, kv_heads: T, dim: T, kv_bytes: T) -> tuple[T, T]:
    """One query token of each request over its cached context: two matrix-vector products.

    Keys and values are read once for each group of query heads; queries and outputs are 16 bit.
    """
    flops = 4 * requests * context * heads * dim
    moved = 2 * requests * dim * (context * kv_heads * kv_bytes + heads * BYTES_16_BIT)
    return flops, moved


def prefill_attention(requests: T, tokens: T, heads: T, kv_heads: T, dim: T) -> tuple[T, T]:
    """Causal self-attention of each request's ``tokens`` new tokens, nothing cached before them."""
    flops = 2 * requests * tokens * (tokens + 1) * heads * dim
    moved = 2 * BYTES_16_BIT * requests * tokens * dim * (heads + kv_heads)
    return flops, moved


def cached_attention(
    requests: T, tokens: T, cached: T, heads: T, kv_heads: T, dim: T, kv_bytes: T
) -> tuple[T, T]:
    """What `prefill_attention` adds where each request has ``cached`` tokens before its new ones."""
    flops = 4 * requests * tokens * cached * heads * dim
    moved = 2 * requests * cached * kv_heads * dim * kv_bytes
    return flops, moved


def active_experts(tokens: T, experts: T, per_token: T) -> T:
    """Expected number of experts that at least one of ``tokens`` tokens visits.

    ``E (1 - (1 - k/E)^T)``, for tokens that choose their ``k`` experts independently.
    """
    return experts * (1 - (1 - per_token / experts) ** tokens)


def experts(
    tokens: T, hidden: T, width: T, count: T, per_token: T, weight_bytes: T
) -> tuple[T, T]:
    """Gate, up and down projections of the routed experts, of width ``width`` on this GPU."""
    flops = 6 * tokens * per_token * hidden * width
    visited = active_experts(tokens, count, per_token)
    moved = 3 * visited * hidden * width * weight_bytes + 2 * BYTES_16_BIT * tokens * hidden
    return flops, moved


def all_reduce(message_bytes: T, gpus: T) -> T:
    """Bytes that each GPU must send: a reduce-scatter and an all-gather of ``(p-1)/p`` each."""
    return 2 * (gpus - 1) / gpus * message_bytes


def seconds(work: tuple[T, T], peak_flops: float, bandwidth: float) -> T:
    """Roofline time of NumPy or float work; traced code takes the maximum itself."""
    flops, moved = work
    return np.maximum(flops / peak_flops, moved / bandwidth)
