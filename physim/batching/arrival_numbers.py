"""How many requests come within some time: the chances of none and of one, and before another."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.guards import LITTLE, SMALL, TINY
from physim.types import AnyArray, Scalar

# Nodes of a quadrature that is within 2% for shapes from 0.05 on, in any time, and the power by
# which they crowd where the distances in bursts lie.
_NODES, _POWER = 8, 6
_ROOTS, _WIDTHS = np.polynomial.legendre.leggauss(_NODES)
_PLACES = (_ROOTS + 1) / 2
_FAR, _WEIGHTS = _PLACES**_POWER, _WIDTHS * _PLACES ** (_POWER - 1)
# Phases of the most even arrivals that come by any chance; those that are more even are taken for
# straight from there to even spacing.
_PHASES = 8
# What came within so many mean distances of another request is not by chance. Phases are counted
# up to twice as many as that many requests have, or one.
_MOST_BEFORE = 3
_COUNTS = np.arange(2 * _MOST_BEFORE * _PHASES + 1)
_LOG_FACTORIALS = np.concatenate([[0.0], np.cumsum(np.log(_COUNTS[1:]))])
# Gauss's two moments of a time, and Lobatto's four, the ends among them, with their weights.
_MOMENTS = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3.0)
_WITHIN = 0.5 + np.array([-0.5, -0.5 / np.sqrt(5.0), 0.5 / np.sqrt(5.0), 0.5])
_OF_WITHIN = np.array([1.0, 5.0, 5.0, 1.0]) / 12

Numbers = Float[AnyArray, "*n"]


@jax.jit
def none_and_one(mean: Numbers, arrival_cv2: Scalar) -> tuple[Numbers, Numbers]:
    """Chances that no request comes within a time, and that just one does.

    Distances between arrivals have a gamma distribution; the time begins at any moment.

    Args:
        mean: Requests that come in that time, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    log_none = _log_none_in_bursts(mean, arrival_cv2)
    none = jnp.exp(log_none)
    # Exact for Poisson's numbers, and to 6% up to a request, mean.
    one = none * log_none**2 / jnp.maximum(mean, TINY)
    found = jnp.where(arrival_cv2 > 1.0, jnp.stack([none, one]), _evenly(mean, arrival_cv2))
    return found[0], found[1]


def clumps(mean: Scalar, arrival_cv2: Scalar) -> Scalar:
    """Clumps that requests come in, over their number: one for chance, less for bursts.

    The chance that none comes where ``mean`` do on average is the exponential of as many clumps.

    Args:
        mean: Requests, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    in_bursts = -_log_none_in_bursts(jnp.asarray(mean), arrival_cv2) / jnp.maximum(mean, TINY)
    return jnp.where(arrival_cv2 > 1.0, in_bursts, 1.0)


def _log_none_in_bursts(mean: Numbers, arrival_cv2: Scalar) -> Numbers:
    """Logarithm of the chance that none comes, of arrivals by chance or in bursts.

    With a shape ``k`` up to one, distances are a mixture of exponential ones. Inverting the Laplace
    transform of their survival along its cut gives for ``m`` requests, mean,

        P(none) = E[exp(-k m / Y)]

    where ``Y`` has a beta distribution with ``1 + k`` and ``1 - k``.
    """
    shape = jnp.minimum(1.0 / jnp.maximum(arrival_cv2, 1.0), 1.0 - SMALL)
    beta = -jnp.expm1(np.log1p(-_FAR) / (1.0 - shape))
    weights = _WEIGHTS * beta**shape
    # With all digits however little of the time has gone.
    less = jnp.expm1(-shape * mean[..., None] / beta)
    return jnp.log1p(jnp.maximum(jnp.sum(weights * less, axis=-1) / jnp.sum(weights), SMALL - 1.0))


def _evenly(mean: Numbers, arrival_cv2: Scalar) -> Float[AnyArray, "two ..."]:
    """Chances of none and of one, of arrivals by chance or more evenly.

    What is left of one when the time begins is any number of its phases (`_of_phases`), so that of
    so many arrivals and a fraction, the fraction is the chance of one more.
    """
    found = _of_phases(mean, arrival_cv2, _of_spaced, 1)
    even = _evenness(arrival_cv2)
    return even * _of_spaced(mean) + (1.0 - even) * found


class Before(NamedTuple):
    """What came in some time before another request, over what comes by chance.

    Attributes:
        number: Requests.
        until_end: Time from each to the end of that time, summed.
    """

    number: Scalar
    until_end: Scalar


def came_before(begins: Scalar, varies: Scalar, lasts: Scalar, arrival_cv2: Scalar) -> Before:
    """What came in some time before another request: of even arrivals none came shortly before.

    Args:
        begins: How long before the other one the time ends at least, in mean distances of arrivals,
        varies: how much earlier than that it may end, any time up to this being as likely,
        lasts: and how long it is.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    # In 32 bit differences over less would have no digits.
    lasts, varies = jnp.maximum(lasts, LITTLE), jnp.maximum(varies, LITTLE)
    even = _evenness(arrival_cv2)
    # Up to the ends of the time, and within it.
    spaced = _of_all_spaced(begins + jnp.stack([0.0 * lasts, lasts]), varies)
    moments = begins + varies * _MOMENTS[:, None] + lasts * _WITHIN
    (of_phases,) = _of_phases(
        jnp.minimum(moments, 1.0 * _MOST_BEFORE),
        arrival_cv2,
        lambda amount: jnp.floor(amount)[None],
        _MOST_BEFORE,
    )
    means = jnp.mean(of_phases, axis=0)
    first, last, summed = means[0], means[-1], lasts * jnp.sum(_OF_WITHIN * means)
    first, last, summed = (
        even * own + (1.0 - even) * other
        for own, other in zip(
            (*spaced[0], spaced[1][1] - spaced[1][0]), (first, last, summed), strict=True
        )
    )
    # What is long before another one comes by chance.
    far = jnp.clip(begins + varies + lasts - (_MOST_BEFORE - 1.0), 0.0, 1.0)
    near = jnp.where(arrival_cv2 < 1.0, 1.0 - far, 0.0)
    number = jnp.maximum(last - first, 0.0) / lasts
    until_end = jnp.maximum(summed - lasts * first, 0.0) / (lasts**2 / 2)
    return Before(1.0 + near * (number - 1.0), 1.0 + near * (until_end - 1.0))


def _of_all_spaced(
    times: Float[AnyArray, "*n"], varies: Scalar
) -> tuple[Float[AnyArray, "*n"], Float[AnyArray, "*n"]]:
    """Evenly spaced arrivals before another up to some times, and their sum over these, means.

    Args:
        times: The times, in distances of arrivals.
        varies: How much later each may be, evenly.
    """

    def sums(time: AnyArray) -> AnyArray:
        number = jnp.floor(time)
        squares = number * (number + 1.0) * (2 * number + 1.0) / 6
        once = number * time - number * (number + 1.0) / 2
        twice = (number * time**2 - time * number * (number + 1.0) + squares) / 2
        return jnp.stack([once, twice])

    once, twice = (sums(times + varies) - sums(times)) / varies
    return once, twice


def _evenness(arrival_cv2: Scalar) -> Scalar:
    """How far arrivals are on the way from the most phases to even spacing."""
    return jnp.maximum(1.0 - _PHASES * arrival_cv2, 0.0)


def _of_phases(
    mean: Numbers,
    arrival_cv2: Scalar,
    of_amount: Callable[[AnyArray], AnyArray],
    most: int,
) -> AnyArray:
    """Means of what is known of a number of arrivals, those by chance or more evenly.

    With a whole number ``k`` for a shape, one comes every ``k`` phases, whose number is Poisson's.
    Other shapes lie between two whole ones.

    Args:
        mean: Requests that come, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        of_amount: What is known of a number of phases, over those of an arrival.
        most: Requests that come at most, mean.
    """
    counts = _COUNTS[: 2 * most * _PHASES + 1]
    shape = jnp.clip(1.0 / jnp.maximum(arrival_cv2, SMALL), 1.0, _PHASES)
    fewer = jnp.minimum(jnp.floor(shape), _PHASES - 1.0)
    share = fewer * ((fewer + 1.0) / shape - 1.0)
    phases = jnp.stack([fewer, fewer + 1.0])
    expected = phases[:, None] * jnp.maximum(mean, TINY)[..., None, None]
    chance = jnp.exp(counts * jnp.log(expected) - expected - _LOG_FACTORIALS[: len(counts)])
    known = of_amount(counts / phases[:, None])
    by_phases = jnp.sum(
        chance * jnp.expand_dims(known, tuple(range(1, 1 + jnp.ndim(mean)))), axis=-1
    )
    return share * by_phases[..., 0] + (1.0 - share) * by_phases[..., 1]


def _of_spaced(mean: Numbers) -> Float[AnyArray, "two ..."]:
    """Chances of none and of one, of evenly spaced arrivals: so many, or one of the two about."""
    return jnp.stack([jnp.maximum(1.0 - mean, 0.0), jnp.maximum(1.0 - jnp.abs(mean - 1.0), 0.0)])
