"""What an engine's steps are made of, given who runs, and how long they take."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.batch_statistics import (
    Nodes,
    arrival_evenness,
    exponential_up_to,
    following,
    met_while_decoding,
    others,
)
from physim.batching.demand import Demand
from physim.batching.guards import LITTLE, NEARLY, TINY
from physim.batching.kind_times import kinds_at
from physim.batching.limits import Limits
from physim.batching.looks import Looks, looks_at
from physim.batching.occupancy import Occupancy
from physim.batching.prompt_chunks import GROUPS
from physim.batching.prompt_runs import prompts_of_steps, run_of
from physim.batching.prompt_steps import cycle_of, steps_by_prompts
from physim.batching.queueing import peakedness
from physim.batching.step_kinds import StepKinds
from physim.pytree import Pytree
from physim.service.phases import decode_steps
from physim.step.mixed_steps import Apart
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Scalar


class Steps(Pytree):
    """Steps at an occupancy. Times in seconds.

    Attributes:
        mixed_share: Share of steps with a prefill chunk.
        mean: A mean step.
        as_seen: A mean step as a decoding request meets it: its own prompt is not among those met.
        found_s: Time of a step as arriving requests count them, of one stage,
        found_alone_s: and of one that only decodes.
        kind_s: Times of the kinds of steps with prompts (`physim.batching.step_kinds`).
        kind_more_s: How much longer each kind makes a gap between tokens.
        kind_tokens: Tokens of prompts of each kind, on the rank that has most,
        kind_tokens_cv2: and their squared coefficient of variation.
        kind_share: Share of steps that are of each kind.
        alone_s: Time of a step that only decodes,
        full_s: and of one whose budget prompts take.
        spread: Squared coefficient of variation of the times of steps.
        prefill_s: Time of the steps that compute a prompt, by its group.
        launches_s: How much longer these are because their kernels are launched one by one, mean.
        hidden_s: How much longer these are because another rank fills one of them, mean.
        follows: Chance that the step after one that a long prompt fills is filled too.
        held: How many times as long as such a step a gap is in which long prompts fill batches of a
            pipeline one after the other.
        chunks: Such steps, mean.
        same_step: Other prompts that come in the same step, as a request sees it.
        adding_s: What each of them adds to it.
        budget: Prompts that a step's token budget leaves room for.
        prefill_share: Share of a decoding request's gaps with prompts in them.
        own_rank: Share of these in which its own rank waits for prompts,
        waiting: steps for which it does then, mean,
        second: and the chance that it is more than one.
        crowd: Prefill chunks of such a gap, mean.
        longer_s: How much longer a gap is for each of them.
        lone: Share of the prompts that come alone in their step.
        arriving: How many come together else.
        free: Slots that are free, mean.
        added: Share of the time that goes with the number of prompts: what more of them add.
        prompt_cv2: Squared coefficient of variation of the time that a prompt takes.
        bunched: Variance of the number of requests that decode, over its mean, were all steps as
            long.
        varied: The same with steps as long as they are.
        elastic: Relative change of a step that only decodes for a relative change of those that do.
    """

    mixed_share: Scalar
    mean: StepTime
    as_seen: StepTime
    found_s: Scalar
    found_alone_s: Scalar
    kind_s: Float[AnyArray, " kinds"]
    kind_more_s: Float[AnyArray, " kinds"]
    kind_tokens: Float[AnyArray, " kinds"]
    kind_tokens_cv2: Float[AnyArray, " kinds"]
    kind_share: Float[AnyArray, " kinds"]
    alone_s: Scalar
    full_s: Scalar
    spread: Scalar
    prefill_s: Float[AnyArray, " groups"]
    launches_s: Scalar
    hidden_s: Scalar
    follows: Scalar
    held: Scalar
    chunks: Scalar
    same_step: Scalar
    adding_s: Scalar
    budget: Scalar
    prefill_share: Scalar
    own_rank: Scalar
    waiting: Scalar
    second: Scalar
    crowd: Scalar
    longer_s: Scalar
    lone: Scalar
    arriving: Nodes
    free: Scalar
    added: Scalar
    prompt_cv2: Scalar
    bunched: Scalar
    varied: Scalar
    elastic: Scalar

    @property
    def prompt_s(self) -> Scalar:
        """Time of the steps that compute a prompt, mean."""
        return jnp.sum(GROUPS * self.prefill_s)

    @property
    def own_s(self) -> Scalar:
        """Time of a step in which an arriving request is prefilled, mean."""
        return self.own_s_beside(self.beside_at_most)

    @property
    def beside_at_most(self) -> Scalar:
        """Other prompts that come in the same step, as far as its budget has room for them."""
        return jnp.minimum(self.same_step, jnp.maximum(self.budget - 1.0, 0.0))

    def own_s_beside(self, others: Scalar) -> Scalar:
        """The same beside so many other prompts.

        Args:
            others: How many are in it, mean.
        """
        return (self.prompt_s + self.hidden_s + others * self.adding_s) / self.chunks


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
    if not isinstance(model.mixing, Apart):
        kinds = kinds_at(model, demand, limits, occupancy, slots, separate=False)
        return _steps_of_both(kinds, demand, limits, occupancy, slots)
    # Clients that wait for answers send nothing while prompts are computed. Until all slots are
    # taken a run has room for as many prompts as there are free ones, of an exponential number.
    held = occupancy.chunks + demand.decode_steps + limits.async_scheduling
    idle = jnp.maximum(slots / (occupancy.prompts * held) - 1.0, 0.0)
    room = jnp.where(demand.closed, 0.0, -jnp.expm1(-idle * held))
    each = prompts_of_steps(occupancy.prompts, demand.burst_cv2)
    prompts = room * each + (1 - room) * occupancy.prompts
    kinds = kinds_at(
        model, demand, limits, replace(occupancy, prompts=prompts), slots, separate=True
    )
    return _steps_apart(kinds, demand, limits, occupancy, slots, room)


def _steps_of_both(
    kinds: StepKinds, demand: Demand, limits: Limits, occupancy: Occupancy, slots: Scalar
) -> Steps:
    """Steps where prompts are computed beside requests that decode."""
    arrivals, chunks, decode = occupancy.prompts, kinds.chunks, kinds.decode
    more: StepTime = jax.tree.map(lambda p, a: p - a, kinds.prompts, kinds.decode_only)
    times = kinds.prompts.interval, kinds.decode_only.interval
    of_steps = kinds.shares(*times)
    share = kinds.of_turns(of_steps, *times)
    prompts: StepTime = jax.tree.map(
        lambda x: jnp.tensordot(share, x, 1, precision="highest"), more
    )
    mean: StepTime = jax.tree.map(jnp.add, decode, prompts)
    spread = kinds.spread(of_steps, *times)
    sizes = chunks.cv2(kinds.of_whole_prompts(more.interval))
    kinds = kinds.held_up(of_steps)
    taken = jnp.minimum(prompts.interval / mean.interval, NEARLY)
    # Of the time that prompts take, what more of them add: launches, say, are there with the first.
    added = taken * jnp.minimum(
        kinds.adding_s / jnp.maximum(kinds.one_s - decode.latency, TINY), 1.0
    )
    bunched = _bunched(kinds, demand, added, sizes)
    elastic = kinds.elastic(kinds.slope_s(occupancy.batch), occupancy.batch)
    steps = Steps(
        mixed_share=jnp.sum(of_steps),
        mean=mean,
        as_seen=mean,
        found_s=mean.interval / kinds.lanes,
        found_alone_s=decode.interval / kinds.lanes,
        kind_s=kinds.prompts.latency,
        kind_more_s=more.interval,
        kind_tokens=kinds.tokens,
        kind_tokens_cv2=kinds.tokens_cv2,
        kind_share=share,
        alone_s=decode.latency,
        full_s=kinds.full_s(occupancy.room),
        spread=spread,
        prefill_s=kinds.prefill_s,
        launches_s=kinds.launches_s,
        hidden_s=kinds.hidden_s(of_steps),
        follows=kinds.follows,
        held=kinds.held,
        chunks=chunks.number,
        same_step=_together(
            arrivals / kinds.lanes,
            demand.burst_cv2,
            spread / limits.receive_every,
            looks_at(arrivals / kinds.lanes, limits),
        ),
        adding_s=kinds.adding_s,
        budget=_budget(kinds, limits) / limits.stages,
        prefill_share=jnp.sum(share),
        own_rank=jnp.zeros_like(mean.interval),
        waiting=jnp.ones_like(mean.interval),
        second=jnp.zeros_like(mean.interval),
        crowd=occupancy.prefilling / jnp.sum(share),
        longer_s=prompts.interval / occupancy.prefilling,
        lone=kinds.lone(of_steps),
        arriving=kinds.come.arriving,
        free=demand.most_running(slots) - occupancy.batch,
        added=added,
        prompt_cv2=sizes,
        bunched=bunched,
        # The more there are, the later they leave.
        varied=bunched / (1.0 - jnp.where(demand.closed, 0.0, elastic)),
        elastic=elastic,
    )
    while_own = chunks.number * steps.own_s / mean.latency - 1.0
    met = _met(demand, limits, occupancy, slots, while_own / (1.0 - taken))
    slower = _slower(kinds, demand, occupancy.batch, steps.varied, slots)
    as_seen: StepTime = jax.tree.map(lambda d, p: slower * (d + met * p), decode, prompts)
    return replace(
        steps, as_seen=as_seen, prefill_share=jnp.minimum(steps.prefill_share * met * slower, 1.0)
    )


def _steps_apart(
    kinds: StepKinds,
    demand: Demand,
    limits: Limits,
    occupancy: Occupancy,
    slots: Scalar,
    room: Scalar,
) -> Steps:
    """Steps where prompts have steps of their own, which come first.

    Args:
        kinds: The kinds of steps.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in the steps of a cycle.
        slots: Requests that may run.
        room: How far runs of prompts go on with those that come, from 0 to 1.
    """
    cv2, chunks = demand.burst_cv2, kinds.chunks
    of_pipeline = jnp.where(limits.stages > 1, chunks.number, occupancy.chunks)
    occupancy = replace(occupancy, chunks=of_pipeline)
    prefilling, decode = occupancy.prefilling, kinds.decode
    by_prompts = steps_by_prompts(kinds, limits)
    cycle = cycle_of(kinds, by_prompts, demand, limits, occupancy, room)
    run = run_of(cycle)
    longer_beside = kinds.beside_ranks(*run.others_that_decode(cycle.ranks, cycle.dealt))
    kinds = kinds._replace(prompts=jax.tree.map(jnp.add, kinds.prompts, longer_beside))
    one = jax.tree.map(jnp.add, by_prompts.one, longer_beside)
    computed = by_prompts._replace(one=one).computing(prefilling / run.of_any)
    mean: StepTime = jax.tree.map(lambda d, p: run.sole_rank * d + run.of_any * p, decode, computed)
    taken = mean.interval - decode.interval
    longer = taken / prefilling
    sizes = chunks.cv2(kinds.of_whole_prompts(kinds.prompts.interval))
    # Of clients, those of all prompts together are met; else steps one by one, decode or prompts.
    single = jnp.where(demand.closed, 0.0, run.steps)
    step = mean.interval / (1.0 + single)
    held_up = jnp.minimum(taken / mean.interval, NEARLY)
    by_turn = longer**2 * (1.0 + sizes) * cv2 * prefilling
    by_turn /= (1 - held_up**2) * mean.interval**2
    bunched = _bunched(kinds, demand, held_up, sizes)
    added = held_up * jnp.minimum(kinds.adding_s / kinds.one_s, 1.0)
    elastic = kinds.elastic(kinds.slope_s(occupancy.batch), occupancy.batch)
    kind_share = kinds.shares(kinds.prompts.latency, decode.latency)
    kind_share *= run.of_any / (1.0 + run.steps) / jnp.sum(kind_share)
    by_step = _cv2_of(kinds, kind_share)
    spread = jnp.where(demand.closed, by_turn, by_step)
    steps = Steps(
        mixed_share=run.of_any / (1.0 + run.steps),
        mean=mean,
        as_seen=mean,
        found_s=step / kinds.lanes,
        found_alone_s=decode.interval / kinds.lanes,
        kind_s=kinds.prompts.latency,
        kind_more_s=kinds.prompts.interval,
        kind_tokens=kinds.tokens,
        kind_tokens_cv2=kinds.tokens_cv2,
        kind_share=kind_share,
        alone_s=decode.latency,
        full_s=kinds.full_s(occupancy.room),
        spread=spread,
        prefill_s=kinds.prefill_s,
        launches_s=kinds.launches_s,
        hidden_s=kinds.hidden_s(kind_share),
        follows=kinds.follows,
        held=kinds.held,
        chunks=chunks.number,
        same_step=_together(
            prefilling * step / mean.interval,
            cv2,
            spread / limits.receive_every,
            looks_at(prefilling, limits),
        ),
        adding_s=kinds.adding_s,
        budget=_budget(kinds, limits),
        prefill_share=run.of_gaps,
        own_rank=run.chance / run.of_gaps,
        waiting=jnp.maximum(run.steps / run.chance, 1.0),
        second=run.second,
        crowd=prefilling / run.of_gaps,
        longer_s=longer,
        lone=kinds.lone(kind_share),
        arriving=kinds.come.arriving,
        free=demand.most_running(slots) - occupancy.batch,
        added=added,
        prompt_cv2=sizes,
        bunched=bunched,
        # The more there are, the later they leave.
        varied=bunched / (1.0 - jnp.where(demand.closed, 0.0, elastic)),
        elastic=elastic,
    )
    # The run that follows its own prompt is another than one after a step that decodes.
    met = _met(demand, limits, occupancy, slots, run.after_own / run.steps - 1.0)
    slower = _slower(kinds, demand, occupancy.batch, steps.varied, slots)
    as_seen: StepTime = jax.tree.map(lambda d, m: slower * (d + met * (m - d)), decode, mean)
    return replace(
        steps, as_seen=as_seen, prefill_share=jnp.minimum(run.of_gaps * met * slower, 1.0)
    )


def _cv2_of(kinds: StepKinds, kind_share: Float[AnyArray, " kinds"]) -> Scalar:
    """Squared coefficient of variation of the times of steps for prompts and of those between."""
    alone, alone_s, prompts_s = 1.0 - jnp.sum(kind_share), kinds.decode.interval, kinds.prompts
    squares = jnp.sum(kind_share * prompts_s.latency**2 * (1.0 + kinds.cv2)) + alone * alone_s**2
    mean_s = alone * alone_s + jnp.sum(kind_share * prompts_s.latency)
    return jnp.maximum(squares / mean_s**2 - 1.0, 0.0)


def _budget(kinds: StepKinds, limits: Limits) -> Scalar:
    """Prompts that the token budget of a step leaves room for."""
    return limits.max_num_batched_tokens / kinds.chunks.mean_last


def _together(arrivals: Scalar, cv2: Scalar, spread: Scalar, looks: Looks) -> Scalar:
    """Other prompts that come between the same two looks at arrivals, as a request sees it."""
    level = arrival_evenness(cv2)
    # Long steps are met more often than short ones; in a burst some are before, and some after.
    found = arrivals * (looks.joined + spread)
    evenly = level * jnp.maximum(found - 1.0, 0.0)
    return (1 - level) * found + evenly + 2 * following(found / 2, cv2)


def _met(
    demand: Demand, limits: Limits, occupancy: Occupancy, slots: Scalar, while_own: Scalar
) -> Scalar:
    """Prompts that a decoding request meets in a step, over those of a mean step.

    Args:
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        slots: Requests that may run.
        while_own: Steps' worth of prompts, beyond one, that come while its own is computed.
    """
    # A step that is formed while its own prompt is computed knows nothing of what comes meanwhile.
    decodes = decode_steps(demand.output_steps)
    later = jnp.mean(jnp.clip(decodes - limits.async_scheduling, 0.0, 1.0))
    longer = later * jnp.maximum(occupancy.prompts * while_own, 0.0)
    # No more of them than there are slots.
    longer = exponential_up_to(longer, demand.most_running(slots) - occupancy.batch)
    met = met_while_decoding(
        occupancy.prompts * occupancy.others,
        longer * (occupancy.others == 1.0),
        demand.follow_cv2,
        jnp.maximum(decodes, LITTLE),
    )
    return met / occupancy.prompts


def _bunched(kinds: StepKinds, demand: Demand, taken: Scalar, sizes: Scalar) -> Scalar:
    """Variance of the number of requests that decode, over its mean, were all steps as long.

    Counted in steps, requests come in clumps: prompts hold up the engine while others arrive. Of
    prompts that take a share ``r`` of the time, with a squared coefficient of variation ``c``, the
    number that come in many steps has the index of dispersion ``(a + r^2 c) / (1 - r)^2``, where
    ``a`` is that of arrivals: of ``n`` arrivals ``r n`` more follow in the time that they take, and
    so on. None follow those that a record has at one time, until its next. A clump lasts
    ``1 / (1 - r)`` rounds, of a step or of as many as the prompts before one take, of which a
    request meets a part: of what is correlated over ``s`` steps, ``1 - (1 - exp(-x)) / x`` in
    ``x s`` steps. How far that shows in the number that run depends on their lengths
    (`peakedness`).

    Args:
        kinds: The kinds of steps.
        demand: The load.
        taken: Share of the time that prompts take.
        sizes: Squared coefficient of variation of the time that a prompt takes.
    """
    stamped = demand.stamped(demand.arrival_cv2)
    others = demand.arrival_cv2 - stamped
    clumped = stamped + (others + taken**2 * sizes) / (1.0 - taken) ** 2
    rounds = 1.0 / (1.0 - taken)
    lasts = rounds * (1.0 + (kinds.chunks.number - 1.0) * rounds)
    lives = jnp.maximum(demand.decode_steps, LITTLE) / lasts
    met = 1.0 + jnp.expm1(-lives) / lives
    clumped = demand.arrival_cv2 + met * (clumped - demand.arrival_cv2)
    # A client that decodes has no request on its way.
    return peakedness(jnp.where(demand.closed, demand.arrival_cv2, clumped), demand.evenness)


def _slower(
    kinds: StepKinds, demand: Demand, batch: Scalar, varied: Scalar, slots: Scalar
) -> Scalar:
    """How much slower steps are as decoding requests meet them, over the mean step.

    The more requests decode, the more of them meet a step: of a number with a variance of so many
    times its mean, a request meets so many more than the mean, itself included.
    """
    peaked = peakedness(demand.arrival_cv2, demand.evenness)
    free = demand.most_running(slots) - batch
    met, evenly = (
        exponential_up_to(1.0 + others(batch, p) - batch, free) for p in (varied, peaked)
    )
    decode_s = kinds.as_seen.mean(kinds.few.interval, kinds.many.interval)
    return (decode_s + kinds.slope_s(batch) * (met - evenly)) / kinds.decode.interval
