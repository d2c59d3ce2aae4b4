"""What a fit says of one case: its corrections and how well they are known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from physim.corrections.fields import PRIOR_WIDTHS, Corrections, flat, unflat
from physim.printable import shown

# How many standard deviations hold 90% of a normal distribution.
TWO_SIDED_90 = 1.645

Scatter = Mapping[str, float]
"""Standard deviations by metric: ``ttft``, ``itl``, ``e2e``."""


@dataclass(frozen=True)
class Calibration:
    """The corrections of a case, how well they are known, and what is left beside them.

    Attributes:
        name: Name of the fit.
        corrections: The corrections.
        covariance: Of the numbers that `physim.corrections.fields.labels` names; None if it is not
            known.
        scatter: Standard deviation of the logarithm of what was measured over what is predicted,
            for models that the fit has not seen.
        ranges: Least and largest of what the measured runs covered, by quantity.
        elsewhere: In what the case differs from all servers of the runs, one line each.
    """

    name: str
    corrections: Corrections
    covariance: Float[np.ndarray, "n n"] | None = None
    scatter: Scatter = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()

    def beyond(self, distance: float) -> Calibration:
        """What is known of the corrections for a case outside the runs that a fit was made to.

        The further, the more of each one's variance is the prior's again.

        Args:
            distance: How far outside: the logarithm of the ratio, summed over `ranges`.
        """
        prior = np.diag(flat(PRIOR_WIDTHS) ** 2)
        known = np.zeros_like(prior) if self.covariance is None else self.covariance
        share = -math.expm1(-distance)
        return dataclasses.replace(self, covariance=(1 - share) * known + share * prior)

    def draws(self, pairs: int, seed: int = 0) -> list[Corrections]:
        """Corrections drawn from their distribution, in pairs that mirror each other.

        No draws if nothing is known of their spread.

        Args:
            pairs: How many pairs.
            seed: Seed of the draws.
        """
        if self.covariance is None:
            return []
        values, vectors = np.linalg.eigh(self.covariance)
        # The symmetric root: the signs of eigenvectors are whatever the library makes them.
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        normal = np.random.default_rng(seed).normal(size=(pairs, len(values)))
        centre = flat(self.corrections)
        return [unflat(centre + sign * root @ row) for row in normal for sign in (1, -1)]

    def __repr__(self) -> str:
        known = (
            "nothing is known of how certain it is" if self.covariance is None else "with spread"
        )
        return shown(self, f"fit {self.name}, {known}", *self.elsewhere)
