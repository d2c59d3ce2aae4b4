"""The loss of a fit: a sum of squares of the errors of predictions, and of the prior."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.fields import PRIOR_WIDTHS, Corrections, flat, labels, unflat
from physim.fitting.observations import NOISE, Stages, log_predicted
from physim.fitting.step_cycles import NOISE as STEP_NOISE
from physim.fitting.step_cycles import Cycles, log_cycles
from physim.kept import kept
from physim.prediction.arrays import row_of
from physim.types import AnyArray

# ITL and E2E of a stage are nearly one number, so each counts half.
_SHARES = np.array([1.0, 0.5, 0.5])
# From so many standard deviations on a deviation counts by its size, not its square.
_HUBER = 2.0

Vector = Float[np.ndarray, " n"]
Sizes = Float[np.ndarray, " deviations"]
Slopes = Float[np.ndarray, "deviations _"]


@dataclass(frozen=True)
class Deviations:
    """Errors of predictions, in standard deviations, and their slopes in the parameters.

    Attributes:
        sizes: Deviations: those of stages metric by metric, then those of steps.
        slopes: Their derivatives.
        weights: How much the square of each counts.
    """

    sizes: Sizes
    slopes: Slopes
    weights: Sizes

    def bent(self) -> tuple[Sizes, Slopes]:
        """Weighted deviations and slopes whose squares are the loss, those of bad rows bent.

        The pseudo-Huber loss (Charbonnier and others, ICIP 1994): squares near zero, sizes far off.
        """
        root = np.sqrt(1 + (self.sizes / _HUBER) ** 2)
        factor = np.sqrt(2 / (root + 1))
        # The derivative of what is bent, from the loss's own: r / root = bent * bent'.
        slope = np.sqrt(self.weights) / (root * factor)
        return np.sqrt(self.weights) * self.sizes * factor, slope[:, None] * self.slopes


@dataclass(frozen=True)
class Problem:
    """What is fitted, to what.

    Parameters are corrections in units of their prior's standard deviation, so that all are of
    order one; those that are held fast have a width of zero.

    Attributes:
        stages: Measured stages.
        cycles: Measured steps, if there are any.
        widths: Prior standard deviations of all corrections.
        centre: The corrections at which all parameters are zero.
    """

    stages: Stages
    cycles: Cycles | None
    widths: Vector
    centre: Corrections = field(default_factory=Corrections)

    @classmethod
    def of(
        cls,
        stages: Stages,
        cycles: Cycles | None = None,
        frozen: tuple[str, ...] = (),
        prior_scale: float = 1.0,
    ) -> Problem:
        """A problem.

        Args:
            stages: Measured stages.
            cycles: Measured steps.
            frozen: Corrections that stay at zero.
            prior_scale: Factor on the widths of all priors.
        """
        fast = np.array([label.partition("[")[0] in frozen for label in labels()])
        widths = np.where(fast, 0.0, flat(PRIOR_WIDTHS) * prior_scale)
        return cls(stages, cycles, widths)

    def corrections(self, parameters: Vector) -> Corrections:
        """The corrections that parameters stand for."""
        return unflat(flat(self.centre) + parameters * self.widths)

    def loss(self, parameters: Vector) -> float:
        """Half the sum of squares; infinite where a stage is predicted to be above capacity."""
        flat_corrections = flat(self.corrections(parameters))
        values = self._own(_values(flat_corrections, self._padded, self.cycles))
        found = self._deviations(values, np.zeros((len(values), 1)))
        if not np.all(np.isfinite(values[found.weights > 0])):
            return np.inf
        bent, _ = found.bent()
        return float(bent @ bent + parameters @ parameters) / 2

    def deviations(self, parameters: Vector) -> Deviations:
        """Deviations and their slopes."""
        flat_corrections = flat(self.corrections(parameters))
        found = _values_and_slopes(flat_corrections, self._padded, self.cycles)
        values, slopes = map(self._own, found)
        return self._deviations(values, slopes * self.widths)

    @functools.cached_property
    def _padded(self) -> Stages:
        """The stages and the last of them again, so that few sizes are ever compiled.

        Of many at most a quarter more: a power of two would have a fit take twice as long.
        """
        count = len(self.stages.observed)
        unit = max(16, 2 ** (count.bit_length() - 3))
        rows = np.arange(math.ceil(count / unit) * unit)
        return row_of(self.stages, np.minimum(rows, count - 1))

    def _own(self, found: AnyArray) -> np.ndarray:
        """What was found of the stages, without those that `_padded` adds, and of the cycles."""
        numbers = np.asarray(found, float)
        cycles = 0 if self.cycles is None else len(self.cycles.observed)
        return np.concatenate(
            [numbers[: self.stages.observed.size], numbers[len(numbers) - cycles :]]
        )

    def _deviations(self, predicted: Sizes, slopes: Slopes) -> Deviations:
        stages = self.stages
        noise = np.broadcast_to(NOISE, stages.observed.shape).ravel()
        weights = np.ravel(stages.known * stages.weight[:, None] * _SHARES)
        observed = np.ravel(stages.observed)
        if self.cycles is not None:
            steps = self.cycles
            noise = np.append(noise, np.full(len(steps.observed), STEP_NOISE))
            weights = np.append(weights, steps.weight)
            observed = np.append(observed, steps.observed)
        # A row has no prediction where its load is above capacity.
        counts = (weights > 0) & np.isfinite(predicted)
        sizes = np.where(counts, (predicted - observed) / noise, 0.0)
        slopes = np.where(counts[:, None], slopes / noise[:, None], 0.0)
        return Deviations(sizes, slopes, weights)


@kept
def _values(
    corrections: Float[AnyArray, " n"], stages: Stages, cycles: Cycles | None
) -> Float[AnyArray, " values"]:
    """Logarithms of all that is predicted."""
    own = unflat(corrections)
    values = jnp.ravel(log_predicted(own, stages))
    return values if cycles is None else jnp.append(values, log_cycles(own, cycles))


@kept
def _values_and_slopes(
    corrections: Float[AnyArray, " n"], stages: Stages, cycles: Cycles | None
) -> tuple[Float[AnyArray, " values"], Float[AnyArray, "values n"]]:
    """Logarithms of all that is predicted, and their derivatives."""

    def values(corrections: Float[AnyArray, " n"]) -> tuple[AnyArray, AnyArray]:
        found = _values(corrections, stages, cycles)
        return found, found

    slopes, found = jax.jacfwd(values, has_aux=True)(corrections)
    return found, slopes
