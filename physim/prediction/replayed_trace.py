"""Recorded traces replayed request by request."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.lengths import observed
from physim.inputs.load import Load
from physim.inputs.request_lengths import RequestLengths
from physim.prediction.many import predict_cases
from physim.prediction.replayed import prediction_of, replay_of
from physim.prediction.results import Prediction
from physim.replay.outcome import Replayed
from physim.replay.workload import Workload, read_trace
from physim.service.phases import DECODE

# From so many times what is served on, or times between requests over what one takes, those of a
# trace are likely in another unit.
_ODD = 100


def replay_trace(
    case: Case, trace: Path, corrections: Corrections, fit: str, timeout_s: float | None
) -> Prediction:
    """Replays a recorded trace; see `physim.predict_trace`."""
    workload = recorded_workload(case, trace)
    result = replay_of(workload, case, corrections, timeout_s)
    servers = case.service.pools[0].replicas
    alike = predict_cases([case.under(_stand_in(result, servers))], [corrections], fit)[0]
    found = prediction_of(alike, result, [])
    notes = (*found.assumptions, *_odd_times(result, found))
    # Its requests are as they are in the trace.
    return dataclasses.replace(found, load=None, scenario=case.taken, assumptions=notes)


def _odd_times(result: Replayed, found: Prediction) -> list[str]:
    """What to look at where a trace's times seem to be in another unit."""
    times = [request.arrival_s for request in result.requests]
    apart_s = (times[-1] - times[0]) / max(len(times) - 1, 1)
    units = "arrival_s holds seconds, and timestamp milliseconds"
    asked = 1 / (apart_s * found.saturation_rps) if apart_s > 0 else 0.0
    if asked > _ODD:
        return [f"the trace asks for {asked:.0f} times what is served at most; {units}"]
    if found.e2e_s is not None and apart_s > _ODD * found.e2e_s:
        return [f"the trace's requests come {apart_s:.3g} s apart, mean; {units}"]
    return []


def recorded_workload(case: Case, trace: Path) -> Workload:
    """The requests of a recorded trace, as a case serves them.

    Args:
        case: The case.
        trace: The trace; see `physim.predict_trace`.

    Raises:
        InputError: The trace cannot be read, or a request is longer than the engine takes.
    """
    server = case.server_of(DECODE)
    longest = server.sizes.max_model_len
    workload = read_trace(trace, server.kv.block_size)
    if workload.longest > longest:
        raise InputError(
            str(trace),
            f"has a request of {workload.longest} tokens, beyond max_model_len {longest}",
            "remove it or raise max_model_len",
        )
    return workload


def _stand_in(result: Replayed, servers: int) -> Load:
    """The load that stands for a trace where the engine's state is described.

    It has the trace's rate, and of the requests that ran the lengths and the tokens found in the
    prefix cache. Where these differ among requests, prompts differ by what is computed of them;
    where the cache has no room for a request with each prefix, each request has its own.
    """
    arrivals = [request.arrival_s for request in result.requests]
    ran = [one for one in result.requests if one.scheduled_s is not None] or result.requests
    found = np.array([request.cached_tokens for request in ran])
    size, ranks = result.entry.kv.block_size, servers * result.entry.parallelism.dp
    longest = result.config.sizes.max_model_len
    cached = float(np.rint(found.mean() / size) * size)
    inputs, outputs = (
        np.array([getattr(one, name) for one in ran]) for name in ("input_tokens", "output_tokens")
    )
    rate = len(arrivals) / max(arrivals[-1] - arrivals[0], 1e-3)
    sharing = [one for one in ran if one.cached_tokens]
    # What a request shares is forgotten where it goes on to another pool.
    is_told = all(one.path for one in sharing)
    # Every rank keeps prefixes of its own.
    prefixes = max(len({id(one.path[0]) for one in sharing if one.path}) // ranks, 1)
    if not is_told or prefixes * (inputs + outputs).mean() > result.entry.kv.tokens:
        return Load.of_requests(RequestLengths.from_columns(inputs, outputs, found), rate=rate)
    return Load(
        input_tokens=observed(np.minimum(cached + inputs - found, longest - 1.0).tolist()),
        output_tokens=observed(outputs.tolist()),
        rate=rate,
        cached_tokens=cached,
        prefixes=prefixes,
    )
