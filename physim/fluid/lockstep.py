"""Clients whose requests are of one length: they stay in step.

Requests that were prefilled together end together, and the next ones of their clients come
together. So all prompts of a round are computed in successive steps, as many as the token budget
makes of them, and then all decode side by side until the round is over. That is what load
generators make of a number of clients with fixed lengths.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from physim.fluid.demand import Demand
from physim.inputs.deployment import Limits
from physim.step.front_end import output_s, outside_s
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Scalar

# Relative variance of lengths above which requests that start together do not end together.
_ALIKE = 1e-6


class Round(NamedTuple):
    """A round of all clients. Times in seconds.

    Attributes:
        ttft: Mean time to first token.
        wait: Of it, what a request waits for prompts that came with its own or before, mean,
        spread: and standard deviation.
        itl: Mean time from one token to the next.
        batch: Requests that decode in a step, mean.
        running: Requests that are prefilled or decode, mean.
        mixed_share: Share of steps with prefill.
        step: A mean step.
    """

    ttft: Scalar
    wait: Scalar
    spread: Scalar
    itl: Scalar
    batch: Scalar
    running: Scalar
    mixed_share: Scalar
    step: StepTime


def in_lockstep(demand: Demand, slots: Scalar) -> Bool[AnyArray, ""]:
    """Whether clients stay in step: several, all with a slot, and their requests of one length."""
    alike = (demand.prompt_cv2 < _ALIKE) & (demand.output_cv2 < _ALIKE)
    several = demand.closed & (demand.clients >= 2) & (demand.clients <= slots)
    return alike & several & (demand.decode_steps > 0)


def round_of_clients(model: StepModel, demand: Demand, limits: Limits) -> Round:
    """A round of clients that stay in step.

    Args:
        model: Step times.
        demand: The load, in a closed loop; of one in open loop the result means nothing.
        limits: The engine's limits.
    """
    clients = demand.clients
    budget, outside = limits.max_num_batched_tokens, outside_s(model.corrections)
    fresh, decode_steps = demand.new_tokens, demand.decode_steps
    # A group's last tokens are followed by a step that was scheduled before they were known, and
    # by the one that runs while its next prompts come.
    waited = 1.0 + limits.async_scheduling

    def beside(group: Scalar) -> Scalar:
        """Requests that decode in a prefill step: no group that waits, is prefilled or is over."""
        return jnp.clip(clients - (1.0 + waited) * group, 0.0, decode_steps * group)

    # Decode has precedence, and leaves the less for prompts.
    left = jnp.maximum(budget - beside(budget / fresh), 1.0)
    steps = jnp.ceil(clients * fresh / left)
    group = jnp.minimum(left / fresh, clients)
    last = clients - (steps - 1) * group
    chunks = jnp.maximum(1 / group, 1.0)

    def time(decodes: Scalar, prompts: Scalar) -> StepTime:
        return model(
            model.batch(
                decode_requests=decodes,
                context=demand.input_tokens + demand.age,
                prefill_requests=jnp.maximum(prompts, jnp.minimum(group, 1.0) * (prompts > 0)),
                chunk=fresh / chunks,
                cached=demand.cached_tokens + (chunks - 1) / 2 * fresh / chunks,
            )
        )

    decodes = jnp.stack([beside(group), beside(group), clients])
    prompts = jnp.stack([jnp.maximum(group, 1.0), last, jnp.zeros_like(last)])
    times = jax.vmap(time)(decodes, prompts)
    full, rest, decode = (jax.tree.map(lambda x, i=i: x[i], times) for i in range(3))
    longer, longest = full.latency - decode.latency, rest.latency - decode.latency
    # Of the steps that a group waits, those are prefill in which the groups before it are.
    met, squares = _met(steps - 1, waited)
    ends = jnp.minimum(steps - 1, waited)
    met = (group * met + last * ends) / clients
    squares = (group * squares + last * ends**2) / clients
    # With one step for all prompts the engine is idle when they come.
    apart = steps > 1
    late = jnp.maximum(outside - decode.latency, 0.0)
    idle = jnp.where(apart, waited * decode.latency + late, outside)
    own = (chunks - 1) * full.latency + (
        (clients - last) * full.latency + last * rest.latency
    ) / clients
    ttft = idle + met * longer + own + output_s(model.corrections, beside(group) + group)
    # All prefill steps of a round are met while decoding but one's own, and those waited for.
    prefill = (steps - 1) * longer + longest
    others = prefill - (own - decode.latency) - met * longer
    itl = decode.latency + jnp.clip(others / decode_steps, 0.0, longer)
    # Where there is more to prefill than steps to decode, prompts wait in line.
    in_line = jnp.maximum(
        (steps - 1) * full.latency + rest.latency - ttft - decode_steps * itl, 0.0
    )
    whole = decode_steps + chunks + waited * apart + in_line / full.latency
    share = jnp.minimum(steps / whole, 1.0)
    mean: StepTime = jax.tree.map(
        lambda f, r, d: share * ((steps - 1) * f + r) / steps + (1 - share) * d, full, rest, decode
    )
    return Round(
        ttft=ttft + in_line,
        wait=met * longer + in_line,
        spread=jnp.sqrt(jnp.maximum(squares - met**2, 1e-12)) * longer,
        itl=itl,
        batch=clients * decode_steps / whole,
        running=clients * (decode_steps + chunks) / whole,
        mixed_share=share,
        step=mean,
    )


def _met(groups: Scalar, most: Scalar) -> tuple[Scalar, Scalar]:
    """Groups before each of some, up to a number; summed over the groups, and their squares."""
    rising = jnp.clip(groups - 1, 0.0, most)
    level = jnp.maximum(groups - 1 - most, 0.0)
    squares = rising * (rising + 1) * (2 * rising + 1) / 6 + level * most**2
    return rising * (rising + 1) / 2 + level * most, squares
