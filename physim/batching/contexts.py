"""How much of what was said before turns of conversations find in the prefix cache.

Che's approximation (see `physim.batching.prefix_cache`) with the time between uses of a context: a
conversation's blocks are in use while a turn of it runs, and not used from its answer to when the
next turn starts. The cache keeps what was left unused for less than a characteristic time.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from physim.batching.guards import SMALL
from physim.inputs.load import Load
from physim.types import Scalar

# Newton's steps from below towards the characteristic time; each comes nearer by a think time at
# least, of which the last few hold one in a thousand (tests/test_conversations.py).
_NEWTON_STEPS = 12


class Contexts(eqx.Module):
    """What conversations leave in the KV cache from turn to turn, and how long for.

    Where requests are no turns none is followed by another, and what is lost is their prefix.

    Attributes:
        think_s: Time from an answer to the next request of the conversation or client, seconds.
        followed: Share of the requests that another turn of their conversation comes after.
        left_tokens: Tokens that these leave behind beside what all conversations begin with, mean.
        last_tokens: The same of the others.
        prefix_tokens: Tokens that a prompt finds in any case.
        found_products: New tokens of a prompt times those found before them, mean over prompts
            whose context is found.
        missed_products: The same where it is evicted.
        missed_squares: Squares of new tokens where it is evicted, mean.
    """

    think_s: Scalar
    followed: Scalar
    left_tokens: Scalar
    last_tokens: Scalar
    prefix_tokens: Scalar
    found_products: Scalar
    missed_products: Scalar
    missed_squares: Scalar

    @classmethod
    def from_load(cls, load: Load, block_size: int) -> Contexts:
        """Those of a load of conversations.

        Args:
            load: The load.
            block_size: Tokens of a KV block.
        """
        turns, prefix = load.turn_sample, load.turn_sample.prefix_found(block_size)
        found = turns.found_tokens(block_size)
        new, whole = turns.input_tokens - found, turns.input_tokens - prefix
        left, followed = turns.context - prefix, turns.followed
        return cls(
            think_s=load.think_s,
            followed=float(np.mean(followed)),
            left_tokens=float(np.mean(left[followed])) if followed.any() else 0.0,
            last_tokens=float(np.mean(left[~followed])),
            prefix_tokens=prefix,
            found_products=float(np.mean(new * found)),
            missed_products=float(np.mean(whole)) * prefix,
            missed_squares=float(np.mean(whole**2)),
        )

    @classmethod
    def of_requests(
        cls, think_s: float, new_tokens: float, new_cv2: float, cached_tokens: float
    ) -> Contexts:
        """Those of requests that are no turns, and compute all where their prefix is evicted.

        Args:
            think_s: Time from an answer to the client's next request, seconds.
            new_tokens: Prompt tokens that are computed where the prefix is found, mean.
            new_cv2: Their squared coefficient of variation.
            cached_tokens: Tokens of the prefix.
        """
        squares = (1.0 + new_cv2) * new_tokens**2 + cached_tokens * (2 * new_tokens + cached_tokens)
        return cls(
            think_s=think_s,
            followed=0.0,
            left_tokens=0.0,
            last_tokens=0.0,
            prefix_tokens=0.0,
            found_products=new_tokens * cached_tokens,
            missed_products=0.0,
            missed_squares=squares,
        )


def contexts_found(
    contexts: Contexts,
    left_blocks: Scalar,
    last_blocks: Scalar,
    free_blocks: Scalar,
    rate: Scalar,
    waited_s: Scalar,
) -> Scalar:
    """Share of the turns that find what was said before, of those that were preceded by others.

    Requests end at a rate ``r``, and leave ``l`` blocks for a next turn, which comes after a time
    with the mean ``z``, or with the share ``1 - f`` as many as ``e`` that nobody asks for again.
    What is younger than ``T`` takes up

        r f l z (1 - exp(-T/z)) + r (1 - f) e T

    blocks, which are those that no running request holds. A turn finds its context if it starts
    before: with the chance ``1 - exp(-(T - w)/z)``, of a wait ``w``.

    Args:
        contexts: What conversations leave.
        left_blocks: Blocks that a request leaves for the next turn.
        last_blocks: Blocks that the last turn of a conversation leaves.
        free_blocks: Blocks of the cache that no running request holds.
        rate: Requests that end, 1/s.
        waited_s: Time that a turn waits until it starts, seconds.
    """
    think = jnp.maximum(contexts.think_s, SMALL)
    useful = rate * contexts.followed * left_blocks * think
    useless = rate * (1.0 - contexts.followed) * last_blocks * think
    free = jnp.maximum(free_blocks, 0.0)
    # The characteristic time in think times.
    time = free / (useful + useless + SMALL)
    for _ in range(_NEWTON_STEPS):
        held = useful * -jnp.expm1(-time) + useless * time
        slope = useful * jnp.exp(-time) + useless + SMALL
        time = time + jnp.maximum(free - held, 0.0) / slope
    return -jnp.expm1(-jnp.maximum(time - waited_s / think, 0.0))
