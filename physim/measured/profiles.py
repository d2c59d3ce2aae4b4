"""Load profiles, from traces of requests or from what Prometheus recorded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np

from physim.errors import InputError
from physim.inputs.lengths import observed
from physim.inputs.profile import LoadProfile, Window, check_window, window_edges
from physim.measured.prometheus import read_prometheus
from physim.records import read_cells
from physim.replay.request import Request
from physim.replay.workload import read_trace

# Prefixes are as exact as a block of vLLM's.
_BLOCK = 16


def read_profile(*paths: str | Path, window_s: float = 600.0) -> LoadProfile:
    """A load over a day, to plan for.

    Args:
        *paths: A trace of requests (see `physim.inputs.request_traces.read_requests`), or JSON
            files with Prometheus's counters of the engine (see `physim.measured.prometheus`).
        window_s: How long a window of the profile is, seconds.

    Raises:
        InputError: A file cannot be read, holds something else, or the window is not positive.
    """
    check_window(window_s)
    kinds = {Path(Path(path).name.removesuffix(".gz")).suffix for path in paths}
    if kinds == {".json"}:
        return read_prometheus(paths, window_s)
    if not kinds <= {".csv", ".jsonl"} or len(paths) != 1:
        raise InputError(
            f"load profile {', '.join(map(str, paths))}",
            "is not a trace (.csv or .jsonl) or what Prometheus returned (.json)",
            "give one trace, or JSON files",
        )
    return profile_of_trace(paths[0], window_s)


def profile_of_trace(path: str | Path, window_s: float) -> LoadProfile:
    """The load profile of a trace.

    Where requests share prefixes in groups, those of a group find theirs in the cache, but for the
    first of all, and hold it together; lengths of a window then say nothing of each other. Of other
    traces they go together; see `physim.LoadProfile.from_trace`.

    Args:
        path: A trace; see `physim.inputs.request_traces.read_requests`.
        window_s: How long a window of the profile is, seconds.

    Raises:
        InputError: The trace cannot be read.
    """
    if not _has_groups(Path(path)):
        return LoadProfile.from_trace(path, window_s)
    requests = read_trace(Path(path), _BLOCK).requests
    arrivals = np.array([request.arrival_s for request in requests])
    if not arrivals[-1] > arrivals[0]:
        raise InputError(str(path), "has only one point in time", "give a trace of some time")
    edges = window_edges(arrivals[0], arrivals[-1], window_s, str(path))
    # The last window ends with the trace, so that its rate is not that of an empty rest.
    edges[-1] = arrivals[-1]
    places = np.minimum((arrivals - arrivals[0]) // window_s, len(edges) - 2).astype(int)
    seen: set[int] = set()
    windows = []
    for place, own in itertools.groupby(zip(places.tolist(), requests, strict=True), itemgetter(0)):
        duration = float(edges[place + 1] - edges[place])
        start_s = float(edges[place] - edges[0])
        windows.append(_window([request for _, request in own], start_s, duration, seen))
    return LoadProfile(tuple(windows))


def _has_groups(path: Path) -> bool:
    """Whether a trace says which requests share a prefix."""
    named = path.name.removesuffix(".gz").endswith(".csv")
    return named and "prefix_group" in next(read_cells(path))[1]


def _window(
    requests: Sequence[Request], start_s: float, duration_s: float, seen: set[int]
) -> Window:
    """A window of some requests; prefixes that were seen before are in the cache."""
    cached, groups = 0.0, set()
    for request in requests:
        for segment in request.path:
            groups.add(id(segment))
            cached += segment.end * _BLOCK if id(segment) in seen else 0
            seen.add(id(segment))
    return Window(
        start_s,
        duration_s,
        len(requests) / duration_s,
        observed([request.input_tokens for request in requests]),
        observed([request.output_tokens for request in requests]),
        cached_tokens=float(cached // len(requests)),
        prefixes=max(len(groups), 1),
    )
