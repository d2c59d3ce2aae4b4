"""A load that changes over time, as numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.pytree import Pytree
from physim.types import AnyArray, Scalar


class StageLengths(Pytree):
    """Lengths of each stage's requests, over those of all requests.

    Attributes:
        prompts: Prompt tokens to compute, mean.
        outputs: Generated tokens, mean.
    """

    prompts: Float[AnyArray, "*stages"]
    outputs: Float[AnyArray, "*stages"]

    @property
    def counted(self) -> Float[AnyArray, "*stages"]:
        """Prompt tokens of requests as they are counted, over those of all."""
        return self.prompts / self.outputs


class Schedule(Pytree):
    """Stages of a load that follow one another.

    Where a stage's outputs are longer than those of all, its requests count as so many more with
    outputs like all, which decode as many tokens: counts are of such requests.

    Attributes:
        rates: Arrivals per second, counted so.
        ends: When each stage ends, seconds.
        timeout: Time after which clients give up, seconds; None for never.
        lengths: Lengths of each stage's requests; None where all are alike.
    """

    rates: Float[AnyArray, " stages"]
    ends: Float[AnyArray, " stages"]
    timeout: Scalar | None = None
    lengths: StageLengths | None = None

    def arrived(self, time: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
        """Requests that have arrived by a time."""
        times, counts = self.corners()
        return jnp.interp(time, times, counts)

    def arrival(self, count: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
        """When so many have arrived: the inverse, within the stages."""
        times, counts = self.corners()
        return jnp.interp(count, counts, times)

    def corners(self) -> tuple[Float[AnyArray, " corners"], Float[AnyArray, " corners"]]:
        """When stages begin and the last ends, seconds, and how many have arrived by then."""
        times = jnp.append(0.0, self.ends)
        return times, jnp.append(0.0, jnp.cumsum(self.rates * jnp.diff(times)))

    def lengths_at(self, time: Float[AnyArray, "*n"], share: float) -> StageLengths | None:
        """Lengths of requests that arrived about a time.

        Args:
            time: The time, seconds.
            share: They are means over so much of a mean stage, and change without a jump.
        """
        if self.lengths is None:
            return None
        stretch = share * self.ends[-1] / len(self.ends)
        around = jnp.stack([-stretch, self.ends[-1] + stretch])
        times = jnp.concatenate([around[:1], self.ends[:-1], around[1:]])

        def mean(of_stage: AnyArray) -> AnyArray:
            until = jnp.append(0.0, jnp.cumsum(of_stage * jnp.diff(times)))
            begin, end = (
                jnp.interp(time + side * stretch / 2, times, until) for side in (-1.0, 1.0)
            )
            return (end - begin) / stretch

        found: StageLengths = jax.tree.map(mean, self.lengths)
        return found
