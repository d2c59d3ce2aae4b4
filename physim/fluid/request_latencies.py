"""Latencies of the requests of a load: what the fluid's trajectory means for those in it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from physim.batching.batch_statistics import GOLDEN, arrival_evenness, busy_when_even
from physim.batching.guards import EDGE, HARDLY, LITTLE, SMALL, TINY
from physim.fluid.distributions import quantiles
from physim.fluid.first_token import Local
from physim.fluid.percentiles import (
    behind_by_step_s,
    behind_in_gaps_s,
    between_tokens,
    chances,
    decode_factors,
    first_tokens,
    gaps,
    in_batch_before,
    lattice,
    steps_of_outputs,
    stratum,
)
from physim.fluid.schedule import Schedule, StageLengths
from physim.fluid.trajectory import Trajectory
from physim.fluid.transient import Fluid
from physim.pytree import Pytree
from physim.service.phases import decode_steps
from physim.types import AnyArray, Scalar

# As many as keep percentiles within those of the replay (benchmarks/fluid_against_replay.py).
_ARRIVALS = 16  # requests of a stage that stand for all
_POINTS = 48  # points of the lattice for each of them
# Share of those that decode with which a step is compared to see how it grows with them: a
# derivative would say nothing of what a number that varies does.
_FEWER = 0.9


class Summary(Pytree):
    """Latencies of completed requests, seconds; the last entry is the whole load.

    Attributes:
        ttft: Mean time to first token.
        itl: Mean time from a token to the next, over the gaps of all requests.
        tpot: The same, over requests.
        e2e: Mean time of a request.
        percentiles: Of each of these.
        arrived: Requests that arrived.
        completed: Of them, those that were answered before their client gave up.
        finished_s: When the last of them was answered.
        arrival_s: When some requests of each stage arrive.
        ttft_s: Mean time to first token of these.
        samples: Requests of each stage that stand for all.
        weight: How many each of them stands for.
    """

    ttft: Float[AnyArray, " parts"]
    itl: Float[AnyArray, " parts"]
    tpot: Float[AnyArray, " parts"]
    e2e: Float[AnyArray, " parts"]
    percentiles: dict[str, Float[AnyArray, "parts percentiles"]]
    arrived: Float[AnyArray, " parts"]
    completed: Float[AnyArray, " parts"]
    finished_s: Float[AnyArray, " parts"]
    arrival_s: Float[AnyArray, "stages arrivals"]
    ttft_s: Float[AnyArray, "stages arrivals"]
    samples: RequestSamples
    weight: Float[AnyArray, "stages n"]


class RequestSamples(Pytree):
    """Requests that stand for others. Times in seconds.

    Attributes:
        ttft: Time to first token.
        tpot: Mean time from a token to the next.
        e2e: Time of the request.
        answered: When it was answered.
        kept: How far its client has waited for it, from 0 to 1.
        gap: One of its times from a token to the next.
        gaps: How many of them it has.
        stratum: Which of the load's strata, as `Demand` has them, it is of.
    """

    ttft: Float[AnyArray, "*n"]
    tpot: Float[AnyArray, "*n"]
    e2e: Float[AnyArray, "*n"]
    answered: Float[AnyArray, "*n"]
    kept: Float[AnyArray, "*n"]
    gap: Float[AnyArray, "*n"]
    gaps: Float[AnyArray, "*n"]
    stratum: Int[AnyArray, "*n"]


def latencies(fluid: Fluid, trajectory: Trajectory, schedule: Schedule) -> Summary:
    """Latencies of each stage's requests and of all.

    Args:
        fluid: The engine.
        trajectory: What happens.
        schedule: The load's stages.
    """
    times, counts = schedule.corners()
    arrived = jnp.diff(counts)
    within = (np.arange(_ARRIVALS) + 0.5) / _ARRIVALS
    number = counts[:-1, None] + within * arrived[:, None]
    arrival = times[:-1, None] + within * jnp.diff(times)[:, None]
    shifts = np.arange(_ARRIVALS) * GOLDEN
    points = (lattice(_POINTS)[None] + shifts[:, None, None]) % 1.0
    # Of requests that count for more than one, or less; see `Schedule`.
    lengths = schedule.lengths
    if lengths is not None:
        arrived /= lengths.outputs
    of_request = jax.vmap(
        lambda number, arrival, points, own: _request(
            fluid, trajectory, schedule, number, arrival, points, own
        ),
        (0, 0, 0, None),
    )
    samples = jax.vmap(of_request, (0, 0, None, None if lengths is None else 0))(
        number, arrival, jnp.asarray(points), lengths
    )
    weight = samples.kept * arrived[:, None, None] / (_ARRIVALS * _POINTS)
    stages = jax.tree.map(lambda x: x.reshape(len(arrived), -1), (samples, weight))
    whole = jax.tree.map(lambda x: x.reshape(1, -1), (samples, weight))
    by_stage = jax.vmap(_summary)(*stages, arrived)
    of_all = jax.vmap(_summary)(*whole, jnp.sum(arrived)[None])
    rows = jax.tree.map(lambda *x: jnp.concatenate(x), by_stage, of_all)
    return Summary(
        **rows,
        arrival_s=arrival,
        ttft_s=jnp.mean(samples.ttft, axis=-1),
        samples=stages[0],
        weight=stages[1],
    )


def _summary(
    samples: RequestSamples, weight: Float[AnyArray, " n"], arrived: Scalar
) -> dict[str, Any]:
    """Fields of `Summary` for some requests."""
    completed = jnp.sum(weight)
    fields: dict[str, Any] = {
        "arrived": arrived,
        "completed": completed,
        "finished_s": jnp.max(jnp.where(samples.kept > 0.5, samples.answered, 0.0)),
    }
    # A request counts once, and in ITL as often as it has gaps.
    gaps = weight * samples.gaps
    percentiles = {"itl": quantiles(samples.gap, gaps)}
    fields["itl"] = jnp.sum(samples.tpot * gaps) / jnp.maximum(jnp.sum(gaps), TINY)
    for name in ("ttft", "tpot", "e2e"):
        values = getattr(samples, name)
        fields[name] = jnp.sum(values * weight) / jnp.maximum(completed, TINY)
        percentiles[name] = quantiles(values, weight)
    return fields | {"percentiles": percentiles}


def _before_in_batch(
    fluid: Fluid, local: Local, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Wait for those that came at the very same time and are computed in steps before, seconds."""
    each_s = local.full * fluid.demand.new_tokens / fluid.room
    ahead = in_batch_before(fluid.demand, points)
    return each_s * jnp.maximum(ahead - fluid.limits.ranks * local.same_step / 2, 0.0)


class _Meeting(NamedTuple):
    """What a request meets at a time.

    Attributes:
        local: Steps, and what there is to wait for.
        as_seen: A step as a decoding request meets it, seconds.
        batch: Requests that decode.
        start: Requests that start in a step.
        elastic: Relative change of a step's time for a relative change of those that decode.
    """

    local: Local
    as_seen: Scalar
    batch: Scalar
    start: Scalar
    elastic: Scalar


def _meeting(fluid: Fluid, trajectory: Trajectory, time_s: Scalar) -> _Meeting:
    """What a request meets at a time."""
    batch, start, age, full = (
        jnp.interp(time_s, trajectory.time, values)
        for values in (trajectory.batch, trajectory.start, trajectory.age, trajectory.full)
    )
    share = batch / fluid.scale
    local = fluid.local(share, start, age, full)
    fewer = fluid.local(_FEWER * share, start, age, full)
    return _Meeting(
        local,
        local.seen_s(full),
        batch,
        start,
        (1 - fewer.mean / local.mean) / (1 - _FEWER),
    )


def _request(
    fluid: Fluid,
    trajectory: Trajectory,
    schedule: Schedule,
    number: Scalar,
    arrival: Scalar,
    points: Float[AnyArray, "points parts"],
    lengths: StageLengths | None,
) -> RequestSamples:
    """A request that arrives at some time, drawn at the points of a lattice."""
    demand = fluid.demand
    prompts, outputs = (1.0, 1.0) if lengths is None else (lengths.prompts, lengths.outputs)
    began = jnp.interp(number, trajectory.taken, trajectory.time)
    first = _meeting(fluid, trajectory, began)
    local, batch, start = first.local, first.batch, first.start
    # In the equations a request waits a step for the next; what is beyond that is a queue.
    rate = start / local.mean
    wait = jnp.maximum(began - arrival - local.mean, 0.0)
    variability = (demand.arrival_cv2 + demand.output_cv2) / 2
    idle = jnp.clip(1 - (batch + start * fluid.held) / fluid.slots, LITTLE, 1.0)
    chance = jnp.clip(wait * rate * idle / jnp.maximum(variability, HARDLY), HARDLY, 1.0)
    # The queue for tokens is a part of what the equations follow.
    for_tokens = jnp.minimum(local.queue / jnp.maximum(wait, TINY), 1.0)
    chance += for_tokens * (jnp.clip(local.queued, HARDLY, 1.0) - chance)
    local = local._replace(queue=jnp.zeros_like(wait))
    # The counts of a queue that grows are no more uncertain than those of all that arrived.
    drift = jnp.sqrt(variability * jnp.maximum(number, 1.0)) / jnp.maximum(rate, TINY)
    wait_cv = jnp.minimum(jnp.sqrt((2 - chance) / chance), drift / jnp.maximum(wait, TINY))
    level = arrival_evenness(demand.burst_cv2)
    lives = (fluid.chunks - 1.0 + demand.output_steps) * local.mean
    apart = jnp.maximum(local.mean / jnp.maximum(start, SMALL), TINY)
    running = batch + start * fluid.chunks
    busy = level * busy_when_even(apart, lives) + (1 - level) * -jnp.expm1(-running)
    parts = chances(local, busy, wait, wait_cv, batch, first.elastic, demand)
    ttft = first_tokens(parts, demand, points, prompts) + _before_in_batch(fluid, local, points)
    steps = decode_steps(jnp.maximum(outputs * steps_of_outputs(demand, points), 1.0))
    begins = began + prompts * fluid.chunks * local.own_prefill
    before = jnp.interp(begins, trajectory.time, trajectory.steps)
    decode = jnp.interp(before + steps, trajectory.steps, trajectory.time) - begins
    # What a mean one meets half of its way stands for all of it, at the pace of all its steps.
    half = before + outputs * demand.decode_steps / 2
    later = _meeting(fluid, trajectory, jnp.interp(half, trajectory.steps, trajectory.time))
    parts = chances(later.local, busy, wait, wait_cv, later.batch, later.elastic, demand)
    # Who decodes meets the slower of all steps.
    decode *= later.as_seen / later.local.mean
    mean = jnp.maximum(decode, 0.0) / jnp.maximum(steps, LITTLE)
    tpot = mean * decode_factors(parts, later.as_seen, steps, points)
    tpot += behind_by_step_s(local, steps, points)
    e2e = ttft + steps * tpot
    gap = gaps(parts, later.as_seen, points) * mean / later.as_seen
    gap += behind_in_gaps_s(local, demand, points)
    gap = between_tokens(gap, demand, points)
    timeout = schedule.timeout
    kept = jnp.ones_like(e2e)
    if timeout is not None:
        kept = jax.nn.sigmoid((timeout - e2e) / (EDGE * timeout))
    # Of a step's tokens all but one come with the first.
    tokens = steps * demand.tokens_each
    tpot /= demand.tokens_each
    return RequestSamples(ttft, tpot, e2e, arrival + e2e, kept, gap, tokens, stratum(points))
