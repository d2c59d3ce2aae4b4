"""Loads and traces replayed request by request."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.lengths import observed
from physim.inputs.load import Load
from physim.inputs.request_lengths import RequestLengths
from physim.prediction.arrays import step_model_of
from physim.prediction.requests import OF_A_REQUEST, Requests
from physim.prediction.results import Prediction, StageLatencies, Timeline, over_time
from physim.prediction.steady import steady
from physim.replay.cluster import replay
from physim.replay.config import ReplayConfig
from physim.replay.outcome import Replayed, completed_of
from physim.replay.step_times import ModelStepTimes
from physim.replay.workload import Workload, drawn, read_trace
from physim.step.front_end import handover_beyond_steps, output_s, outside_s, warm_up_s

if TYPE_CHECKING:
    import pandas as pd

# Requests that are replayed of a load without end.
REPLAYED = 5000
# Over the requests that come while the first conversations are held, and at most over `REPLAYED`.
_PART, _LONGER = 5, 8
# Points of a timeline, at most.
_POINTS = 1000


def config_of(case: Case, corrections: Corrections, requests: float) -> ReplayConfig:
    """The server of a case, with the constants of its front end.

    Args:
        case: The case.
        corrections: Corrections of the constants.
        requests: Requests of a step, mean, whose output is handled together.
    """
    server, load = case.server, case.load
    return ReplayConfig(
        server.sizes,
        server.kv,
        server.policy,
        server.parallelism,
        draft=server.draft,
        front_end_s=float(outside_s(corrections)),
        output_s=float(output_s(corrections, requests)),
        output_steps=float(handover_beyond_steps(corrections, server.policy.async_scheduling)),
        warm_up_s=0.0 if load is None else float(warm_up_s(corrections, load.warm_up_s)),
    )


def replayed(prediction: Prediction, case: Case, corrections: Corrections, seed: int) -> Prediction:
    """The prediction for a case by replaying its requests.

    Of a load without end, `REPLAYED` requests are; of long conversations more.

    Args:
        prediction: The steady state of the load.
        case: The case.
        corrections: Corrections of the components.
        seed: Seed of the requests.

    Raises:
        InputError: The replay cannot do this.
    """
    result = replay_load(case, corrections, prediction.pool.running, seed)
    return replayed_prediction(prediction, case, result)


def _ending(load: Load) -> Load:
    """The load, or so many requests of one without end as are replayed.

    Conversations at a rate take a while until as many are under way as will be: that is a fifth of
    the requests at most, if need be of `_LONGER` times as many.
    """
    if not load.endless:
        return load
    requests = REPLAYED
    if load.conversing and load.rate is not None:
        begin = load.rate * load.think_s * load.turn_sample.met_turns
        requests = round(min(max(requests, _PART * begin), _LONGER * requests))
    return dataclasses.replace(load, requests=requests)


def replay_load(case: Case, corrections: Corrections, running: float, seed: int) -> Replayed:
    """Replays a case's load; of one without end, `REPLAYED` requests, of long conversations more.

    Args:
        case: The case.
        corrections: Corrections of the components.
        running: Requests that run at once, mean, for what handing tokens out takes.
        seed: Seed of the requests, and of what is accepted of drafts.

    Raises:
        InputError: The replay cannot do this.
    """
    load = _ending(case.demanded)
    workload = drawn(load, case.server, seed)
    return replay_of(workload, case, corrections, running, load.timeout_s, seed)


def replayed_prediction(prediction: Prediction, case: Case, result: Replayed) -> Prediction:
    """The prediction that a replay of a case's load gives.

    Args:
        prediction: The steady state of the load.
        case: The case.
        result: The replay, by `replay_load`.

    Raises:
        InputError: No request was completed.
    """
    load = _ending(case.demanded)
    stages = () if load.concurrency is not None else load.schedule()
    return _prediction(prediction, result, [(s.rate, s.duration_s) for s in stages])


def replay_trace(
    case: Case, trace: Path, corrections: Corrections, fit: str, timeout_s: float | None
) -> Prediction:
    """Replays a recorded trace; see `physim.predict_trace`."""
    longest = case.server.sizes.max_model_len
    workload = read_trace(trace, case.server.kv.block_size)
    if workload.longest > longest:
        raise InputError(
            str(trace),
            f"has a request of {workload.longest} tokens, beyond max_model_len {longest}",
            "remove it or raise max_model_len",
        )
    result = replay_of(workload, case, corrections, 0.0, timeout_s)
    alike = steady([case.under(_stand_in(result))], [corrections], fit)[0]
    # Nothing that has left the engine comes back, so how long it takes to leave can be known last.
    result.config = config_of(case, corrections, alike.pool.running)
    # Its requests are as they are in the trace.
    return dataclasses.replace(_prediction(alike, result, []), load=None, scenario=case.taken)


def _stand_in(result: Replayed) -> Load:
    """The load that stands for a trace where the engine's state is described.

    It has the trace's rate, and of the requests that ran the lengths and the tokens found in the
    prefix cache. Where these differ among requests, prompts differ by what is computed of them;
    where the cache has no room for a request with each prefix, each request has its own.
    """
    arrivals = [request.arrival_s for request in result.requests]
    ran = [one for one in result.requests if one.scheduled_s is not None] or result.requests
    found = np.array([request.cached_tokens for request in ran])
    size, ranks = result.config.kv.block_size, result.config.parallelism.dp
    longest = result.config.sizes.max_model_len
    cached = float(np.rint(found.mean() / size) * size)
    inputs, outputs = (
        np.array([getattr(one, name) for one in ran]) for name in ("input_tokens", "output_tokens")
    )
    rate = len(arrivals) / max(arrivals[-1] - arrivals[0], 1e-3)
    # Every rank keeps prefixes of its own.
    prefixes = max(len({id(one.path[0]) for one in ran if one.cached_tokens}) // ranks, 1)
    if prefixes * (inputs + outputs).mean() > result.config.kv.tokens:
        return Load.of_requests(RequestLengths.from_columns(inputs, outputs, found), rate=rate)
    return Load(
        input_tokens=observed(np.minimum(cached + inputs - found, longest - 1.0).tolist()),
        output_tokens=observed(outputs.tolist()),
        rate=rate,
        cached_tokens=cached,
        prefixes=prefixes,
    )


def replay_of(
    workload: Workload,
    case: Case,
    corrections: Corrections,
    running: float = 0.0,
    timeout_s: float | None = None,
    seed: int = 0,
) -> Replayed:
    """Replays requests on a case's server.

    Args:
        workload: The requests.
        case: The server.
        corrections: Corrections of its steps and front end.
        running: Requests that run at once, mean, for what handing tokens out takes.
        timeout_s: When a client gives up; None for never.
        seed: Seed of what is accepted of drafts.
    """
    sizes = case.server.sizes
    times = ModelStepTimes(
        step_model_of(case, corrections),
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        workload.longest,
        case.server.parallelism.dp,
        case.server.query_tokens,
    )
    return replay(workload, times, config_of(case, corrections, running), timeout_s, seed=seed)


def _prediction(
    prediction: Prediction, result: Replayed, stages: Sequence[tuple[float, float]]
) -> Prediction:
    frame = result.to_frame()
    completed = completed_of(frame)
    if completed.empty:
        raise InputError("load", "has no request that is completed", "make it lighter or longer")
    ends = np.cumsum([duration for _, duration in stages], dtype=float).tolist()
    parts = [
        # What runs on after the last stage is a part of it.
        _part(
            result,
            frame[frame["stage"] == number],
            (rate, duration),
            (ends[number] - duration, math.inf if number == len(stages) - 1 else ends[number]),
        )
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
        kv_use=(samples.kv_blocks[some] / result.config.kv_blocks).tolist(),
        arrival_s=sent["arrival_s"].tolist(),
        ttft_s=sent["ttft_s"].tolist(),
    )
    span = float(completed["finished_s"].max() - frame["arrival_s"].min())
    ran = [one for one in result.requests if one.scheduled_s is not None]
    found = sum(one.cached_tokens for one in ran) / sum(one.input_tokens for one in ran)
    return over_time(
        dataclasses.replace(
            prediction, pools=(dataclasses.replace(prediction.pool, hit_rate=found),)
        ),
        "replay",
        _part(result, frame, (rate, duration), (0.0, math.inf)),
        parts,
        timeline,
        len(completed) / span,
        float(completed["output_tokens"].sum()) / span,
    )


def _part(
    result: Replayed,
    frame: pd.DataFrame,
    stage: tuple[float | None, float | None],
    between_s: tuple[float, float],
) -> StageLatencies:
    completed = completed_of(frame)
    ttft, tpot, e2e = (completed[f"{name}_s"].to_numpy() for name in OF_A_REQUEST)
    return StageLatencies(
        *stage,
        len(frame),
        len(completed),
        result.latencies(completed, *between_s),
        Requests(
            ttft,
            # A request of one token keeps to any bound on what is between tokens.
            np.nan_to_num(tpot),
            e2e,
            completed["input_tokens"].to_numpy(float),
            None,
            len(completed) / max(len(frame), 1),
        ),
    )
