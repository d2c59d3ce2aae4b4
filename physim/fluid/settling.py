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
        until: How many prompts more than the mean are computed until each one's own is, in order,
            as they have settled,
        after: and after it.
    """

    drifted: InStep
    first: InStep
    settled: InStep
    each_round: Scalar
    most: Scalar
    until: Float[AnyArray, " prompts"]
    after: Float[AnyArray, " prompts"]

    def meeting_after(self, rounds: Float[AnyArray, "*n"], drift: Float[AnyArray, "*n"]) -> InStep:
        """What they meet after so many rounds.

        Args:
            rounds: Rounds after the first.
            drift: Variance of how far a client has drifted, in steps squared.
        """
        within = 1 / (1 + drift)
        share = jnp.minimum(self.each_round * rounds, self.most)
        found: InStep = jax.tree.map(
            lambda drifted, first, settled: (
                drifted + within * (first + share * (settled - first) - drifted)
            ),
            self.drifted,
            self.first,
            self.settled,
        )
        return found


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
    each_round = whole / crowd.running
    # They do not catch up with the first one if all come before its prompt is computed.
    late = jnp.minimum(first_waits - 1, 1.0) * (first_waits * each_round < 1 - SMALL)
    # Nor do those whose prompts come before all that decodes: all begin together.
    settle = (1 - late) * (1.0 - limits.prompts_apart)
    divided = settle * (1 - whole / room)
    ends = first_prompts(crowd.running, 1.0, whole, 0.0, limits.ranks)
    # Where prompts come before all that decodes, a request waits for all before its own.
    most = jnp.where(limits.prompts_apart, jnp.inf, waited)
    by_room = [(prompts, room), (ends, whole)]
    places = [_places(crowd, those, each, most) for those, each in by_room]
    drifted, settled = (
        _in_step(crowd, limits, each, waited, of_each)
        for (_, each), of_each in zip(by_room, places, strict=True)
    )
    first, last = places
    at_last: _Places = jax.tree.map(lambda x, y: x + settle * (y - x), first, last)
    return Settling(
        drifted=drifted,
        first=drifted._replace(waited=waited + divided, before=drifted.before + divided * room),
        settled=settled,
        each_round=each_round,
        most=settle,
        until=_beyond_mean(at_last.before + at_last.same_step),
        after=_beyond_mean(at_last.after),
    )


class _Places(NamedTuple):
    """Prompts before, beside and after each one's own, in order."""

    before: Float[AnyArray, " prompts"]
    same_step: Float[AnyArray, " prompts"]
    after: Float[AnyArray, " prompts"]


def _places(crowd: Crowd, prompts: FirstPrompts, room: Scalar, most: Scalar) -> _Places:
    running = crowd.running
    rest = prompts.rest(running, room)
    return _Places(
        prompts_before(prompts, crowd.chunks, room, most),
        prompts_together(prompts, jnp.minimum(room, running), rest),
        prompts_after(prompts, running, room),
    )


def _beyond_mean(values: Float[AnyArray, " n"]) -> Float[AnyArray, " n"]:
    return values - jnp.mean(values)


def _in_step(crowd: Crowd, limits: Limits, room: Scalar, waited: Scalar, places: _Places) -> InStep:
    """What clients meet whose steps have room for so many prompts."""
    # Where prompts come before all that decodes, all that begin together decode together too.
    width = jnp.where(limits.prompts_apart, 1.0, jnp.maximum(crowd.running / room, 1.0))
    return InStep(
        waited=waited,
        before=jnp.mean(places.before),
        after=jnp.mean(places.after),
        same_step=jnp.maximum(jnp.mean(places.same_step), 1.0),
        width=width,
    )
