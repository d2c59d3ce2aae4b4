"""Work of each operation of a transformer step: FLOP and the least bytes that must move.

Functions of the type `Work` return ``(flops, bytes)``. Most are plain arithmetic, which takes
floats, NumPy arrays and traced JAX arrays alike; those with a minimum take the first two. `seconds`
turns work into the roofline time of Williams, Waterman and Patterson (CACM 52(4), 2009): whichever
of the two resources takes longer.
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


def latent_prefill(
    requests: Number,
    pairs: Number,
    tokens: Number,
    heads: Number,
    latent: Number,
    keys: Number,
    values: Number,
) -> Work:
    """Latent attention of prompts: latent vectors are multiplied up to keys and values of heads.

    Args:
        requests: Prompts.
        pairs: Tokens that each of a prompt's tokens attends to, summed (`causal_pairs`).
        tokens: Tokens of each prompt.
        heads: Query heads.
        latent: Width of a latent vector.
        keys: Width of a head's queries and keys, the rotated part included.
        values: Width of its values.
    """
    up = 2 * tokens * heads * latent * (keys + values)
    flops = requests * (2 * pairs * heads * (keys + values) + up)
    moved = requests * tokens * heads * 2 * (keys + values) * BYTES_16_BIT
    return flops, moved


def scoring(pairs: Number, keys: Number, heads: Number, dim: Number) -> Work:
    """Scores of an indexer's queries with keys, each kept in 8 bit with a 32-bit scale.

    Args:
        pairs: Queries' tokens times the keys that each sees, summed.
        keys: Keys that are read.
        heads: Its query heads.
        dim: Their width.
    """
    return 2 * pairs * heads * dim, keys * (dim + 4.0)


def state_update(requests: Number, heads: Number, key_dim: Number, value_dim: Number) -> Work:
    """One token of each request through a recurrent state: 32-bit matrices read and written.

    Each head's matrix decays, is multiplied by the key, takes in an outer product, and is
    multiplied by the query: four multiply-adds of each number.
    """
    numbers = requests * heads * key_dim * value_dim
    vectors = requests * heads * 2 * (key_dim + value_dim) * BYTES_16_BIT
    return 8 * numbers, 2 * 4.0 * numbers + vectors


def state_scan(
    requests: Number, tokens: Number, heads: Number, key_dim: Number, value_dim: Number
) -> Work:
    """Prompts through a recurrent state, a chunk of 64 tokens at a time.

    Within a chunk tokens attend to one another; between chunks the state is read and written. The
    matrices stay on the chip, and every token's vectors are read and written once.
    """
    chunk = np.minimum(tokens, 64.0)
    inside = 2 * chunk * (key_dim + value_dim)
    between = 4 * key_dim * value_dim
    flops = requests * tokens * heads * (inside + between)
    state = 4.0 * heads * key_dim * value_dim
    vectors = tokens * heads * 2 * (key_dim + value_dim) * BYTES_16_BIT
    return flops, requests * (state + vectors)


def plus(one: Work, other: Work) -> Work:
    """Two operations one after the other."""
    return one[0] + other[0], one[1] + other[1]


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
    matrices: Number = 3,
) -> Work:
    """Gate, up and down projections of the routed experts, of width ``width`` on this GPU.

    Without a gate there are two ``matrices``.
    """
    flops = 2 * matrices * tokens * per_token * hidden * width
    visited = active_experts(tokens, count, per_token)
    moved = matrices * visited * hidden * width * weight_bytes + 2 * BYTES_16_BIT * tokens * hidden
    return flops, moved


def all_reduce(message_bytes: Number, gpus: Number) -> Number:
    """Least bytes that each GPU sends: its message, once.

    So it is where the switch adds up (NVLink SHARP, as in NCCL's NVLS algorithm). A ring sends
    ``2 (p - 1) / p`` of it: a reduce-scatter and an all-gather.
    """
    return message_bytes * np.minimum(gpus - 1, 1.0)


def all_gather(message_bytes: Number, gpus: Number) -> Number:
    """Least bytes that each GPU receives: what the others have of the message.

    A reduce-scatter sends as much.

    Args:
        message_bytes: Bytes of all GPUs' parts together.
        gpus: GPUs.
    """
    return message_bytes * (gpus - 1) / gpus


def all_to_all(tokens: Number, hidden: Number, copies: Number, sent_bytes: Number = 1.0) -> Number:
    """Bytes that a GPU sends so that each token is where its experts are, and back in 16 bit.

    Args:
        tokens: Tokens of the GPU.
        hidden: Width of the hidden state.
        copies: Copies of a token that leave its GPU.
        sent_bytes: Bytes of a number on the way to the experts.
    """
    return tokens * copies * hidden * (sent_bytes + BYTES_16_BIT)


def copies_for_ranks(top_k: Number, ranks: Number) -> Number:
    """Copies of a token if one goes to each other rank with any of its experts, chosen evenly.

    Args:
        top_k: Experts that a token visits.
        ranks: GPUs over which experts are spread.
    """
    return (ranks - 1) * (1 - (1 - 1 / ranks) ** top_k)


def copies_for_experts(top_k: Number, ranks: Number) -> Number:
    """Copies of a token if one goes to each of its experts on other ranks, chosen evenly.

    Args:
        top_k: Experts that a token visits.
        ranks: GPUs over which experts are spread.
    """
    return top_k * (1 - 1 / ranks)


def seconds(work: Work, peak_flops: Number, bandwidth: Number) -> Number:
    """Roofline time of NumPy or float work; traced code takes the maximum itself."""
    flops, moved = work
    return np.maximum(flops / peak_flops, moved / bandwidth)
