"""What steps are made of, on average over chance: decoding requests and prefill chunks.

Means over chance are sums over a few nodes with the same mean and variance.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.arrival_numbers import none_and_one
from physim.batching.guards import HARDLY, LITTLE, TINY
from physim.types import AnyArray, Number, Scalar

# Width of thresholds, in requests: what happens to evenly spaced requests depends on whole numbers.
# And the number of requests at which half of a burst's effect is felt. Both were chosen on
# benchmarks/fluid_against_replay.py.
_SOFT, _HALF_FELT = 0.05, 0.7
# Most that a step grows with the requests in it, relative to them, as far as variances go: beyond,
# load is above the capacity (benchmarks/real_traffic.py).
MOST_ELASTIC = 0.9


# Evenly spaced requests before one that may still be under way, at most.
_BEFORE = 8
# The golden ratio, whose multiples are spread evenly over the unit, however many there are.
GOLDEN = (np.sqrt(5) - 1) / 2


class Nodes(NamedTuple):
    """Two values of a random count, and the weight of the second."""

    low: Scalar
    high: Scalar
    weight: Scalar

    def mean(self, at_low: Number, at_high: Number) -> Number:
        """Mean of what a function is at the two."""
        return (1 - self.weight) * at_low + self.weight * at_high

    def variance(self, at_low: Number, at_high: Number) -> Number:
        """Variance of what a function is at the two."""
        return self.weight * (1 - self.weight) * (at_high - at_low) ** 2

    def slope(self, at_low: Scalar, at_high: Scalar) -> Scalar:
        """How a function changes with the count between the two."""
        return (at_high - at_low) / jnp.maximum(self.high - self.low, LITTLE)

    @property
    def weight_of_steps(self) -> Scalar:
        """Share of the steps that have the second; the weight is of requests, which see both."""
        second, first = self.weight / self.high, (1 - self.weight) / self.low
        return second / (second + first)

    @property
    def square_of_range(self) -> Scalar:
        """Square of the width of a range, evenly filled, with the variance of the count."""
        return 12 * self.variance(self.low, self.high)


def arrival_evenness(arrival_cv2: Scalar) -> Scalar:
    """How evenly requests arrive: 1 for even spacing, 0 for chance, and in between."""
    return jnp.maximum(1.0 - arrival_cv2, 0.0)


def others(mean: Scalar, peaked: Scalar) -> Scalar:
    """Requests that a running one meets beside itself, if ``mean`` run on average.

    As many where they come by chance (Poisson), one less where they are evenly spaced, more where
    they come in bursts; where few run at all the differences vanish.
    """
    less = jnp.minimum(peaked - 1.0, 0.0) * jnp.minimum(mean, 1.0)
    more = jnp.maximum(peaked - 1.0, 0.0) * mean / (mean + _HALF_FELT)
    return mean + less + more


def exponential_up_to(mean: Scalar, most: Scalar) -> Scalar:
    """Mean of an exponential number or of what there is room for, whichever is less.

    Args:
        mean: The mean of the number.
        most: The room.
    """
    mean = jnp.maximum(mean, TINY)
    return -mean * jnp.expm1(-jnp.maximum(most, 0.0) / mean)


def decoding(mean: Scalar, peaked: Scalar, most: Scalar) -> Nodes:
    """Requests that decode in a step, itself included, as one of them meets it.

    The two nodes of a Poisson distribution (roots of the second Charlier polynomial), in units of
    the peakedness.
    """
    seen = others(mean, peaked)
    unit = jnp.maximum(peaked, HARDLY)
    count = seen / unit
    spread = jnp.sqrt(count + 1 / 4)
    weight = (spread - 0.5) / (2 * spread)
    low, high = (1.0 + unit * (count + 0.5 + sign * spread) for sign in (-1.0, 1.0))
    return Nodes(jnp.minimum(low, most), jnp.minimum(high, most), weight)


def prefill_share(mean: Scalar, arrival_cv2: Scalar, most: Scalar) -> Scalar:
    """Share of the steps that have prefill chunks, if a step has ``mean`` on average.

    It is exact for Poisson and for evenly spaced arrivals. The nearer the mean is to what a step's
    token budget allows, the more even are steps.

    Args:
        mean: Chunks of a mean step.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        most: Chunks that the token budget leaves room for.
    """
    mean = jnp.minimum(mean, most)
    arrival_cv2 = arrival_cv2 * jnp.maximum(1 - mean / most, 0.0)
    none, _ = none_and_one(mean, arrival_cv2)
    return jnp.clip(mean / most, 1.0 - none, 1.0)


def two_counts(mean: Scalar, variance: Scalar, least: float) -> tuple[Scalar, Scalar]:
    """The two values of a distribution of two points with a mean and a variance.

    Args:
        mean: Its mean,
        variance: and variance.
        least: The least that it can be.
    """
    low = jnp.maximum(mean - jnp.sqrt(variance), least)
    below = jnp.maximum(mean - low, LITTLE)
    return low, mean + variance / below


def bursts_of(mean: Scalar, arrival_cv2: Scalar) -> Scalar:
    """Excess dispersion of a number of requests: its variance less its mean, over its mean.

    It is twice what follows one of them beyond the mean, mean over the time (Cox, Renewal Theory,
    1962).

    Args:
        mean: Requests, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    return 2 * following(mean * _middle(arrival_cv2), arrival_cv2)


def following(mean: Scalar, arrival_cv2: Scalar) -> Scalar:
    """Requests that follow one within some time, beyond the mean.

    With gamma distributed distances of the shape ``k`` and the scale ``s`` the Laplace transform of
    their number is ``1 / (z ((1 + z s)^k - 1))``, so that about ``1 / ((1 + s / t)^k - 1)`` follow
    within ``t``. In the long run they exceed the mean by ``(1 - k) / (2 k)``, as they do; within a
    short time they are ``(t / s)^k / Gamma(1 + k)``, half of which correction is taken, and the
    less the longer the time. It is within 8% of the sum of incomplete gamma functions for shapes
    from 0.05 on (tests/test_queueing.py).

    Args:
        mean: Requests in that time, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    shape = 1 / jnp.maximum(arrival_cv2, 1.0)
    time = shape * jnp.maximum(mean, TINY)
    short = jax.scipy.special.gammaln(1.0 + shape) / (2 * shape * (1.0 + time) ** 2)
    time *= jnp.exp(-short)
    return jnp.maximum(1.0 / jnp.expm1(shape * jnp.log1p(1.0 / time)) - mean, 0.0)


def _middle(arrival_cv2: Scalar) -> Scalar:
    """Share of a time at which a power of it, the shape of the distances, has its mean over it."""
    shape = 1 / jnp.maximum(arrival_cv2, 1.0)
    return (1.0 + shape) ** (-1 / shape)


def busy_when_even(interval_s: Scalar, lives: Float[AnyArray, " strata"]) -> Scalar:
    """Chance that an evenly spaced request finds another under way.

    Args:
        interval_s: Time between arrivals, seconds.
        lives: Times that requests are under way, seconds, for equal parts of them.
    """
    before = np.arange(1.0, _BEFORE + 1.0)
    gone = jax.nn.sigmoid((before - lives[:, None] / interval_s) / _SOFT)
    return 1 - jnp.prod(jnp.mean(gone, axis=0))


def met_while_decoding(
    arrivals: Scalar,
    longer: Scalar,
    arrival_cv2: Scalar,
    steps: Float[AnyArray, " strata"],
) -> Scalar:
    """Requests whose prompts are computed while a request decodes, per step, on average.

    Prompts that came while its own was computed are computed in its first decode step, and more of
    them if that took longer; in bursts it is followed by more than the mean, and of evenly spaced
    ones it meets those that follow before it is done.

    Args:
        arrivals: Requests that arrive in a mean step.
        longer: Requests that arrive while its own prompt is computed, beyond those of a mean step.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        steps: Steps in which a request decodes, for equal parts of them.
    """
    level = arrival_evenness(arrival_cv2)
    follow = arrivals * steps
    first = jax.nn.sigmoid((follow - 1.0) / _SOFT)
    evenly = jnp.mean(first * jnp.maximum(follow - 0.5, 1.0))
    mean = jnp.mean(follow)
    more = jnp.maximum(arrival_cv2 - 1.0, 0.0) / 2 * mean / (mean + _HALF_FELT)
    seen = level * evenly + (1 - level) * (mean + longer) + more
    return seen / jnp.mean(steps)
