"""Places between the knots of the fluid's tables: which knots are near, and their weights."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from physim.types import AnyArray, Scalar


def cubic(
    knots: Float[np.ndarray, " knots"], x: Scalar
) -> tuple[Int[AnyArray, ""], Float[AnyArray, " 4"]]:
    """The first of four knots about a point and their weights: a smooth curve through all.

    Catmull and Rom's cubic along the logarithm of equally spaced knots, of which the first and the
    last only shape the ends.
    """
    gap = float(np.log(knots[1] / knots[0]))
    place = jnp.log(jnp.clip(x, knots[1], knots[-2]) / knots[0]) / gap
    first = jnp.clip(jnp.floor(place).astype(int) - 1, 0, len(knots) - 4)
    u = place - 1 - first
    weights = jnp.stack(
        [
            -u * (1 - u) ** 2,
            2 - 5 * u**2 + 3 * u**3,
            u + 4 * u**2 - 3 * u**3,
            -(u**2) * (1 - u),
        ]
    ) * jnp.array([0.5, 0.5, 0.5, 0.5])
    return first, weights


def straight(
    knots: Float[AnyArray, " knots"], x: Scalar
) -> tuple[Int[AnyArray, ""], Float[AnyArray, " 2"]]:
    """The first of two knots about a point and their weights, on a straight line.

    Chunks that not every step has count by their share of steps, so times are straight in them.
    """
    x = jnp.clip(x, 0.0, knots[-1])
    first = jnp.clip(jnp.searchsorted(knots, x, method="compare_all") - 1, 0, len(knots) - 2)
    low, high = knots[first], knots[first + 1]
    weight = (x - low) / (high - low)
    return first, jnp.stack([1 - weight, weight])
