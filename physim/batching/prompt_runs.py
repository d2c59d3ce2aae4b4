"""Runs of steps for prompts, where an engine computes all prompts before it decodes again.

Prompts that come while a step runs are computed in the next one, and who decodes waits until none
has come. So the fuller the server, the longer a run: prompts starve the requests that decode, which
stay the longer, until all slots are taken.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from physim.batching.arrival_numbers import clumps
from physim.batching.batch_statistics import arrival_evenness
from physim.batching.guards import SMALL, TINY
from physim.batching.root_finding import NEWTON_STEPS, bracketed_root
from physim.types import Number, Scalar

# Generations of prompts that are followed.
_GENERATIONS = 16
# Logarithm of more steps than any run has.
_LONGEST = -math.log(SMALL)
# How often the step that decodes, and what other ranks do in it, are found from one another.
_ROUNDS = 3


class DecodeCycle(NamedTuple):
    """A step that decodes with the steps for prompts before the next one. Times in seconds.

    Attributes:
        decode_s: The step that decodes.
        fixed_s: What a step for prompts takes however many they are.
        each_s: What each prompt adds to it,
        each_cv2: and the squared coefficient of variation of that.
        further_s: What each prompt beyond `several` adds beyond that.
        several: Prompts up to which each adds as much.
        varied: Squared coefficient of variation of the times of steps for prompts.
        unfinished: Share of the chunks of prompts after which others of theirs follow.
        prompts: Prompts of all its steps, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        every: Steps that decode between two looks at what has arrived.
        ranks: Data-parallel ranks, each of which decodes when it has no prompts itself; all take
            every step together, and a step with prompts of any takes as long as those.
        least: Steps for prompts were no prompts to come while others are computed.
        most: Steps for prompts were each to compute but one chunk.
        room: How far runs go on with those that come, from 0 to 1.
        dealt: Share of the prompts that ranks get in turn, else by chance.
        ahead: Whether a step is formed while the one before it runs, 0 or 1.
    """

    decode_s: Scalar
    fixed_s: Scalar
    each_s: Scalar
    each_cv2: Scalar
    further_s: Scalar
    several: Scalar
    varied: Scalar
    unfinished: Scalar
    prompts: Scalar
    arrival_cv2: Scalar
    every: Scalar
    ranks: Scalar
    least: Scalar
    most: Scalar
    room: Scalar
    dealt: Scalar
    ahead: Scalar


class Run(NamedTuple):
    """Steps for prompts between two steps that decode, of a rank.

    Attributes:
        chance: Chance that there are any,
        second: and, if so, that there is more than one.
        steps: How many there are, mean.
        after_own: How many there are after a request's own prompt, until it decodes.
        sole_rank: Chance that no other rank has prompts in a step that decodes.
    """

    chance: Scalar
    second: Scalar
    steps: Scalar
    after_own: Scalar
    sole_rank: Scalar

    @property
    def of_any(self) -> Scalar:
        """Steps of a cycle with prompts of any rank."""
        return 1.0 + self.steps - self.sole_rank

    @property
    def of_gaps(self) -> Scalar:
        """Share of the gaps between a request's tokens with prompts of any rank in them."""
        return 1.0 - (1.0 - self.chance) * self.sole_rank

    def others_that_decode(self, ranks: Scalar, dealt: Scalar) -> tuple[Scalar, Scalar]:
        """Share of the other ranks that decode beside prompts, and the chance that one does.

        Args:
            ranks: How many ranks there are.
            dealt: Share of the prompts that ranks get in turn.
        """
        busy = self.steps / (1.0 + self.steps)
        some = jnp.maximum(self.of_any / (1.0 + self.steps), TINY)
        share = ranks * (1.0 - busy / some) / jnp.maximum(ranks - 1.0, 1.0)
        chance = 1.0 - all_busy(busy, ranks, dealt) / some
        return jnp.clip(share, 0.0, 1.0), jnp.clip(chance, 0.0, 1.0)


def run_of(cycle: DecodeCycle) -> Run:
    """The run of steps for prompts of a cycle: as many as come at the rate that the cycle implies.

    Args:
        cycle: The cycle.
    """
    most = jnp.log(cycle.prompts / cycle.decode_s)
    width = 2 * _LONGEST
    return bracketed_root(_residual, cycle, most - width, most, most - width / 2)[1]


@jax.jit
def _residual(log_rate: Scalar, cycle: DecodeCycle) -> tuple[Scalar, Run]:
    """How much more, in logarithm, a rate brings than a cycle has; and the run."""
    rate, ranks = jnp.exp(log_rate), cycle.ranks

    def after(step_s: Scalar) -> tuple[Scalar, Scalar]:
        seen_s = (cycle.every * step_s, cycle.fixed_s)
        waiting, fixed = (jnp.maximum(rate * s / ranks, TINY) for s in seen_s)
        each = jnp.maximum(rate * cycle.each_s, 0.0)
        chance, steps = (
            x / cycle.every
            for x in steps_after(waiting, fixed, each, cycle.arrival_cv2, cycle.each_cv2)
        )
        more = jnp.clip(steps, cycle.least, cycle.most) - cycle.least
        return chance, cycle.least + cycle.room * more

    finished = 1.0 - cycle.unfinished
    step_s, prompts_s, count = cycle.decode_s, cycle.fixed_s + cycle.each_s, finished
    for _ in range(_ROUNDS):
        chance, steps = after(step_s)
        ends = finished ** (count / finished)
        none = no_prompts(rate * cycle.decode_s, rate * prompts_s, cycle.varied, ends)
        run = Run(
            *_steps_of_any(chance, steps, cycle),
            steps,
            steps,
            sole_rank(steps, ranks, cycle.dealt, none),
        )
        count = cycle.prompts / run.of_any
        prompts_s = cycle.fixed_s + cycle.each_s * count
        prompts_s += cycle.further_s * jnp.maximum(count - cycle.several, 0.0)
        step_s = run.sole_rank * cycle.decode_s + (1.0 - run.sole_rank) * prompts_s
    run = run._replace(after_own=after(prompts_s)[1])
    seconds = jnp.log(run.sole_rank * cycle.decode_s + run.of_any * prompts_s)
    return log_rate + seconds - jnp.log(cycle.prompts), run


def _steps_of_any(chance: Scalar, steps: Scalar, cycle: DecodeCycle) -> tuple[Scalar, Scalar]:
    """Chance that a run has any steps, and then more than one.

    A step that is formed while the one before it runs has what came in the one before that. So
    every other step is of one chain and the rest of another, whose steps say nothing of each other:
    after one that decodes, the next has prompts as often as any, and the one after that as often as
    prompts come in it.

    Args:
        chance: Chance that prompts come in a step that decodes.
        steps: Steps for prompts for each that decodes.
        cycle: The cycle.
    """
    ahead = jnp.where(cycle.every > 1.0, 0.0, cycle.ahead)
    # Of a run without a step ahead, each has as much of a chance of another.
    again = 1.0 - chance / jnp.maximum(steps, chance)
    # The chunks of a prompt follow one another.
    finished = 1.0 - cycle.unfinished
    beginning = finished * steps
    any_of_them = beginning / (1.0 + beginning)
    second = cycle.unfinished + finished * chance
    return chance + ahead * (any_of_them - chance), again + ahead * (second - again)


def no_prompts(while_decoding: Scalar, meanwhile: Scalar, varied: Scalar, ends: Scalar) -> Scalar:
    """Chance that a step has no prompts, where each has those that come in the one before.

    Steps for prompts take times of a gamma distribution, so that long ones, in which many come,
    leave short ones in which none does. What follows a step that decodes and what follows one for
    prompts make a Markov chain of both.

    Args:
        while_decoding: Prompts that come in a step that decodes, mean.
        meanwhile: Prompts that come in a step for prompts, mean.
        varied: Squared coefficient of variation of the times of those.
        ends: Chance that all prompts of such a step end in it.
    """
    spread = jnp.maximum(varied, SMALL)
    none = ends * jnp.exp(-jnp.log1p(meanwhile * spread) / spread)
    return none / (none - jnp.expm1(-while_decoding))


def sole_rank(steps: Scalar, ranks: Number, dealt: Scalar, none: Scalar) -> Scalar:
    """Chance that no other rank has prompts in a step in which one decodes.

    With a share ``f`` of each rank's steps for prompts it is ``(1 - f)^(R - 1)`` where they come to
    ``R`` ranks by chance. Dealt out one by one they seldom meet on a rank, so that fewer of them
    are in as many steps: of the steps in which one rank has none, those in which nobody has.

    Args:
        steps: Steps for prompts of a rank, for each in which it decodes.
        ranks: How many ranks there are.
        dealt: Share of the prompts that ranks get in turn.
        none: Chance that no rank has prompts in a step.
    """
    by_chance = (1.0 - ranks) * jnp.log1p(steps)
    in_turn = jnp.minimum(jnp.log(none) + jnp.log1p(steps), 0.0)
    in_turn = jnp.where(ranks > 1.0, in_turn, 0.0)
    return jnp.exp(by_chance + dealt * (in_turn - by_chance))


def all_busy(busy: Scalar, ranks: Number, dealt: Scalar) -> Scalar:
    """Chance that all ranks have prompts in a step.

    It is ``f^R`` where each of ``R`` has some by chance, in a share ``f`` of its steps. Dealt out
    one by one as many come as there are ranks, or more: ``f^((R + 1) / 2)`` is within 0.04 of what
    Poisson's numbers give.

    Args:
        busy: Share of a rank's steps in which it has prompts.
        ranks: How many ranks there are.
        dealt: Share of the prompts that ranks get in turn.
    """
    return busy ** (ranks - dealt * (ranks - 1.0) / 2)


def steps_after(
    waiting: Scalar,
    fixed: Scalar,
    each: Scalar,
    arrival_cv2: Scalar,
    each_cv2: Scalar | float = 0.0,
) -> tuple[Scalar, Scalar]:
    """Chance that a run of steps for prompts follows a step, and the mean number of its steps.

    A step for ``n`` prompts takes as long as ``fixed + each n`` of them need to come. With Poisson
    arrivals their numbers in steps that follow one another are a branching process with
    immigration, and the run ends where it is first at zero. A prompt has descendants in the
    ``j``-th step after its own with the chance ``q_0 = 1, q_(j+1) = 1 - E exp(-each q_j)`` over the
    times that prompts add, of a gamma distribution, so that the mean number of steps is, as the
    mean first passage of a Markov chain,

        exp(fixed sum q_j) sum_k exp(-fixed (q_0 + ... + q_(k-1))) (1 - exp(-waiting q_k))

    Of evenly spaced prompts, which are computed one by one, a step has the next one in it with the
    chance ``fixed + each``. Bursts are clumps that come by chance.

    Args:
        waiting: Prompts that come in the step before the run, mean.
        fixed: Prompts that come in the time that a step takes however many it computes, mean,
        each: and in the time that each adds to it.
        arrival_cv2: Squared coefficient of variation of the times between arrivals,
        each_cv2: and of the times that prompts add.
    """
    spread = jnp.maximum(each_cv2, SMALL)
    level, even = arrival_evenness(arrival_cv2), jnp.minimum(waiting, 1.0)
    next_even = jnp.minimum(fixed + each, 1.0)
    waiting, fixed, each = (x * clumps(fixed + each, arrival_cv2) for x in (waiting, fixed, each))
    chance = -jnp.expm1(-waiting)
    total, before, descendants = jnp.zeros_like(chance), jnp.zeros_like(chance), 1.0
    for _ in range(_GENERATIONS):
        total += jnp.exp(-fixed * before) * -jnp.expm1(-waiting * descendants)
        before += descendants
        descendants = -jnp.expm1(-jnp.log1p(each * spread * descendants) / spread)
    ends = chance / total * jnp.exp(-fixed * before)
    chance = level * even + (1 - level) * chance
    ends = level * (1.0 - next_even) + (1 - level) * ends
    return chance, chance / jnp.maximum(ends, SMALL)


def prompts_of_steps(of_cycle: Scalar, arrival_cv2: Scalar) -> Scalar:
    """Prompts that come in a step, mean, from those that come in a cycle: about right.

    Were all steps as long, so that ``x`` prompts come in each, by chance, a run would have
    ``exp(x) - 1`` steps, and a cycle ``x exp(x)`` prompts, of which Lambert's function is the
    inverse. Evenly spaced prompts come one by one.

    Args:
        of_cycle: Prompts that come in a cycle, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    logarithm = jnp.log(jnp.maximum(of_cycle, TINY))
    found = jnp.log1p(of_cycle)
    for _ in range(NEWTON_STEPS):
        found = found * (1.0 + logarithm - jnp.log(jnp.maximum(found, TINY))) / (1.0 + found)
    level = arrival_evenness(arrival_cv2)
    return level * jnp.minimum(of_cycle, 1.0) + (1 - level) * found
