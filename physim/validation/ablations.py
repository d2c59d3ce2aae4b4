"""physim without one of its parts, to see what that part is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from physim.corrections.fields import labels
from physim.fitting.objective import Problem
from physim.fitting.step_cycles import Cycles
from physim.prediction.arrays import CaseArrays
from physim.step.curves import CHUNK, CONTEXT, REQUESTS
from physim.step.host import HOST_SHARPNESS
from physim.step.lowering import StepOps
from physim.step.mixed_steps import MIXINGS
from physim.step.rows import UNMEASURED
from physim.step.sizes import KNOTS
from physim.types import AnyArray

Lowered = TypeVar("Lowered", CaseArrays, Cycles)

ABLATIONS = ("no residual", "constant MFU", "additive host")
# The seed study's mixed steps. They are not fitted: a step with prefill may be shorter than one
# without, for which the serving loop has no slopes.
BLENDS = ("weighted-average", "smooth-weighted")
# Efficiencies that are commonly assumed where none was measured: of FLOP/s and bandwidth alike.
_EFFICIENCY = 0.7


def ablated(name: str, problem: Problem) -> Problem:
    """A problem with a part of the model taken away.

    Args:
        name: ``no residual``: without the small network. ``constant MFU``: every operation at 70%
            of its roofline, whatever was measured. ``additive host``: CPU time is added, not
            hidden. Of `BLENDS`: mixed steps composed so.
        problem: The whole.
    """
    if name == "no residual":
        fast = np.array([label.startswith("residual") for label in labels()])
        return problem.held(fast)
    if name == "additive host":
        fast = np.array(labels()) == "host_sharpness"
        # At a sharpness of one the smooth maximum is the sum.
        return problem.held(fast, -float(np.log(HOST_SHARPNESS)))
    stages, cycles = problem.stages, problem.cycles
    chunks = [replace(chunk, systems=_changed(name, chunk.systems)) for chunk in stages.chunks]
    return replace(
        problem,
        stages=replace(stages, chunks=tuple(chunks)),
        cycles=None if cycles is None else _changed(name, cycles),
    )


def _changed(name: str, lowered: Lowered) -> Lowered:
    """Systems, or cycles, with other mixed steps or other operations."""
    if name in BLENDS:
        return replace(lowered, mixing=MIXINGS[name])
    return replace(lowered, ops=_all_constant(lowered.ops))


def _all_constant(ops: StepOps) -> StepOps:
    """Stacked models, each of whose measured operations takes its roofline over one efficiency."""
    numbers = jax.tree.map(np.asarray, ops)
    constant: StepOps = jax.tree.map(np.asarray, jax.vmap(_constant)(numbers))
    return constant


def _constant(ops: StepOps) -> StepOps:
    def log_seconds(bound: AnyArray) -> AnyArray:
        return jnp.log(jnp.maximum(bound, 1e-12) / _EFFICIENCY)

    sizes, requests = ops.over_sizes, REQUESTS[:, None]
    compute, memory = jax.vmap(sizes.work, out_axes=1)(KNOTS)
    measured = sizes.log_seconds > UNMEASURED
    return eqx.tree_at(
        lambda o: (
            o.over_sizes.log_seconds,
            o.over_sizes.by_spread,
            o.decode.log_seconds,
            o.prefill.log_seconds,
        ),
        ops,
        (
            jnp.where(measured, log_seconds(jnp.maximum(compute, memory)), sizes.log_seconds),
            jnp.zeros_like(sizes.by_spread),
            log_seconds(jax.vmap(lambda row: row.bound(requests, requests * CONTEXT))(ops.decode)),
            log_seconds(jax.vmap(lambda row: row.bound(requests, CHUNK))(ops.prefill)),
        ),
    )
