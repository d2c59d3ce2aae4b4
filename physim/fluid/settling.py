"""What clients in step meet of one another, as the first prompts and as they settle.

A step with room for two and a half prompts computes two, and half of the next if that is there. Of
first prompts it always is. But its answer ends a step after those of the two before it, so its
client's next prompt comes a step later too: from then on the two have a step of their own. So in
each round one more step has whole prompts alone, until all have. If the first client's next prompt
takes more than a step to come, the others catch up with it and never settle. Nor do they where
lengths differ so much that a client drifts by a step before its turn comes to settle.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.guards import SMALL
from physim.batching.limits import Limits
from physim.fluid.busy_steps import Crowd
from physim.fluid.first_prompts import (
    FirstPrompts,
    first_prompts,
    prompts_after,
    prompts_before,
    prompts_together,
)
from physim.types import AnyArray, Scalar


class InStep(NamedTuple):
    """What clients in step meet.

    Attributes:
        waited: Steps that a request waits for before its own, mean.
        before: Prompts that are computed meanwhile, mean.
        after: Prompts among the first ones that are computed after it, mean.
        same_step: Prompts in its own step, mean.
        width: Steps over which the prompts of a round are spread.
    """

    waited: Float[AnyArray, "*n"]
    before: Float[AnyArray, "*n"]
    after: Float[AnyArray, "*n"]
    same_step: Float[AnyArray, "*n"]
    width: Float[AnyArray, "*n"]


class Settling(NamedTuple):
    """How clients in step settle.

    Attributes:
        drifted: What they meet who have drifted by more than a step,
        first: those who have not, in the first rounds,
        settled: and in the end, with whole prompts in each step.
        each_round: Share of them that settles in a round,
        most: and in all.
    """

    drifted: InStep
    first: InStep
    settled: InStep
    each_round: Scalar
    most: Scalar

    def after(self, rounds: Float[AnyArray, "*n"], drift: Float[AnyArray, "*n"]) -> InStep:
        """What they meet after so many rounds.

        Args:
            rounds: Rounds after the first.
            drift: Variance of how far a client has drifted, in steps squared.
        """
        within = 1 / (1 + drift)
        share = jnp.minimum(self.each_round * rounds, self.most)
        met: InStep = jax.tree.map(
            lambda drifted, first, settled: (
                drifted + within * (first + share * (settled - first) - drifted)
            ),
            self.drifted,
            self.first,
            self.settled,
        )
        return met


def settling_of(
    crowd: Crowd, limits: Limits, prompts: FirstPrompts, outside: Scalar, comes: Scalar
) -> Settling:
    """How clients in step settle.

    Who has not settled waits longer from round to round, for as much of a step as those before it
    leave of theirs.

    Args:
        crowd: Who is in the steps.
        limits: The engine's limits.
        prompts: The steps in which the first prompts end.
        outside: Steps that begin and end while the first of those who end together is outside of
            the engine, and a part of one.
        comes: Chance that a request finds a slot free as it comes.
    """
    room, whole = crowd.room, crowd.whole
    # A pipeline's steps begin one after the other. What a prompt misses by a hundredth of a step is
    # as good as begun.
    begun = outside * limits.stages
    first_waits = jnp.maximum(jnp.floor(begun) + jnp.minimum(100 * (begun % 1), 1.0), 1.0)
    waited = limits.async_scheduling + comes * first_waits / limits.stages
    each_round, mixed = whole / crowd.running, 1.0 - limits.prompts_apart
    # They do not catch up with the first one if all come before its prompt is computed.
    late = jnp.minimum(first_waits - 1, 1.0) * (first_waits * each_round < 1 - SMALL)
    divided = (1 - late) * mixed * (1 - whole / room)
    drifted = _in_step(crowd, limits, prompts, waited, room)
    ends = first_prompts(crowd.running, 1.0, whole, 0.0, limits.ranks)
    return Settling(
        drifted=drifted,
        first=drifted._replace(waited=waited + divided, before=drifted.before + divided * room),
        settled=_in_step(crowd, limits, ends, waited, whole),
        each_round=mixed * each_round,
        most=1 - late,
    )


def _in_step(
    crowd: Crowd, limits: Limits, prompts: FirstPrompts, waited: Scalar, room: Scalar
) -> InStep:
    """What clients meet whose prompts end in such steps, of which each has room for so many."""
    running = crowd.running
    group = jnp.minimum(room, running)
    # Where prompts come before all that decodes, a request waits for all before its own, and all
    # that begin together decode together too.
    apart = limits.prompts_apart
    return InStep(
        waited=waited,
        before=prompts_before(prompts, crowd.chunks, room, jnp.where(apart, jnp.inf, waited)),
        after=prompts_after(prompts, running, room),
        same_step=prompts_together(prompts, group, prompts.rest(running, room)),
        width=jnp.where(apart, 1.0, jnp.maximum(running / room, 1.0)),
    )
