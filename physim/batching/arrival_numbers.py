"""How many requests come within some time: the chances of none and of just one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.guards import SMALL, TINY
from physim.types import AnyArray, Scalar

# Nodes of a quadrature that is within 2% for shapes from 0.05 on, in any time, and the power by
# which they crowd where the distances in bursts lie.
_NODES, _POWER = 8, 6
_PLACES = (np.polynomial.legendre.leggauss(_NODES)[0] + 1) / 2
_FAR = _PLACES**_POWER
_WEIGHTS = np.polynomial.legendre.leggauss(_NODES)[1] * _PLACES ** (_POWER - 1)
# Phases of the most even arrivals that come by any chance; those that are more even are taken for
# straight from there to even spacing.
_PHASES = 8
_COUNTS = np.arange(2 * _PHASES + 1)
_LOG_FACTORIALS = np.concatenate([[0.0], np.cumsum(np.log(_COUNTS[1:]))])

Numbers = Float[AnyArray, "*n"]


def none_and_one(mean: Numbers, arrival_cv2: Scalar) -> tuple[Numbers, Numbers]:
    """Chances that no request comes within a time, and that just one does.

    Distances between arrivals have a gamma distribution; the time begins at any moment.

    Args:
        mean: Requests that come in that time, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    bursts, evenly = _in_bursts(mean, arrival_cv2), _evenly(mean, arrival_cv2)
    none, one = (jnp.where(arrival_cv2 > 1.0, b, e) for b, e in zip(bursts, evenly, strict=True))
    return none, one


def clumps(mean: Numbers, arrival_cv2: Scalar) -> Numbers:
    """Clumps that requests come in, over their number: one for chance, less for bursts.

    The chance that none comes where ``mean`` do on average is the exponential of as many clumps.

    Args:
        mean: Requests, mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    mean = jnp.maximum(mean, SMALL)
    return -jnp.log(jnp.maximum(_in_bursts(mean, arrival_cv2)[0], TINY)) / mean


def _in_bursts(mean: Numbers, arrival_cv2: Scalar) -> tuple[Numbers, Numbers]:
    """The same of arrivals by chance or in bursts.

    With a shape ``k`` up to one, distances are a mixture of exponential ones. Inverting the Laplace
    transform of their survival along its cut gives for ``m`` requests, mean,

        P(none) = E[exp(-k m / Y)]

    where ``Y`` has a beta distribution with ``1 + k`` and ``1 - k``. One comes with a chance of
    about ``P(none) log(P(none))^2 / m``: exact for Poisson's, and to 5% up to a request, mean.
    """
    shape = jnp.minimum(1.0 / jnp.maximum(arrival_cv2, 1.0), 1.0 - SMALL)
    beta = -jnp.expm1(np.log1p(-_FAR) / (1.0 - shape))
    weights = _WEIGHTS * beta**shape
    each = jnp.exp(-shape * jnp.asarray(mean)[..., None] / beta)
    none = jnp.sum(weights * each, axis=-1) / jnp.sum(weights)
    return none, none * jnp.log(jnp.maximum(none, TINY)) ** 2 / jnp.maximum(mean, TINY)


def _evenly(mean: Numbers, arrival_cv2: Scalar) -> tuple[Numbers, Numbers]:
    """The same of arrivals by chance or more evenly: between those of two whole shapes."""
    shape = jnp.clip(1.0 / jnp.maximum(arrival_cv2, SMALL), 1.0, _PHASES)
    fewer = jnp.minimum(jnp.floor(shape), _PHASES - 1.0)
    more = fewer + 1.0
    share = fewer * (more / shape - 1.0)
    even = jnp.maximum(1.0 - _PHASES * arrival_cv2, 0.0)
    of_fewer, of_more = _of_phases(mean, fewer), _of_phases(mean, more)
    spaced = _none_and_one_of_spaced(jnp.asarray(mean))
    none, one = (
        even * s + (1.0 - even) * (m + share * (f - m))
        for f, m, s in zip(of_fewer, of_more, spaced, strict=True)
    )
    return none, one


def _of_phases(mean: Numbers, phases: Scalar) -> tuple[Numbers, Numbers]:
    """The same where one comes every so many phases, whose number is Poisson's.

    What is left of one when the time begins is any number of them: of so many arrivals and a
    fraction, that fraction is the chance of one more.
    """
    expected = phases * jnp.maximum(jnp.asarray(mean), TINY)[..., None]
    chance = jnp.exp(_COUNTS * jnp.log(expected) - expected - _LOG_FACTORIALS)
    none, one = (jnp.sum(chance * x, axis=-1) for x in _none_and_one_of_spaced(_COUNTS / phases))
    return none, one


def _none_and_one_of_spaced(mean: Numbers) -> tuple[Numbers, Numbers]:
    """The same of evenly spaced arrivals, whose number is one of the two about their mean."""
    return jnp.maximum(1.0 - mean, 0.0), jnp.maximum(1.0 - jnp.abs(mean - 1.0), 0.0)
