"""What loads settle to, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from physim.cases import Case, any_clients, arrays, padded
from physim.corrections import Corrections
from physim.results import Part, Prediction
from physim.serving.demand import Demand, Limits
from physim.serving.percentiles import PERCENTILES, steady_percentiles
from physim.serving.steady import SteadyState, steady_state
from physim.stacking import stack
from physim.step.lowering import StepOps, assumptions
from physim.step.model import StepModel

_IN_STEP = (
    "clients whose requests are of one length stay in step, so that their prompts come together; "
    "give distributions if lengths vary"
)


def settled(
    cases: Sequence[Case], corrections: Sequence[Corrections], fit: str, mixed: str
) -> list[Prediction]:
    """What the cases' loads settle to: of a load in stages, its busiest.

    Args:
        cases: The cases.
        corrections: Corrections of each.
        fit: Their name, for the record.
        mixed: How steps of both prefill and decode are composed.
    """
    ops, demands, limits = arrays(padded(cases))
    every = stack(padded(corrections))
    solved, percentiles = jax.tree.map(
        np.asarray, _solve(ops, every, demands, limits, mixed, any_clients(cases))
    )
    rows = len(percentiles)
    return [
        _prediction(case, _row(solved, row), _row(solved, rows + row), percentiles[row], fit)
        for row, case in enumerate(cases)
    ]


@jax.jit(static_argnames=("mixed", "clients"))
def _solve(
    ops: StepOps,
    corrections: Corrections,
    demands: Demand,
    limits: Limits,
    mixed: str,
    clients: bool,
) -> tuple[SteadyState, Any]:
    """Steady states of the loads, then of the same requests without end; percentiles of the first.

    The throughput of requests without end is the capacity.
    """

    def one(ops: StepOps, corrections: Corrections, demand: Demand, limits: Limits) -> SteadyState:
        return steady_state(StepModel(ops, corrections, mixed), demand, limits, clients)

    endless = jnp.full_like(demands.rate, jnp.inf)
    unbounded = eqx.tree_at(lambda d: (d.rate, d.concurrency), demands, (endless, endless))
    both = jax.tree.map(
        lambda *x: jnp.concatenate(x),
        (ops, corrections, demands, limits),
        (ops, corrections, unbounded, limits),
    )
    states: SteadyState = jax.vmap(one)(*both)
    count = demands.rate.shape[0]
    offered = jax.tree.map(lambda x: x[:count], states)
    return states, jax.vmap(steady_percentiles)(offered.chances, offered.itl, demands)


def _row(states: SteadyState, row: int) -> SteadyState:
    picked: SteadyState = jax.tree.map(lambda leaf: leaf[row].tolist(), states)
    return picked


def _prediction(
    case: Case, state: SteadyState, unbounded: SteadyState, percentiles: Any, fit: str
) -> Prediction:
    load, saturated, requests_per_s = case.load, state.saturated, state.throughput
    single = load.mean_output == 1
    means = {
        "ttft": None if saturated else state.ttft,
        "itl": None if single else state.itl,
        "e2e": None if saturated else state.e2e,
    }
    latencies = {
        metric: {"mean": mean} | {f"p{q}": float(v) for q, v in zip(PERCENTILES, row, strict=True)}
        for (metric, mean), row in zip(means.items(), percentiles, strict=True)
        if mean is not None
    }
    return Prediction(
        model=case.model.name,
        gpu=case.gpu.key,
        tp=case.deployment.tp,
        load=load,
        fit=fit,
        method="fluid",
        ttft_s=means["ttft"],
        itl_s=means["itl"],
        e2e_s=means["e2e"],
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * load.mean_output,
        # With every seat taken a server may be slower than with some free (where all-reduces are
        # slow, say); a load that is served then is no less within its capacity.
        capacity_rps=max(unbounded.throughput, requests_per_s),
        saturated=saturated,
        batch=state.batch,
        running=state.running,
        kv_blocks=case.deployment.kv_blocks,
        kv_use=state.kv_use,
        mixed_share=state.mixed_share,
        step_s=state.step.total,
        step_parts_s=state.step.parts,
        whole=Part(load.rate, None, None, None, latencies),
        stages=(),
        timeline=None,
        assumptions=(
            *assumptions(case.model, case.gpu, case.deployment),
            *([_IN_STEP] if load.in_step else []),
        ),
    )
