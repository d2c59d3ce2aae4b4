"""Steady states of loads, many at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from physim.batching.demand import Demand
from physim.corrections.fields import Corrections
from physim.fluid.percentiles import Drawn, steady_latencies
from physim.fluid.steady import SteadyState, steady_state
from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.inputs.scenario import taken_of_load
from physim.kept import kept
from physim.metrics import STATISTICS
from physim.prediction.arrays import CaseArrays, prompts_of_strata, row_of, stack, unstacked
from physim.prediction.evictions import evictions, slow_writes
from physim.prediction.requests import Requests
from physim.prediction.results import (
    FIRST_TOKEN_PARTS,
    PoolPrediction,
    Prediction,
    StageLatencies,
)
from physim.step.component import Placement
from physim.step.components.sampling import greedy_seconds
from physim.step.lowering import assumptions
from physim.types import AnyArray

# New tokens from which on a step takes several times as long as one that only decodes.
_LONG_STEP_TOKENS = 2000
# How many cases are solved at once, by how many there are at most. Each size takes seconds to
# compile and a quarter of one to load: one of 8 would save 20 ms a call, and 128 saves half a
# millisecond a case. Larger ones are slower, since all wait for the case with most iterations.
_SIZES = {1: 1, 256: 32, math.inf: 128}
# Throughput over that of full slots from which on it is said.
_LOST_WHEN_FULL = 1.01
# How far clients are in step from which on it is said.
_IN_STEP = 0.5
_LOCKSTEP = (
    "clients whose outputs are of one length stay in step, so that their prompts come together; "
    "give distributions if lengths vary"
)


def steady(cases: Sequence[Case], corrections: Sequence[Corrections], fit: str) -> list[Prediction]:
    """The steady states of the cases' loads: of a load in stages, of its busiest.

    Args:
        cases: The cases, whose mixed steps are composed alike.
        corrections: Corrections of each.
        fit: Their name, for the record.
    """
    offered, unending, drawn = _solved(cases, corrections)
    percentiles = drawn.percentiles()
    states = zip(unstacked(offered), unstacked(unending), strict=True)
    return [
        _prediction(
            case,
            *both,
            Requests(
                drawn.ttft[row],
                drawn.tpot[row],
                drawn.e2e[row],
                prompts_of_strata(case)[drawn.stratum[row]],
            ),
            {metric: values[row] for metric, values in percentiles.items()},
            fit,
        )
        for row, (case, both) in enumerate(zip(cases, states, strict=True))
    ]


def _solved(
    cases: Sequence[Case], corrections: Sequence[Corrections]
) -> tuple[SteadyState, SteadyState, Drawn]:
    """States of the cases' loads and of the same requests without end; latencies of the first."""
    size = next(size for most, size in _SIZES.items() if most >= len(cases))
    return solved(CaseArrays.from_cases(cases), stack(corrections), size)


def solved(
    systems: CaseArrays, corrections: Corrections, size: int
) -> tuple[SteadyState, SteadyState, Drawn]:
    """States of loads and of the same requests without end, in NumPy; latencies of the first.

    Args:
        systems: The cases.
        corrections: Corrections of each.
        size: How many are solved at once.
    """
    count = len(systems.demand.rate)
    places = np.minimum(np.arange(math.ceil(count / size) * size), count - 1)
    parts = []
    for rows in places.reshape(-1, size):
        both, drawn = jax.tree.map(np.asarray, _solve(*row_of((systems, corrections), rows)))
        offered, unending = (row_of(both, half) for half in (slice(size), slice(size, None)))
        parts.append((offered, unending, drawn))
    found: tuple[SteadyState, SteadyState, Drawn] = jax.tree.map(
        lambda *own: np.concatenate(own)[:count], *parts
    )
    return found


Solved = tuple[SteadyState, Drawn]


@kept
def _solve(systems: CaseArrays, corrections: Corrections) -> Solved:
    """Steady states of the loads, then of the same requests without end; latencies of the first.

    The throughput of requests without end is the saturation throughput.
    """
    both = jax.tree.map(
        lambda *x: jnp.concatenate(x), (systems, corrections), (_unending(systems), corrections)
    )
    states = jax.vmap(_state)(*both)
    count = systems.demand.rate.shape[0]
    offered = jax.tree.map(lambda x: x[:count], states)
    return states, jax.vmap(latencies_at_points)(offered, systems.demand)


@kept
def solve_offered(systems: CaseArrays, corrections: Corrections) -> Solved:
    """Steady states of the loads, and their latencies at points that stand for all."""
    states = jax.vmap(_state)(systems, corrections)
    return states, jax.vmap(latencies_at_points)(states, systems.demand)


@kept
def solve_saturated(systems: CaseArrays, corrections: Corrections) -> AnyArray:
    """Saturation throughputs: those of the same requests without end, requests per second."""
    return jax.vmap(_state)(_unending(systems), corrections).throughput


def _state(system: CaseArrays, corrections: Corrections) -> SteadyState:
    return steady_state(system.model(corrections), system.demand, system.limits)


def _unending(systems: CaseArrays) -> CaseArrays:
    return replace(systems, demand=jax.vmap(Demand.unending)(systems.demand))


def latencies_at_points(state: SteadyState, demand: Demand) -> Drawn:
    """Latencies at points that stand for all requests of a load in its steady state.

    Args:
        state: The steady state.
        demand: The load.
    """
    if state.host_hit_rate is not None:
        demand = demand.with_loads(
            state.first_token.loading, state.host_hit_rate, state.fetching_s, state.disk_hit_rate
        )
    return steady_latencies(state.chances, state.itl, demand.with_hit_rate(state.hit_rate))


def _prediction(
    case: Case,
    state: SteadyState,
    unbounded: SteadyState,
    requests: Requests,
    percentiles: Mapping[str, np.ndarray],
    fit: str,
) -> Prediction:
    load, saturated, requests_per_s = case.demanded, state.saturated, state.throughput
    single = load.mean_output == 1
    means = {
        "ttft": None if saturated else state.ttft,
        "itl": None if single else state.itl,
        "tpot": None if single else state.itl,
        "e2e": None if saturated else state.e2e,
    }
    latencies = {
        metric: dict(zip(STATISTICS, (mean, *percentiles[metric].tolist()), strict=True))
        for metric, mean in means.items()
        if mean is not None
    }
    pool = PoolPrediction(
        case.server,
        saturation_rps=unbounded.throughput,
        batch=state.batch,
        running=state.running,
        kv_use=state.kv_use,
        hit_rate=state.hit_rate,
        host_hit_rate=state.host_hit_rate or 0.0,
        disk_hit_rate=state.disk_hit_rate or 0.0,
        mixed_share=state.mixed_share,
        step_s=state.step.interval,
        step_parts_s=state.step.parts,
    )
    return Prediction(
        model=case.model.name,
        load=load,
        fit=fit,
        method="fluid",
        ttft_s=means["ttft"],
        ttft_parts_s={}
        if saturated
        else {name: getattr(state.first_token, name) for name in FIRST_TOKEN_PARTS},
        itl_s=means["itl"],
        e2e_s=means["e2e"],
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * load.mean_output,
        saturated=saturated,
        pools=(pool,),
        whole=StageLatencies(load.rate, None, None, None, latencies, requests),
        stages=(),
        timeline=None,
        scenario=(*case.taken, *taken_of_load(load)),
        assumptions=(
            *case.notes,
            *assumptions(case.server),
            *evictions(case, state.hit_rate, state.host_hit_rate or 0.0),
            *slow_writes(case, requests_per_s, state.hit_rate),
            *_doubt_of_sampling(case, state),
            *_lost_when_full(load, state, unbounded),
            *([_LOCKSTEP] if state.in_step > _IN_STEP and _makes_long_steps(load) else []),
        ),
    )


def _doubt_of_sampling(case: Case, state: SteadyState) -> list[str]:
    """What greedy requests would change, where it is not known how tokens are drawn."""
    server = case.server
    if server.sampling_is_known or server.sampling == "greedy":
        return []
    placement = Placement(server)
    taken, greedy = state.step.parts["sampling"], greedy_seconds(placement, state.running)
    return [
        f"how tokens were drawn is not known: {server.sampling} sampling is taken, "
        f"{taken * 1e3:.2f} ms a step, which greedy requests would have in {greedy * 1e3:.2f}"
    ]


def _lost_when_full(load: Load, state: SteadyState, unbounded: SteadyState) -> list[str]:
    """What a load that is served would lose if all slots were taken once."""
    kept_up = load.concurrency is None and not state.saturated
    if not kept_up or state.throughput < _LOST_WHEN_FULL * unbounded.throughput:
        return []
    return [
        f"once requests queue, the server completes {unbounded.throughput:.3g} req/s, fewer than "
        "arrive: a queue that a burst leaves may stay until fewer requests arrive"
    ]


def _makes_long_steps(load: Load) -> bool:
    """Whether the prompts of all clients together make a long step."""
    return (load.concurrency or 0.0) * (load.mean_input - load.cached_tokens) > _LONG_STEP_TOKENS
