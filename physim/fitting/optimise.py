"""Minimises a fit's loss.

Levenberg and Marquardt's method is the default: a prediction's derivatives cost some twenty
predictions, whether the loss takes their gradient or their products, so that a method of second
order needs ten evaluations where one of first order needs hundreds; `benchmarks/optimisers.py`
measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from physim.errors import InputError
from physim.fitting.objective import Problem, Vector

Progress = Callable[[int, float], Any]
Found = tuple[Vector, list[float]]

_MOST_STEPS = 40
# The loss counts squares of standard deviations: less than this is no gain, nor is less than such a
# share of it.
_GAIN, _SHARE = 1e-2, 2e-4
_DAMPING, _LEAST, _LARGEST = 1e-2, 1e-6, 1e6
# First-order methods take this many steps at most, and stop when so many gain nothing.
_MOST_FIRST_ORDER, _PATIENCE = 400, 10
_ADAM_RATE = 0.05


def minimise(
    problem: Problem,
    start: Vector | None = None,
    progress: Progress = lambda *_: None,
    optimiser: str = "levenberg-marquardt",
) -> Found:
    """Parameters at the loss's minimum, and the loss after each step.

    Args:
        problem: What is fitted, to what.
        start: Where to start; the problem's centre if not given.
        progress: Called after each step with its number and the loss.
        optimiser: One of `OPTIMISERS`.

    Raises:
        InputError: The optimiser is unknown.
    """
    check_optimiser(optimiser)
    parameters = problem.centre if start is None else np.array(start, float)
    return OPTIMISERS[optimiser](problem, parameters, progress)


def check_optimiser(optimiser: str) -> None:
    """Refuses an optimiser that there is none of.

    Args:
        optimiser: Its name.

    Raises:
        InputError: It is none of `OPTIMISERS`.
    """
    if optimiser not in OPTIMISERS:
        known = ", ".join(OPTIMISERS)
        raise InputError("optimiser", f"{optimiser!r} is unknown", f"use one of {known}")


class _Log:
    """The losses of a minimisation: of its start, and after each step.

    Attributes:
        losses: These.
    """

    def __init__(self, start: float, progress: Progress) -> None:
        self.losses = [start]
        self._progress = progress

    def gained(self, loss: float, patience: int = 1) -> bool:
        """Whether the last steps, with one to this loss, gained what is worth going on for."""
        self._progress(len(self.losses) - 1, loss)
        self.losses.append(loss)
        if len(self.losses) <= patience:
            return True
        least = max(_GAIN, _SHARE * loss)
        return min(self.losses[-patience:]) < min(self.losses[:-patience]) - least


def _levenberg_marquardt(problem: Problem, parameters: Vector, progress: Progress) -> Found:
    log, damping = _Log(problem.loss(parameters), progress), _DAMPING
    for _ in range(_MOST_STEPS):
        near = problem.about(problem.deviations(parameters), parameters)
        while True:
            tried = parameters + near.step(damping)
            loss = problem.loss(tried)
            if loss < log.losses[-1] or damping > _LARGEST:
                break
            damping *= 10
        if loss >= log.losses[-1]:
            break
        parameters, damping = tried, max(damping / 10, _LEAST)
        if not log.gained(loss):
            break
    return parameters, log.losses


def _lbfgs(problem: Problem, parameters: Vector, progress: Progress) -> Found:
    import optax

    rule, log = optax.scale_by_lbfgs(memory_size=20), _Log(problem.loss(parameters), progress)
    state = rule.init(jnp.asarray(parameters))
    for _ in range(_MOST_FIRST_ORDER):
        gradient = problem.about(problem.deviations(parameters), parameters).gradient
        direction, state = rule.update(jnp.asarray(gradient), state, jnp.asarray(parameters))
        direction = np.asarray(direction)
        # Halved until it gains what its slope promises (Armijo).
        size, promised, last = 1.0, 1e-4 * float(gradient @ direction), log.losses[-1]
        while (loss := problem.loss(parameters - size * direction)) > last - size * promised:
            size /= 2
            if size < 1e-6:
                return parameters, log.losses
        parameters = parameters - size * direction
        if not log.gained(loss):
            break
    return parameters, log.losses


def _adam(problem: Problem, parameters: Vector, progress: Progress) -> Found:
    import optax

    rule, log, best = optax.adam(_ADAM_RATE), _Log(problem.loss(parameters), progress), parameters
    state = rule.init(jnp.asarray(parameters))
    for _ in range(_MOST_FIRST_ORDER):
        gradient = problem.about(problem.deviations(parameters), parameters).gradient
        change, state = rule.update(jnp.asarray(gradient), state)
        parameters = parameters + np.asarray(change, float)
        loss = problem.loss(parameters)
        best = parameters if loss < min(log.losses) else best
        if not log.gained(loss, _PATIENCE):
            break
    return best, log.losses


OPTIMISERS: dict[str, Callable[[Problem, Vector, Progress], Found]] = {
    "levenberg-marquardt": _levenberg_marquardt,
    "lbfgs": _lbfgs,
    "adam": _adam,
}
"""Ways to minimise a loss, by name."""
