"""Minimises a fit's loss: Levenberg and Marquardt's method for sums of squares.

A fit has some forty parameters and a hundred deviations, and a prediction's derivatives cost little
more than the prediction. Then a method of second order needs ten evaluations where one of first
order needs hundreds; `benchmarks/optimisers.py` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from physim.fitting.objective import Problem, Vector

_MOST_STEPS = 40
# The loss counts squares of standard deviations: less than this is no gain.
_GAIN = 1e-2
_DAMPING, _LEAST, _LARGEST = 1e-2, 1e-6, 1e6


def minimise(
    problem: Problem,
    start: Vector | None = None,
    progress: Callable[[int, float], Any] = lambda *_: None,
) -> tuple[Vector, list[float]]:
    """Parameters at the loss's minimum, and the loss after each step.

    Args:
        problem: What is fitted, to what.
        start: Where to start; the prior's centre if not given.
        progress: Called after each step with its number and the loss.
    """
    parameters = np.zeros(len(problem.widths)) if start is None else np.array(start, float)
    losses = [problem.loss(parameters)]
    damping = _DAMPING
    for step in range(_MOST_STEPS):
        gradient, curvature = slopes_of_loss(problem, parameters)
        while True:
            damped = curvature + damping * np.diag(np.diag(curvature))
            tried = parameters - np.linalg.solve(damped, gradient)
            loss = problem.loss(tried)
            if loss < losses[-1] or damping > _LARGEST:
                break
            damping *= 10
        if loss >= losses[-1]:
            break
        parameters, damping = tried, max(damping / 10, _LEAST)
        losses.append(loss)
        progress(step, loss)
        if losses[-2] - loss < _GAIN:
            break
    return parameters, losses


def slopes_of_loss(problem: Problem, parameters: Vector) -> tuple[Vector, Float[np.ndarray, "n n"]]:
    """The loss's gradient, and its curvature after Gauss and Newton; the prior is in both."""
    values, slopes = problem.deviations(parameters).bent()
    return slopes.T @ values + parameters, slopes.T @ slopes + np.eye(len(parameters))
