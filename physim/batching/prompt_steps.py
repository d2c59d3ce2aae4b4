"""Steps for prompts alone: what they take by how many they compute, and how they come about."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from physim.batching.batch_statistics import prefill_share
from physim.batching.demand import Demand
from physim.batching.guards import HARDLY, TINY
from physim.batching.limits import Limits
from physim.batching.looks import looks_at
from physim.batching.occupancy import Occupancy
from physim.batching.prompt_chunks import GROUPS
from physim.batching.prompt_runs import DecodeCycle
from physim.batching.step_kinds import FEW, FULL, MANY, StepKinds
from physim.step.model import StepTime
from physim.types import Scalar


class StepsByPrompts(NamedTuple):
    """Steps for prompts, by how many they compute: on a straight line to several, and on another.

    Attributes:
        one: A step of one prompt.
        each: What each prompt adds up to several,
        further: and beyond.
        several: How many prompts several are.
    """

    one: StepTime
    each: StepTime
    further: StepTime
    several: Scalar

    def computing(self, prompts: Scalar) -> StepTime:
        """A step of so many prompts.

        Args:
            prompts: Prompts, at least one.
        """
        few, many = jnp.minimum(prompts, self.several), jnp.maximum(prompts - self.several, 0.0)
        time: StepTime = jax.tree.map(
            lambda one, each, further: one + each * (few - 1.0) + further * many,
            self.one,
            self.each,
            self.further,
        )
        return time


def steps_by_prompts(kinds: StepKinds, limits: Limits) -> StepsByPrompts:
    """The steps for prompts among the kinds of steps.

    Args:
        kinds: The kinds of steps.
        limits: The engine's limits.
    """
    chunks = kinds.chunks.number
    last: StepTime = jax.tree.map(
        lambda x: jnp.tensordot(GROUPS, x[:FULL], 1, precision="highest"), kinds.prompts
    )
    full: StepTime = jax.tree.map(lambda x: x[FULL], kinds.prompts)

    def of_chunks(last: StepTime, full: StepTime) -> StepTime:
        """What each chunk of a prompt takes, from what the last one does and the full ones do."""
        each: StepTime = jax.tree.map(lambda x, y: (x + (chunks - 1.0) * y) / chunks, last, full)
        return each

    one = of_chunks(last, full)
    several, most = kinds.numbers[FEW], kinds.numbers[MANY]
    few, many = (_beside_full(kinds, kind, limits) for kind in (FEW, MANY))
    each, further = _slope(one, few, several - 1.0), _slope(few, many, most - several)
    # On one rank a chunk that fills a step has it to itself, so that only last ones come together.
    of_last = _slope(last, few, several - 1.0)
    beyond: StepTime = jax.tree.map(lambda x, y, z: x - (y - z), full, last, of_last)
    each, further = (
        jax.tree.map(partial(jnp.where, limits.ranks > 1), of_any, of_chunks(own, beyond))
        for of_any, own in ((each, of_last), (further, further))
    )
    return StepsByPrompts(one, each, further, several)


def cycle_of(
    kinds: StepKinds,
    steps: StepsByPrompts,
    demand: Demand,
    limits: Limits,
    occupancy: Occupancy,
    room: Scalar,
) -> DecodeCycle:
    """From a step that decodes to the next one, with the steps for prompts between them.

    Args:
        kinds: The kinds of steps.
        steps: Those for prompts.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in the steps of a cycle.
        room: How far runs of prompts go on with those that come, from 0 to 1.
    """
    prefilling, chunks, every = occupancy.prefilling, kinds.chunks.number, limits.receive_every
    ranks = jnp.where(demand.closed, 1.0, limits.ranks)
    # What arrives goes to the rank with the fewest, so that each gets its prompts more evenly.
    dealt = 1.0 - occupancy.replacing
    in_turn = 1.0 - (1.0 - 1.0 / ranks) * dealt
    of_rank = prefilling / ranks
    # Chunks that a step of a rank has room for, in all batches of a pipeline.
    budgets = occupancy.room * limits.stages
    fitting = budgets * occupancy.chunks / (demand.new_tokens * occupancy.scale)
    # Of one look in so many steps; times the steps with prompts that follow on it, by chance.
    share = prefill_share(every * of_rank, occupancy.start_cv2(demand) * in_turn, fitting)
    share *= looks_at(of_rank, limits).share / -jnp.expm1(-every * of_rank)
    # Steps of one prompt vary with it, by what it adds.
    whole_s, each_s = kinds.of_whole_prompts(kinds.prompts.interval), steps.each.interval * chunks
    variance = kinds.chunks.cv2(whole_s) * kinds.chunks.mean(whole_s) ** 2
    return DecodeCycle(
        decode_s=kinds.decode.interval,
        fixed_s=steps.one.interval - steps.each.interval,
        each_s=each_s,
        each_cv2=variance / jnp.maximum(each_s, TINY) ** 2,
        further_s=(steps.further.interval - steps.each.interval) * chunks,
        several=steps.several / chunks,
        varied=kinds.varied(kinds.prompts.latency, kinds.decode.latency),
        unfinished=_unfinished(kinds),
        prompts=occupancy.prompts,
        arrival_cv2=demand.burst_cv2 * in_turn,
        every=every,
        ranks=ranks,
        least=jnp.maximum(share, of_rank / fitting),
        most=of_rank,
        room=room,
        dealt=dealt,
        ahead=limits.async_scheduling,
    )


def _slope(fewer: StepTime, more: StepTime, apart: Scalar) -> StepTime:
    """What each prompt adds to a step, from the times of two steps so many prompts apart."""
    slope: StepTime = jax.tree.map(lambda f, m: (m - f) / jnp.maximum(apart, HARDLY), fewer, more)
    return slope


def _beside_full(kinds: StepKinds, kind: int, limits: Limits) -> StepTime:
    """Time of a step with several chunks, each of a rank's own, any of which may fill it."""
    sharing = jnp.minimum(kinds.numbers[kind], limits.ranks)
    fills = 1.0 - (1.0 - _unfinished(kinds)) ** sharing
    longer = kinds.prompts.latency[FULL] > kinds.prompts.latency[kind]
    full = jnp.where((limits.ranks > 1) & longer, fills, 0.0)
    time: StepTime = jax.tree.map(lambda x: (1.0 - full) * x[kind] + full * x[FULL], kinds.prompts)
    return time


def _unfinished(kinds: StepKinds) -> Scalar:
    """Share of the chunks of prompts after which others of theirs follow."""
    return 1.0 - 1.0 / kinds.chunks.number
