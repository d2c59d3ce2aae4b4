"""What it takes to fit: Levenberg-Marquardt against optax's, optimistix's and other searches.

Usage: python benchmarks/optimisers.py RUNS.csv [RUNS.csv ...]

One problem with its noise and widths as they come, from no fit: corrections of few runs, in one
chunk. Seconds are without compilation. Needs scipy, and cma for CMA-ES.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from scipy.optimize import minimize

from physim.fitting.objective import Problem
from physim.fitting.observations import log_predicted, observe
from physim.fitting.optimise import OPTIMISERS, minimise

# A loss this near the least is as good.
_NEAR = 0.5
_SECONDS = 120.0
# The shares of metrics, and the degrees of freedom, of the fit's own loss.
_SHARES, _FREEDOM = np.array([1.0, 0.5, 0.5]), 4.0

Loss = Callable[[jax.Array], jax.Array]


def main() -> None:
    problem = Problem.from_observed(observe(sys.argv[1:]))
    minimise(problem)  # compiles
    _, losses = minimise(problem)
    target = losses[-1] + _NEAR
    print(f"{len(problem.centre)} parameters, loss from {losses[0]:.1f} to {losses[-1]:.1f}")
    print(f"reached: the least loss found; done: within {_NEAR} of the least\n")
    print("| method | steps | seconds | reached | done |")
    print("| --- | --- | --- | --- | --- |")
    for name in OPTIMISERS:
        begin = time.perf_counter()
        _, found = minimise(problem, optimiser=name)
        _report(f"physim fit --optimiser {name}", len(found) - 1, begin, min(found), target)
    residuals = _residuals(problem)
    for name, solver in (
        ("optimistix.LevenbergMarquardt", optimistix.LevenbergMarquardt(1e-3, 1e-3)),
        ("optimistix.Dogleg", optimistix.Dogleg(1e-3, 1e-3)),
    ):
        _optimistix(name, solver, residuals, problem, target)
    loss = jax.jit(lambda parameters: jnp.sum(residuals(parameters) ** 2) / 2)
    slope = jax.jit(jax.value_and_grad(loss))
    start = jnp.asarray(problem.centre)
    slope(start), loss(start)
    _report_search("scipy's L-BFGS-B", slope, target, _lbfgs, len(start))
    _report_search("Nelder-Mead", loss, target, _nelder_mead, len(start))
    _report_search("CMA-ES", loss, target, _cma, len(start))


def _residuals(problem: Problem) -> Loss:
    """What the loss is the sum of squares of, as one traced function."""
    # As JAX's arrays, since these are constants of what is compiled; so few rows are one chunk.
    stages = jax.tree.map(jnp.asarray, problem.stages)
    (chunk,) = stages.chunks
    scale = problem.widths[problem.tree.level]
    places = np.flatnonzero(problem.moved)
    along = jnp.asarray(problem.tree.along[problem.branch])
    weights = np.sqrt(np.asarray(problem.stages.known * problem.stages.weight[:, None] * _SHARES))
    noise = problem.noise[problem.source]

    def residuals(parameters: jax.Array) -> jax.Array:
        own = parameters * scale[problem.moved]
        offsets = jnp.zeros(scale.size).at[places].set(own).reshape(scale.shape)
        rows = along @ offsets
        filled = rows[jnp.minimum(jnp.arange(_size(chunk)), len(rows) - 1)]
        found = jax.vmap(log_predicted)(filled, chunk.systems)[: len(rows)]
        sizes = jnp.where(weights > 0, (found - stages.observed) / noise, 0.0)
        # Student's loss as a square; the sum keeps its root smooth at zero.
        squares = (_FREEDOM + 1) * jnp.log1p(sizes**2 / _FREEDOM)
        bent = weights * jnp.sign(sizes) * jnp.sqrt(squares + 1e-12)
        return jnp.concatenate([bent.ravel(), parameters])

    return residuals


def _size(chunk: Any) -> int:
    return int(np.asarray(chunk.systems.limits.max_num_seqs).size)


def _report(name: str, steps: int, begin: float, least: float, target: float) -> None:
    seconds, done = time.perf_counter() - begin, "yes" if least <= target else "no"
    print(f"| {name} | {steps} | {seconds:.1f} | {least:.1f} | {done} |", flush=True)


def _optimistix(name: str, solver: Any, residuals: Loss, problem: Problem, target: float) -> None:
    def solve() -> Any:
        return optimistix.least_squares(
            lambda parameters, _: residuals(parameters),
            solver,
            jnp.asarray(problem.centre),
            options={"jac": "fwd"},
            max_steps=100,
            throw=False,
        )

    compiled = jax.jit(lambda: (lambda found: (found.value, found.stats["num_steps"]))(solve()))
    jax.block_until_ready(compiled())
    begin = time.perf_counter()
    value, steps = jax.block_until_ready(compiled())
    _report(name, int(steps), begin, problem.loss(np.asarray(value)), target)


class _Done(Exception):  # noqa: N818
    pass


def _report_search(name: str, function: Any, target: float, search: Any, count: int) -> None:
    """A search that stops once it is near the least, or out of time."""
    calls, least, begin = 0, np.inf, time.perf_counter()

    def call(parameters: np.ndarray) -> Any:
        nonlocal calls, least
        found = function(jnp.asarray(parameters))
        value = float(found[0] if isinstance(found, tuple) else found)
        calls, least = calls + 1, min(least, value)
        if least <= target or time.perf_counter() - begin > _SECONDS:
            raise _Done
        if isinstance(found, tuple):
            return value, np.asarray(found[1], float)
        return value if np.isfinite(value) else 1e6

    with contextlib.suppress(_Done):
        search(call, count)
    _report(name, calls, begin, least, target)


def _nelder_mead(call: Any, count: int) -> None:
    options = {"maxfev": 10**6, "adaptive": True, "xatol": 1e-9, "fatol": 1e-9}
    minimize(call, np.full(count, 0.01), method="Nelder-Mead", options=options)


def _cma(call: Any, count: int) -> None:
    import cma

    cma.fmin2(call, np.zeros(count), 0.5, {"verbose": -9, "seed": 1, "maxfevals": 10**6})


def _lbfgs(call: Any, count: int) -> None:
    minimize(call, np.zeros(count), method="L-BFGS-B", jac=True, options={"maxiter": 5000})


if __name__ == "__main__":
    main()
