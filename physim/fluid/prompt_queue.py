"""What prompts wait for at a server that only computes prompts.

Whoever comes while a step is under way waits for its end and is computed in the next, beside all
who came meanwhile: a queue with gates, whose steps are the longer the more come in them. Steps of
data-parallel ranks last as long as the fullest rank's.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.batch_statistics import arrival_evenness
from physim.batching.guards import ROOT, TINY
from physim.batching.limits import Limits
from physim.pytree import Pytree
from physim.step.batch import Batch
from physim.types import AnyArray, Scalar


class KnownSteps(Pytree):
    """Steps of a server that only computes prompts.

    Attributes:
        prompts: Prompts of steps, of all ranks: one for each, more, and as many as there is room
            for, of which the last goes on in the next.
        batches: What these steps carry.
    """

    prompts: Float[AnyArray, " steps"]
    batches: Batch


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


class PromptSteps(Pytree):
    """Times of a server's steps by the prompts in them, straight between those that are known.

    Attributes:
        ranks: Prompts that are computed at once, each on a rank or in a stage of its own.
        starts: Steps that begin while a prompt is computed.
        prompts: Prompts of the steps that are known, of all ranks: from one to those of a full
            step.
        seconds: Times of these steps, seconds.
    """

    ranks: Scalar
    starts: Scalar
    prompts: Float[AnyArray, " steps"]
    seconds: Float[AnyArray, " steps"]

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
        prompts, seconds = jnp.stack([1.0, lanes]), jnp.stack([lone_s, lanes / most_rps])
        return cls(lanes, limits.stages * chunks, prompts, seconds)

    @classmethod
    def from_known(
        cls, limits: Limits, known: KnownSteps, lone_s: Scalar, seconds: Float[AnyArray, " steps"]
    ) -> PromptSteps:
        """Steps of a server of which some are known.

        Args:
            limits: The server's limits.
            known: Some of its steps.
            lone_s: Time in which a prompt is computed that comes alone, seconds.
            seconds: Times of these steps, seconds.
        """
        prompts = jnp.append(1.0, known.prompts)
        return cls(limits.ranks, 1.0, prompts, jnp.append(lone_s, jnp.maximum(seconds, lone_s)))

    @property
    def most_rps(self) -> Scalar:
        """Prompts per second, at most."""
        return self.prompts[-1] / self.seconds[-1]

    def mixed(self, other: PromptSteps, share: Scalar) -> PromptSteps:
        """Steps in which some prompts are as here, and some as elsewhere.

        Args:
            other: Steps of the others.
            share: Share of the prompts that are as here.
        """
        rest = 1.0 - share
        mean: PromptSteps = jax.tree.map(lambda one, two: share * one + rest * two, self, other)
        # A full step has fewer of those that fill more of it.
        full = 1.0 / (share / self.prompts[-1] + rest / other.prompts[-1])
        full_s = full * (share / self.most_rps + rest / other.most_rps)
        prompts, seconds = mean.prompts.at[-1].set(full), mean.seconds.at[-1].set(full_s)
        return PromptSteps(mean.ranks, mean.starts, prompts, seconds)

    def wait(self, rate: Scalar, arrival_cv2: Scalar, prompt_cv2: Scalar) -> PromptWait:
        """How much longer than alone prompts take until they are computed.

        A prompt waits for the step under way, then for its own, which is longer for those who came
        before it in that time and, as far as a step has room, for those who came after. The moments
        of such cycles follow from one another as in Takagi's Analysis of Polling Systems (1986),
        but that a step begins only once there is a prompt. Where prompts fill a step each that is
        the queue of Pollaczek and Khinchine. How far arrivals are by chance counts as Kraemer and
        Langenbach-Belz have it (8th International Teletraffic Congress, 1976).

        Args:
            rate: Prompts per second that come, less than can be computed.
            arrival_cv2: Squared coefficient of variation of the times between them,
            prompt_cv2: and of the tokens that are computed of each.
        """
        most = 1.0 - jnp.finfo(jnp.asarray(rate, float).dtype).eps
        busy = jnp.minimum(rate / self.most_rps, most)
        rate = busy * self.most_rps
        fixed_s, each_s, count = self._mean_step(rate)
        mean_s = fixed_s + each_s * count
        none = jnp.exp(-rate * mean_s)
        squares = fixed_s**2 + 2 * fixed_s * each_s * count
        squares += each_s**2 * (rate * mean_s + none + prompt_cv2 * count)
        squares /= 1.0 - (rate * each_s) ** 2
        # Longer steps are met more often.
        met_s = jnp.maximum(squares / mean_s, mean_s)
        # A rank that has no prompt takes one at the next step, of which a prompt has several.
        all_taken = busy ** (jnp.sqrt(2 * (self.ranks + 1.0)) - 2.0)
        taken = busy ** jnp.sqrt(2 * (self.ranks + 1.0))
        under_way = jnp.minimum(rate * mean_s / count, 1.0)
        # Even prompts seldom meet a step of others (Kraemer and Langenbach-Belz's factor), but once
        # they come faster than one is computed.
        level, at_once = arrival_evenness(arrival_cv2), rate * self.seconds[0]
        by_chance = (arrival_cv2 + prompt_cv2) / (1.0 + prompt_cv2)
        seldom = (1.0 - busy) / busy * level**2 / (1.0 + 0.5)
        seldom = jnp.exp(-seldom / jnp.maximum(arrival_cv2 + prompt_cv2, TINY))
        faster = jnp.minimum(at_once, 1.0) ** 2**2
        evenly = level * jnp.clip(at_once - 1.0, 0.0, 1.0) / under_way + 1.0 - level
        share = jnp.maximum(by_chance * seldom, faster * jnp.minimum(evenly, 1.0))
        # Half of that, in logarithm, is how many meet one, and half how long they wait for it.
        fewer = jnp.minimum(jnp.sqrt(share + ROOT), 1.0)
        chance, shorter = under_way * fewer, share / fewer
        before = rate * met_s / 2
        after = jnp.minimum(before, jnp.maximum(self.prompts[-1] - 1.0, 0.0) / 2)
        after *= 1.0 - level * (1.0 - faster)
        step_s, longer_s = shorter * met_s, shorter * each_s * (before + after)
        rest = 1.0 / self.starts + (1.0 - 1.0 / self.starts) * all_taken
        # Where a step takes as long for more prompts, some wait for another once it is full; with
        # ranks, half as long as if each had a queue of its own. The chances that all places, or all
        # ranks, are taken are Sakasegawa's (Ann. Inst. Statist. Math. 29, 1977).
        one_by_one_s = (arrival_cv2 + prompt_cv2) / (1.0 - busy) / self.most_rps / 2
        beyond = busy ** jnp.sqrt(2 * (self.prompts[-1] + 1.0)) * (1.0 - each_s * self.most_rps)
        behind_s = one_by_one_s * (beyond + (self.ranks - 1.0) * taken / 2)
        return PromptWait(
            chance=chance,
            step_s=step_s,
            varied=1.0 - mean_s / met_s,
            rest=rest,
            longer_s=longer_s,
            others=under_way * jnp.minimum(share, 1.0) * (before + after),
            taken=taken,
            behind_s=behind_s,
        )

    def _mean_step(self, rate: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        """Seconds of a step without its prompts and for each of them, near its mean; and that mean.

        They are those who came in the step before, or the first who comes after it.

        Args:
            rate: Prompts per second.
        """
        wide = jnp.diff(self.prompts)
        # No prompt adds more than in full steps, as they do where one fills a step.
        most_s = 1.0 / self.most_rps
        each_s = jnp.clip(jnp.diff(self.seconds) / jnp.maximum(wide, TINY), 0.0, most_s)
        each_s = jnp.where(wide > TINY, each_s, most_s)
        fixed_s = jnp.maximum(self.seconds[1:] - each_s * self.prompts[1:], 0.0)
        rest = 1.0 - rate * each_s
        # It is one at least; from below, Newton's steps come nearer without going beyond.
        count = jnp.maximum(rate * fixed_s / rest, 1.0)
        for _ in range(2):
            none = jnp.exp(-rate * (fixed_s + each_s * count))
            more = rate * fixed_s + none - count * rest
            count += more / (rest + rate * each_s * none)
        count = jnp.maximum(count, self.prompts[:-1])
        # The first part that ends with more, or the last.
        fits = ((count <= self.prompts[1:]) & (wide > TINY)).at[-1].set(True)
        part = jnp.argmax(fits)
        return fixed_s[part], each_s[part], count[part]
