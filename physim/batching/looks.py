"""Prompts that come together because an engine looks at what has arrived once in so many steps.

A look that finds prompts is followed by a step with all of them, and that by another look; one that
finds none, by as many steps that only decode. So prompts share fewer steps than they came in.
Prompts come by chance, ``a`` in each step in which requests decode, and ``N`` such steps are
between two looks.

Where prompts share steps with requests that decode, a step with prompts is followed by another with
the chance that any came meanwhile, ``1 - exp(-a)``, and ``N`` that only decode by one with
``1 - exp(-N a)``: of steps in a row with prompts there are ``exp(a)``, and then
``N / (1 - exp(-N a))`` without.

Where prompts have steps of their own nobody ends in those, so that what follows on one is only what
its look came too early for: the requests that came in the last step that decodes or, where steps
are formed ahead, in the last two. Without looks at every step ``N - L`` steps' prompts come
together.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from physim.batching.guards import SMALL
from physim.batching.limits import Limits
from physim.types import Number, Scalar


class Looks(NamedTuple):
    """What looks at every so many steps make of prompts that come by chance.

    Attributes:
        share: Steps with prompts, for each step in which requests decode.
        joined: Others that a prompt shares its step with, over those that come in a step.
        waited: Steps that only decode for which a prompt waits beside those that it would wait for
            were there a look at every step, mean.
    """

    share: Number
    joined: Number
    waited: Number


def looks_at(coming: Number, limits: Limits) -> Looks:
    """What the looks of an engine make of its prompts.

    Args:
        coming: Prompts that come in a step in which requests decode, mean.
        limits: The engine's limits.
    """
    beside = beside_decode(coming, limits.receive_every)
    apart = _apart(coming, limits.receive_every, limits.async_scheduling)
    return Looks(
        *(jnp.where(limits.prompts_apart, a, b) for a, b in zip(apart, beside, strict=True))
    )


def beside_decode(coming: Number, every: Scalar) -> Looks:
    """What looks make of prompts that share steps with requests that decode.

    Of a turn of steps in a row with prompts, and then without, ``N^2 / (1 - exp(-N a))`` pairs of
    the steps that prompts came in are seen in its first look, and one in each of the others.

    Args:
        coming: Prompts that come in a step, mean.
        every: Steps that only decode between two looks.
    """
    coming = jnp.maximum(coming, SMALL)
    # Steps that only decode, over those with prompts, times those between two looks.
    runs = jnp.exp(-coming) / -jnp.expm1(-every * coming)
    share = 1.0 / (1.0 + every * runs)
    return Looks(
        share=share,
        joined=share * (1.0 + every**2 * runs),
        waited=(1.0 - share) * (every - 1.0) / 2,
    )


def _apart(coming: Number, every: Scalar, ahead: Scalar) -> Looks:
    """What looks make of prompts that have steps of their own.

    Args:
        coming: Prompts that come in a step in which requests decode, mean.
        every: Steps that only decode between two looks.
        ahead: Whether a step is formed while the one before it runs, 0 or 1.
    """
    coming = jnp.maximum(coming, SMALL)
    found, another = -jnp.expm1(-every * coming), -jnp.expm1(-coming)
    late = (1.0 - 1.0 / every) * found * (1.0 + ahead * another)
    return Looks(
        share=(found + another * late) / every,
        joined=((every - late) ** 2 + late) / every,
        waited=jnp.maximum((every - 1.0) / 2 - late, 0.0),
    )
