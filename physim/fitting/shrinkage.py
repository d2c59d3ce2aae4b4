"""How far measured runs may move the corrections: as far as that predicts runs held back.

A campaign's rows agree with one another in more than a correction says: in a model's own ways, the
machine, the client. A fit that takes all of it for the kernels is worse than none on other runs.
So each group of runs in turn is held back and predicted by a fit to the rest, with priors as wide
as they are, narrower, or of no width; of the gains that are sure the largest is taken. Where
nothing is gained for sure, the corrections stay at their prior.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from physim.corrections.fields import CORRECTIONS, labels
from physim.fitting.objective import Problem
from physim.fitting.observations import METRICS, NOISE, groups
from physim.measured.schema import Row

# What a group may be, coarse to fine: the coarsest of which there are enough is held back.
HELD_BACK = ("campaign", "model", "experiment")
_LEAST_GROUPS = 3
# Factors on the widths of priors that are tried.
SCALES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
# Corrections that are scaled together: of the GPU's kernels, and of the engine around them.
BLOCKS = ("kernels", "engine", "residual")
# A gain is sure if its mean over the groups is above zero in so many of cases (Student's t).
_SURE = 0.95


@dataclass(frozen=True)
class Shrinkage:
    """What runs that were held back say of a fit.

    Attributes:
        held_back: What was held back, of `HELD_BACK`; None where there are too few groups.
        groups: How many of them there are.
        scales: Factor on the widths of priors, by block of `BLOCKS`.
        before: Mean absolute error of groups held back without a fit, percent, by metric,
        after: and with one.
    """

    held_back: str | None
    groups: int
    scales: Mapping[str, float]
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def earns_nothing(self) -> bool:
        """Whether the runs tell nothing that holds for others."""
        return not any(self.scales.values())

    def of(self, problem: Problem) -> Problem:
        """A problem with priors as wide as they may be."""
        factors = np.array([self.scales[block] for block in _block_of()])
        return replace(problem, widths=problem.widths * factors)


def shrinkage(problem: Problem, rows: Sequence[Row]) -> Shrinkage:
    """How far the rows of a problem may move its corrections.

    Predictions are taken straight in the corrections about the prior's centre. With fewer than
    three groups of any kind nothing can be held back: priors keep their widths, and the residual,
    which takes three campaigns, is not used.

    Args:
        problem: The problem.
        rows: The rows of its stages; those without weight do not count.
    """
    counted = problem.stages.weight > 0
    kinds = {kind: np.array(groups(rows, kind)) for kind in HELD_BACK}
    found = {kind: list(dict.fromkeys(of[counted])) for kind, of in kinds.items()}
    kind = next((kind for kind in HELD_BACK if len(found[kind]) >= _LEAST_GROUPS), None)
    many = len(found["campaign"]) >= _LEAST_GROUPS
    if kind is None:
        scales = {"kernels": 1.0, "engine": 1.0, "residual": 0.0}
        return Shrinkage(None, 0, scales, {}, {})
    folds = _Folds.of(problem, kinds[kind], found[kind])
    residual = (0.0, 1.0) if many else (0.0,)
    tried = {
        scales: folds.errors(dict(zip(BLOCKS, scales, strict=True)))
        for scales in itertools.product(SCALES, SCALES, residual)
    }
    prior = (0.0, 0.0, 0.0)
    chosen = max(tried, key=lambda scales: _gain(tried[prior], tried[scales]))
    return Shrinkage(
        kind,
        len(found[kind]),
        dict(zip(BLOCKS, chosen, strict=True)),
        _by_metric(tried[prior]),
        _by_metric(tried[chosen]),
    )


def _gain(
    prior: Float[np.ndarray, "groups metrics"], fitted: Float[np.ndarray, "groups metrics"]
) -> float:
    """What a fit gains over none, in standard deviations of noise; zero where that is not sure."""
    gains = prior - fitted
    if np.any(_mean(gains, axis=0) < 0):
        return 0.0
    each = _mean(gains / NOISE, axis=1)
    error = stdtrit(len(each) - 1, _SURE) * np.std(each, ddof=1) / np.sqrt(len(each))
    return float(np.mean(each)) if np.mean(each) > error else 0.0


def _mean(values: Float[np.ndarray, "groups metrics"], axis: int) -> Float[np.ndarray, " n"]:
    """The mean of what is known along an axis, and zero where nothing is."""
    known = ~np.isnan(values)
    total = np.sum(np.where(known, values, 0.0), axis=axis)
    mean: Float[np.ndarray, " n"] = total / np.maximum(np.sum(known, axis=axis), 1)
    return mean


def _by_metric(errors: Float[np.ndarray, "groups metrics"]) -> dict[str, float]:
    known = ~np.all(np.isnan(errors), axis=0)
    return {
        metric: float(100 * np.nanmean(errors[:, column]))
        for column, metric in enumerate(METRICS)
        if known[column]
    }


def _block_of() -> list[str]:
    """The block of each number of the corrections, in the order of `labels`."""
    return [
        "residual"
        if label not in CORRECTIONS
        else "engine"
        if CORRECTIONS[label].carries_over
        else "kernels"
        for label in labels()
    ]


@dataclass(frozen=True)
class _Folds:
    """Fits without each group, straight in the corrections.

    Attributes:
        inside: For each group the curvature and the slope of the loss over the others' rows.
        outside: For each group its rows' deviations and slopes, and which metric each is.
    """

    inside: Sequence[tuple[np.ndarray, np.ndarray]]
    outside: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, problem: Problem, members: np.ndarray, names: Sequence[str]) -> _Folds:
        """The folds of a problem.

        Args:
            problem: The problem.
            members: The group of each row of its stages.
            names: The groups that are held back.
        """
        at_prior = problem.deviations(np.zeros(len(problem.widths)))
        values, slopes = at_prior.bent()
        metric = np.tile(np.arange(len(METRICS)), len(members))
        # Steps belong to no row, and so to no group.
        count = len(metric)
        group = np.repeat(members, len(METRICS))
        inside, outside = [], []
        for name in names:
            there = group == name
            kept = np.append(~there, np.ones(len(values) - count, bool))
            inside.append((slopes[kept].T @ slopes[kept], slopes[kept].T @ values[kept]))
            rows = np.flatnonzero(there & (at_prior.weights[:count] > 0))
            outside.append((at_prior.sizes[rows], at_prior.slopes[rows], metric[rows]))
        return cls(inside, outside)

    def errors(self, scales: Mapping[str, float]) -> Float[np.ndarray, "groups metrics"]:
        """Mean absolute error of each group by a fit without it; NaN where nothing was measured.

        Args:
            scales: Factor on the widths of priors, by block.
        """
        factor = np.array([scales[block] for block in _block_of()])
        found = np.full((len(self.inside), len(METRICS)), np.nan)
        for group, ((curvature, slope), (sizes, slopes, metric)) in enumerate(
            zip(self.inside, self.outside, strict=True)
        ):
            scaled = factor[:, None] * curvature * factor + np.eye(len(factor))
            step = -factor * np.linalg.solve(scaled, factor * slope)
            errors = np.abs(np.expm1((sizes + slopes @ step) * NOISE[metric]))
            for column in set(metric.tolist()):
                found[group, column] = np.mean(errors[metric == column])
        return found
