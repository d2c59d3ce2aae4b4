"""What limits a deployment: by how much latencies and capacity follow each of its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.cases import Case
from physim.corrections import flat, labels, unflat
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.inputs.hardware import Hardware
from physim.serving.demand import Demand, Limits
from physim.serving.load import Load
from physim.serving.steady import steady_state
from physim.step.lowering import StepOps, lower
from physim.step.model import StepModel
from physim.types import AnyArray

METRICS = ("ttft", "itl", "e2e", "capacity")
# Rates of the hardware, and times of parts, by the name of the correction that multiplies them.
RATES = {
    "memory_bandwidth": "memory bandwidth",
    "peak_flops": "FLOP/s",
    "link_bandwidth": "link bandwidth",
}
TIMES = {
    "gemm_memory": "time of GEMMs that memory bounds",
    "gemm_compute": "time of GEMMs that FLOP/s bound",
    "decode_attention": "time of decode attention",
    "prefill_attention": "time of prefill attention",
    "experts": "time of experts",
    "all_reduce": "time of all-reduces",
    "lm_head": "time of lm_head",
    "sampling": "time of sampling",
    "elementwise": "time of element-wise kernels",
    "step_overhead": "gaps between steps",
    "layer_overhead": "gaps between layers",
    "host_step": "CPU time of a step",
    "host_request": "CPU time of a request in it",
    "front_end": "front end",
    "handover": "wait for steps under way",
}
# An elasticity of less is as good as none.
_NOTABLE = 0.005
# By so much a rate is moved, up and down, to see what lowering makes of it.
_MOVED = 1e-3


@dataclass(frozen=True)
class Elasticities:
    """By how many percent each metric follows one percent more of each part.

    Attributes:
        values: For each part, in the order of `RATES` and `TIMES`, that of each of `METRICS`.
        metrics: The metrics themselves: seconds, and requests per second.
        case: What was asked about.
    """

    values: Mapping[str, Mapping[str, float]]
    metrics: Mapping[str, float]
    case: Case

    def notable(self) -> dict[str, Mapping[str, float]]:
        """The values of parts on which anything depends, by what the parts are in words."""
        words = {**RATES, **TIMES}
        return {
            words[part]: row
            for part, row in self.values.items()
            if any(abs(value) >= _NOTABLE for value in row.values())
        }

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "model": self.case.model.name,
            "gpu": self.case.gpu.key,
            "tp": self.case.deployment.tp,
            "metrics": dict(self.metrics),
            "elasticities": {name: dict(row) for name, row in self.values.items()},
        }


def explain(
    model: str | Path,
    load: Load,
    *,
    gpu: str,
    fit: str | Path = DEFAULT_FIT,
    **deployment: Any,
) -> Elasticities:
    """What latencies and capacity under a load depend on, and how strongly.

    An elasticity is the derivative of a metric's logarithm by that of a part: with -0.6 of ITL for
    memory bandwidth, 1% more of it makes ITL 0.6% shorter. Those of rates leave each kernel the
    efficiency that was measured.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        load: A load that stays: a rate, or clients.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, ``default`` or ``none``.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used, the load ends, or it is above capacity.
    """
    if not load.endless or load.stages:
        raise InputError("load", "ends or changes", "give a rate, or clients, without an end")
    case = Case.of(model, gpu, Deployment(**deployment), load)
    corrections = load_fit(fit, case.gpu.key).corrections
    numbers = flat(corrections)
    ops, names = _lowered(case, case.gpu), np.array(labels())
    directions = [(_tangent(case, name), np.zeros_like(numbers)) for name in RATES]
    still = jax.tree.map(np.zeros_like, ops)
    directions += [(still, 1.0 * (names == name)) for name in TIMES]
    demand = Demand.of(load, case.deployment.block_size)
    logs, slopes = jax.tree.map(
        np.asarray,
        _slopes(
            (ops, numbers),
            jax.tree.map(lambda *leaves: np.stack(leaves), *directions),
            demand,
            Limits.of(case.deployment),
            load.concurrency is not None,
        ),
    )
    if not np.all(np.isfinite(logs)):
        capacity = float(np.exp(logs[METRICS.index("capacity")]))
        raise InputError(
            "load", f"is above the capacity of {capacity:.3g} requests/s", "give a lighter one"
        )
    rows = dict(zip((*RATES, *TIMES), slopes, strict=True))
    return Elasticities(
        {
            name: {metric: float(x) for metric, x in zip(METRICS, row, strict=True)}
            for name, row in rows.items()
        },
        {metric: float(np.exp(log)) for metric, log in zip(METRICS, logs, strict=True)},
        case,
    )


def _lowered(case: Case, gpu: Hardware) -> StepOps:
    ops: StepOps = jax.tree.map(
        lambda leaf: np.asarray(leaf, float), lower(case.model, gpu, case.deployment)
    )
    return ops


def _tangent(case: Case, rate: str) -> StepOps:
    """How the lowered model moves with the logarithm of a rate of the GPU, by differences."""

    def at(factor: float) -> StepOps:
        gpu = case.gpu
        if rate == "peak_flops":
            peaks = tuple((name, peak * factor) for name, peak in gpu.peak_flops)
            return _lowered(case, dataclasses.replace(gpu, peak_flops=peaks))
        return _lowered(case, dataclasses.replace(gpu, **{rate: getattr(gpu, rate) * factor}))

    up, down = at(float(np.exp(_MOVED))), at(float(np.exp(-_MOVED)))
    tangent: StepOps = jax.tree.map(lambda a, b: (a - b) / (2 * _MOVED), up, down)
    return tangent


# XLA's fusion emitters take half as long again to compile this.
@jax.jit(static_argnames="clients", compiler_options={"xla_cpu_use_fusion_emitters": False})
def _slopes(
    at: tuple[StepOps, Float[AnyArray, " n"]],
    directions: tuple[StepOps, Float[AnyArray, "directions n"]],
    demand: Demand,
    limits: Limits,
    clients: bool,
) -> tuple[Float[AnyArray, " metrics"], Float[AnyArray, "directions metrics"]]:
    """Logarithms of the metrics, and their slopes in some directions of model and corrections."""
    endless = jnp.full_like(jnp.asarray(demand.rate), jnp.inf)
    unbounded = eqx.tree_at(lambda d: (d.rate, d.concurrency), demand, (endless, endless))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), demand, unbounded)

    def logs(at: tuple[StepOps, Float[AnyArray, " n"]]) -> Float[AnyArray, " metrics"]:
        model = StepModel(at[0], unflat(at[1]))
        states = jax.vmap(lambda one: steady_state(model, one, limits, clients))(both)
        loaded = [states.ttft[0], states.itl[0], states.e2e[0]]
        return jnp.log(jnp.stack([*loaded, states.throughput[1]]))

    at = jax.tree.map(jnp.asarray, at)
    slopes = jax.vmap(lambda along: jax.jvp(logs, (at,), (along,))[1])(directions)
    return logs(at), slopes
