"""How wide each level of corrections is, and how much rows scatter, learned from the rows.

Where the offsets of GPUs, engines or families differ much, a level is wide, and a new one's are as
uncertain; where they do not, it closes, and what one of them was told holds for all. So with the
noise: a campaign whose rows scatter more than others says less. Both are estimated by expectation
and maximisation (Dempster, Laird and Rubin, JRSS B 39, 1977) with predictions taken straight in the
corrections, which are themselves found anew in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from physim.fitting.objective import Deviations, Problem, Quadratic, Vector
from physim.fitting.observations import METRICS
from physim.fitting.optimise import minimise

# Rounds of fits, and of estimates between them.
_ROUNDS, _ESTIMATES = 3, 10
# The prior of a level's variance and of the noise's counts for so many nodes, and so many rows.
_NODES, _ROWS = 2.0, 5.0
# No level is wider than the whole prior: what would be is a component that is missing.
_LEAST_WIDTH, _WIDEST = 1e-3, 1.0


def solve(
    problem: Problem,
    learns_widths: bool,
    progress: Callable[[int, float], Any] = lambda *_: None,
    optimiser: str = "levenberg-marquardt",
    start: Vector | None = None,
) -> tuple[Problem, Vector, list[float]]:
    """The problem with what was learned of it, its solution and the loss after each step.

    Corrections that no row tells anything of stay as they were.

    Args:
        problem: The problem.
        learns_widths: Whether the levels' widths are learned too, or only the noise.
        progress: Called after each step with its number and the loss.
        optimiser: One of `physim.fitting.optimise.OPTIMISERS`.
        start: Parameters to start from.
    """
    first = problem
    losses: list[float] = []
    parameters = problem.centre if start is None else start

    def step(_: int, loss: float) -> None:
        progress(len(losses), loss)

    for _ in range(_ROUNDS):
        offsets = problem.offsets(parameters)
        problem = learned(first, problem, parameters, learns_widths)
        start = problem.standardised(offsets)
        parameters, found = minimise(problem, start, step, optimiser)
        # With other widths and noise the loss of one round is not that of the next.
        losses += found
    return problem, problem.untold_as_before(parameters), losses


def learned(first: Problem, problem: Problem, parameters: Vector, learns_widths: bool) -> Problem:
    """A problem with the widths and the noise that its rows make likely.

    Args:
        first: The problem with the widths and the noise that stand where rows say nothing.
        problem: The problem as it is now.
        parameters: Its solution.
        learns_widths: Whether widths are learned, or only the noise.
    """
    found = problem.deviations(parameters)
    there = problem.offsets(parameters)
    for _ in range(_ESTIMATES):
        near = problem.about(found, problem.standardised(there))
        moved = problem.offsets(problem.standardised(there) + near.step())
        # Along the line that predictions are taken to follow.
        step = problem.tree.along @ (moved - there)
        sizes = found.sizes + np.einsum("di,di->d", found.slopes, step[found.branch])
        there, found = moved, replace(found, sizes=sizes)
        spread = problem.spread_of(near)
        noise = _noise(first, problem, found, spread)
        of_steps = _noise_of_steps(first, problem, found, spread)
        widths = _widths(first, problem, there, near) if learns_widths else problem.widths
        found = _rescaled(problem, found, noise, of_steps)
        problem = replace(problem, noise=noise, step_noise=of_steps, widths=widths)
    return problem


def _widths(
    first: Problem, problem: Problem, offsets: Float[np.ndarray, "nodes n"], near: Quadratic
) -> Float[np.ndarray, "levels n"]:
    """The widths that make the offsets likely: their root mean square, with the prior's."""
    scale = problem.widths[problem.tree.level]
    share, told = np.zeros(len(near.free)), np.zeros_like(problem.moved)
    share[near.free] = np.diag(near.inverse)
    told[problem.moved] = near.free
    variance = np.zeros_like(offsets)
    variance[problem.moved] = share * scale[problem.moved] ** 2
    squares = np.where(told, offsets**2 + variance, 0.0)
    widths = np.zeros_like(problem.widths)
    for level in range(len(widths)):
        own = problem.tree.level == level
        total = np.sum(squares[own], axis=0) + _NODES * first.widths[level] ** 2
        widths[level] = np.sqrt(total / (np.sum(told[own], axis=0) + _NODES))
    widest = _WIDEST * np.sqrt(np.sum(first.widths**2, axis=0))
    found: Float[np.ndarray, "levels n"] = np.where(
        first.widths == 0, 0.0, np.clip(widths, _LEAST_WIDTH, widest)
    )
    return found


def _noise(
    first: Problem, problem: Problem, found: Deviations, spread: Float[np.ndarray, "b n n"]
) -> Float[np.ndarray, "sources metrics"]:
    """The noise that makes the deviations likely, of each campaign and metric."""
    count = problem.stages.observed.size
    metric = np.tile(np.arange(len(METRICS)), len(problem.source))
    source = np.repeat(problem.source, len(METRICS))
    slopes = found.slopes[:count]
    own = np.einsum("di,dij,dj->d", slopes, spread[found.branch[:count]], slopes)
    squares = found.pull[:count] * (found.sizes[:count] ** 2 + own)
    noise = np.empty_like(problem.noise)
    for row in range(len(noise)):
        for column in range(len(METRICS)):
            those = (source == row) & (metric == column)
            weight = np.sum(found.weights[:count][those])
            total = np.sum(squares[those]) * problem.noise[row, column] ** 2
            before = first.noise[row, column] ** 2
            noise[row, column] = np.sqrt((total + _ROWS * before) / (weight + _ROWS))
    return noise


def _noise_of_steps(
    first: Problem, problem: Problem, found: Deviations, spread: Float[np.ndarray, "b n n"]
) -> Float[np.ndarray, " clocks"]:
    """The noise that makes the deviations of steps likely, by clock."""
    if problem.cycles is None:
        return first.step_noise
    steps = problem.of_steps
    slopes, branches = found.slopes[steps], found.branch[steps]
    own = np.zeros(len(slopes))
    for branch in np.unique(branches).tolist():
        those = branches == branch
        own[those] = np.sum((slopes[those] @ spread[branch]) * slopes[those], axis=1)
    clock = np.asarray(problem.cycles.clock)
    squares = found.pull[steps] * (found.sizes[steps] ** 2 + own) * problem.step_noise[clock] ** 2
    count = len(first.step_noise)
    total = np.bincount(clock, squares, count) + _ROWS * first.step_noise**2
    weight = np.bincount(clock, found.weights[steps], count) + _ROWS
    noise: Float[np.ndarray, " clocks"] = np.sqrt(total / weight)
    return noise


def _rescaled(
    problem: Problem,
    found: Deviations,
    noise: Float[np.ndarray, "sources metrics"],
    of_steps: Float[np.ndarray, " clocks"],
) -> Deviations:
    """The same deviations in units of another noise."""
    clock = np.zeros(0, int) if problem.cycles is None else np.asarray(problem.cycles.clock)
    of_bins = problem.noise_of_bins / replace(problem, noise=noise).noise_of_bins
    factor = np.concatenate(
        [
            (problem.noise / noise)[problem.source].ravel(),
            of_bins,
            (problem.step_noise / of_steps)[clock],
        ]
    )
    return replace(found, sizes=found.sizes * factor, slopes=found.slopes * factor[:, None])
