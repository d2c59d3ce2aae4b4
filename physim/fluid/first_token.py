"""Time to first token, put together from its causes."""

from __future__ import annotations

from typing import NamedTuple

from physim.corrections.fields import Corrections
from physim.fluid.demand import Demand
from physim.fluid.queueing import beyond_budget, wait_for_budget
from physim.fluid.step_mix import Occupancy, Steps
from physim.inputs.deployment import Limits
from physim.step.front_end import handover_steps, output_s, outside_s
from physim.types import Scalar


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
        alone: A step that only decodes.
        met: Share of a decoding request's steps with prefill.
        crowd: Prefill chunks of such a step, mean.
    """

    beside: Scalar
    mean: Scalar
    first: Scalar
    under_way: Scalar
    budget: Scalar
    own: Scalar
    together: Scalar
    longer: Scalar
    alone: Scalar
    met: Scalar
    crowd: Scalar


def local(
    steps: Steps, occupancy: Occupancy, corrections: Corrections, demand: Demand, limits: Limits
) -> Local:
    """What a request meets at an occupancy.

    TTFT is the time in the front end, the steps under way when it arrives, a wait for the token
    budget and for a slot, its own prefill steps, and the handling of their output. Long steps are
    met more often than short ones, so what is left of the one under way is half the mean and half
    its squared coefficient of variation.

    Args:
        steps: The engine's steps.
        occupancy: Who is in them.
        corrections: Corrections of the constants.
        demand: The load.
        limits: The engine's limits.
    """
    waited = handover_steps(corrections, limits.async_scheduling) + steps.spread / 2
    waited += (limits.receive_every - 1) / 2
    first = outside_s(corrections) + output_s(corrections, occupancy.batch + 1.0)
    # Of the prompts that came in the same step, half were before this one.
    same_step = beyond_budget(steps.together / 2, steps.budget) * steps.own_s
    # Of its prompts and those of other steps, each is computed in the next one with room.
    arriving = occupancy.prefilling * steps.between_s / steps.mean.interval
    queue = wait_for_budget(arriving, steps.budget, demand.arrival_cv2)
    return Local(
        beside=steps.beside.interval,
        mean=steps.mean.interval,
        first=first + occupancy.chunks * steps.own_s,
        under_way=waited * steps.under_way_s,
        budget=same_step + queue * steps.between_s,
        own=steps.own_s,
        together=steps.together,
        longer=steps.longer_s,
        alone=steps.alone_s,
        met=steps.met,
        crowd=steps.crowd,
    )
