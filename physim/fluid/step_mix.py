"""What an engine's steps are made of, given who runs, and how long they take."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from physim.fluid.batch_statistics import arrival_evenness, decoding, met_while_decoding, prefills
from physim.fluid.demand import Demand
from physim.fluid.prompt_runs import Turn, run_of
from physim.fluid.queueing import peakedness
from physim.inputs.deployment import Limits
from physim.step.mixed_steps import Apart
from physim.step.model import StepModel, StepTime
from physim.types import Number, Scalar

# Evenly spaced arrivals in a step from which on a request meets the prompt before it, being
# handed over in two steps or so, and how sharp that is (benchmarks/fluid_against_replay.py).
_CLOSE, _CLOSE_WIDTH = 0.45, 0.08


class Occupancy(eqx.Module):
    """Who is in a step.

    Attributes:
        batch: Requests that decode, mean.
        prefilling: Prefill chunks, mean.
        chunks: Prefill steps of a prompt.
        chunk: Tokens of a chunk, mean.
        age: Tokens that a decoding request has generated, mean.
        start_cv2: Squared coefficient of variation of the times between requests that start.
        others: Of the prefill chunks, the share that a decoding request may meet: in a closed loop
            a client that decodes has no prompt under way.
        crowd: Requests that started at once, most of them: the clients of a closed loop that have
            a slot, at its start; where more arrive than leave, as many as run.
        stirred: Whether those that end leave no place for one that waits, so that the next ones
            of their clients go to whichever batch of a pipeline forms next.
    """

    batch: Scalar
    prefilling: Scalar
    chunks: Scalar
    chunk: Scalar
    age: Scalar
    start_cv2: Scalar
    others: Scalar
    crowd: Scalar
    stirred: Scalar


class _Kinds(NamedTuple):
    """What there is one of for each kind of step that the mean is made of.

    Attributes:
        fewer: Steps that only decode, with fewer requests,
        more: and with more.
        few_prompts: Steps that prefill few prompts,
        many_prompts: and many.
        own: The step in which an arriving request is prefilled.
    """

    fewer: Any
    more: Any
    few_prompts: Any
    many_prompts: Any
    own: Any


# Numbers of prompts are so far apart at least, to tell what each adds to a step.
_APART = 0.02
# Variance of how many wait where arrivals are even, and how many lives of its requests, in
# logarithm, a batch of a pipeline lasts at most: a run is not longer.
_LEAST_VARIANCE, _LONGEST_LIFE = 0.05, 3.0


class Steps(eqx.Module):
    """Steps at an occupancy. Times in seconds.

    Attributes:
        mixed_share: Share of steps with a prefill chunk.
        mean: A mean step.
        beside: A mean step as a decoding request meets it: its own prompt is not among those met.
        under_way_s: Time of a step that is under way or scheduled when a request arrives.
        between_s: Time from one step that may compute prompts to the next.
        own_s: Time of a step in which an arriving request is prefilled.
        together: Other prompts that arrive in the same step, as a request sees it.
        spread: Squared coefficient of variation of the times of steps.
        budget: Prefill chunks that a step's token budget leaves room for.
        longer_s: How much longer a step is for a prefill chunk in it.
        alone_s: Time of a step that only decodes.
        met: Share of a decoding request's steps with a prefill chunk.
        crowd: Prefill chunks of such a step, mean.
    """

    mixed_share: Scalar
    mean: StepTime
    beside: StepTime
    under_way_s: Scalar
    between_s: Scalar
    own_s: Scalar
    together: Scalar
    spread: Scalar
    budget: Scalar
    longer_s: Scalar
    alone_s: Scalar
    met: Scalar
    crowd: Scalar


def steps_at(
    model: StepModel, demand: Demand, limits: Limits, occupancy: Occupancy, slots: Scalar
) -> Steps:
    """Steps at an occupancy.

    Where prompts have steps of their own, a step is all from one token of the requests that decode
    to the next.

    Args:
        model: Step times.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        slots: Requests that may run.
    """
    if isinstance(model.mixing, Apart):
        return _steps_apart(model, demand, limits, occupancy, slots)
    batch, prefilling, chunk = occupancy.batch, occupancy.prefilling, occupancy.chunk
    peaked = peakedness(demand.arrival_cv2, demand.evenness)
    beside = decoding(batch, peaked, jnp.maximum(slots, 1.0))
    decodes = jnp.where(demand.decode_steps > 0, beside.mean(beside.low, beside.high), 0.0)
    budget = jnp.maximum(limits.max_num_batched_tokens - batch, 1.0) / chunk
    prefill = prefills(prefilling, occupancy.start_cv2, budget)
    # Those that arrive while the same step runs are prefilled together.
    cv2 = demand.arrival_cv2
    together = cv2 * prefilling + arrival_evenness(cv2) * jnp.maximum(prefilling - 1.0, 0.0)
    # Beyond the token budget they follow in other steps.
    beside_it = jnp.minimum(together, jnp.maximum(budget - 1.0, 0.0))
    zero = jnp.zeros(())
    lanes = _batches_under_way(demand, limits, occupancy)
    steps = _times(
        model,
        demand,
        limits.ranks,
        lanes,
        occupancy,
        decodes=_Kinds(
            fewer=jnp.maximum(beside.low, 1.0),
            more=jnp.maximum(beside.high, 1.0),
            few_prompts=decodes,
            many_prompts=decodes,
            own=batch,
        ),
        prompts=_Kinds(
            fewer=zero,
            more=zero,
            few_prompts=prefill.chunks.low,
            many_prompts=prefill.chunks.high,
            own=1.0 + beside_it,
        ),
    )
    decode: StepTime = jax.tree.map(beside.mean, steps.fewer, steps.more)
    mixed: StepTime = jax.tree.map(prefill.chunks.mean, steps.few_prompts, steps.many_prompts)
    mean = _blend(prefill.share, mixed, decode)
    # How much longer a step is for a prompt in it, and what that does to the spread of steps.
    longer = (mixed.interval - decode.interval) * prefill.share / prefilling
    feedback = jnp.minimum(prefilling * longer / mean.interval, 0.9) ** 2
    variance = longer**2 * (1 + demand.prompt_cv2) * cv2 * prefilling
    spread = variance / (1 - feedback) / mean.interval**2
    # Long steps are met more often than short ones, so more arrive in them.
    own = steps.own.latency + beside_it * spread * longer
    arrivals = prefilling / occupancy.chunks
    # A step that is formed while its own prompt is computed knows nothing of what comes meanwhile.
    later = jnp.mean(jnp.clip(demand.outputs - 1.0 - limits.async_scheduling, 0.0, 1.0))
    longer_own = later * jnp.maximum(arrivals * (own / mean.latency - 1.0), 0.0)
    met = met_while_decoding(
        arrivals * occupancy.others,
        longer_own * (occupancy.others == 1.0),
        cv2,
        jnp.maximum(demand.outputs - 1.0, 1e-3),
    )
    # Of the prompts that it meets in a step, no more are computed than the token budget allows.
    computed = jnp.minimum(prefilling, budget)
    share = prefill.share * jnp.minimum(met / arrivals, budget / computed)
    # The prompt before an evenly spaced one is long computed, unless they follow within few steps.
    close = jax.nn.sigmoid((arrivals - _CLOSE) / _CLOSE_WIDTH)
    apart = decode.interval + close * (mean.interval - decode.interval)
    return Steps(
        mixed_share=prefill.share,
        mean=mean,
        beside=_blend(share, mixed, decode),
        under_way_s=(arrival_evenness(cv2) * apart + (1 - arrival_evenness(cv2)) * mean.interval)
        / lanes,
        between_s=mean.interval,
        own_s=own,
        together=together * (1 + spread),
        spread=spread,
        budget=budget,
        longer_s=longer,
        alone_s=decode.latency,
        met=share,
        crowd=computed / prefill.share,
    )


def _steps_apart(
    model: StepModel, demand: Demand, limits: Limits, occupancy: Occupancy, slots: Scalar
) -> Steps:
    """Steps at an occupancy where prompts have steps of their own, which come first."""
    batch, prefilling, cv2 = occupancy.batch, occupancy.prefilling, demand.arrival_cv2
    level = arrival_evenness(cv2)
    beside = decoding(batch, peakedness(cv2, demand.evenness), jnp.maximum(slots, 1.0))
    budget = limits.max_num_batched_tokens / occupancy.chunk
    prefill = prefills(prefilling, occupancy.start_cv2, budget)
    most = prefill.chunks.mean(prefill.chunks.low, prefill.chunks.high)
    several = jnp.sqrt(most)
    zero, one = jnp.zeros(()), jnp.ones(())
    lanes = _batches_under_way(demand, limits, occupancy)
    steps = _times(
        model,
        demand,
        limits.ranks,
        lanes,
        occupancy,
        decodes=_Kinds(
            fewer=jnp.maximum(beside.low, 1.0),
            more=jnp.maximum(beside.high, 1.0),
            few_prompts=zero,
            many_prompts=zero,
            own=zero,
        ),
        prompts=_Kinds(zero, zero, few_prompts=several, many_prompts=most, own=one),
    )
    decode: StepTime = jax.tree.map(beside.mean, steps.fewer, steps.more)
    # What a step for prompts takes, by how many it computes: straight from one to several to most.
    each = _slope(steps.own, steps.few_prompts, several - 1.0)
    further = _slope(steps.few_prompts, steps.many_prompts, most - several)

    def for_prompts(count: Scalar) -> StepTime:
        time: StepTime = jax.tree.map(
            lambda o, e, f: (
                o + e * (jnp.minimum(count, several) - 1.0) + f * jnp.maximum(count - several, 0.0)
            ),
            steps.own,
            each,
            further,
        )
        return time

    # Clients that wait for answers send nothing while prompts are computed. Until all slots are
    # taken a run has room for as many prompts as there are free ones, of an exponential number.
    chunks, arrivals = occupancy.chunks, prefilling / occupancy.chunks
    held = chunks + demand.decode_steps + limits.async_scheduling
    idle = jnp.maximum(slots / (arrivals * held) - 1.0, 0.0)
    run = run_of(
        Turn(
            decode_s=decode.interval,
            fixed_s=steps.own.interval - each.interval,
            each_s=each.interval * chunks,
            further_s=(further.interval - each.interval) * chunks,
            several=several / chunks,
            prompts=arrivals,
            arrival_cv2=cv2,
            ranks=jnp.where(demand.closed, 1.0, limits.ranks),
            least=jnp.maximum(prefill.share, prefilling / budget),
            most=prefilling,
            room=jnp.where(demand.closed, 0.0, -jnp.expm1(-idle * held)),
        )
    )
    computed = for_prompts(prefilling / run.of_any)
    mean: StepTime = jax.tree.map(lambda d, p: run.alone * d + run.of_any * p, decode, computed)
    taken = mean.interval - decode.interval
    longer = taken / prefilling
    # Of clients, those of all prompts together are met; else steps one by one, decode or prompts.
    single = jnp.where(demand.closed, 0.0, run.steps)
    step = mean.interval / (1.0 + single)
    feedback = jnp.minimum(taken / mean.interval, 0.9) ** 2
    by_turn = longer**2 * (1 + demand.prompt_cv2) * cv2 * prefilling
    by_turn /= (1 - feedback) * mean.interval**2
    varied = each.interval**2 * cv2 * prefilling / run.of_any
    squares = run.alone * decode.interval**2 + run.of_any * (computed.interval**2 + varied)
    by_step = squares / (1.0 + run.steps) / step**2 - 1.0
    spread = jnp.where(demand.closed, by_turn, by_step)
    come = prefilling * step / mean.interval
    together = (cv2 * come + level * jnp.maximum(come - 1.0, 0.0)) * (1 + spread)
    own = for_prompts(1.0 + jnp.minimum(together, jnp.maximum(budget - 1.0, 0.0)))
    # The run that follows its own prompt is another than one after a step that decodes.
    later = jnp.mean(jnp.clip(demand.outputs - 1.0 - limits.async_scheduling, 0.0, 1.0))
    longer_own = later * jnp.maximum(arrivals * (run.after_own / run.steps - 1.0), 0.0)
    met = met_while_decoding(
        arrivals * occupancy.others,
        longer_own * (occupancy.others == 1.0),
        cv2,
        jnp.maximum(demand.outputs - 1.0, 1e-3),
    )
    close = jax.nn.sigmoid((arrivals - _CLOSE) / _CLOSE_WIDTH)
    apart = decode.interval + close * (step - decode.interval)
    return Steps(
        mixed_share=run.chance,
        mean=mean,
        beside=_blend(met / arrivals, mean, decode),
        under_way_s=(level * apart + (1 - level) * step) / lanes,
        between_s=jnp.where(demand.closed, mean.interval, computed.interval),
        own_s=own.latency,
        together=together,
        spread=spread,
        budget=budget,
        longer_s=longer,
        alone_s=decode.latency,
        met=jnp.minimum(run.chance * met / arrivals, 1.0),
        crowd=prefilling / run.chance,
    )


def _slope(fewer: StepTime, more: StepTime, apart: Scalar) -> StepTime:
    """What each prompt adds to a step, from the times of two steps so many prompts apart."""
    slope: StepTime = jax.tree.map(lambda f, m: (m - f) / jnp.maximum(apart, _APART), fewer, more)
    return slope


def _batches_under_way(demand: Demand, limits: Limits, occupancy: Occupancy) -> Scalar:
    """Batches that share out a pipeline's requests: one at least, and no more than it has stages.

    Requests that wait join the batch that comes out of the pipeline next, so another begins only
    where the token budget has no room for all of them; it ends when it has lost all its requests
    and none has joined. Of many that start at once, each batch takes as many as the budget has room
    for until none is left. Where others wait for their places, they are replaced in their own
    batch, and the pipeline is as slow as its fullest one for ever; else batches come to be alike.

    Args:
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
    """
    arrivals = occupancy.prefilling / occupancy.chunks
    budget = limits.max_num_batched_tokens / limits.stages
    room = jnp.maximum(budget - occupancy.batch, 1.0) / occupancy.chunk
    deviation = jnp.sqrt(arrivals * demand.arrival_cv2 + _LEAST_VARIANCE)
    log_begins = jax.scipy.stats.norm.logsf((room + 0.5 - arrivals) / deviation)
    lasts = jnp.minimum(occupancy.batch / limits.stages, _LONGEST_LIFE)
    log_ends = -lasts - jnp.log(jnp.maximum(demand.decode_steps, 1.0))
    by_chance = 1.0 + (limits.stages - 1) * jax.nn.sigmoid(log_begins - log_ends)
    # Batches that are full at once, and one more as soon as a whole request is left.
    each = budget / (occupancy.chunk * occupancy.chunks)
    full = occupancy.crowd / each
    begun = jnp.floor(full) + jnp.minimum((full - jnp.floor(full)) * each, 1.0)
    at_once = jnp.where(occupancy.stirred > 0, begun, full)
    return jnp.minimum(jnp.maximum(by_chance, at_once), limits.stages)


def _times(
    model: StepModel,
    demand: Demand,
    ranks: Number,
    stages: Scalar,
    occupancy: Occupancy,
    decodes: _Kinds,
    prompts: _Kinds,
) -> _Kinds:
    """Times of each kind of step, whose requests decode or are prefilled in such numbers."""
    chunk = occupancy.chunk * jnp.sqrt(1.0 + demand.prompt_cv2)
    cached = demand.cached_tokens + (occupancy.chunks - 1) / 2 * occupancy.chunk

    def time(decode_requests: Scalar, prefill_requests: Scalar) -> StepTime:
        return model(
            model.batch(
                decode_requests=decode_requests,
                context=demand.input_tokens + occupancy.age,
                prefill_requests=prefill_requests,
                chunk=chunk,
                cached=cached,
                ranks=ranks,
                stages=stages,
            )
        )

    times = jax.vmap(time)(jnp.stack(decodes), jnp.stack(prompts))
    return _Kinds(*(jax.tree.map(lambda x, i=i: x[i], times) for i in range(len(decodes))))


def _blend(share: Scalar, mixed: StepTime, decode: StepTime) -> StepTime:
    blended: StepTime = jax.tree.map(lambda m, d: share * m + (1 - share) * d, mixed, decode)
    return blended
