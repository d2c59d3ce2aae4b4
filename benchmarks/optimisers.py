"""What it takes to fit: Levenberg-Marquardt against Adam, L-BFGS and searches without gradients.

Usage: python benchmarks/optimisers.py RUNS.csv [RUNS.csv ...]

Counts are evaluations of all rows: of the loss, and of its gradient or its residuals' derivatives.
Needs scipy, and cma for CMA-ES.
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
import optax
from scipy.optimize import minimize

from physim.corrections.fields import Corrections, flat, unflat
from physim.fitting.objective import Problem
from physim.fitting.observations import NOISE, log_predicted, observe
from physim.fitting.optimise import minimise

# A loss this near the least is as good.
_NEAR = 0.5
_SECONDS = 120.0


def main() -> None:
    problem = Problem.of(observe(sys.argv[1:]).stages)
    count = len(problem.widths)
    minimise(problem)  # compiles
    begin = time.perf_counter()
    _, losses = minimise(problem)
    seconds = time.perf_counter() - begin
    target = losses[-1] + _NEAR
    print(f"loss from {losses[0]:.1f} to {losses[-1]:.1f}; reached: within {_NEAR} of that\n")
    print("| method | losses | gradients | seconds | reached |")
    print("| --- | --- | --- | --- | --- |")
    steps = next(i for i, loss in enumerate(losses) if loss <= target)
    print(f"| Levenberg-Marquardt | {steps + 1} | {steps} | {seconds:.1f} | {losses[-1]:.1f} |")

    loss = _loss(problem)
    slope = jax.jit(jax.value_and_grad(loss))
    slope(jnp.zeros(count))
    for name, rule in (
        ("Adam, rate 0.03", optax.adam(0.03)),
        ("Adam, rate 0.1", optax.adam(0.1)),
    ):
        _report(name, _first_order(slope, rule, count, target))
    _report("L-BFGS", _lbfgs(slope, count, target))
    quick = jax.jit(loss)
    quick(jnp.zeros(count))
    _report("Nelder-Mead", _nelder_mead(quick, count, target))
    _report("CMA-ES", _cma(quick, count, target))


def _loss(problem: Problem) -> Callable[[jax.Array], jax.Array]:
    """The fit's loss as one traced function."""
    # As JAX's arrays, since these are constants of what is compiled; so few rows are one chunk.
    stages = jax.tree.map(jnp.asarray, problem.stages)
    (chunk,) = stages.chunks
    widths, centre = jnp.asarray(problem.widths), jnp.asarray(flat(Corrections()))
    weights = stages.known * stages.weight[:, None] * np.array([1.0, 0.5, 0.5])

    def loss(parameters: jax.Array) -> jax.Array:
        every = log_predicted(unflat(centre + parameters * widths), chunk.systems)
        found = every[: len(chunk.places)]
        sizes = jnp.where(weights > 0, (found - stages.observed) / NOISE, 0.0)
        bent = 4 * (jnp.sqrt(1 + (sizes / 2) ** 2) - 1)
        return jnp.sum(weights * bent) + jnp.sum(parameters**2) / 2

    return loss


Reached = tuple[int, int, float, float]


def _report(name: str, reached: Reached) -> None:
    losses, gradients, seconds, least = reached
    print(f"| {name} | {losses} | {gradients} | {seconds:.1f} | {least:.1f} |", flush=True)


def _first_order(slope: Any, rule: Any, count: int, target: float) -> Reached:
    parameters, begin = jnp.zeros(count), time.perf_counter()
    state, least, steps = rule.init(parameters), np.inf, 0
    while least > target and time.perf_counter() - begin < _SECONDS:
        value, gradient = slope(parameters)
        least, steps = min(least, float(value)), steps + 1
        change, state = rule.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, change)
    return steps, steps, time.perf_counter() - begin, least


class _Done(Exception):  # noqa: N818
    pass


def _counted(loss: Any, target: float) -> tuple[Any, dict[str, Any]]:
    """A loss that counts its calls and stops the search once it is near the least."""
    record: dict[str, Any] = {"calls": 0, "least": np.inf, "begin": time.perf_counter()}

    def call(parameters: np.ndarray) -> float:
        value = float(loss(jnp.asarray(parameters)))
        record["calls"] += 1
        record["least"] = min(record["least"], value)
        if record["least"] <= target or time.perf_counter() - record["begin"] > _SECONDS:
            raise _Done
        return value if np.isfinite(value) else 1e6

    return call, record


def _nelder_mead(loss: Any, count: int, target: float) -> Reached:
    call, record = _counted(loss, target)
    options = {"maxfev": 10**6, "adaptive": True, "xatol": 1e-9, "fatol": 1e-9}
    with contextlib.suppress(_Done):
        minimize(call, np.full(count, 0.01), method="Nelder-Mead", options=options)
    return record["calls"], 0, time.perf_counter() - record["begin"], record["least"]


def _cma(loss: Any, count: int, target: float) -> Reached:
    import cma

    call, record = _counted(loss, target)
    with contextlib.suppress(_Done):
        cma.fmin2(call, np.zeros(count), 0.5, {"verbose": -9, "seed": 1, "maxfevals": 10**6})
    return record["calls"], 0, time.perf_counter() - record["begin"], record["least"]


def _lbfgs(slope: Any, count: int, target: float) -> Reached:
    record: dict[str, Any] = {"calls": 0, "least": np.inf, "begin": time.perf_counter()}

    def call(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(jnp.asarray(parameters))
        record["calls"] += 1
        record["least"] = min(record["least"], float(value))
        if record["least"] <= target or time.perf_counter() - record["begin"] > _SECONDS:
            raise _Done
        return float(value), np.asarray(gradient, float)

    with contextlib.suppress(_Done):
        minimize(call, np.zeros(count), method="L-BFGS-B", jac=True, options={"maxiter": 5000})
    calls = record["calls"]
    return calls, calls, time.perf_counter() - record["begin"], record["least"]


if __name__ == "__main__":
    main()
