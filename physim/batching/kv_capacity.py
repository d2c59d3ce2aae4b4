"""How many requests the KV cache has room for, and how much of it they hold."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.contexts import Blocks, contexts_found
from physim.batching.demand import Demand
from physim.batching.guards import LITTLE
from physim.batching.limits import Limits
from physim.batching.prefix_cache import Prefixes, hits
from physim.batching.root_finding import NEWTON_STEPS
from physim.types import AnyArray, Scalar


def private_blocks(limits: Limits, demand: Demand, age: Scalar) -> Scalar:
    """KV blocks of a request that has an age, apart from its cached prefix.

    Requests are met while they decode, so those of long outputs more often.

    Args:
        limits: The engine's limits.
        demand: The load.
        age: Tokens that the request has generated, mean.
    """
    tokens, share = _met_tokens(demand)
    tokens *= (demand.met_tokens - demand.prefixes.tokens + age) / jnp.sum(share * tokens)
    return jnp.sum(share * blocks_of(limits, tokens))


def _met_tokens(
    demand: Demand,
) -> tuple[Float[AnyArray, " strata"], Float[AnyArray, " strata"]]:
    """KV tokens of requests, half of their answers made, and how often each is met."""
    tokens = demand.prompts + demand.tokens_each * demand.output_steps / 2
    return tokens, demand.output_steps / jnp.sum(demand.output_steps)


def blocks_of(limits: Limits, tokens: Float[AnyArray, "*n"] | float) -> Float[AnyArray, "*n"]:
    """KV blocks of a request that has so many tokens of its own, of which the last is half full.

    Of layers with a window a request holds no more than that, and of those with a state as much at
    any age.

    Args:
        limits: The engine's limits.
        tokens: Tokens of the request.
    """
    seen = jnp.minimum(tokens, limits.window + limits.block_size) / limits.block_size
    held = limits.window_share * seen + limits.state_blocks
    # Drafts have blocks before it is known which are kept.
    drafts = (limits.query_tokens - 1.0) / limits.block_size
    return tokens / limits.block_size + 0.5 + held + drafts


def kv_slots(limits: Limits, demand: Demand) -> Scalar:
    """Requests that the KV cache has room for."""
    # Where room is kept for whole answers, each counts as if it were at its end.
    kept = limits.whole_requests * (demand.output_tokens - demand.age)
    private = private_blocks(limits, demand, demand.age + kept)
    shared = demand.prefixes.tokens / limits.block_size
    # What is left is too little for the prompt that is next: uniform below its size, and long
    # prompts wait longer. Every rank has such a rest, and prefixes of its own.
    left = limits.ranks * demand.new_tokens * (1.0 + demand.prompt_cv2) / 2 / limits.block_size
    blocks = jnp.maximum(limits.kv_blocks - left, limits.kv_blocks / 2)
    return requests_held(blocks, private, shared, demand.prefixes.on(limits.ranks))


def prefix_blocks(limits: Limits, demand: Demand, running: Scalar) -> Scalar:
    """KV blocks of prefixes for each request of so many that run: a prefix is held once."""
    different = demand.prefixes.on(limits.ranks).different(running)
    return demand.prefixes.tokens / limits.block_size * different / running


def kv_cv2(demand: Demand) -> Scalar:
    """Squared coefficient of variation of the KV tokens of requests, half of their answers made.

    Long answers are met more often.
    """
    tokens, share = _met_tokens(demand)
    mean, square = jnp.sum(share * tokens), jnp.sum(share * tokens**2)
    return jnp.maximum(square / mean**2 - 1.0, 0.0)


def kv_use(limits: Limits, demand: Demand, running: Scalar, age: Scalar) -> Scalar:
    """Share of the KV blocks that so many running requests of a mean age hold."""
    private = private_blocks(limits, demand, age)
    shared, prefixes = demand.prefixes.tokens / limits.block_size, demand.prefixes.on(limits.ranks)
    return blocks_held(running, private, shared, prefixes) / limits.kv_blocks


def prefix_hits(
    limits: Limits, demand: Demand, running: Scalar, rate: Scalar, waited_s: Scalar
) -> Scalar:
    """Share of what requests may find in the cache that they do find.

    See `physim.batching.prefix_cache.hits`, and `physim.batching.contexts.contexts_found` for turns
    of conversations.

    Args:
        limits: The engine's limits.
        demand: The load.
        running: Requests that run.
        rate: Requests that end, 1/s.
        waited_s: Time that a turn of a conversation waits until it starts, seconds.
    """
    shared = demand.prefixes.tokens / limits.block_size
    runs = private_blocks(limits, demand, demand.age)
    found = hits(
        demand.prefixes.on(limits.ranks),
        limits.kv_blocks,
        running,
        runs,
        private_blocks(limits, demand, demand.output_tokens),
        shared,
    )
    if demand.contexts is None:
        return found
    own = demand.contexts
    blocks = Blocks(
        cache=limits.kv_blocks - limits.ranks * shared,
        running=running,
        runs=runs,
        left=blocks_of(limits, own.left_tokens),
        last=blocks_of(limits, own.last_tokens),
        of_client=jnp.where(demand.closed, 1.0 / demand.clients, 0.0),
    )
    # Every rank has a cache of its own, and gets turns of all conversations.
    of_turns = contexts_found(own.on(limits.ranks), blocks, rate, waited_s)
    of_turns *= own.reached_on(limits.ranks)
    return jnp.where(own.followed > 0, of_turns, found)


def blocks_held(requests: Scalar, private: Scalar, shared: Scalar, prefixes: Prefixes) -> Scalar:
    """KV blocks that running requests hold.

    Each has one of some prefixes, by chance, and a prefix is held once: of ``P`` prefixes that are
    asked for alike ``n`` requests hold ``n private + shared P (1 - (1 - 1/P)^n)`` blocks.

    Args:
        requests: Requests that run, n.
        private: Blocks of a request that it shares with none.
        shared: Blocks of a prefix.
        prefixes: The prefixes.
    """
    return private * requests + shared * prefixes.different(requests)


def requests_held(blocks: Scalar, private: Scalar, shared: Scalar, prefixes: Prefixes) -> Scalar:
    """Requests that hold as many KV blocks as there are: the inverse of `blocks_held`.

    By Newton's method from below, which cannot overshoot since `blocks_held` is concave.

    Args:
        blocks: Blocks of the cache.
        private: Blocks of a request that it shares with none.
        shared: Blocks of a prefix.
        prefixes: The prefixes.
    """
    count = jnp.maximum((blocks - shared) / (private + shared), LITTLE)
    for _ in range(NEWTON_STEPS):
        slope = private + shared * prefixes.each_more(count)
        count = count + (blocks - blocks_held(count, private, shared, prefixes)) / slope
    return count
