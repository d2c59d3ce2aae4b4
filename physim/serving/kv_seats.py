"""How many requests the KV cache has room for, and what it costs when it is full."""

from __future__ import annotations

import jax.numpy as jnp

from physim.types import Scalar

_NEWTON_STEPS = 5


def kv_held(requests: Scalar, own: Scalar, shared: Scalar, prefixes: Scalar) -> Scalar:
    """KV blocks that running requests hold.

    Each has one of some prefixes, by chance, and a prefix is held once: ``n`` requests hold
    ``n own + shared P (1 - (1 - 1/P)^n)`` blocks.

    Args:
        requests: Requests that run, n.
        own: Blocks of a request that it shares with none.
        shared: Blocks of a prefix.
        prefixes: Different prefixes, P.
    """
    return own * requests + shared * prefixes * -jnp.expm1(_log_missed(prefixes) * requests)


def kv_seats(blocks: Scalar, own: Scalar, shared: Scalar, prefixes: Scalar) -> Scalar:
    """Requests that hold as many KV blocks as there are: the inverse of `kv_held`.

    By Newton's method from below, which cannot overshoot since `kv_held` is concave.

    Args:
        blocks: Blocks of the cache.
        own: Blocks of a request that it shares with none.
        shared: Blocks of a prefix.
        prefixes: Different prefixes.
    """
    count = jnp.maximum((blocks - shared) / (own + shared), 1e-3)
    log_missed = _log_missed(prefixes)
    for _ in range(_NEWTON_STEPS):
        slope = own - shared * prefixes * log_missed * jnp.exp(log_missed * count)
        count = count + (blocks - kv_held(count, own, shared, prefixes)) / slope
    return count


def _log_missed(prefixes: Scalar) -> Scalar:
    """Logarithm of the chance that a request has another prefix than a given one."""
    return jnp.log1p(-1.0 / jnp.maximum(prefixes, 1.001))


def recomputed_tokens(input_tokens: Scalar, output_tokens: Scalar) -> Scalar:
    """Tokens that a request computes again, on average, where requests wait for a full KV cache.

    The blocks that a request gives up at its end start several others, if they are that much
    longer than a prompt; growing requests then take the blocks back. Held against replays of full
    caches, a request starts ``((input + output) / input)^0.7`` times, and has the mean length of so
    many parts when it is started again.

    Args:
        input_tokens: Tokens of a prompt.
        output_tokens: Tokens generated.
    """
    starts = ((input_tokens + output_tokens) / input_tokens) ** 0.7
    return (1 - 1 / starts) * (input_tokens + output_tokens)
