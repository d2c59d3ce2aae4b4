"""How much of what was said before turns of conversations find in the prefix cache.

Che's approximation (see `physim.batching.prefix_cache`) with the time between uses of a context: a
conversation's blocks are in use while a turn of it runs, and not used from its answer to when the
next turn starts. The cache keeps what was left unused for less than a characteristic time.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.guards import ROOT, SMALL
from physim.batching.prefix_cache import STEPS_OF_CACHES
from physim.inputs.load import Load
from physim.inputs.turns import TurnSample
from physim.pytree import Pytree
from physim.types import AnyArray, Scalar

# Numbers of data-parallel ranks between which others lie.
_RANKS = 2 ** np.arange(8)
# Points and weights of a mean over a normal distribution (Gauss and Hermite).
_PLACES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_WEIGHTS /= np.sum(_WEIGHTS)


class Contexts(Pytree):
    """What conversations leave in the KV cache from turn to turn, and how long for.

    Where requests are no turns none is followed by another, and what is lost is their prefix.

    Attributes:
        think_s: Time from an answer to the next request of the conversation or client, seconds.
        followed: Share of the requests that another turn of their conversation comes after.
        left_tokens: Tokens that these leave behind beside what all conversations begin with, mean.
        last_tokens: The same of the others.
        left_cv2: Squared coefficient of variation of the first of these, and
        last_cv2: of the others.
        prefix_tokens: Tokens that a prompt finds in any case.
        found_products: New tokens of a prompt times those found before them, mean over prompts
            whose context is found.
        missed_products: The same where it is evicted.
        missed_squares: Squares of new tokens where it is evicted, mean.
        reach: Of what turns would find of what was said before, the share that was computed on
            their own rank: of one rank, of two, four and so on.
    """

    think_s: Scalar
    followed: Scalar
    left_tokens: Scalar
    last_tokens: Scalar
    left_cv2: Scalar
    last_cv2: Scalar
    prefix_tokens: Scalar
    found_products: Scalar
    missed_products: Scalar
    missed_squares: Scalar
    reach: Float[AnyArray, " ranks"]

    @classmethod
    def from_load(cls, load: Load, block_size: int) -> Contexts:
        """Those of a load of conversations.

        Args:
            load: The load.
            block_size: Tokens of a KV block.
        """
        return cls.of_turns(load.turn_sample, float(load.think_s), block_size)

    @classmethod
    def of_turns(cls, turns: TurnSample, think_s: float, block_size: int) -> Contexts:
        """Those of turns.

        Args:
            turns: The turns.
            think_s: Time from an answer to the next turn of the conversation, mean, seconds.
            block_size: Tokens of a KV block.
        """
        prefix = turns.prefix_found(block_size)
        found = turns.found_tokens(block_size)
        new, whole = turns.input_tokens - found, turns.input_tokens - prefix
        left, last = (turns.context[of] - prefix for of in (turns.followed, ~turns.followed))
        # Where none is followed, there is nothing to be found, of any size.
        left = left if left.size else last
        return cls(
            think_s=think_s,
            followed=float(np.mean(turns.followed)),
            left_tokens=float(np.mean(left)),
            last_tokens=float(np.mean(last)),
            left_cv2=float(np.var(left) / np.mean(left) ** 2),
            last_cv2=float(np.var(last) / np.mean(last) ** 2),
            prefix_tokens=prefix,
            found_products=float(np.mean(new * found)),
            missed_products=float(np.mean(whole)) * prefix,
            missed_squares=float(np.mean(whole**2)),
            reach=_reach(turns),
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
            left_cv2=0.0,
            last_cv2=0.0,
            prefix_tokens=0.0,
            found_products=new_tokens * cached_tokens,
            missed_products=0.0,
            missed_squares=squares,
            reach=np.ones(len(_RANKS)),
        )

    def on(self, ranks: Scalar) -> Contexts:
        """What conversations leave on one of some ranks, each of which gets turns by chance.

        With the chance ``f`` of another turn, one of them comes back to the rank with the chance
        ``f / (f + (1 - f) ranks)``, after ``1 / (1 - f + f / ranks)`` turns in the mean.

        Args:
            ranks: How many there are.
        """
        ends = 1.0 - self.followed
        return replace(
            self,
            think_s=self.think_s / (ends + self.followed / ranks),
            followed=self.followed / (self.followed + ends * ranks),
        )

    def reached_on(self, ranks: Scalar) -> Scalar:
        """Share of what was said before that a turn could find on its own of some ranks.

        Args:
            ranks: How many there are.
        """
        return jnp.interp(jnp.log2(ranks), np.log2(_RANKS), self.reach)


@functools.lru_cache
def _reach(turns: TurnSample) -> Float[np.ndarray, " ranks"]:
    """Of what turns would find of what was said before, the share on their rank, of `_RANKS`."""
    most = turns.known_on(1) - turns.prefix_tokens
    if not most:
        return np.ones(len(_RANKS))
    return np.array([(turns.known_on(n) - turns.prefix_tokens) / most for n in _RANKS.tolist()])


class Blocks(NamedTuple):
    """KV blocks of a cache that turns of conversations share.

    Attributes:
        cache: All that there are, but for those that all conversations begin with.
        running: Requests that run.
        runs: Blocks of each of them.
        left: Blocks that a request leaves for the next turn, mean.
        last: Blocks that the last turn of a conversation leaves, mean.
        of_client: Share of the conversations that are one client's; nothing in an open loop.
    """

    cache: Scalar
    running: Scalar
    runs: Scalar
    left: Scalar
    last: Scalar
    of_client: Scalar


def contexts_found(
    contexts: Contexts,
    blocks: Blocks,
    rate: Scalar,
    waited_s: Scalar,
    away_s: Scalar | None = None,
) -> Scalar:
    """Share of what was said before that turns find, of those that were preceded by others.

    Requests end at a rate ``r``, and leave ``l`` blocks for a next turn, which comes after a time
    with the mean ``z``, or with the share ``1 - f`` as many as ``e`` that nobody asks for again.
    What is younger than ``T`` takes up

        r f l z (1 - exp(-T/z)) + r (1 - f) e T

    blocks, which are those that no running request holds, less half of the context that is asked
    for: its blocks go one by one. A turn finds its context if it starts before: with the chance
    ``1 - exp(-(T - w)/z)``, of a wait ``w``. How many contexts there are, and run, goes by chance
    (Poisson; binomial of so many clients), so that it is a mean over more and less room.

    Of turns that are answered elsewhere for ``d`` before that time, ``min(T, d) + z (1 - exp(-(T -
    d)/z))`` stands for ``z (1 - exp(-T/z))``, and ``T - d`` for ``T``.

    Args:
        contexts: What conversations leave.
        blocks: The cache.
        rate: Requests that end, 1/s.
        waited_s: Time that a turn waits until it starts, seconds.
        away_s: How long a turn is answered elsewhere, seconds; None where nothing is.
    """
    think = jnp.maximum(contexts.think_s, SMALL)
    useful = rate * contexts.followed * blocks.left * think
    useless = rate * (1.0 - contexts.followed) * blocks.last * think
    # Of a token that is asked for, the context is longer than the mean one.
    met = blocks.left * (1.0 + contexts.left_cv2)
    free = jnp.maximum(blocks.cache - blocks.running * blocks.runs - met / 2, 0.0)
    away = None if away_s is None else away_s / think
    young = useful * _kept(_time(useful, useless, free, away), away)
    waiting = jnp.minimum(young / blocks.left * blocks.of_client, 1.0)
    running = jnp.minimum(blocks.running * blocks.of_client, 1.0)
    variance = (1.0 - waiting + contexts.left_cv2) * young * blocks.left
    variance += (1.0 + contexts.last_cv2) * (free - young) * blocks.last
    variance += (1.0 - running + contexts.left_cv2) * blocks.running * blocks.runs**2
    room = jnp.maximum(free + jnp.sqrt(variance + ROOT) * _PLACES, 0.0)
    times = _time(useful, useless, room, away)
    if away is not None:
        times = times - away
    return jnp.sum(_WEIGHTS * -jnp.expm1(-jnp.maximum(times - waited_s / think, 0.0)))


def _kept(time: Float[AnyArray, "*n"], away: Scalar | None) -> Float[AnyArray, "*n"]:
    """Of contexts that are waited for, those younger than a time, in what come in a think time."""
    if away is None:
        return -jnp.expm1(-time)
    return jnp.minimum(time, away) - jnp.expm1(-jnp.maximum(time - away, 0.0))


def _time(
    useful: Scalar, useless: Scalar, room: Float[AnyArray, "*n"], away: Scalar | None = None
) -> Float[AnyArray, "*n"]:
    """The characteristic time in think times, where so many blocks have room.

    Args:
        useful: Blocks of contexts that are waited for, were none evicted.
        useless: Blocks that others leave in a think time.
        room: Blocks.
        away: How long turns are answered elsewhere, in think times; None where nothing is.
    """
    time = room / (useful + useless + SMALL)
    for _ in range(STEPS_OF_CACHES):
        held = useful * _kept(time, away) + useless * time
        thinking = time if away is None else jnp.maximum(time - away, 0.0)
        slope = useful * jnp.exp(-thinking) + useless + SMALL
        time = time + jnp.maximum(room - held, 0.0) / slope
    return time
