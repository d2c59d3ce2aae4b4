"""How prompts of many lengths are computed: in which chunks, and how many prompts to a step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.arrival_numbers import none_and_one
from physim.batching.batch_statistics import (
    Nodes,
    arrival_evenness,
    bursts_of,
    two_counts,
)
from physim.batching.guards import HARDLY, LITTLE, ROOT, SMALL, TINY
from physim.batching.looks import beside_decode
from physim.batching.strata import PARTS
from physim.inputs.lengths import STRATA
from physim.types import AnyArray, Number, Scalar

# Shares of the requests that each group of prompts stands for, from short prompts to long ones: the
# longer, the finer, for few long prompts take much of the time.
GROUPS = np.array([16, 16, 16, 8, 4, 4]) / STRATA
_EDGES = np.cumsum(GROUPS)
# Means over the parts of prompts of each group.
_OF_GROUP = np.searchsorted(_EDGES, np.cumsum(PARTS) - PARTS / 2)
MEANS = (np.arange(len(GROUPS))[:, None] == _OF_GROUP) * PARTS / GROUPS[:, None]


class Chunks(NamedTuple):
    """Chunks that prompts are computed in, by the groups of `GROUPS`; tokens.

    All but the last chunk of a prompt fill a step. In a pipeline they follow each other in the
    batches that are under way, so that each holds a prompt up by one stage of a step.

    Attributes:
        number: Steps that a prompt is computed for, mean; of a pipeline those of one batch.
        long: Share of the prompts that have more than one.
        full: Steps that chunks before the last one hold a prompt up by.
        before: Tokens of the chunks before the last one.
        before_full: Tokens before such a chunk, mean of all groups.
        last: Tokens of the last chunk.
        squares: Squares of the last chunk's tokens.
        products: Products of the last chunk's tokens with the tokens before.
        sizes: Tokens of the last chunk of each part of all prompts.
        spread: Width of the range that these are spread over, tokens.
        divided: Share of the prompts that have more than one.
        stages: Stages of the pipeline.
    """

    number: Scalar
    long: Scalar
    full: Float[AnyArray, " groups"]
    before: Float[AnyArray, " groups"]
    before_full: Scalar
    last: Float[AnyArray, " groups"]
    squares: Float[AnyArray, " groups"]
    products: Float[AnyArray, " groups"]
    sizes: Float[AnyArray, " parts"]
    spread: Float[AnyArray, " parts"]
    divided: Float[AnyArray, " groups"]
    stages: Scalar

    @classmethod
    def in_room(
        cls,
        prompts: Float[AnyArray, " parts"],
        room: Scalar,
        stages: Number = 1,
        in_runs: bool = False,
    ) -> Chunks:
        """The chunks of prompts.

        Args:
            prompts: Tokens of the parts of all prompts.
            room: Tokens that a step has room for.
            stages: Stages of a pipeline, each with a batch of its own under way.
            in_runs: Whether prompts follow each other there, which share the time in which it fills
                and empties: two of them, about.
        """
        ahead = jnp.maximum(jnp.ceil(prompts / room - SMALL) - 1.0, 0.0)
        full, before = ahead / stages, ahead * room
        beyond = jnp.maximum(ahead - (stages - 1.0) / 2, 0.0) / stages if in_runs else full
        last = jnp.maximum(prompts - before, 1.0)
        columns = jnp.stack([full, before, last, last**2, last * before, ahead > 0.0])
        groups = jnp.matmul(columns, MEANS.T, precision=jax.lax.Precision.HIGHEST)
        pairs = jnp.sum(PARTS * full * (ahead - 1.0)) / 2 * room
        return cls(
            number=1.0 + jnp.sum(PARTS * beyond),
            long=jnp.sum(PARTS * (ahead > 0.0)),
            full=groups[0],
            before=groups[1],
            before_full=pairs / jnp.maximum(jnp.sum(PARTS * full), TINY),
            last=groups[2],
            squares=groups[3],
            products=groups[4],
            sizes=last,
            spread=jnp.maximum(jnp.gradient(prompts), 1.0),
            divided=groups[5],
            stages=jnp.asarray(stages, float),
        )

    def mean(self, of_group: Float[AnyArray, " groups"]) -> Scalar:
        """Mean over all prompts."""
        return jnp.sum(GROUPS * of_group)

    def cv2(self, of_group: Float[AnyArray, " groups"]) -> Scalar:
        """Squared coefficient of variation over all prompts."""
        return self.mean(of_group**2) / self.mean(of_group) ** 2 - 1.0

    @property
    def mean_last(self) -> Scalar:
        """Tokens of the last chunk of a prompt, mean."""
        return self.mean(self.last)

    def longest_of(self, count: Float[AnyArray, " n"]) -> Float[AnyArray, " n"]:
        """Tokens of the longest last chunk of so many, mean."""
        return _of_longest(count) @ self.sizes

    def sums(
        self,
        count: Float[AnyArray, " n"],
        apart: Float[AnyArray, " n"],
        most: Float[AnyArray, " n"],
    ) -> Nodes:
        """Tokens of last chunks that are computed together, over their mean.

        The two values have their sum's mean, variance and skewness (Gauss quadrature), unless there
        is less room.

        Args:
            count: How many they are,
            apart: each of them the longest of so many.
            most: Room for them, over the mean of their tokens.
        """
        weights, mean = _of_longest(apart), self.longest_of(apart)
        more = self.sizes - mean[:, None]
        wide = jnp.sqrt(jnp.sum(weights * more**2, axis=1) + ROOT)
        unit = more / wide[:, None]
        skewness = jnp.sum(weights * unit**2 * unit, axis=1)
        half = skewness / jnp.sqrt(count) / 2
        root = jnp.sqrt(1 + half**2)
        above = wide / mean / jnp.sqrt(count) * (half + root)
        scale = jnp.minimum(above, jnp.maximum(most - 1, 0.0)) / (half + root)
        low, high = (1 + scale * (half + sign * root) for sign in (-1.0, 1.0))
        return Nodes(low, high, (1 - half / root) / 2)


def _of_longest(count: Float[AnyArray, " n"]) -> Float[AnyArray, "n parts"]:
    """Chances that the longest of so many prompts is of each part."""
    return jnp.diff(np.cumsum(PARTS) ** count[:, None], prepend=0.0)


class PromptsOfStep(NamedTuple):
    """Prompts that come in a step.

    Attributes:
        every: Steps that only decode between two looks at what has arrived.
        mean: How many, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        burst: One, and by how much the variance of their number exceeds its mean, over the mean.
        arriving: How many come in steps with more than one,
        several: and how many of them such a step computes.
    """

    every: Scalar
    mean: Scalar
    arrival_cv2: Scalar
    burst: Scalar
    arriving: Nodes
    several: Nodes

    def none_and_one(
        self,
        longer: Float[AnyArray, "*n"],
        share: Float[AnyArray, "*n"],
        filled: Scalar | float = 0.0,
        filled_longer: Scalar | float = 1.0,
    ) -> tuple[Scalar, Scalar]:
        """Chances that there are none, and that there is just one.

        A look that finds any is followed by a step with prompts and the next look; one that finds
        none by as many steps that only decode as there are between looks. So there are steps of
        both in proportion to the looks that find any after some that only decode, and to those that
        find none after a step with prompts. Before some there is a step that a long prompt fills.

        Args:
            longer: Times of kinds of steps in which they come, over the mean step's: of those with
                prompts that leave room, and last of one that only decodes.
            share: Shares of the steps that are of each kind.
            filled: Share of the steps before which is one that a long prompt fills,
            filled_longer: and what comes in that one, over the mean.
        """
        seen = self.mean * jnp.append(longer.at[-1].multiply(self.every), filled_longer)
        empty, single = none_and_one(seen, self.arrival_cv2)
        with_prompts = jnp.maximum(share[:-1], TINY)
        after, single_after = (
            jnp.sum(with_prompts * x[:-2]) / jnp.sum(with_prompts) for x in (empty, single)
        )
        alone, in_filled = -2, -1
        rest, begin = 1.0 - filled, (1.0 - empty[alone]) / self.every
        none = filled * empty[in_filled] + rest * after
        none /= filled + rest * (after + begin)
        one = rest * (none * single[alone] / self.every + (1.0 - none) * single_after)
        one += filled * single[in_filled]
        return none, one


def prompts_of_step(
    mean: Scalar, every: Scalar, arrival_cv2: Scalar, most: Scalar
) -> PromptsOfStep:
    """Prompts that come in a step, if ``mean`` do on average.

    The chances of none and of one are those of gamma distributed distances. Where more come, their
    number varies as the variances of a Poisson number and of its bursts say, and of evenly spaced
    prompts it is one of the two whole numbers about the mean.

    Args:
        mean: Prompts of a step, mean.
        every: Steps that only decode between two looks at what has arrived.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        most: Prompts that a step has room for.
    """
    # In steps with fewer no second one is looked for.
    some = jnp.maximum(mean, HARDLY)
    bursts = bursts_of(some, arrival_cv2)
    unknown = Nodes(mean, mean, mean)
    found = PromptsOfStep(every, mean, arrival_cv2, 1.0 + bursts, unknown, unknown)

    def several(cv2: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        """Chance that there is one, and that there are more; and how many then, mean."""
        none, one = found._replace(mean=some, arrival_cv2=cv2).none_and_one(
            jnp.ones(2), jnp.ones(2)
        )
        rest = jnp.maximum(1.0 - none - one, SMALL)
        return one, rest, jnp.maximum((some - one) / rest, 2.0 + LITTLE)

    _, _, each = several(arrival_cv2)
    # Of evenly spaced ones there are as many as the next whole number or the one below.
    one, rest, by_chance = several(jnp.maximum(arrival_cv2, 1.0))
    others = some * beside_decode(some, every).joined
    varied = (some * (others + found.burst) - one) / rest - by_chance**2
    level = arrival_evenness(arrival_cv2)
    variance = (1 - level) * varied + level * (each % 1.0) * (1 - each % 1.0)
    variance = jnp.maximum(variance, SMALL)
    low, high = two_counts(each, variance, 2.0)
    weight = jnp.clip((each - low) / (high - low), 0.0, 1.0)
    room = jnp.maximum(most, 1.0)
    in_room = Nodes(jnp.minimum(low, room), jnp.minimum(high, room), weight)
    return found._replace(arriving=Nodes(low, high, weight), several=in_room)
