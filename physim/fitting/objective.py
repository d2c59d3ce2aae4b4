"""The loss of a fit: a sum of squares of the errors of predictions, and of the prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.fields import PRIOR_WIDTHS, Corrections, flat, labels, unflat
from physim.fitting.observations import NOISE, Stages, log_predicted
from physim.fitting.step_cycles import NOISE as STEP_NOISE
from physim.fitting.step_cycles import Cycles, log_cycles
from physim.kept import kept
from physim.prediction.arrays import CaseArrays
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
        values, no_slopes = self._predicted(parameters, _stage_values, _cycle_values)
        found = self._deviations(values, no_slopes)
        if not np.all(np.isfinite(values[found.weights > 0])):
            return np.inf
        bent, _ = found.bent()
        return float(bent @ bent + parameters @ parameters) / 2

    def deviations(self, parameters: Vector) -> Deviations:
        """Deviations and their slopes."""
        values, slopes = self._predicted(parameters, _stage_slopes, _cycle_slopes)
        return self._deviations(values, slopes * self.widths)

    def _predicted(
        self, parameters: Vector, of_stages: Predictor, of_cycles: Predictor
    ) -> tuple[Sizes, Slopes]:
        """Logarithms of all that is predicted, and their slopes in the corrections.

        Args:
            parameters: The parameters.
            of_stages: Gives both of a chunk of stages,
            of_cycles: and of cycles.
        """
        corrections = flat(self.corrections(parameters))
        observed = self.stages.observed
        values, slopes = np.zeros(observed.shape), None
        for chunk in self.stages.chunks:
            own = slice(len(chunk.places))
            found, slope = map(np.asarray, of_stages(corrections, chunk.systems))
            values[chunk.places] = found[own]
            if slopes is None:
                slopes = np.zeros((*observed.shape, slope.shape[-1]))
            slopes[chunk.places] = slope[own]
        assert slopes is not None  # a problem has rows: observe
        values, slopes = values.ravel(), slopes.reshape(observed.size, -1)
        if self.cycles is not None:
            found, slope = map(np.asarray, of_cycles(corrections, self.cycles))
            values, slopes = np.append(values, found), np.concatenate([slopes, slope])
        return values, slopes

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


# From corrections and what is predicted with them to logarithms of times and their slopes, of which
# there are none where they are not asked for.
Predictor = Callable[[Vector, Any], tuple[AnyArray, AnyArray]]


def _with_slopes(
    function: Callable[[Corrections, Any], AnyArray], corrections: AnyArray, of: Any
) -> tuple[AnyArray, AnyArray]:
    def values(corrections: AnyArray) -> tuple[AnyArray, AnyArray]:
        found = function(unflat(corrections), of)
        return found, found

    slopes, found = jax.jacfwd(values, has_aux=True)(corrections)
    return found, slopes


def _without_slopes(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    return values, jnp.zeros((*values.shape, 1))


@kept
def _stage_values(
    corrections: Float[AnyArray, " n"], systems: CaseArrays
) -> tuple[AnyArray, AnyArray]:
    return _without_slopes(log_predicted(unflat(corrections), systems))


@kept
def _stage_slopes(
    corrections: Float[AnyArray, " n"], systems: CaseArrays
) -> tuple[AnyArray, AnyArray]:
    return _with_slopes(log_predicted, corrections, systems)


@kept
def _cycle_values(corrections: Float[AnyArray, " n"], cycles: Cycles) -> tuple[AnyArray, AnyArray]:
    return _without_slopes(log_cycles(unflat(corrections), cycles))


@kept
def _cycle_slopes(corrections: Float[AnyArray, " n"], cycles: Cycles) -> tuple[AnyArray, AnyArray]:
    return _with_slopes(log_cycles, corrections, cycles)
