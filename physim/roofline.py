"""Work of each operation of a transformer step: FLOP and the least bytes that must move.

Every function returns ``(flops, bytes)`` and is plain arithmetic, so that it takes floats, NumPy
arrays and traced JAX arrays alike. `seconds` turns work into the roofline time of Williams,
Waterman and Patterson (CACM 52(4), 2009): whichever of the two resources takes longer.
"""

from __future__ import annotations

import numpy as np

from physim.types import Number

Work = tuple[Number, Number]
BYTES_16_BIT = 2.0


def gemm(
    tokens: Number, n: Number, k: Number, weight_bytes: Number, activation_bytes: Number
) -> Work:
    """``[tokens, k] @ [k, n]``: weights read once, activations read, a 16-bit result written."""
    flops = 2 * tokens * n * k
    moved = weight_bytes * n * k + activation_bytes * tokens * k + BYTES_16_BIT * tokens * n
    return flops, moved


def decode_attention(
    requests: Number,
    context: Number,
    heads: Number,
    kv_heads: Number,
    dim: Number,
    kv_bytes: Number,
) -> Work:
    """One query token of each request over its cached context: two matrix-vector products.

    Keys and values are read once for each group of query heads; queries and outputs are 16 bit.
    """
    flops = 4 * requests * context * heads * dim
    moved = 2 * requests * dim * (context * kv_heads * kv_bytes + heads * BYTES_16_BIT)
    return flops, moved


def prefill_attention(
    requests: Number,
    tokens: Number,
    heads: Number,
    kv_heads: Number,
    dim: Number,
    kv_bytes: Number = BYTES_16_BIT,
    window: Number = np.inf,
) -> Work:
    """Causal self-attention of each request's ``tokens`` new tokens, nothing cached before them.

    Queries and outputs are 16 bit; keys and values are read as the cache holds them. A token
    attends to itself and those before it, ``window`` at most.
    """
    seen = np.minimum(tokens, window) + 0.0
    flops = 4 * requests * causal_pairs(tokens, seen) * heads * dim
    moved = 2 * requests * tokens * dim * (heads * BYTES_16_BIT + kv_heads * kv_bytes)
    return flops, moved


def causal_pairs(tokens: Number, seen: Number) -> Number:
    """Tokens that each of a sequence's tokens attends to, summed.

    ``q (q + 1) / 2`` for ``q`` tokens within the window; each beyond attends to a whole one.

    Args:
        tokens: Tokens of the sequence.
        seen: What the last of them attends to: the lesser of the tokens and the window.
    """
    return seen * (seen + 1) / 2 + (tokens - seen) * seen


def cached_attention(
    pairs: Number, cached: Number, heads: Number, kv_heads: Number, dim: Number, kv_bytes: Number
) -> Work:
    """What `prefill_attention` adds where requests have tokens in the cache before their new ones.

    Args:
        pairs: New tokens times cached tokens, summed over the requests.
        cached: Cached tokens, summed over the requests.
        heads: Query heads.
        kv_heads: KV heads.
        dim: Width of a head.
        kv_bytes: Bytes of an element of the cache.
    """
    return 4 * pairs * heads * dim, 2 * cached * kv_heads * dim * kv_bytes


def active_experts(tokens: Number, experts: Number, per_token: Number) -> Number:
    """Expected number of experts that at least one of ``tokens`` tokens visits.

    ``E (1 - (1 - k/E)^T)``, for tokens that choose their ``k`` experts independently.
    """
    return experts * (1 - (1 - per_token / experts) ** tokens)


def visited_experts(
    tokens: np.ndarray, experts: int, per_token: int, exponent: float
) -> np.ndarray:
    """`active_experts` where experts are chosen by a power law: the ``i``-th as often as ``i^-a``.

    Args:
        tokens: Tokens, each of which chooses on its own.
        experts: Experts of a layer.
        per_token: Experts that a token visits.
        exponent: The exponent ``a``; 0 for experts that are chosen alike.
    """
    popularity = np.arange(1.0, experts + 1) ** -exponent
    chance = np.minimum(per_token * popularity / popularity.sum(), 1.0)
    return np.sum(1 - (1 - chance) ** np.asarray(tokens)[..., None], axis=-1)


def experts(
    tokens: Number,
    hidden: Number,
    width: Number,
    count: Number,
    per_token: Number,
    weight_bytes: Number,
) -> Work:
    """Gate, up and down projections of the routed experts, of width ``width`` on this GPU."""
    flops = 6 * tokens * per_token * hidden * width
    visited = active_experts(tokens, count, per_token)
    moved = 3 * visited * hidden * width * weight_bytes + 2 * BYTES_16_BIT * tokens * hidden
    return flops, moved


def all_reduce(message_bytes: Number, gpus: Number) -> Number:
    """Least bytes that each GPU sends: its message, once.

    So it is where the switch adds up (NVLink SHARP, as in NCCL's NVLS algorithm). A ring sends
    ``2 (p - 1) / p`` of it: a reduce-scatter and an all-gather.
    """
    return message_bytes * np.minimum(gpus - 1, 1.0)


def seconds(work: Work, peak_flops: Number, bandwidth: Number) -> Number:
    """Roofline time of NumPy or float work; traced code takes the maximum itself."""
    flops, moved = work
    return np.maximum(flops / peak_flops, moved / bandwidth)
