"""Loads and traces replayed request by request."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from physim.corrections.fields import Corrections
from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.kept import kept
from physim.prediction.arrays import step_model_of
from physim.prediction.requests import OF_A_REQUEST, Requests
from physim.prediction.results import (
    PoolTimeline,
    Prediction,
    StageLatencies,
    Timeline,
    over_time,
    refuse_unanswered,
)
from physim.replay.cluster import ReplayPool, replay_pools
from physim.replay.config import ReplayConfig
from physim.replay.outcome import EngineSamples, Replayed, completed_of
from physim.replay.step_times import ModelStepTimes
from physim.replay.workload import Workload, drawn
from physim.service.phases import DECODE, PREFILL
from physim.step.front_end import (
    handover_beyond_steps,
    output_s,
    outside_s,
    tokens_outside_s,
    warm_up_s,
)
from physim.types import Number, Scalar

if TYPE_CHECKING:
    import pandas as pd

# Requests that are replayed of a load without end.
REPLAYED = 5000
# Over the requests that come while the first conversations are held, and at most over `REPLAYED`.
_PART, _LONGER = 10, 8
# Points of a timeline, at most.
_POINTS = 1000


def config_of(case: Case, corrections: Corrections, place: int = 0) -> ReplayConfig:
    """A server of a case, with the constants of its front end.

    Args:
        case: The case.
        corrections: Corrections of the constants.
        place: The place of its pool in the service.
    """
    pool, load = case.service.pools[place], case.load
    server = pool.server
    front_end, of_tokens, output, beyond_steps, warm_up = map(
        float,
        _outside_steps(
            corrections,
            server.profile.prompt_token_s,
            float(server.policy.async_scheduling),
            0.0 if load is None else load.warm_up_s,
        ),
    )
    return ReplayConfig(
        server.sizes,
        server.kv,
        server.policy,
        server.parallelism,
        phases=pool.phases,
        draft=server.draft,
        padded_tokens=server.padded_tokens,
        front_end_s=front_end,
        front_end_per_token_s=of_tokens,
        output_per_request_s=output,
        output_steps=beyond_steps,
        warm_up_s=warm_up,
    )


@kept
def _outside_steps(
    corrections: Corrections, prompt_token_s: Number, scheduled_ahead: Number, loading_s: Number
) -> tuple[Scalar, ...]:
    """Times outside of steps: see the fields of `ReplayConfig` from ``front_end_s`` on."""
    return (
        outside_s(corrections),
        tokens_outside_s(corrections, prompt_token_s),
        output_s(corrections, 1.0),
        handover_beyond_steps(corrections, scheduled_ahead),
        warm_up_s(corrections, loading_s),
    )


def replayed(prediction: Prediction, case: Case, corrections: Corrections, seed: int) -> Prediction:
    """The prediction for a case by replaying its requests.

    Of a load without end, `REPLAYED` requests are; more if it begins slowly.

    Args:
        prediction: The steady state of the load.
        case: The case.
        corrections: Corrections of the components.
        seed: Seed of the requests.

    Raises:
        InputError: The replay cannot do this.
    """
    result = replay_load(case, corrections, seed, prediction)
    return replayed_prediction(prediction, case, result)


def _ending(load: Load, under_way: float = 0.0) -> Load:
    """The load, or so many requests of one without end as are replayed.

    At a rate it takes a while until as many requests are under way as will be, and as many
    conversations. Those that begin meanwhile are a tenth of the requests at most, if need be of
    `_LONGER` times as many.

    Args:
        load: The load.
        under_way: Requests that will be under way.
    """
    if not load.endless:
        return load
    begin = under_way
    if load.conversing and load.rate is not None:
        begin += load.rate * load.think_s * load.turn_sample.met_turns
    requests = round(min(max(REPLAYED, _PART * begin), _LONGER * REPLAYED))
    return dataclasses.replace(load, requests=requests)


def replay_load(
    case: Case, corrections: Corrections, seed: int, prediction: Prediction | None = None
) -> Replayed:
    """Replays a case's load; of one without end, `REPLAYED` requests, or more if it begins slowly.

    Args:
        case: The case.
        corrections: Corrections of the components.
        seed: Seed of the requests, and of what is accepted of drafts.
        prediction: The steady state of the load, which says how many requests will be under way.

    Raises:
        InputError: The replay cannot do this.
    """
    pools = () if prediction is None else prediction.pools
    load = _ending(case.demanded, sum(pool.running * pool.replicas for pool in pools))
    workload = drawn(load, case.server_of(DECODE), seed)
    return replay_of(workload, case, corrections, load.timeout_s, seed)


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
    return prediction_of(prediction, result, [(s.rate, s.duration_s) for s in stages])


def replay_of(
    workload: Workload,
    case: Case,
    corrections: Corrections,
    timeout_s: float | None = None,
    seed: int = 0,
) -> Replayed:
    """Replays requests on a case's servers.

    Args:
        workload: The requests.
        case: The servers.
        corrections: Corrections of their steps and front ends.
        timeout_s: When a client gives up; None for never.
        seed: Seed of what is accepted of drafts, and of what a router leaves to chance.
    """
    service = case.service
    pools = [
        replay_pool(case, corrections, workload.longest, place)
        for place in range(len(service.pools))
    ]
    transfers = [
        service.link.transfer(source.server, target.server)
        for source, target in pairwise(service.pools)
        if service.link is not None
    ]
    return replay_pools(
        workload,
        pools,
        transfers,
        service.router,
        timeout_s,
        seed=seed,
        router_age_s=service.router_age_s,
    )


def replay_pool(case: Case, corrections: Corrections, longest: int, place: int = 0) -> ReplayPool:
    """A pool of a case, for a replay.

    Args:
        case: The case.
        corrections: Corrections of its steps and front ends.
        longest: Most tokens of a request, prompt and output together.
        place: The place of the pool in the service.
    """
    pool = case.service.pools[place]
    sizes, layout = pool.server.sizes, pool.server.parallelism
    times = ModelStepTimes(
        step_model_of(case.with_server(pool.server), corrections),
        sizes.max_num_seqs,
        sizes.max_num_batched_tokens,
        longest,
        layout.dp,
        pool.server.query_tokens,
    )
    return ReplayPool(times, config_of(case, corrections, place), pool.replicas)


def prediction_of(
    prediction: Prediction, result: Replayed, stages: Sequence[tuple[float, float]]
) -> Prediction:
    """The prediction that a replay gives.

    Args:
        prediction: The steady state of such a load.
        result: The replay.
        stages: The rate and the seconds of each stage of the load.

    Raises:
        InputError: No request was completed.
    """
    frame = result.to_frame()
    completed = completed_of(frame)
    refuse_unanswered(len(completed))
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
    sent = completed.iloc[np.unique(np.linspace(0, len(completed) - 1, _POINTS).astype(int))]
    timeline = Timeline(
        **dataclasses.asdict(_over_time(result.samples, result.kv_blocks)),
        arrival_s=sent["arrival_s"].tolist(),
        ttft_s=sent["ttft_s"].tolist(),
        pools=tuple(_over_time(samples, blocks) for samples, blocks in result.pools),
    )
    span = float(completed["finished_s"].max() - frame["arrival_s"].min())
    ran = [one for one in result.requests if one.scheduled_s is not None]
    tokens = sum(one.input_tokens for one in ran)
    found = sum(one.cached_tokens for one in ran) / tokens
    loaded = sum(one.loaded_tokens for one in ran) / tokens
    fetched = sum(one.fetched_tokens for one in ran) / tokens
    pools = [
        # Whose prompts come with their keys and values finds nothing.
        dataclasses.replace(
            pool, hit_rate=found, host_hit_rate=loaded, disk_hit_rate=min(fetched, loaded)
        )
        if PREFILL in pool.phases
        else pool
        for pool in prediction.pools
    ]
    return over_time(
        dataclasses.replace(prediction, pools=tuple(pools)),
        "replay",
        _part(result, frame, (rate, duration), (0.0, math.inf)),
        parts,
        timeline,
        len(completed) / span,
        float(completed["output_tokens"].sum()) / span,
    )


def _over_time(samples: EngineSamples, kv_blocks: int) -> PoolTimeline:
    """Some of the looks at servers.

    Args:
        samples: All of them.
        kv_blocks: KV blocks of the servers.
    """
    some = np.unique(np.linspace(0, len(samples.time_s) - 1, _POINTS).astype(int))
    return PoolTimeline(
        time_s=samples.time_s[some].tolist(),
        waiting=samples.waiting[some].tolist(),
        running=samples.running[some].tolist(),
        kv_use=(samples.kv_blocks[some] / kv_blocks).tolist(),
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
