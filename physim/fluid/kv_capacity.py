"""How many requests the KV cache has room for, and what it costs when it is full."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from physim.fluid.demand import Demand
from physim.inputs.deployment import Limits
from physim.types import Scalar

_NEWTON_STEPS = 5
# How sharply the KV cache takes over as what limits the requests that run, and the exponent of how
# often a request starts in a full one: chosen on benchmarks/fluid_against_replay.py.
_SHARPNESS, _STARTS_EXPONENT = 20.0, 0.7


def own_blocks(limits: Limits, demand: Demand, age: Scalar) -> Scalar:
    """KV blocks of a request that has an age, apart from its cached prefix.

    The last block is half full. Of layers with a window a request holds no more than that, and of
    those with a state as much at any age.

    Args:
        limits: The engine's limits.
        demand: The load.
        age: Tokens that the request has generated.
    """
    tokens = demand.input_tokens - demand.cached_tokens + age
    seen = jnp.minimum(tokens, limits.window + limits.block_size) / limits.block_size
    held = limits.window_share * seen + limits.state_blocks
    return tokens / limits.block_size + 0.5 + held


def kv_slots(limits: Limits, demand: Demand) -> Scalar:
    """Requests that the KV cache has room for."""
    # Where room is kept for whole answers, each counts as if it were at its end.
    kept = limits.whole_requests * (demand.output_tokens - demand.age)
    own = own_blocks(limits, demand, demand.age + kept)
    shared = demand.cached_tokens / limits.block_size
    # Every rank keeps prefixes of its own.
    return requests_held(limits.kv_blocks, own, shared, demand.prefixes * limits.ranks)


def full_cache(limits: Limits, slots: Scalar) -> Scalar:
    """How far requests wait for KV blocks rather than for ``max_num_seqs``, from 0 to 1.

    Args:
        limits: The engine's limits.
        slots: Requests that the KV cache has room for.
    """
    return jax.nn.sigmoid(_SHARPNESS * (1 - slots / limits.max_num_seqs))


def kv_use(limits: Limits, demand: Demand, running: Scalar, age: Scalar) -> Scalar:
    """Share of the KV blocks that so many running requests of a mean age hold."""
    own, shared = own_blocks(limits, demand, age), demand.cached_tokens / limits.block_size
    prefixes = demand.prefixes * limits.ranks
    return blocks_held(running, own, shared, prefixes) / limits.kv_blocks


def blocks_held(requests: Scalar, own: Scalar, shared: Scalar, prefixes: Scalar) -> Scalar:
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


def requests_held(blocks: Scalar, own: Scalar, shared: Scalar, prefixes: Scalar) -> Scalar:
    """Requests that hold as many KV blocks as there are: the inverse of `blocks_held`.

    By Newton's method from below, which cannot overshoot since `blocks_held` is concave.

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
        count = count + (blocks - blocks_held(count, own, shared, prefixes)) / slope
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
    starts = ((input_tokens + output_tokens) / input_tokens) ** _STARTS_EXPONENT
    return (1 - 1 / starts) * (input_tokens + output_tokens)
