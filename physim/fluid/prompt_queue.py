"""What prompts wait for at a server that only computes prompts.

Whoever comes while a step is under way waits for its end and is computed in the next, beside all
who came meanwhile: a queue with gates, whose steps are the longer the more come in them. Steps of
data-parallel ranks last as long as the fullest rank's.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.batch_statistics import arrival_evenness
from physim.batching.guards import TINY
from physim.batching.limits import Limits
from physim.step.batch import Batch
from physim.types import AnyArray, Scalar

# Newton's steps for the prompts of a step: from below, each comes nearer.
_STEPS = 4


class FullSteps(eqx.Module):
    """Steps of a server that only computes prompts.

    Attributes:
        prompts: Prompts of a full step of all ranks, of which the last goes on in the next.
        batches: What a step carries with one prompt for each rank, and a full one.
    """

    prompts: Scalar
    batches: Batch


class _Line(NamedTuple):
    """Times of steps, straight in their prompts: seconds without any, and for each."""

    fixed_s: Scalar
    each_s: Scalar


class PromptWait(NamedTuple):
    """How much longer than alone prompts take until they are computed. Times in seconds.

    Attributes:
        chance: Chance that a prompt finds a step under way.
        step_s: Time of such a step, mean,
        varied: and its squared coefficient of variation.
        rest: Share of what is left of that step which the prompt waits.
        longer_s: How much longer its own step is for others in it.
        others: How many these are, mean of all.
        taken: Chance that no rank is free,
        behind_s: and what prompts then wait for others on their rank, mean of all.
    """

    chance: Scalar
    step_s: Scalar
    varied: Scalar
    rest: Scalar
    longer_s: Scalar
    others: Scalar
    taken: Scalar
    behind_s: Scalar

    @property
    def mean_s(self) -> Scalar:
        """What all prompts wait, mean."""
        return self.chance * (self.rest * self.step_s / 2 + self.longer_s) + self.behind_s


class PromptSteps(eqx.Module):
    """Times of a server's steps: straight from one prompt to one of each rank, and on to full.

    Attributes:
        ranks: Prompts that are computed at once, each on a rank or in a stage of its own.
        starts: Steps that begin while a prompt is computed.
        lone_s: Time in which a prompt is computed that comes alone, seconds.
        one_each_s: The same where each rank computes one.
        full_s: Time of a full step, seconds.
        prompts: Prompts of a full step, of all ranks.
    """

    ranks: Scalar
    starts: Scalar
    lone_s: Scalar
    one_each_s: Scalar
    full_s: Scalar
    prompts: Scalar

    @classmethod
    def from_limits(
        cls, limits: Limits, new_tokens: Scalar, lone_s: Scalar, most_rps: Scalar
    ) -> PromptSteps:
        """Steps of which no more is known than how many prompts are computed per second at most.

        Args:
            limits: The server's limits.
            new_tokens: Tokens that are computed of a prompt, mean.
            lone_s: Time in which one is computed that comes alone, seconds.
            most_rps: Prompts per second, at most.
        """
        lanes = limits.ranks * limits.stages
        chunks = jnp.maximum(new_tokens * lanes / limits.max_num_batched_tokens, 1.0)
        all_s = lanes / most_rps
        return cls(lanes, limits.stages * chunks, lone_s, all_s, all_s, lanes)

    @classmethod
    def from_full_steps(
        cls, limits: Limits, full: FullSteps, lone_s: Scalar, seconds: Float[AnyArray, 2]
    ) -> PromptSteps:
        """Steps of a server whose full ones are known.

        Args:
            limits: The server's limits.
            full: Its steps.
            lone_s: Time in which a prompt is computed that comes alone, seconds.
            seconds: Times of the two steps, seconds.
        """
        return cls(limits.ranks, 1.0, lone_s, seconds[0], seconds[1], full.prompts)

    @property
    def most_rps(self) -> Scalar:
        """Prompts per second, at most."""
        return self.prompts / self.full_s

    def mixed(self, other: PromptSteps, share: Scalar) -> PromptSteps:
        """Steps in which some prompts are as here, and some as elsewhere.

        Args:
            other: Steps of the others.
            share: Share of the prompts that are as here.
        """
        rest = 1.0 - share
        mean: PromptSteps = jax.tree.map(lambda one, two: share * one + rest * two, self, other)
        prompts = 1.0 / (share / self.prompts + rest / other.prompts)
        each_s = share / self.most_rps + rest / other.most_rps
        return eqx.tree_at(
            lambda steps: (steps.prompts, steps.full_s), mean, (prompts, prompts * each_s)
        )

    def wait(self, rate: Scalar, arrival_cv2: Scalar, prompt_cv2: Scalar) -> PromptWait:
        """How much longer than alone prompts take until they are computed.

        A prompt waits for the step under way, then for its own, which is longer for those who came
        before it in that time and, as far as a step has room, for those who came after. The moments
        of such cycles follow from one another as in Takagi's Analysis of Polling Systems (1986),
        but that a step begins only once there is a prompt. Where prompts fill a step each that is
        the queue of Pollaczek and Khinchine. How far arrivals are by chance counts as Allen and
        Cunneen have it (Allen, Probability, Statistics and Queueing Theory, 1990).

        Args:
            rate: Prompts per second that come, less than can be computed.
            arrival_cv2: Squared coefficient of variation of the times between them,
            prompt_cv2: and of the tokens that are computed of each.
        """
        most = 1.0 - jnp.finfo(jnp.asarray(rate, float).dtype).eps
        busy = jnp.minimum(rate / self.most_rps, most)
        rate = busy * self.most_rps
        few, many = self._lines()
        least = _prompts(few, rate)
        fewer = (self.ranks > 1.0) & ((least <= self.ranks) | (self.prompts <= self.ranks))
        fixed_s, each_s = (jnp.where(fewer, one, two) for one, two in zip(few, many, strict=True))
        count = jnp.where(fewer, least, jnp.maximum(_prompts(many, rate), self.ranks))
        count = jnp.maximum(count, 1.0)
        step_s = fixed_s + each_s * count
        none = jnp.exp(-rate * step_s)
        squares = fixed_s**2 + 2 * fixed_s * each_s * count
        squares += each_s**2 * (rate * step_s + none + prompt_cv2 * count)
        squares /= 1.0 - (rate * each_s) ** 2
        # Longer steps are met more often.
        met_s = jnp.maximum(squares / step_s, step_s)
        before = rate * met_s / 2
        after = jnp.minimum(before, jnp.maximum(self.prompts - 1.0, 0.0) / 2)
        # A rank that has no prompt takes one at the next step, of which a prompt has several.
        all_taken = busy ** (jnp.sqrt(2 * (self.ranks + 1.0)) - 2.0)
        taken = busy ** jnp.sqrt(2 * (self.ranks + 1.0))
        # Half of what they would wait if other ranks had queues of their own, with the chance that
        # none is free (Sakasegawa's, Ann. Inst. Statist. Math. 29, 1977).
        behind_s = (self.ranks - 1.0) * taken / (1.0 - busy) / self.most_rps / 2 / 2
        under_way = jnp.minimum(rate * step_s / count, 1.0)
        by_chance = (arrival_cv2 + prompt_cv2) / (1.0 + prompt_cv2)
        # Prompts that come evenly meet one another once they come faster than one is computed.
        evenly = jnp.clip(rate * self.lone_s - 1.0, 0.0, 1.0)
        level = arrival_evenness(arrival_cv2)
        met = jnp.maximum(by_chance * under_way, level * evenly + (1.0 - level) * under_way)
        more = jnp.maximum(by_chance, 1.0)
        return PromptWait(
            chance=jnp.minimum(met, under_way),
            step_s=more * met_s,
            varied=1.0 - step_s / met_s,
            rest=1.0 / self.starts + (1.0 - 1.0 / self.starts) * all_taken,
            longer_s=more * each_s * (before + after),
            others=jnp.minimum(met, under_way) * (before + after),
            taken=taken,
            behind_s=behind_s * (arrival_cv2 + prompt_cv2),
        )

    def _lines(self) -> tuple[_Line, _Line]:
        """Steps with up to a prompt for each rank, and with more."""
        # No prompt adds more than in full steps.
        most_s = 1.0 / self.most_rps
        one_each_s = jnp.maximum(self.one_each_s, self.lone_s)
        few_s = (one_each_s - self.lone_s) / jnp.maximum(self.ranks - 1.0, TINY)
        few_s = jnp.minimum(few_s, most_s)
        beyond = self.prompts - self.ranks
        many_s = jnp.clip((self.full_s - one_each_s) / jnp.maximum(beyond, TINY), 0.0, most_s)
        many_s = jnp.where(beyond > 0.0, many_s, most_s)
        few = _Line(jnp.maximum(self.lone_s - few_s, 0.0), few_s)
        many = _Line(jnp.maximum(self.full_s - many_s * self.prompts, 0.0), many_s)
        return few, many


def _prompts(line: _Line, rate: Scalar) -> Scalar:
    """Prompts of a step, mean: those who came in the one before, or the first who comes after it.

    Args:
        line: Times of steps.
        rate: Prompts per second.
    """
    rest = 1.0 - rate * line.each_s
    count = rate * line.fixed_s / rest
    for _ in range(_STEPS):
        none = jnp.exp(-rate * (line.fixed_s + line.each_s * count))
        more = rate * line.fixed_s + none - count * rest
        count += more / (rest + rate * line.each_s * none)
    return count
