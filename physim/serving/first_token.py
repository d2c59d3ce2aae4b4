"""Time to first token, put together from its causes."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from physim.corrections import FRONT_END_S, OUTPUT_REQUEST_S, Corrections
from physim.serving.demand import Demand, Limits
from physim.serving.occupancy import Occupancy, Steps
from physim.serving.waits import beyond_budget, wait_for_budget
from physim.types import Scalar


def outside_s(corrections: Corrections) -> Scalar:
    """Time of a request outside the engine, seconds."""
    return FRONT_END_S * jnp.exp(corrections.front_end)


def output_s(corrections: Corrections, requests: Scalar) -> Scalar:
    """Time in which the tokens of a step leave the front end, for the mean one, seconds.

    They are handled one after another while the engine goes on.

    Args:
        corrections: Corrections of the constants.
        requests: Requests of the step.
    """
    return OUTPUT_REQUEST_S * jnp.exp(corrections.output_handling) * requests / 2


def handover_steps(corrections: Corrections, limits: Limits) -> Scalar:
    """Steps that an arriving request waits: half of the running one, and those scheduled ahead."""
    return (0.5 + limits.scheduled_ahead) * jnp.exp(corrections.handover)


class Local(NamedTuple):
    """What a request meets that starts at some time. Times in seconds.

    Attributes:
        beside: A step as a decoding request meets it.
        mean: A mean step.
        first: TTFT of a request that meets an idle engine.
        under_way: Wait for the steps under way, if there are any.
        budget: Wait for the token budget of a step.
        own: A prefill step of its own.
        together: Other prompts in that step, a number.
        longer: How much longer a step is for a prompt in it.
    """

    beside: Scalar
    mean: Scalar
    first: Scalar
    under_way: Scalar
    budget: Scalar
    own: Scalar
    together: Scalar
    longer: Scalar


def local(
    steps: Steps, occupancy: Occupancy, corrections: Corrections, demand: Demand, limits: Limits
) -> Local:
    """What a request meets at an occupancy.

    TTFT is the time in the front end, the steps under way when it arrives, a wait for the token
    budget and for a seat, its own prefill steps, and the handling of their output. Long steps are
    met more often than short ones, so what is left of the one under way is half the mean and half
    its squared coefficient of variation.

    Args:
        steps: The engine's steps.
        occupancy: Who is in them.
        corrections: Corrections of the constants.
        demand: The load.
        limits: The engine's limits.
    """
    waited = handover_steps(corrections, limits) + steps.spread / 2
    first = outside_s(corrections) + output_s(corrections, occupancy.batch + 1.0)
    # Of the prompts that came in the same step, half were before this one.
    same_step = beyond_budget(steps.together / 2, steps.budget) * steps.own_s
    queue = wait_for_budget(occupancy.prefilling, steps.budget, demand.arrival_cv2)
    return Local(
        beside=steps.beside.total,
        mean=steps.mean.total,
        first=first + occupancy.chunks * steps.own_s,
        under_way=waited * steps.under_way_s,
        budget=same_step + queue * steps.mean.total,
        own=steps.own_s,
        together=steps.together,
        longer=steps.longer_s,
    )
