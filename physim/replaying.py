"""Loads and traces replayed request by request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from physim.cases import Case
from physim.corrections import Corrections
from physim.errors import InputError
from physim.inputs.deployment import Deployment, ResolvedDeployment
from physim.inputs.hardware import load_hardware
from physim.inputs.models import load_model
from physim.results import Part, Prediction, Timeline, with_course
from physim.serving.demand import Limits
from physim.serving.first_token import handover_steps, output_s, outside_s
from physim.serving.load import Load
from physim.serving.replay import Engine, Replayed, replay, summarised
from physim.serving.step_times import ModelStepTimes
from physim.serving.workload import Workload, drawn, read_trace
from physim.settled import settled
from physim.step.lowering import lower
from physim.step.model import StepModel

if TYPE_CHECKING:
    import pandas as pd

# Requests that are replayed of a load without end.
REPLAYED = 5000
# Points of a timeline, at most.
_POINTS = 1000


def engine_of(deployment: ResolvedDeployment, corrections: Corrections, requests: float) -> Engine:
    """The engine of a deployment, with the constants of its front end.

    Args:
        deployment: The engine's limits.
        corrections: Corrections of the constants.
        requests: Requests of a step, mean, whose output is handled together.
    """
    limits = Limits.of(deployment)
    # A correction of the wait for the steps under way comes on top of what the replay waits.
    as_it_is = handover_steps(Corrections(), limits)
    return Engine(
        max_num_seqs=deployment.max_num_seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        kv_blocks=deployment.kv_blocks,
        block_size=deployment.block_size,
        async_scheduling=deployment.async_scheduling,
        front_end_s=float(outside_s(corrections)),
        output_s=float(output_s(corrections, requests)),
        output_steps=float(handover_steps(corrections, limits) - as_it_is),
    )


def replayed(
    prediction: Prediction, case: Case, corrections: Corrections, mixed: str, seed: int
) -> Prediction:
    """The prediction for a case by replaying its requests.

    Of a load without end, `REPLAYED` requests are.

    Args:
        prediction: What the load would settle to.
        case: The case.
        corrections: Corrections of the components.
        mixed: How steps of both prefill and decode are composed.
        seed: Seed of the requests.

    Raises:
        InputError: The replay cannot do this.
    """
    load = case.load
    if load.endless:
        load = dataclasses.replace(load, requests=REPLAYED)
    workload = drawn(load, case.deployment.block_size, seed)
    stages = () if load.concurrency is not None else load.schedule()
    model = StepModel(lower(case.model, case.gpu, case.deployment), corrections, mixed)
    result = _replay(workload, model, case.deployment, prediction.running, load.timeout_s)
    return _prediction(prediction, result, [(s.rate, s.duration_s) for s in stages])


def replay_trace(
    model: str | Path,
    trace: Path,
    gpu: str,
    deployment: Deployment,
    corrections: Corrections,
    fit: str,
    timeout_s: float | None,
) -> Prediction:
    """Replays a recorded trace; see `physim.predict_trace`."""
    arch, hardware = load_model(model), load_hardware(gpu)
    resolved = deployment.resolved(arch, hardware)
    workload = read_trace(trace, resolved.block_size)
    if workload.longest > resolved.max_model_len:
        raise InputError(
            str(trace),
            f"has a request of {workload.longest} tokens, beyond max_model_len "
            f"{resolved.max_model_len}",
            "remove it or raise max_model_len",
        )
    requests = workload.requests
    # The trace's means stand for it where the engine's state is described.
    span = max(requests[-1].arrival_s - requests[0].arrival_s, 1e-3)
    load = Load(
        input_tokens=float(np.mean([r.input_tokens for r in requests])),
        output_tokens=float(np.mean([r.output_tokens for r in requests])),
        rate=len(requests) / span,
    )
    case = Case(arch, hardware, resolved, load)
    alike = settled([case], [corrections], fit, "additive")[0]
    stepper = StepModel(lower(arch, hardware, resolved), corrections)
    result = _replay(workload, stepper, resolved, alike.running, timeout_s)
    return dataclasses.replace(_prediction(alike, result, []), load=None)


def _replay(
    workload: Workload,
    model: StepModel,
    deployment: ResolvedDeployment,
    running: float,
    timeout_s: float | None,
) -> Replayed:
    times = ModelStepTimes(
        model, deployment.max_num_seqs, deployment.max_num_batched_tokens, workload.longest
    )
    engine = engine_of(deployment, model.corrections, running)
    return replay(workload, times, engine, timeout_s)


def _prediction(
    prediction: Prediction, result: Replayed, stages: Sequence[tuple[float, float]]
) -> Prediction:
    frame = result.to_frame()
    completed = frame[frame["state"] == "completed"]
    if completed.empty:
        raise InputError("load", "has no request that is completed", "make it lighter or longer")
    parts = [
        _part(frame[frame["stage"] == number], rate, duration)
        for number, (rate, duration) in enumerate(stages)
    ]
    rate, duration = stages[0] if len(stages) == 1 else (None, sum(d for _, d in stages) or None)
    samples = result.samples
    some = np.unique(np.linspace(0, len(samples.time_s) - 1, _POINTS).astype(int))
    sent = completed.iloc[np.unique(np.linspace(0, len(completed) - 1, _POINTS).astype(int))]
    timeline = Timeline(
        time_s=samples.time_s[some].tolist(),
        waiting=samples.waiting[some].tolist(),
        running=samples.running[some].tolist(),
        kv_use=(samples.kv_blocks[some] / result.engine.kv_blocks).tolist(),
        arrival_s=sent["arrival_s"].tolist(),
        ttft_s=sent["ttft_s"].tolist(),
    )
    span = float(completed["finished_s"].max() - frame["arrival_s"].min())
    return with_course(
        prediction,
        "replay",
        _part(frame, rate, duration),
        parts,
        timeline,
        len(completed) / span,
        float(completed["output_tokens"].sum()) / span,
    )


def _part(frame: pd.DataFrame, rate: float | None, duration_s: float | None) -> Part:
    completed = frame[frame["state"] == "completed"]
    return Part(rate, duration_s, len(frame), len(completed), summarised(completed))
