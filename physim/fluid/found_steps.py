"""The steps that an arriving request finds, of which it is no part.

Long steps are found more often than short ones. But prompts make steps long, and of nearly even
arrivals none came shortly before: only those that came while the step of the last prompt ran, or
while that waited for it, find it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from physim.batching.arrival_numbers import Before, came_before
from physim.batching.batch_statistics import arrival_evenness
from physim.batching.demand import Demand
from physim.batching.guards import EDGE, LITTLE, TINY
from physim.batching.limits import Limits
from physim.batching.occupancy import Occupancy
from physim.batching.prompt_chunks import GROUPS
from physim.batching.step_mix import Steps
from physim.types import Scalar

# Requests of clients in a step from which on one meets the prompt of the one before, being handed
# over in two steps or so, and how sharp that is (benchmarks/fluid_against_replay.py).
_CLOSE, _CLOSE_WIDTH = 0.45, 0.08
# Evenly spaced arrivals in a step from which on fewer than one step without prompts is between two
# with them, so that the step that is formed ahead always has some.
_EACH_SECOND = 0.5


class Found(NamedTuple):
    """Steps as arriving requests find them.

    Attributes:
        next_s: Time of the step after the one under way, mean, seconds.
        spread: By how much twice the rest of the one under way is longer, over it.
        prompts: How often there are prompts in the one under way, over how often they are,
        prompts_next: and in the next, over the share of steps that has them.
        left: What is then left of the one under way, over half of it.
        until_end: What is then left of all steps of the prompts in it, over what is by chance.
    """

    next_s: Scalar
    spread: Scalar
    prompts: Scalar
    prompts_next: Scalar
    left: Scalar
    until_end: Scalar


def found_steps(steps: Steps, occupancy: Occupancy, demand: Demand, limits: Limits) -> Found:
    """The steps that an arriving request finds.

    Args:
        steps: The engine's steps.
        occupancy: Who is in them.
        demand: The load.
        limits: The engine's limits.
    """
    rate = occupancy.prompts / steps.mean.interval
    step_s, alone_s = steps.found_s, steps.found_alone_s
    # Clients, and routers that look at servers, do not send requests at distances of their own.
    in_turn = demand.closed | (demand.routed > 0)
    cv2 = jnp.where(in_turn, 1.0, demand.burst_cv2)
    # In mean distances of arrivals: a step without prompts, one that is formed ahead, and all of a
    # prompt. Each group of prompts is found by itself, as often and as long as it takes.
    alone, prompts = alone_s * rate, steps.prefill_s * rate
    ahead = limits.async_scheduling * alone
    of_groups = jax.vmap(came_before, in_axes=(None, None, 0, None))(ahead, alone, prompts, cv2)
    finds = GROUPS * prompts * of_groups.number
    here = Before(
        jnp.sum(finds) / jnp.sum(GROUPS * prompts),
        jnp.sum(GROUPS * prompts**2 * of_groups.until_end) / jnp.sum(GROUPS * prompts**2),
    )
    with_prompts = jnp.maximum(jnp.sum(steps.kind_share), TINY)
    # Who finds a prompt's step may have come after others that came in it.
    after_alone, after_prompts = (
        jax.vmap(came_before, in_axes=(None, 0, None, None))(0.0 * rate, before, ahead, cv2).number
        for before in (alone[None], prompts)
    )
    chance = after_alone[0] * (1.0 - jnp.minimum(jnp.sum(finds), 1.0))
    chance += jnp.sum(finds * after_prompts) / jnp.maximum(jnp.sum(finds), 1.0)
    chance = jnp.clip(chance * with_prompts, 0.0, 1.0)
    always = jnp.clip((step_s * rate - _EACH_SECOND) / EDGE, 0.0, 1.0) * arrival_evenness(cv2)
    chance += always * (1.0 - chance)
    next_s = alone_s + chance / with_prompts * (step_s - alone_s)
    # What is left of each, twice, by the share of the time that it takes.
    share = jnp.minimum((1.0 - with_prompts) * alone_s / step_s, 1.0)
    prompts_s = jnp.maximum((1.0 + steps.spread) * step_s - share * alone_s, 0.0)
    rest_s = here.until_end * prompts_s + (1.0 - here.number * (1.0 - share)) * alone_s
    # There the prompt before is long computed, unless they follow within few steps.
    level = jnp.where(in_turn, arrival_evenness(demand.burst_cv2), 0.0)
    far = level * jax.nn.sigmoid((_CLOSE - occupancy.prompts) / _CLOSE_WIDTH)
    return Found(
        next_s=(1.0 - far * (1.0 - alone_s / step_s)) * next_s,
        spread=rest_s / next_s - 1.0,
        prompts=here.number,
        prompts_next=chance / with_prompts,
        left=here.until_end / jnp.maximum(here.number, LITTLE),
        until_end=jnp.where(in_turn, jnp.minimum(demand.arrival_cv2, 1.0), here.until_end),
    )
