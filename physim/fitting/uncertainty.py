"""A fit's error on runs that it has not seen, beyond what it knows of its corrections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Shaped

from physim.corrections.calibration import TWO_SIDED_90, Scatter
from physim.corrections.levels import LEVELS, Branch, Spread, common, population_of
from physim.fitting.objective import Deviations, Problem, Vector
from physim.fitting.observations import METRICS, Observed, groups

# The least scatter: repeated runs of one experiment differ by so much.
LEAST_SCATTER = 0.005
# From so many standard deviations of its campaign's noise on a row is distrusted. Of fewer than so
# many rows nine of ten are all, so that a distrusted one would say how wide intervals are: of up to
# a fifth of them it does not.
DISTRUST, _ALL_COUNT, _MOST_DISTRUSTED = 3.0, 20, 0.2
# With fewer, one that is left out leaves too little to say how far off it is.
_LEAST_EXPERIMENTS = 3
# What may be new; of kinds of which there are more, not each can be left out in turn.
_KINDS, _MOST_GROUPS = ("image", "model", "deployment", "workload", "experiment"), 60
# A population with rows of so much weight counts as much as all together: eight models on an image,
# whose rows weigh six each. Of 2, 4, 8, 16 and infinitely many, eight has the least interval score
# (Gneiting and Raftery, JASA 102, 2007, 6.2) on rows of the default fit whose image or model was
# left out, among those that cover nine of ten. Batches told apart make it no less.
_EVEN_WEIGHT = 48.0

Rows = Float[np.ndarray, "rows metrics"]


def unseen(problem: Problem, parameters: Vector, observed: Observed) -> dict[str, Scatter]:
    """Scatter of rows that a fit has not seen, by population and metric.

    Each row is predicted as a fit without its image, its model, its workload and so on would, and
    the largest of these errors counts. Left out are populations of fewer than three experiments,
    which do not tell how far another is off, and metrics that were not measured.

    Args:
        problem: The problem.
        parameters: Its solution.
        observed: Its stages; those without weight do not count.
    """
    if not observed.rows:
        return {}
    populations = np.array([population_of(case) for case in observed.cases])
    experiments = np.array(groups(observed.rows, "experiment"))
    weight = problem.stages.weight.copy()
    for population in np.unique(populations):
        own = populations == population
        if len(set(experiments[own & (weight > 0)])) < _LEAST_EXPERIMENTS:
            weight[own] = 0.0
    fit = Unseen.from_problem(problem, parameters, observed)
    found = fit.needed(np.zeros(len(weight), bool))
    for kind in _KINDS:
        members = np.array(groups(observed.rows, kind))
        several = np.unique(members[problem.stages.weight > 0])
        if not 1 < len(several) <= _MOST_GROUPS:
            continue
        for group in several:
            those = members == group
            # Without most of what is known there is no fit.
            if np.sum(problem.stages.weight[those]) <= np.sum(problem.stages.weight) / 2:
                found[those] = np.maximum(found[those], fit.needed(those)[those])
    images, models = groups(observed.rows, "image"), groups(observed.rows, "model")
    units = np.array([f"{image}, {model}" for image, model in zip(images, models, strict=True)])
    scatters: dict[str, Scatter] = {}
    trusted = _trusted(problem, fit.found, np.where(weight > 0, populations, ""))
    for column, metric in enumerate(METRICS):
        kept = fit.known[:, column] & (weight > 0) & trusted
        own = scatter(found[kept, column], weight[kept], units[kept], populations[kept])
        for population, value in own.items():
            scatters[population] = {**scatters.get(population, {}), metric: value}
    return scatters


def _trusted(
    problem: Problem, found: Deviations, populations: Shaped[np.ndarray, " rows"]
) -> Bool[np.ndarray, " rows"]:
    """Which rows say how far unseen ones are off: all but the broken ones of a few.

    Args:
        problem: The problem.
        found: The deviations at its solution.
        populations: The population of each row.
    """
    shape = problem.stages.observed.shape
    sizes, weights = (x[: np.prod(shape)].reshape(shape) for x in (found.sizes, found.weights))
    broken = np.any((np.abs(sizes) > DISTRUST) & (weights > 0), axis=1)
    for population in np.unique(populations):
        own = populations == population
        if np.sum(own) >= _ALL_COUNT or np.mean(broken[own]) > _MOST_DISTRUSTED:
            broken[own] = False
    return ~broken


@dataclass(frozen=True)
class Unseen:
    """A solved problem and its rows as predictions with the fit have them.

    A fit to several campaigns is for none of them, so that rows are predicted without what is
    peculiar to theirs (`physim.corrections.files.Fit.common`).

    Attributes:
        problem: The problem.
        parameters: Its solution.
        found: The deviations there, in which a fit without some rows is one step away.
        predicted: Deviations of the rows as predictions with the fit have them,
        branches: the branches that these are of,
        along: and the nodes that these go through.
    """

    problem: Problem
    parameters: Vector
    found: Deviations
    predicted: Deviations
    branches: Sequence[Branch]
    along: Float[np.ndarray, "branches nodes"]

    @classmethod
    def from_problem(cls, problem: Problem, parameters: Vector, observed: Observed) -> Unseen:
        """A problem whose stages are the observed ones."""
        found = problem.deviations(parameters)
        branches = observed.branches
        counted = np.flatnonzero(problem.stages.weight > 0).tolist()
        if common([branches[row] for row in counted])[-1]:
            return cls(problem, parameters, found, found, branches, problem.tree.along)
        runs = problem.tree.level == LEVELS.index("runs")
        offsets = np.where(runs[:, None], 0.0, problem.offsets(parameters))
        bare = replace(problem, start=offsets)
        predicted = bare.deviations(bare.centre)
        return cls(
            problem,
            parameters,
            found,
            predicted,
            [(*branch[:-1], "") for branch in branches],
            np.where(runs, 0.0, problem.tree.along),
        )

    @property
    def known(self) -> Bool[np.ndarray, "rows metrics"]:
        """What was measured and has a prediction."""
        shape = self.problem.stages.observed.shape
        return self.predicted.weights[: np.prod(shape)].reshape(shape) > 0

    def needed(self, left_out: Bool[np.ndarray, " rows"]) -> Rows:
        """For each row the scatter that just covers its error by a fit without some rows.

        The fit without them is one Gauss-Newton step away from that with them, so nothing is
        fitted again. An interval is as wide as the hypotenuse of the scatter and of what that fit
        knows of its corrections.

        Args:
            left_out: The rows without which it is; no others are asked for, if there are any.
        """
        problem, shape = self.problem, self.problem.stages.observed.shape
        asked = left_out if np.any(left_out) else np.ones(len(left_out), bool)
        weights = self.found.weights.copy()
        weights[: np.prod(shape)][np.repeat(left_out, len(METRICS))] = 0.0
        weights[problem.of_bins][left_out[problem.stages.bins.row]] = 0.0
        others = replace(self.found, weights=weights)
        step = problem.about(others, self.parameters).step()
        moved = problem.offsets(self.parameters + step) - problem.offsets(self.parameters)
        off = self.predicted.sizes[: np.prod(shape)].reshape(shape)
        slopes = self.predicted.slopes[: np.prod(shape)].reshape(*shape, -1)
        off = off + np.einsum("rmi,ri->rm", slopes, (self.along @ moved)[problem.branch])
        variance = np.zeros(shape)
        rows = np.flatnonzero(asked).tolist()
        branches = [self.branches[row] for row in rows]
        variance[asked] = variance_of(problem.spread(others), branches, slopes[asked])
        noise = problem.noise[problem.source]
        return np.asarray(noise * np.sqrt(np.maximum((off / TWO_SIDED_90) ** 2 - variance, 0.0)))


def variance_of(
    spread: Spread, branches: Sequence[Branch], slopes: Float[np.ndarray, "rows metrics n"]
) -> Rows:
    """The variance of rows by what is known of their corrections.

    Args:
        spread: What is known of the corrections.
        branches: The branch of each row.
        slopes: Slopes of the rows in their corrections.
    """
    found, size = np.zeros(slopes.shape[:2]), spread.widths.shape[1]
    names = np.array([branches.index(branch) for branch in branches], int)
    for first in np.unique(names).tolist():
        own = slopes[names == first][..., :size]
        covariance = spread.at_branch(branches[first])
        found[names == first] = np.einsum("rmi,ij,rmj->rm", own, covariance, own)
    return found


def scatter(
    needed: Float[np.ndarray, " rows"],
    weight: Float[np.ndarray, " rows"],
    units: Shaped[np.ndarray, " rows"],
    populations: Shaped[np.ndarray, " rows"],
) -> dict[str, float]:
    """The scatter of each population with which nine of ten left-out rows are within intervals.

    Rows of a model on an image err alike, so that each such unit has a scale, its root mean square.
    The scale of a population is the mean of its units', drawn towards that of all units the more
    the fewer rows it has. All populations' scales are then raised by one factor.

    Args:
        needed: The scatter that just covers each row.
        weight: How much each counts.
        units: The unit that each is of,
        populations: and its population.
    """
    if not len(needed):
        return {}
    scales = np.zeros(len(needed))
    for unit in np.unique(units):
        own = units == unit
        scales[own] = np.sqrt(np.average(needed[own] ** 2, weights=weight[own]))
    every = float(np.average(scales, weights=weight))
    found = {}
    for population in np.unique(populations).tolist():
        own = populations == population
        total = np.sum(weight[own] * scales[own]) + _EVEN_WEIGHT * every
        found[population] = max(float(total / (np.sum(weight[own]) + _EVEN_WEIGHT)), LEAST_SCATTER)
    factor = _quantile(needed / np.array([found[one] for one in populations.tolist()]), weight)
    return {name: max(scale * factor, LEAST_SCATTER) for name, scale in found.items()}


def _quantile(values: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]) -> float:
    """The least value that nine of ten are within; a new one among so many counts as well."""
    order = np.argsort(values)
    # The rank of a new row among those that there are (Vovk and others' conformal rank).
    share = np.cumsum(weight[order]) / np.sum(weight) / (1 + 1 / values.size)
    place = min(int(np.searchsorted(share, 0.9)), values.size - 1)
    return float(values[order[place]])
