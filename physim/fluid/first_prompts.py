"""First prompts of clients who begin at once: the steps that they end in, and their times.

All prompts are there from the start, and each step computes as many as its token budget holds
beside the requests that decode already. So which step a prompt ends in follows from its place in
line, and the times follow from the steps before.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.guards import SMALL
from physim.types import AnyArray, Scalar

# Places in line that stand for those of all first prompts.
_PLACES = 256


class FirstPrompts(NamedTuple):
    """Steps in which prompts end that come all at once to an idle engine.

    Attributes:
        step: Step in which each ends, counted from one, by its place in line.
        steps: Steps that all of them take.
        decoding: Requests that decode when the last of them ends.
    """

    step: Float[AnyArray, " prompts"]
    steps: Scalar
    decoding: Scalar

    def rest(self, running: Scalar, room: Scalar) -> Scalar:
        """Prompts in the last of the steps.

        Args:
            running: Prompts in all.
            room: Prompts that fill a step.
        """
        return jnp.clip(running - (self.steps - 1) * room, 0.0, jnp.minimum(room, running))


def first_prompts(
    running: Scalar,
    new_tokens: Scalar,
    budget: Scalar,
    most_decoding: Scalar,
    lines: Scalar = 1.0,
) -> FirstPrompts:
    """Steps in which the first prompts end.

    The prompt at place ``n`` ends in step ``ceil(n t / (B - d / 2))``, of ``t`` tokens each and a
    budget of ``B``: of the ``n - B / t`` requests that decode in the end, ``d`` at most, half do so
    in the mean of the steps until then, and each takes a token. Of several lines, each with its
    share of the budget, as many prompts have the same place.

    Args:
        running: Prompts, one for each request that has a slot.
        new_tokens: Tokens of a prompt that are computed.
        budget: Tokens of a step.
        most_decoding: Requests that decode at most: those before them have ended.
        lines: Lines that prompts wait in: one for each data-parallel rank.
    """
    place = jnp.ceil(running * (np.arange(_PLACES) + 1) / _PLACES)
    place = lines * jnp.ceil(place / lines)
    decoding = jnp.clip(place - budget / new_tokens, 0.0, most_decoding)
    left = jnp.maximum(budget - decoding / 2, 1.0)
    # A step that lacks a rounding error of a prompt is full.
    step = jnp.ceil(place * new_tokens / left - SMALL)
    return FirstPrompts(step, step[-1], decoding[-1])


def prefill_s(
    prompts: FirstPrompts, begin: Scalar, end: Scalar, last: Scalar
) -> Float[AnyArray, " prompts"]:
    """Time from the start until each of the first prompts is computed, seconds.

    The ``S - 1`` full steps grow evenly from ``begin`` by ``(end - begin) / (S - 1)`` each, because
    more and more requests decode beside them; step ``S`` computes the rest.

    Args:
        prompts: The steps in which they end.
        begin: The first step, in which nothing decodes, seconds.
        end: A full step when all but the last prompts decode, seconds.
        last: The last step, seconds.
    """
    growing = jnp.maximum(prompts.steps - 1.0, 1.0)
    full = jnp.minimum(prompts.step, growing)
    growth = (end - begin) / growing
    return full * begin + full * (full - 1) / 2 * growth + (prompts.step > full) * last


def prompts_before(
    prompts: FirstPrompts, own_steps: Scalar, room: Scalar, most_steps: Scalar
) -> Float[AnyArray, " prompts"]:
    """Prompts that are computed while each request waits for its own first step, in order.

    Args:
        prompts: The steps in which the first prompts end.
        own_steps: Steps that a prompt takes itself.
        room: Prompts that fill a step.
        most_steps: Steps that a request waits at most.
    """
    return room * jnp.clip(prompts.step - own_steps, 0.0, most_steps)


def prompts_after(
    prompts: FirstPrompts, running: Scalar, room: Scalar
) -> Float[AnyArray, " prompts"]:
    """Prompts that are computed after each one, in order: ``max(running - step room, 0)``.

    Args:
        prompts: The steps in which the first prompts end.
        running: Prompts in all.
        room: Prompts that fill a step.
    """
    return jnp.maximum(running - prompts.step * room, 0.0)


def prompts_together(
    prompts: FirstPrompts, group: Scalar, rest: Scalar
) -> Float[AnyArray, " prompts"]:
    """Prompts in the step that each request's own ends in, itself included, in order.

    Args:
        prompts: The steps in which the first prompts end.
        group: Prompts in a full step.
        rest: Prompts in the last step.
    """
    return jnp.where(prompts.step < prompts.steps, group, rest)
