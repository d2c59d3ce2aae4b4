"""A load that changes over time, as numbers."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from physim.types import AnyArray, Scalar


class Schedule(eqx.Module):
    """Stages of a load that follow one another.

    Attributes:
        rates: Arrivals per second.
        ends: When each stage ends, seconds.
        timeout: Time after which clients give up, seconds; None for never.
    """

    rates: Float[AnyArray, " stages"]
    ends: Float[AnyArray, " stages"]
    timeout: Scalar | None = None

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
