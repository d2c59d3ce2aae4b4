"""How much of their prefixes requests find in a cache that evicts the least recently used.

Che's approximation (Che, Tung and Wang, Hierarchical Web caching systems, IEEE JSAC 20(7), 2002): a
cache holds what was last asked for within a characteristic time, the same for all its content. The
KV cache of an engine holds whole requests, so that time is counted in them: it holds what the last
``N`` requests touched, of which the latest still run.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.guards import LITTLE, SMALL
from physim.pytree import Pytree
from physim.types import AnyArray, Scalar

# How often the requests that run and what they find in the prefix cache are made to agree: what is
# evicted hardly changes how many run (tests/test_prefix_hits.py).
PASSES = 2

# Newton's steps from below: of these caches a step gets as far as a prefix takes to be asked for
# once, or a think time, so that one which all but holds a working set takes the most
# (tests/test_prefix_cache.py, tests/test_conversations.py).
STEPS_OF_CACHES = 10


class Prefixes(Pytree):
    """The prefixes that prompts begin with, in classes of like popularity.

    Attributes:
        tokens: Tokens of a prefix, mean: of full KV blocks.
        count: Prefixes of each class.
        share: Share of the requests that have a given prefix of a class.
        in_turn: Whether requests have them one after the other, over and over; else by chance.
        kept: Whether they are found whenever a request starts: the load says so, or there is one.
        repeated: Share of the requests that are not the first with their prefix, which finds none:
            all but none where requests go on for ever.
    """

    tokens: Scalar
    count: Float[AnyArray, " classes"]
    share: Float[AnyArray, " classes"]
    in_turn: Scalar
    kept: Scalar
    repeated: Scalar = 1.0

    def on(self, ranks: Scalar) -> Prefixes:
        """The prefixes of ranks each of which keeps its own, and gets requests of all."""
        first = jnp.minimum((1.0 - self.repeated) * ranks, 1.0)
        return Prefixes(
            self.tokens,
            self.count * ranks,
            self.share / ranks,
            self.in_turn,
            self.kept,
            1.0 - first,
        )

    def different(self, requests: Scalar) -> Scalar:
        """Different prefixes that so many requests have by chance, mean."""
        return jnp.sum(self.count * -jnp.expm1(self._log_missed * requests))

    def each_more(self, requests: Scalar) -> Scalar:
        """How many more different ones there are with each more request: a derivative."""
        return jnp.sum(self.count * -self._log_missed * jnp.exp(self._log_missed * requests))

    def among(self, requests: Scalar) -> Scalar:
        """Chance that the prefix of a request is one that so many before it had."""
        had = -jnp.expm1(self._log_missed * requests)
        return jnp.sum(self.count * self.share * had)

    @property
    def _log_missed(self) -> Float[AnyArray, " classes"]:
        """Logarithm of the chance that a request has another prefix than a given one."""
        return jnp.log1p(-jnp.minimum(self.share, 1.0 / (1.0 + LITTLE)))


def hits(
    prefixes: Prefixes,
    blocks: Scalar,
    running: Scalar,
    runs: Scalar,
    leaves: Scalar,
    shared: Scalar,
) -> Scalar:
    """Share of their prefixes' tokens that requests find in the cache.

    Of ``N`` requests, of which ``n`` run, the cache holds ``n runs + (N - n) leaves`` blocks of
    their own and each of their prefixes once, and is full: the least recently used make room. A
    request finds its prefix if one of ``N`` requests before it had the same. In turn that is the
    one as many before it as there are prefixes, of whose blocks the last are evicted first. No more
    find theirs than are not the first with it.

    Args:
        prefixes: The prefixes.
        blocks: Blocks of the cache.
        running: Requests that run, n.
        runs: Blocks of a running request that it shares with none.
        leaves: Blocks that it leaves behind when it ends, of no use to others.
        shared: Blocks of a prefix.
    """
    free = blocks - running * (runs - leaves)
    # At least those that run, of whom the cache has all; at least as many as if all had different
    # prefixes; and at least as many as leave room for all prefixes.
    every = jnp.sum(prefixes.count)
    count = jnp.maximum(running, free / (leaves + shared))
    count = jnp.maximum(count, (free - shared * every) / leaves)
    for _ in range(STEPS_OF_CACHES):
        held = count * leaves + shared * prefixes.different(count)
        slope = leaves + shared * prefixes.each_more(count)
        count = count + jnp.maximum(free - held, 0.0) / slope
    by_chance = jnp.minimum(prefixes.among(count), prefixes.repeated)
    between = jnp.maximum(every - 1.0 - running, 0.0)
    short = running * runs + between * leaves + every * shared - blocks
    in_turn = jnp.clip(1.0 - short / jnp.maximum(shared, SMALL), 0.0, prefixes.repeated)
    found = jnp.where(prefixes.in_turn, in_turn, by_chance)
    return jnp.where(jnp.asarray(prefixes.kept, bool) | (shared <= 0), 1.0, found)
