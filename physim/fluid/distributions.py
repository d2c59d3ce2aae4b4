"""Quantiles of the distributions that latencies are made of, at points between 0 and 1."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.polynomial.chebyshev import Chebyshev, cheb2poly

from physim.batching.guards import EDGE, LITTLE, ROOT, SMALL, TINY
from physim.metrics import PERCENTILES
from physim.types import AnyArray, Number

# Powers of the coefficient of variation that are one over a Weibull shape, below one (Justus,
# Hargraves, Mikhail and Graber, Journal of Applied Meteorology 17, 1978) and above, and the largest
# that is drawn.
_NARROW, _WIDE, _WIDEST = 1.086, 0.9, 3.0
# One over the gamma function, from one to this much beyond, as a polynomial over -1 to 1 with all
# digits of 64 bit. XLA's own function takes longer than all else that is drawn.
_BEYOND_ONE, _DEGREE = _WIDEST**_WIDE, 18
_RECIPROCAL_GAMMA = Chebyshev.interpolate(
    np.vectorize(lambda x: 1 / math.gamma(1 + x)), _DEGREE, domain=[0.0, _BEYOND_ONE]
)
_COEFFICIENTS = cheb2poly(_RECIPROCAL_GAMMA.coef).tolist()


def drawn(points: Float[AnyArray, " points"], cv: Number) -> Float[AnyArray, " points"]:
    """Quantiles of a positive part of mean one and a coefficient of variation.

    An exponential with a chance of nothing where the coefficient exceeds one.
    """
    chance = jnp.minimum(2 / (1 + jnp.maximum(cv, 1.0) ** 2), 1.0)
    return drawn_at_times(points, chance, jnp.minimum(cv, 1.0))


def drawn_at_times(
    points: Float[AnyArray, " points"], chance: Number, cv: Number
) -> Float[AnyArray, " points"]:
    """Quantiles of a part of mean one that is nothing at times.

    Where it is not it has a Weibull distribution of the coefficient of variation, nearly (shape
    ``cv^-1.086``, above one ``cv^-0.9``).

    Args:
        points: Where to draw it, from 0 to 1.
        chance: Chance that it is more than nothing.
        cv: Its coefficient of variation where it is.
    """
    chance = jnp.maximum(chance, SMALL)
    rest = jnp.maximum(1 - points, SMALL) / chance
    # Powers as exponentials, of which XLA computes several at once.
    exponent = jnp.where(cv < 1.0, _NARROW, _WIDE)
    inverse = jnp.exp(exponent * jnp.log(jnp.clip(cv, LITTLE, _WIDEST)))
    scale = reciprocal_gamma(inverse)
    some = -jnp.log(jnp.minimum(rest, 1.0))
    value = scale * jnp.exp(inverse * jnp.log(jnp.maximum(some, TINY)))
    return jnp.where(rest < 1.0, value, 0.0) / chance


def reciprocal_gamma(beyond_one: Number) -> Number:
    """One over the gamma function.

    Args:
        beyond_one: How far its argument is above one: from 0 to the largest exponent that is drawn.
    """
    place = 2 * beyond_one / _BEYOND_ONE - 1
    return functools.reduce(lambda value, one: value * place + one, reversed(_COEFFICIENTS))


def standard_normal(points: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
    """Quantiles of a normal distribution, but for its ends."""
    # Of `ndtri`, which is the same, six loops would be compiled.
    return np.sqrt(2.0) * jax.scipy.special.erfinv((1 - 2 * LITTLE) * (2 * points - 1.0))


def log_deviation(cv2: Float[AnyArray, " kinds"]) -> Float[AnyArray, " kinds"]:
    """Standard deviation of the logarithm, of a log-normal distribution."""
    return jnp.sqrt(jnp.log1p(cv2) + ROOT)


def lognormal(
    sigma: Float[AnyArray, "*#n"], points: Float[AnyArray, "*#n"]
) -> Float[AnyArray, "*#n"]:
    """Quantiles of log-normal distributions of mean one."""
    quantile = standard_normal(points)
    return jnp.exp(sigma * quantile - sigma**2 / 2)


def of_kinds_at(
    place: Float[AnyArray, " points"],
    ends: Float[AnyArray, " ends"],
    values: Float[AnyArray, "of kinds"],
) -> Float[AnyArray, "of points"]:
    """Values of the kinds that points are of, which go over into the next within `EDGE`."""
    beyond = jnp.clip((place - ends[:, None]) / EDGE + 0.5, 0.0, 1.0)
    steps = jnp.matmul(jnp.diff(values), beyond, precision=jax.lax.Precision.HIGHEST)
    return values[:, :1] + steps


def whole(values: Float[AnyArray, " points"]) -> Float[AnyArray, " points"]:
    """The whole part of values, which goes over into the next within `EDGE`."""
    below = jnp.floor(values)
    return below + jnp.maximum((values - below - 1.0) / EDGE + 1.0, 0.0)


def clumped(share: Number, steps: Float[AnyArray, " points"]) -> Float[AnyArray, " points"]:
    """How much more the prompts of some steps in a row vary than as many that bring no others.

    The prompts of a step came while the one before ran, so the times of steps are an autoregressive
    process of first order, whose coefficient is the share ``r`` of the time that grows with the
    prompts. The variance of their sum over ``n`` steps is larger by the factor

        ((1 + r) / (1 - r) - 2 r (1 - r^n) / (n (1 - r)^2)) / (1 - r^2)

    which is ``1 / (1 - r^2)`` for one step and ``1 / (1 - r)^2`` for very many.

    Args:
        share: Share of the time that grows with the prompts.
        steps: How many steps.
    """
    count, rest = jnp.maximum(steps, 1.0), 1.0 - share
    ends = 2 * share * (1.0 - share**count) / (count * rest**2)
    return ((1.0 + share) / rest - ends) / (1.0 - share**2)


def quantiles(
    values: Float[AnyArray, " n"], weights: Float[AnyArray, " n"]
) -> Float[AnyArray, " percentiles"]:
    """Percentiles `PERCENTILES` of weighted values."""
    order = jnp.argsort(values)
    share = jnp.cumsum(weights[order])
    share = (share - weights[order] / 2) / jnp.maximum(share[-1], TINY)
    return jnp.interp(jnp.array(PERCENTILES) / 100.0, share, values[order])
