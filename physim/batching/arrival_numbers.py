"""How many requests come within some time: the chances of none and of just one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.guards import SMALL, TINY
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
_COUNTS = np.arange(2 * _PHASES + 1)
_LOG_FACTORIALS = np.concatenate([[0.0], np.cumsum(np.log(_COUNTS[1:]))])

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

    With a whole number ``k`` for a shape, one comes every ``k`` phases, whose number is Poisson's;
    what of one is left when the time begins is any of them, so that of so many arrivals and a
    fraction, the fraction is the chance of one more. Other shapes lie between two whole ones.
    """
    shape = jnp.clip(1.0 / jnp.maximum(arrival_cv2, SMALL), 1.0, _PHASES)
    fewer = jnp.minimum(jnp.floor(shape), _PHASES - 1.0)
    share = fewer * ((fewer + 1.0) / shape - 1.0)
    even = jnp.maximum(1.0 - _PHASES * arrival_cv2, 0.0)
    phases = jnp.stack([fewer, fewer + 1.0])
    expected = phases[:, None] * jnp.maximum(mean, TINY)[..., None, None]
    chance = jnp.exp(_COUNTS * jnp.log(expected) - expected - _LOG_FACTORIALS)
    amounts = _COUNTS / phases[:, None]
    by_phases = jnp.sum(
        chance * jnp.expand_dims(_of_spaced(amounts), tuple(range(1, 1 + jnp.ndim(mean)))), axis=-1
    )
    between = share * by_phases[..., 0] + (1.0 - share) * by_phases[..., 1]
    return even * _of_spaced(mean) + (1.0 - even) * between


def _of_spaced(mean: Numbers) -> Float[AnyArray, "two ..."]:
    """Chances of none and of one, of evenly spaced arrivals: so many, or one of the two about."""
    return jnp.stack([jnp.maximum(1.0 - mean, 0.0), jnp.maximum(1.0 - jnp.abs(mean - 1.0), 0.0)])
