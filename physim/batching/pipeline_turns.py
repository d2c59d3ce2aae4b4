"""How the batches of a pipeline hold each other up.

Each batch that is under way runs one step in a turn. None passes another, so at every stage a batch
waits for those before it: a turn takes as long as its longest step, and those behind that one end
right after it. Without a pipeline a turn is a step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from physim.batching.guards import SMALL, TINY
from physim.types import AnyArray, Scalar


class Turns(NamedTuple):
    """Turns of steps of some kinds.

    Attributes:
        lanes: Batches that are under way.
        full: Which kind a long prompt fills: such steps follow one another, and the last chunk
            follows them.
        filled: Share of the steps that are of this kind,
        follows: and the chance that the step after one of them is too.
        divided: Share of the prompts of each kind that have such steps before their last chunk.
    """

    lanes: Scalar
    full: int
    filled: Scalar
    follows: Scalar
    divided: Float[AnyArray, " kinds"]

    def ends_apart_s(
        self, times: Float[AnyArray, " kinds"], share: Float[AnyArray, " kinds"]
    ) -> Float[AnyArray, " kinds"]:
        """Time from the end of the step before to that of a step of each kind, seconds.

        The last kind is the shortest: what it waits for, any step does.

        Args:
            times: Time of a step of each kind through all stages, seconds.
            share: Share of the steps that are of each kind.
        """
        turns = self.longest(times, share) @ times
        return ((turns - turns[-1]) * (self.lanes - 1.0) + times) / self.lanes

    def longest(
        self, times: Float[AnyArray, " kinds"], share: Float[AnyArray, " kinds"]
    ) -> Float[AnyArray, "kinds kinds"]:
        """Chances of which kind the longest step of a turn is, by the kind of its last one.

        Args:
            times: Time of a step of each kind.
            share: Share of the steps that are of each kind.
        """
        count = len(times)
        before = np.tri(count, k=-1, dtype=bool).T
        longer = (times > times[:, None]) | ((times == times[:, None]) & before)
        as_long = longer | np.eye(count, dtype=bool)
        at_most, below = jnp.split(
            self._without(jnp.concatenate([longer, as_long]), times, share), 2
        )
        return jnp.where(longer.T, 0.0, at_most) - jnp.where(as_long.T, 0.0, below)

    def _without(
        self,
        kinds: Bool[AnyArray, "any kinds"],
        times: Float[AnyArray, " kinds"],
        share: Float[AnyArray, " kinds"],
    ) -> Float[AnyArray, " any"]:
        """Chance that a turn has no step of some kinds, if its last step is none.

        Of ``L`` steps of a turn each begins such steps with a chance ``b``, so that there are none
        with ``(1 - b)^L``. But prompts that are divided come while others hold up all batches, and
        fill steps one after the other: with ``b`` after turns that have some and ``b / (1 + k)``
        after others, these being so much shorter. Some begin as often as none are left.

        Args:
            kinds: Which kinds they are, in each row others.
            times: Time of a step of each kind.
            share: Share of the steps that are of each kind.
        """
        some = kinds @ share
        none = jnp.maximum(1.0 - some, TINY)
        ends = self.filled * (1.0 - self.follows)
        last = self.divided * share
        last *= jnp.minimum(ends / jnp.maximum(jnp.sum(last), TINY), 1.0)
        with_full = kinds[:, self.full]
        begin = jnp.maximum(some - with_full * (self.filled - ends + kinds @ last), 0.0)
        with_s = kinds @ (share * times)
        without_s = jnp.maximum((jnp.sum(share * times) - with_s) / none, TINY)
        some = jnp.maximum(some, TINY)
        more = jnp.maximum(with_s / some / without_s - 1.0, 0.0)
        more *= with_full * (self.filled + kinds @ last) / some
        # Newton's steps to that come nearer from below; more change no turn by a percent.
        chance = least = begin / (none + begin)
        for _ in range(2):
            free = jnp.maximum(1.0 - chance, TINY)
            off = chance - least * (1.0 + more * free**self.lanes)
            chance -= off / (1.0 + least * more * self.lanes * free ** (self.lanes - 1.0))
        # The most that is less than one in 32 bits, too.
        chance = jnp.clip(chance, TINY, 1.0 - SMALL)
        others = begin * -jnp.expm1(self.lanes * jnp.log1p(-chance)) / chance - begin
        return jnp.clip(1.0 - others / none, 0.0, 1.0)
