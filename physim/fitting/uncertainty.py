"""How well a fit's corrections are known, and its error on models that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped

from physim.corrections.files import TWO_SIDED_90
from physim.fitting.objective import Deviations, Problem, Vector
from physim.fitting.observations import METRICS, NOISE, groups
from physim.measured.schema import Row

# The least scatter: repeated runs of one experiment differ by so much.
_LEAST_SCATTER = 0.005
# With fewer, one that is left out leaves too little to say how far off it is.
_LEAST_EXPERIMENTS = 3


def covariance(problem: Problem, parameters: Vector) -> Float[np.ndarray, "n n"]:
    """Covariance of the corrections, from the loss's curvature after Gauss and Newton.

    Where deviations scatter more than `NOISE` says, it is larger by as much.
    """
    found = problem.deviations(parameters)
    values, slopes = found.bent()
    excess = max(float(values @ values / np.sum(found.weights)), 1.0)
    curvature = slopes.T @ slopes / excess + np.eye(len(parameters))
    inverse = np.linalg.inv(curvature)
    return np.outer(problem.widths, problem.widths) * inverse


def unseen(problem: Problem, parameters: Vector, rows: Sequence[Row]) -> Mapping[str, float]:
    """Scatter of rows that a fit has not seen: of a campaign, a model, a workload, an experiment.

    For each metric the largest of these: nine of ten rows are within their interval whichever of
    them is new. Of what there is but one, nothing can be said: rows of one campaign do not tell how
    far another is off. Nor can it of a metric that was not measured, or of fewer than three
    experiments: these are left out.

    Args:
        problem: The problem.
        parameters: Its solution.
        rows: The rows of its stages; those without weight do not count.
    """
    known = problem.stages.known & (problem.stages.weight > 0)[:, None]
    campaigns = groups(rows, "campaign")
    counts = {name: np.count_nonzero(np.array(campaigns) == name) for name in set(campaigns)}
    weight = np.array([1.0 / counts[name] for name in campaigns])
    members = [groups(rows, kind) for kind in ("campaign", "model", "workload", "experiment")]
    if len(set(members[-1])) < _LEAST_EXPERIMENTS:
        return {}
    # Without the only group of a kind there is no fit.
    several = [one for one in members if len(set(one)) > 1]
    found = [scatter(*left_out(problem, parameters, one), known, weight) for one in several]
    return {metric: max(one[metric] for one in found) for metric in found[0]}


def left_out(
    problem: Problem, parameters: Vector, members: Sequence[str]
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
    for group in dict.fromkeys(members):
        outside = np.array(members)[row_of] == group
        weights = found.weights.copy()
        weights[:count][outside] = 0.0
        values, slopes = Deviations(found.sizes, found.slopes, weights).bent()
        inverse = np.linalg.inv(slopes.T @ slopes + np.eye(len(parameters)))
        step = -inverse @ (slopes.T @ values + parameters)
        rows = np.flatnonzero(outside)
        there = found.slopes[rows]
        off[rows] = found.sizes[rows] + there @ step
        spread[rows] = np.sqrt(np.einsum("ij,jk,ik->i", there, inverse, there))
    shape = (len(members), len(METRICS))
    return off.reshape(shape) * NOISE, spread.reshape(shape) * NOISE


def scatter(
    off: Float[np.ndarray, "rows metrics"],
    spread: Float[np.ndarray, "rows metrics"],
    known: Shaped[np.ndarray, "rows metrics"],
    weight: Float[np.ndarray, " rows"],
) -> Mapping[str, float]:
    """For each metric the scatter with which nine of ten left-out rows are within their interval.

    Args:
        off: Errors of left-out rows, in logarithms.
        spread: What the fit's own uncertainty makes of that.
        known: Which of them were measured.
        weight: How much each counts: campaigns alike, however many rows they have.
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
