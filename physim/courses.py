"""Loads that end or change, run through the fluid's equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np

from physim.cases import Case, arrays, padded
from physim.corrections import Corrections
from physim.errors import InputError
from physim.results import Part, Prediction, Timeline, with_course
from physim.serving.demand import Demand, Limits
from physim.serving.latencies import Summary, latencies
from physim.serving.percentiles import PERCENTILES
from physim.serving.transient import Course, Fluid, Schedule
from physim.stacking import stack
from physim.step.lowering import StepOps
from physim.step.model import StepModel

Record = TypeVar("Record", Course, Summary)


def run_cases(
    predictions: Sequence[Prediction],
    cases: Sequence[Case],
    corrections: Sequence[Corrections],
    mixed: str,
) -> list[Prediction]:
    """Predictions for the courses of loads of equally many stages.

    Args:
        predictions: What the cases' busiest stages would settle to.
        cases: The cases; clients of all give up after some time, or of none.
        corrections: Corrections of each case.
        mixed: How steps of both prefill and decode are composed.
    """
    more = padded(cases)
    schedules = stack([_schedule(case) for case in more])
    ops, demands, limits = arrays(more)
    course, summary = jax.tree.map(
        np.asarray, _run(ops, stack(padded(corrections)), demands, limits, schedules, mixed)
    )
    for row, case in enumerate(cases):
        if not (course.solved[row] and np.isfinite(summary.e2e[row]).all()):
            raise InputError(
                f"{case.model.name} under {case.load.describe()}",
                "has a course that the fluid's solver could not follow",
                "use the method replay",
            )
    return [
        _prediction(prediction, case, _row(course, row), _row(summary, row))
        for row, (prediction, case) in enumerate(zip(predictions, cases, strict=True))
    ]


def course_of(case: Case, corrections: Corrections, mixed: str = "additive") -> Course:
    """What an engine does over time under one load that ends.

    Args:
        case: The case.
        corrections: Corrections of the components.
        mixed: How steps of both prefill and decode are composed.
    """
    ops, demands, limits = arrays([case])
    schedules = stack([_schedule(case)])
    course, _ = _run(ops, stack([corrections]), demands, limits, schedules, mixed)
    return _row(jax.tree.map(np.asarray, course), 0)


def _schedule(case: Case) -> Schedule:
    stages = case.load.schedule()
    return Schedule(
        rates=np.array([float(stage.rate) for stage in stages]),
        ends=np.cumsum([float(stage.duration_s) for stage in stages]),
        timeout=case.load.timeout_s,
    )


@jax.jit(static_argnames="mixed")
def _run(
    ops: StepOps,
    corrections: Corrections,
    demands: Demand,
    limits: Limits,
    schedules: Schedule,
    mixed: str,
) -> tuple[Course, Summary]:
    def one(
        ops: StepOps,
        corrections: Corrections,
        demand: Demand,
        limits: Limits,
        schedule: Schedule,
    ) -> tuple[Course, Summary]:
        fluid = Fluid.of(StepModel(ops, corrections, mixed), demand, limits)
        course = fluid.run(schedule)
        return course, latencies(fluid, course, schedule)

    return jax.vmap(one)(ops, corrections, demands, limits, schedules)


def _row(records: Record, row: int) -> Record:
    picked: Record = jax.tree.map(lambda leaf: leaf[row], records)
    return picked


def _prediction(prediction: Prediction, case: Case, course: Course, summary: Summary) -> Prediction:
    stages = case.load.schedule()
    single = case.load.mean_output == 1
    parts = []
    for row in range(len(summary.ttft)):
        values = {
            "ttft": (summary.ttft, summary.ttft_percentiles),
            "itl": (summary.itl, summary.itl_percentiles),
            "e2e": (summary.e2e, summary.e2e_percentiles),
        }
        several = {
            metric: {"mean": float(means[row])}
            | {f"p{q}": float(v) for q, v in zip(PERCENTILES, percentiles[row], strict=True)}
            for metric, (means, percentiles) in values.items()
            if not (metric == "itl" and single)
        }
        stage = stages[row] if row < len(stages) else None
        parts.append(
            Part(
                rate=stage.rate if stage else None,
                duration_s=sum(s.duration_s for s in stages) if stage is None else stage.duration_s,
                arrived=float(summary.arrived[row]),
                completed=float(summary.completed[row]),
                latencies=several,
            )
        )
    _, first = np.unique(course.time, return_index=True)
    timeline = Timeline(
        time_s=course.time[first].tolist(),
        waiting=course.waiting[first].tolist(),
        running=np.maximum(course.running[first], 0.0).tolist(),
        # Beyond all blocks a request would be preempted, which the fluid's seats only follow.
        kv_use=np.clip(course.kv_use[first], 0.0, 1.0).tolist(),
        arrival_s=summary.arrival_s.ravel().tolist(),
        ttft_s=summary.ttft_s.ravel().tolist(),
    )
    throughput = float(summary.completed[-1] / summary.finished_s[-1])
    return with_course(
        prediction,
        "fluid",
        parts[-1],
        parts[:-1],
        timeline,
        throughput,
        throughput * case.load.mean_output,
    )
