"""A fit's error on runs that it has not seen, beyond what it knows of its corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Shaped

from physim.corrections.calibration import BATCHES, TWO_SIDED_90, Scatter, batch_of
from physim.corrections.levels import of_batch, population_of
from physim.fitting.objective import Problem, Vector
from physim.fitting.observations import METRICS, Observed, groups

# The least scatter: repeated runs of one experiment differ by so much.
_LEAST_SCATTER = 0.005
# With fewer, one that is left out leaves too little to say how far off it is.
_LEAST_EXPERIMENTS = 3
# With fewer rows a batch does not tell nine of ten from all; with so many its own scatter counts
# as much as its population's.
_LEAST_ROWS, _EVEN_ROWS = 20, 60
# What may be new; of kinds of which there are more, not each can be left out in turn.
_KINDS, _MOST_GROUPS = ("campaign", "model", "deployment", "workload", "experiment"), 60


def unseen(problem: Problem, parameters: Vector, observed: Observed) -> Mapping[str, Scatter]:
    """Scatter of rows that a fit has not seen: of a campaign, a model, a workload and so on.

    For each population (`physim.corrections.levels.population_of`), each of its batches with enough
    rows, and each metric the largest of these, and that of the rows themselves: nine of ten rows
    are within their interval whichever of them is new. Of what there is but one, nothing can be
    said: rows of one campaign do not tell how far another is off. Nor can it of a metric that was
    not measured, or of fewer than three experiments: these are left out.

    Args:
        problem: The problem.
        parameters: Its solution.
        observed: Its stages; those without weight do not count.
    """
    counted, weight = problem.stages.weight > 0, problem.stages.weight
    members = [np.array(groups(observed.rows, kind)) for kind in _KINDS]
    populations = np.array([population_of(case) for case in observed.cases])
    batches = np.array([batch_of(requests) for requests in observed.running])
    several = [one for one in members if 1 < len(set(one[counted])) <= _MOST_GROUPS]
    found = [(one, *left_out(problem, parameters, one)) for one in several]
    sizes = problem.deviations(parameters).sizes[: problem.stages.observed.size]
    seen = sizes.reshape(problem.stages.observed.shape) * problem.noise[problem.source]
    scatters: dict[str, Scatter] = {}

    def learn(name: str, own: Bool[np.ndarray, " rows"]) -> None:
        each = [scatter(seen, np.zeros_like(seen), problem.stages.known & own[:, None], weight)]
        for member, off, spread in found:
            known = own & ~_is_most(member, np.where(own, weight, 0.0))
            each.append(scatter(off, spread, problem.stages.known & known[:, None], weight))
        scatters[name] = {
            metric: max(one.get(metric, 0.0) for one in each)
            for metric in METRICS
            if any(metric in one for one in each)
        }

    for population in dict.fromkeys(populations[counted].tolist()):
        own = counted & (populations == population)
        if len(set(members[-1][own])) < _LEAST_EXPERIMENTS:
            continue
        learn(population, own)
        for batch in BATCHES:
            those = own & (batches == batch)
            if np.sum(those) >= _LEAST_ROWS and len(set(members[-1][those])) >= _LEAST_EXPERIMENTS:
                name = of_batch(population, batch)
                learn(name, those)
                share = float(np.sum(those) / (np.sum(those) + _EVEN_ROWS))
                scatters[name] = shrunk(scatters[name], scatters[population], share)
    return scatters


def shrunk(batch: Scatter, population: Scatter, share: float) -> Scatter:
    """A scatter between a batch's and its population's, in logarithm.

    Args:
        batch: The batch's.
        population: Its population's.
        share: How much the batch's counts, from 0 to 1.
    """
    return {
        metric: float(own**share * population[metric] ** (1 - share))
        for metric, own in batch.items()
    }


def _is_most(
    members: Shaped[np.ndarray, " rows"], weight: Float[np.ndarray, " rows"]
) -> Bool[np.ndarray, " rows"]:
    """Which rows are of a group that is most of what is known: without it there is no fit."""
    found = np.zeros(len(members), bool)
    for group in np.unique(members):
        found |= (members == group) & (np.sum(weight[members == group]) > np.sum(weight) / 2)
    return found


def left_out(
    problem: Problem, parameters: Vector, members: Sequence[str] | np.ndarray
) -> tuple[Float[np.ndarray, "rows metrics"], Float[np.ndarray, "rows metrics"]]:
    """The error of each row if its group is left out, and the spread that the fit expects there.

    Both in logarithms. The fit without a group is one Gauss-Newton step away from that with it, so
    nothing is fitted again.

    Args:
        problem: The problem.
        parameters: Its solution.
        members: The group of each row of the stages.
    """
    found = problem.deviations(parameters)
    count = len(members) * len(METRICS)
    row_of = np.repeat(np.arange(len(members)), len(METRICS))
    off, spread = np.zeros(count), np.zeros(count)
    there = problem.offsets(parameters)
    for group in dict.fromkeys(np.asarray(members).tolist()):
        rows = np.flatnonzero(np.asarray(members)[row_of] == group)
        weights = found.weights.copy()
        weights[rows] = 0.0
        near = problem.about(replace(found, weights=weights), parameters)
        step = problem.tree.along @ (problem.offsets(parameters + near.step()) - there)
        slopes, branch = found.slopes[rows], found.branch[rows]
        known = problem.spread_of(near)[branch]
        off[rows] = found.sizes[rows] + np.einsum("di,di->d", slopes, step[branch])
        spread[rows] = np.sqrt(np.einsum("di,dij,dj->d", slopes, known, slopes))
    shape = (len(members), len(METRICS))
    noise = problem.noise[problem.source]
    return off.reshape(shape) * noise, spread.reshape(shape) * noise


def scatter(
    off: Float[np.ndarray, "rows metrics"],
    spread: Float[np.ndarray, "rows metrics"],
    known: Shaped[np.ndarray, "rows metrics"],
    weight: Float[np.ndarray, " rows"],
) -> Scatter:
    """For each metric the scatter with which nine of ten left-out rows are within their interval.

    Args:
        off: Errors of left-out rows, in logarithms.
        spread: What the fit's own uncertainty makes of that.
        known: Which of them were measured.
        weight: How much each counts.
    """
    scatters = {}
    for column, metric in enumerate(METRICS):
        kept = known[:, column] > 0
        if not kept.any():
            continue
        size = np.abs(off[kept, column]) / TWO_SIDED_90
        # The interval is the hypotenuse of both; for each row the scatter that just covers it.
        needed = np.sqrt(np.maximum(size**2 - spread[kept, column] ** 2, 0.0))
        scatters[metric] = max(_quantile(needed, weight[kept]), _LEAST_SCATTER)
    return scatters


def _quantile(values: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]) -> float:
    """The least value that nine of ten are within; a new one among so many counts as well."""
    order = np.argsort(values)
    # The rank of a new row among those that there are (Vovk and others' conformal rank).
    share = np.cumsum(weight[order]) / np.sum(weight) / (1 + 1 / values.size)
    place = min(int(np.searchsorted(share, 0.9)), values.size - 1)
    return float(values[order[place]])
