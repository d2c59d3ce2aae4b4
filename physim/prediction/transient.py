"""Loads that end or change, run through the fluid's equations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jaxtyping import Float

from physim.batching.prefix_loads import loads_of
from physim.corrections.fields import Corrections
from physim.errors import UnsolvedError
from physim.fluid.request_latencies import Summary, latencies
from physim.fluid.schedule import Schedule, StageLengths
from physim.fluid.trajectory import Trajectory
from physim.fluid.transient import Fluid
from physim.inputs.case import Case
from physim.inputs.stages import RecordedStage
from physim.kept import kept
from physim.metrics import METRICS, STATISTICS
from physim.prediction.arrays import CaseArrays, padded, prompts_of_strata, row_of, stack
from physim.prediction.requests import Requests
from physim.prediction.results import (
    Prediction,
    StageLatencies,
    Timeline,
    over_time,
    refuse_unanswered,
)
from physim.prediction.steady import solve_offered
from physim.types import AnyArray, Scalar

# How often numbers are used beside a steady state's: of a server, in each row of a table of steps,
# and of the table, a few at a time, by what runs through it.
_TABLE_USES, _RUN_USES = 10.0, 0.03


def run_cases(
    predictions: Sequence[Prediction], cases: Sequence[Case], corrections: Sequence[Corrections]
) -> list[Prediction]:
    """Predictions for the trajectories of loads of equally many stages.

    Args:
        predictions: The steady states of the cases' busiest stages.
        cases: The cases, whose mixed steps are composed alike; clients of all give up after some
            time, or of none.
        corrections: Corrections of each case.
    """
    more = padded(cases)
    schedules = stack([_schedule(case) for case in more])
    known = padded(predictions)
    hit_rates = np.array([one.pool.hit_rate for one in known])
    tiers = None
    if any(case.server.kv.host for case in cases):
        # Of what is above its capacity no time is known.
        tiers = np.array(
            [(one.pool.host_hit_rate, one.ttft_parts_s.get("loading", 0.0)) for one in known]
        )
    trajectory, summary = _run_all(
        CaseArrays.from_cases(more), stack(padded(corrections)), schedules, hit_rates, tiers
    )
    for row, case in enumerate(cases):
        if not (trajectory.solved[row] and np.isfinite(summary.e2e[row]).all()):
            raise UnsolvedError(
                f"{case.model.name} under {case.demanded.describe()}",
                "changes in a way that the fluid's solver could not follow",
                "use the method replay",
            )
    return [
        _prediction(prediction, case, row_of(trajectory, row), row_of(summary, row))
        for row, (prediction, case) in enumerate(zip(predictions, cases, strict=True))
    ]


def trajectory_of(case: Case, corrections: Corrections) -> Trajectory:
    """What an engine does over time under one load that ends.

    Args:
        case: The case.
        corrections: Corrections of the components.
    """
    systems, every = CaseArrays.from_cases([case]), stack([corrections])
    states, _ = solve_offered(systems, every)
    tiers = None
    if states.host_hit_rate is not None:
        tiers = np.stack([states.host_hit_rate, states.first_token.loading], axis=1)
    trajectory, _ = _run_all(
        systems, every, stack([_schedule(case)]), np.asarray(states.hit_rate), tiers
    )
    return row_of(trajectory, 0)


def _schedule(case: Case) -> Schedule:
    load = case.demanded
    stages = load.schedule()
    recorded = [stage for stage in stages if isinstance(stage, RecordedStage)]
    lengths = None
    if recorded:
        lengths = StageLengths(*np.array([(one.prompts, one.outputs) for one in recorded]).T)
    outputs = 1.0 if lengths is None else lengths.outputs
    return Schedule(
        rates=np.array([float(stage.rate) for stage in stages]) * outputs,
        ends=np.cumsum([float(stage.duration_s) for stage in stages]),
        timeout=load.timeout_s,
        lengths=lengths,
    )


def _run_all(
    systems: CaseArrays,
    corrections: Corrections,
    schedules: Schedule,
    hit_rates: Float[np.ndarray, " cases"],
    tiers: Float[np.ndarray, "cases 2"] | None,
) -> tuple[Trajectory, Summary]:
    """Trajectories and latencies in NumPy."""
    fluids = jax.tree.map(np.asarray, _tabulated(systems, corrections, hit_rates, tiers))
    found: tuple[Trajectory, Summary] = jax.tree.map(np.asarray, _run(fluids, schedules))
    return found


@partial(kept, uses=_TABLE_USES)
def _tabulated(
    systems: CaseArrays,
    corrections: Corrections,
    hit_rates: Float[AnyArray, " cases"],
    tiers: Float[AnyArray, "cases 2"] | None,
) -> Fluid:
    def one(
        system: CaseArrays, corrections: Corrections, hit_rate: Scalar, tiers: AnyArray | None
    ) -> Fluid:
        demand, model = system.demand, system.model(corrections)
        lower = system.limits.lower
        if tiers is not None and lower is not None:
            loaded, loading = tiers
            demand = demand.with_loads(loading, loaded)
            found = (demand.loaded,) * len(lower.tiers)
            model = loads_of(lower, demand, 0.0, found).with_steps(model)
        return Fluid.tabulated(model, demand.with_hit_rate(hit_rate), system.limits)

    # Together, tables of some dozens of cases would take gigabytes, and longer.
    return jax.lax.map(lambda each: one(*each), (systems, corrections, hit_rates, tiers))


@partial(kept, uses=_RUN_USES)
def _run(fluids: Fluid, schedules: Schedule) -> tuple[Trajectory, Summary]:
    def one(fluid: Fluid, schedule: Schedule) -> tuple[Trajectory, Summary]:
        trajectory = fluid.run(schedule)
        return trajectory, latencies(fluid, trajectory, schedule)

    return jax.vmap(one)(fluids, schedules)


def _requests(case: Case, summary: Summary, stages: slice, arrived: float) -> Requests:
    samples, weight = summary.samples, summary.weight[stages].ravel()
    return Requests(
        samples.ttft[stages].ravel(),
        samples.tpot[stages].ravel(),
        samples.e2e[stages].ravel(),
        prompts_of_strata(case)[samples.stratum[stages].ravel()],
        weight,
        float(weight.sum() / arrived),
    )


def _prediction(
    prediction: Prediction, case: Case, trajectory: Trajectory, summary: Summary
) -> Prediction:
    load = case.demanded
    stages, single = load.schedule(), load.mean_output == 1
    parts = []
    for row in range(len(summary.ttft)):
        latencies = {
            metric: dict(
                zip(
                    STATISTICS,
                    (float(getattr(summary, metric)[row]), *percentiles[row].tolist()),
                    strict=True,
                )
            )
            for metric, percentiles in summary.percentiles.items()
            if not (metric in ("itl", "tpot") and single)
        }
        stage = stages[row] if row < len(stages) else None
        own = slice(None) if stage is None else slice(row, row + 1)
        parts.append(
            StageLatencies(
                rate=stage.rate if stage else None,
                duration_s=sum(s.duration_s for s in stages) if stage is None else stage.duration_s,
                arrived=float(summary.arrived[row]),
                completed=float(summary.completed[row]),
                latencies={metric: latencies[metric] for metric in METRICS if metric in latencies},
                requests=_requests(case, summary, own, float(summary.arrived[row])),
            )
        )
    _, first = np.unique(trajectory.time, return_index=True)
    timeline = Timeline(
        time_s=trajectory.time[first].tolist(),
        waiting=trajectory.waiting[first].tolist(),
        running=np.maximum(trajectory.running[first], 0.0).tolist(),
        # Beyond all blocks a request would be preempted, which the fluid's slots only follow.
        kv_use=np.clip(trajectory.kv_use[first], 0.0, 1.0).tolist(),
        arrival_s=summary.arrival_s.ravel().tolist(),
        ttft_s=summary.ttft_s.ravel().tolist(),
    )
    refuse_unanswered(float(summary.completed[-1]))
    throughput = float(summary.completed[-1] / summary.finished_s[-1])
    return over_time(
        prediction,
        "fluid",
        parts[-1],
        parts[:-1],
        timeline,
        throughput,
        throughput * load.mean_output,
    )
