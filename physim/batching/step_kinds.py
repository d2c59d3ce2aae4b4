"""The kinds of steps that an engine runs, and how often: those that only decode or have prompts."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.batch_statistics import MOST_ELASTIC, Nodes
from physim.batching.guards import HARDLY, NEARLY, ROOT, SMALL, TINY
from physim.batching.pipeline_turns import Turns
from physim.batching.prompt_chunks import GROUPS, Chunks, PromptsOfStep
from physim.pytree import swapped
from physim.step.model import StepTime
from physim.types import AnyArray, Scalar

# Kinds of steps with prompts: the last chunk of one prompt of each group, a full chunk, few and
# many prompts.
FULL, FEW, MANY = (len(GROUPS) + place for place in range(3))
KINDS = MANY + 1
# Of two kinds with as many tokens, which comes first.
_BEFORE = np.tri(FULL + 1, k=-1, dtype=bool)


class StepKinds(NamedTuple):
    """Times of the kinds of steps at an occupancy.

    Attributes:
        as_seen: Requests that decode, as one of them meets it.
        few: A step that only decodes, with the fewer of them.
        many: A step that only decodes, with the more of them.
        far_slope_s: How much longer such a step is for each request in it, over a range as wide as
            can be, seconds.
        decode_only: A step that only decodes, with as many of them as steps have on average.
        prompts: Steps with prompts, by kind.
        others: How much longer the tokens of other data-parallel ranks make these where all of them
            decode meanwhile; zero where requests decode beside prompts.
        slower: How much longer a rank that decodes meanwhile takes.
        numbers: Prompts of each of them.
        tokens: Tokens of these, on the rank that has most,
        tokens_cv2: and their squared coefficient of variation.
        cv2: That of what they add to a step's time.
        chunks: The chunks of prompts.
        filled: Share of the steps that a chunk of a long prompt fills on any rank.
        follows: Chance that the step after such a one is filled too.
        free: Chance that a rank has room for other prompts in it.
        come: Last chunks of a step, in those that a rank has room for.
        lanes: Batches that share out a pipeline's requests.
        alone_s: Time by which the step that an arriving request is prefilled in is shorter than
            such steps on average, seconds: some arrive at an idle engine.
    """

    as_seen: Nodes
    few: StepTime
    many: StepTime
    far_slope_s: Scalar
    decode_only: StepTime
    prompts: StepTime
    others: StepTime
    slower: StepTime
    numbers: Float[AnyArray, " kinds"]
    tokens: Float[AnyArray, " kinds"]
    tokens_cv2: Float[AnyArray, " kinds"]
    cv2: Float[AnyArray, " kinds"]
    chunks: Chunks
    filled: Scalar
    follows: Scalar
    free: Scalar
    come: PromptsOfStep
    lanes: Scalar
    alone_s: Scalar

    @property
    def decode(self) -> StepTime:
        """A step that only decodes, mean of all such steps."""
        weight = self.as_seen.weight_of_steps
        time: StepTime = jax.tree.map(
            lambda few, many: (1 - weight) * few + weight * many, self.few, self.many
        )
        return time

    def slope_s(self, batch: Scalar) -> Scalar:
        """How much longer a step that only decodes is for each request in it, seconds.

        The more so, the further their number varies: where a step's time jumps, beyond the jump.

        Args:
            batch: Requests that decode in a mean step.
        """
        near_s = self.as_seen.slope(self.few.interval, self.many.interval)
        elastic = self.elastic(near_s, batch)
        # Deviations of the number, over those of steps as long as they are and at most.
        here, most = 1.0 / jnp.sqrt(1.0 - elastic), (1.0 - MOST_ELASTIC) ** -0.5
        share = (here - 1.0) / (most - 1.0)
        return near_s - share * jnp.maximum(near_s - self.far_slope_s, 0.0)

    def elastic(self, slope_s: Scalar, batch: Scalar) -> Scalar:
        """Relative change of a step that only decodes for a relative change of those that do.

        Args:
            slope_s: How much longer it is for each request in it, seconds.
            batch: Requests that decode in a mean step.
        """
        return jnp.clip(slope_s * batch / self.decode.interval, 0.0, MOST_ELASTIC)

    @property
    def one_s(self) -> Scalar:
        """Time of a step with the last chunk of one prompt, mean, seconds."""
        return self.chunks.mean(self.prompts.latency[:FULL])

    @property
    def adding_s(self) -> Scalar:
        """What another prompt adds to such a step, seconds."""
        more = self.prompts.latency[FEW] - self.one_s
        return jnp.maximum(more / jnp.maximum(self.numbers[FEW] - 1.0, HARDLY), 0.0)

    @property
    def prefill_s(self) -> Float[AnyArray, " groups"]:
        """Time of all steps that compute a prompt alone, by its group, seconds.

        In a pipeline a last chunk is behind a full one at each stage.
        """
        last_s, behind = self.prompts.latency[:FULL], 1.0 - 1.0 / self.chunks.stages
        longer_s = jnp.maximum(self.prompts.latency[FULL] - last_s, 0.0)
        whole_s = self.of_whole_prompts(self.prompts.latency - self.alone_s)
        return whole_s + self.chunks.divided * behind * longer_s

    def full_s(self, room: Scalar) -> Scalar:
        """Time of a step whose budget prompts take, seconds.

        Chunks of long prompts fill it, or several last chunks, each as often as there are tokens.

        Args:
            room: Prompt tokens that a rank's step has room for.
        """
        chunk, many = self.prompts.latency[FULL], self.prompts.latency[MANY]
        alone, near = self.decode_only.latency, jnp.minimum(self.tokens[MANY] / room, 1.0)
        # What many of them take is known as far as they nearly fill a step.
        several = (1.0 - near) * chunk + near * alone + many - alone
        rest, before = self.chunks.mean_last, self.chunks.mean(self.chunks.before)
        return (before * chunk + rest * several) / (before + rest)

    @property
    def launches_s(self) -> Scalar:
        """What of that is because kernels are launched one by one, mean, seconds."""
        return self.chunks.mean(self.of_whole_prompts(self.prompts.launches))

    @property
    def held(self) -> Scalar:
        """How many times as long as a step that a long prompt fills a gap is, in a pipeline.

        Who decodes in another batch waits for all that follow each other, the last chunk as well.
        """
        batches = jnp.minimum(1.0 / jnp.maximum(1.0 - self.follows, SMALL), self.lanes)
        last_s, divided = self.prompts.interval[:FULL], GROUPS * self.chunks.divided
        rest = jnp.sum(divided * last_s) / jnp.maximum(jnp.sum(divided), TINY)
        rest /= self.prompts.interval[FULL]
        return 1.0 + (batches - 1.0 + rest * (1.0 - 1.0 / self.lanes)) / self.lanes

    def beside_ranks(self, decode: Scalar, any_decodes: Scalar) -> StepTime:
        """How much longer a step with prompts is for other ranks, which decode meanwhile.

        Args:
            decode: Share of them that do, mean.
            any_decodes: Chance that one does.
        """
        longer: StepTime = jax.tree.map(
            lambda others, slower: decode * others + any_decodes * slower, self.others, self.slower
        )
        return longer

    def hidden_s(self, share: Float[AnyArray, " kinds"]) -> Scalar:
        """Time by which the last step of a prompt is longer for a long one on another rank, mean.

        It fills that step, or its last chunk is in it.

        Args:
            share: Share of the steps that are of each kind.
        """
        times = jnp.append(self.prompts.latency, self.decode_only.latency)
        every = jnp.append(share, 1.0 - jnp.sum(share))
        during = times[FULL] / jnp.sum(every * times)
        longer = jnp.maximum(times[FULL - 1 : FULL + 1, None] - times[:FULL], 0.0)
        ends = self.filled * during * self.free * (1.0 - self.follows)
        chance = jnp.stack([ends, self._hidden(during)])
        return jnp.sum(chance * jnp.sum(GROUPS * longer, axis=1))

    def of_whole_prompts(self, of_kind: Float[AnyArray, " kinds"]) -> Float[AnyArray, " groups"]:
        """What all steps that compute a prompt alone add up to, by its group.

        Args:
            of_kind: What a step of each kind takes.
        """
        return of_kind[:FULL] + self.chunks.full * of_kind[FULL]

    def lone(self, share: Float[AnyArray, " kinds"]) -> Scalar:
        """Share of the prompts that come alone in their step.

        Args:
            share: Share of the steps that are of each kind.
        """
        lone, joined = jnp.sum(share[:FULL]), jnp.sum(share[FEW:] * self.numbers[FEW:])
        return lone / jnp.maximum(lone + joined, TINY)

    def shares(
        self, seconds: Float[AnyArray, " kinds"], alone_s: Scalar
    ) -> Float[AnyArray, " kinds"]:
        """Share of the steps that are of each kind with prompts.

        More prompts come in long steps than in short ones, so the shares follow from themselves. In
        a pipeline they come while a step holds up the others.

        Args:
            seconds: Time of a step of each kind.
            alone_s: Time of a step without prompts.
        """
        times = jnp.append(seconds, alone_s)
        even = jnp.ones(KINDS + 1)
        first = self._shares(self.come.mean, even, even.at[FULL].set(0.0))
        second = self._next(first, times)
        third = self._next(second, times)
        # Too many steps with prompts make the mean step too long and what comes in each too little,
        # and so the next too few: each is off the other way, by the same factor (Aitken, 1926).
        once, twice = jnp.sum(second - first), jnp.sum(third - second)
        factor = jnp.clip(once * twice / (once**2 + ROOT), -NEARLY, 0.0)
        return jnp.maximum(third + factor / (1.0 - factor) * (third - second), 0.0)

    def _next(
        self, share: Float[AnyArray, " kinds"], times: Float[AnyArray, " all"]
    ) -> Float[AnyArray, " kinds"]:
        """Shares of the steps that follow on steps of some shares."""
        every = jnp.append(share, 1.0 - jnp.sum(share))
        apart_s = self._turns.ends_apart_s(times, every)
        return self._shares(*self._after(apart_s / jnp.sum(every * apart_s), every))

    def of_turns(
        self, share: Float[AnyArray, " kinds"], seconds: Float[AnyArray, " kinds"], alone_s: Scalar
    ) -> Float[AnyArray, " kinds"]:
        """Share of the turns of a pipeline whose longest step is of each kind with prompts.

        Args:
            share: Share of the steps that are of each kind.
            seconds: Time of a step of each kind, through all stages.
            alone_s: Time of a step without prompts.
        """
        every = jnp.append(share, 1.0 - jnp.sum(share))
        return (every @ self._turns.longest(jnp.append(seconds, alone_s), every))[:-1]

    def spread(
        self, share: Float[AnyArray, " kinds"], seconds: Float[AnyArray, " kinds"], alone_s: Scalar
    ) -> Scalar:
        """Squared coefficient of variation of the times from the end of a step to the next one's.

        Args:
            share: Share of the steps that are of each kind.
            seconds: Time of a step of each kind, through all stages.
            alone_s: Time of a step without prompts.
        """
        every = jnp.append(share, 1.0 - jnp.sum(share))
        apart_s = self._turns.ends_apart_s(jnp.append(seconds, alone_s), every)
        more = apart_s[:-1] - apart_s[-1]
        alone = apart_s[-1] + (self.decode.interval - alone_s) / self.lanes
        mean = jnp.sum(share * more)
        squares = jnp.sum(share * more**2 * (1.0 + self.cv2)) + 2 * mean * alone + alone**2
        return jnp.maximum(squares / (mean + alone) ** 2 - 1.0, 0.0)

    def held_up(self, share: Float[AnyArray, " kinds"]) -> StepKinds:
        """The kinds of steps with the time that they wait in a pipeline for those before them.

        Args:
            share: Share of the steps that are of each kind.
        """
        every = jnp.append(share, 1.0 - jnp.sum(share))
        times = jnp.append(self.prompts.latency, self.decode_only.latency)
        latency = (self._turns.longest(times, every) @ times)[:-1]
        return self._replace(prompts=swapped(self.prompts, latency=latency))

    @property
    def _turns(self) -> Turns:
        """Turns of a pipeline's batches, by kinds with prompts and then that without."""
        several = jnp.broadcast_to(self.chunks.long, KINDS - FEW)
        divided = jnp.concatenate([self.chunks.divided, jnp.zeros(1), several, jnp.zeros(1)])
        return Turns(self.lanes, FULL, self.filled, self.follows, divided)

    def varied(self, seconds: Float[AnyArray, " kinds"], alone_s: Scalar) -> Scalar:
        """Squared coefficient of variation of the times of steps with prompts.

        Args:
            seconds: Time of a step of each kind.
            alone_s: Time of a step without prompts.
        """
        share = self.shares(seconds, alone_s)
        mean = jnp.sum(share * seconds)
        squares = jnp.sum(share * seconds**2 * (1.0 + self.cv2))
        return jnp.maximum(squares * jnp.sum(share) / mean**2 - 1.0, 0.0)

    def _after(
        self, longer: Float[AnyArray, " all"], share: Float[AnyArray, " all"]
    ) -> tuple[Scalar, Float[AnyArray, " all"], Float[AnyArray, " all"]]:
        """What comes in steps that no long prompt fills, by the kind of the step before.

        Filled steps follow one another. What comes meanwhile is computed in them by ranks that have
        room, and waits for the end of the long prompt at the rank that computes it.

        Args:
            longer: Times of kinds of steps, over the mean step's.
            share: Shares of the steps that are of each kind.

        Returns:
            Last chunks in a step that is not filled, mean; what comes in steps of each kind until
            the next such step, over the mean; and the shares of them that are before such a step.
        """
        rest, run = 1.0 - self.filled, jnp.maximum(1.0 - self.follows, SMALL)
        begins = self.filled * (1.0 - self.follows) / rest
        during = longer[FULL]
        waits = during * (self.free + (1.0 - self.free) / run)
        before = ((1.0 - begins) / rest * share).at[FULL].set(begins)
        longer = longer.at[FULL].set(waits)
        of_one = self.filled * (1.0 - self.free)
        mean = self.come.mean * (1.0 - of_one) * (1.0 - self._hidden(during)) / rest
        return mean, longer / jnp.sum(before * longer), before

    def _hidden(self, during: Scalar) -> Scalar:
        """Share of the last chunks that are computed in steps that another rank fills.

        Args:
            during: Time of such a step, over the mean step's.
        """
        rest = 1.0 - self.filled
        others = (1.0 - self.filled * during) / rest
        coming = during * self.follows + others * (1.0 - self.follows)
        return jnp.minimum(self.filled * self.free * coming, 1.0)

    def _shares(
        self, mean: Scalar, longer: Float[AnyArray, " all"], share: Float[AnyArray, " all"]
    ) -> Float[AnyArray, " kinds"]:
        come, rest = self.come._replace(mean=mean), 1.0 - self.filled
        few, many = come.several.low, come.several.high
        none, one = come.none_and_one(
            jnp.delete(longer, FULL), jnp.delete(share, FULL), share[FULL], longer[FULL]
        )
        others = jnp.maximum(1.0 - none - one, SMALL)
        # Steps with many of them have what is left of the prompts.
        apart = jnp.maximum(many - few, HARDLY)
        weight = jnp.clip(((come.mean - one) / others - few) / apart, 0.0, 1.0)
        each = (1.0 - weight) * few + weight * many
        # The more of all that steps have room for come, the fewer have one alone: others are left.
        most = (each - come.mean) / jnp.maximum(each - 1.0, SMALL)
        one = jnp.minimum(one, jnp.maximum(most, 0.0))
        several = jnp.minimum(jnp.maximum(come.mean - one, 0.0) / each, 1.0 - one)
        of_several = several * jnp.stack([1.0 - weight, weight])
        return jnp.concatenate([rest * one * GROUPS, self.filled[None], rest * of_several])


def added_s(
    kind_tokens: Float[AnyArray, " kinds"],
    kind_more_s: Float[AnyArray, "*kinds"],
    tokens: Float[AnyArray, "*n"],
) -> Float[AnyArray, "*n"]:
    """What one prompt adds to a step: straight between the means of groups and on to a full step.

    Args:
        kind_tokens: Tokens of kinds of steps with prompts,
        kind_more_s: and what these add, seconds.
        tokens: Tokens of the prompt.
    """
    places, values = (x[: FULL + 1] for x in (kind_tokens, kind_more_s))
    # Without a sort, which takes long to compile: where each of them is among all.
    before = (places[:, None] > places) | ((places[:, None] == places) & _BEFORE)
    order = jnp.sum(before, axis=1)[:, None] == np.arange(FULL + 1)
    places, values = (jnp.sum(jnp.where(order, x[:, None], 0.0), axis=0) for x in (places, values))
    apart = jnp.diff(places)
    wide = jnp.where(apart > SMALL * places[1:], apart, 1.0)
    within = jnp.clip((tokens[..., None] - places[:-1]) / wide, 0.0, 1.0)
    return values[0] + jnp.sum(jnp.diff(values) * within, axis=-1)
