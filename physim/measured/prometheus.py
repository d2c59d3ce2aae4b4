r"""Load profiles from what Prometheus recorded of vLLM or SGLang.

A dump is what Prometheus's HTTP API returns for a range query of the engine's counters
(https://prometheus.io/docs/prometheus/latest/querying/api), such as

    curl -G http://prometheus:9090/api/v1/query_range -d start=... -d end=... -d step=60 \
        --data-urlencode 'query={__name__=~"vllm:.*_tokens_total|vllm:request_success_total|
        vllm:prefix_cache_hits_total|vllm:request_(prompt|generation)_tokens_bucket"}'

Series of several servers are added up. Counters that start again at zero are followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.errors import InputError
from physim.inputs.lengths import Lengths, Tokens
from physim.inputs.profile import LoadProfile, Window

# Counters of what is needed, by engine: vLLM's design/metrics.md and SGLang's production metrics.
_COUNTERS = {
    "requests": ("vllm:request_success_total", "sglang:num_requests_total"),
    "prompt": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "cached": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
}
_HISTOGRAMS = {
    "prompt": "vllm:request_prompt_tokens_bucket",
    "output": "vllm:request_generation_tokens_bucket",
}
_NEEDED = ("requests", "prompt", "output")
# Of fewer requests a window's lengths say nothing.
_FEWEST = 5
# Lengths that stand for those of a histogram.
_DRAWN = 64

# A counter's times, seconds, and its values without resets, one pair for each series.
Series = list[tuple[Float[np.ndarray, " samples"], Float[np.ndarray, " samples"]]]


def read_prometheus(paths: Sequence[str | Path], window_s: float) -> LoadProfile:
    """A load profile from range queries of an engine's counters.

    Args:
        paths: JSON files, each as the API returns them.
        window_s: How long a window of the profile is, seconds.

    Raises:
        InputError: A file cannot be read or is no range query, or a counter is missing.
    """
    where = ", ".join(map(str, paths))
    series: dict[str, Series] = defaultdict(list)
    for path in paths:
        for name, own in _series(Path(path)):
            series[name].append(own)
    counters = {what: _first(series, names) for what, names in _COUNTERS.items()}
    for what in _NEEDED:
        if not counters[what]:
            raise InputError(
                where, f"has no {' or '.join(_COUNTERS[what])}", "query it too, over a range"
            )
    times = [time for what in _NEEDED for time, _ in counters[what]]
    start, end = min(time[0] for time in times), max(time[-1] for time in times)
    # Rounded, since a day of windows and a sample more is a day of windows.
    count = max(round((end - start) / window_s), 1)
    edges = start + window_s * np.arange(count + 1)
    edges[-1] = min(edges[-1], end)
    if not edges[-1] > edges[-2]:
        raise InputError(where, "has one moment alone", "query a range of time")
    rises = {what: _rise(own, edges) for what, own in counters.items()}
    shapes = {what: _buckets(series, name, edges) for what, name in _HISTOGRAMS.items()}
    windows = []
    for place, requests in enumerate(rises["requests"].tolist()):
        means = {what: rises[what][place] / max(requests, 1e-9) for what in ("prompt", "output")}
        if requests < _FEWEST or min(means.values()) < 1:
            continue
        duration = float(edges[place + 1] - edges[place])
        prompt, output = (_lengths(means[what], shapes[what], place) for what in means)
        cached = min(float(rises["cached"][place]) / requests, means["prompt"] - 1)
        windows.append(
            Window(
                float(edges[place] - start),
                duration,
                requests / duration,
                prompt,
                output,
                cached_tokens=float(round(max(cached, 0.0))),
            )
        )
    unknown = [name for what, name in _HISTOGRAMS.items() if shapes[what] is None]
    line = f"lengths are the means of each window, since there is no {' or '.join(unknown)}"
    return LoadProfile(tuple(windows), (line,) if unknown else ())


def _series(path: Path) -> list[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """The series of a file: names, and their times and values."""
    content = data.read_json(path)
    result = content.get("data")
    if content.get("status") != "success" or not isinstance(result, Mapping):
        said = content.get("error") or "holds no result of Prometheus"
        raise InputError(str(path), str(said), "save what query_range returns")
    if result.get("resultType") != "matrix":
        raise InputError(
            str(path), f"holds a {result.get('resultType')}, no range", "use query_range"
        )
    found = []
    for one in result.get("result", []):
        try:
            labels, samples = one["metric"], np.array(one["values"], float)
            name = labels["__name__"] + _edge(labels)
            times, values = samples[:, 0], samples[:, 1]
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise InputError(
                str(path), "has a series without a name or values", "query the counters themselves"
            ) from error
        kept = np.isfinite(values)
        if kept.any():
            found.append((_canonical(name), (times[kept], _without_resets(values[kept]))))
    return found


def _canonical(name: str) -> str:
    """A metric's name with the colon that some exporters write as an underscore."""
    for engine in ("vllm", "sglang"):
        if name.startswith(f"{engine}_"):
            return f"{engine}:{name[len(engine) + 1 :]}"
    return name


def _edge(labels: Mapping[str, Any]) -> str:
    """A bucket's upper edge, which tells it from the others."""
    return f" {labels['le']}" if "le" in labels else ""


def _without_resets(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """A counter that goes on where it started again: Prometheus's own rule."""
    steps = np.diff(values)
    risen = np.cumsum(np.where(steps < 0, values[1:], steps))
    return np.concatenate([[0.0], risen])


def _first(series: Mapping[str, Series], names: Sequence[str]) -> Series:
    """The series of the first name that there is."""
    return next((series[name] for name in names if name in series), [])


def _rise(series: Series, edges: Float[np.ndarray, " edges"]) -> Float[np.ndarray, " windows"]:
    """By how much counters rise in each window, all together."""
    found = np.zeros(len(edges) - 1)
    for times, values in series:
        found += np.diff(np.interp(edges, times, values))
    return found


def _buckets(
    series: Mapping[str, Series], name: str, edges: Float[np.ndarray, " edges"]
) -> tuple[Float[np.ndarray, " buckets"], Float[np.ndarray, "buckets windows"]] | None:
    """A histogram's finite upper edges, and how many in each window are up to each."""
    found = {
        float(label): _rise(own, edges)
        for key, own in series.items()
        for metric, _, label in (key.partition(" "),)
        if metric == name and label not in ("", "+Inf")
    }
    if len(found) < 2:
        return None
    limits = sorted(found)
    return np.array(limits), np.stack([found[limit] for limit in limits])


def _lengths(
    mean: float,
    histogram: tuple[Float[np.ndarray, " buckets"], Float[np.ndarray, "buckets windows"]] | None,
    window: int,
) -> Tokens:
    """Lengths of a window: of a histogram's shape where there is one, and the counters' mean."""
    if histogram is None or histogram[1][-1, window] < _FEWEST:
        return mean
    limits, counts = histogram
    up_to = np.concatenate([[0.0], np.maximum.accumulate(counts[:, window])])
    shares = (np.arange(_DRAWN) + 0.5) / _DRAWN
    drawn = np.interp(shares * up_to[-1], up_to, np.concatenate([[0.0], limits]))
    return Lengths.empirical(tuple(np.maximum(drawn * mean / drawn.mean(), 1.0).tolist()))
