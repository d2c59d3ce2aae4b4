r"""Load profiles from what Prometheus recorded of a serving engine.

A dump is what Prometheus's HTTP API returns for a range query of the engine's counters
(https://prometheus.io/docs/prometheus/latest/querying/api), such as

    curl -G http://prometheus:9090/api/v1/query_range -d start=... -d end=... -d step=60 \
        --data-urlencode 'query={__name__=~"vllm:.*_tokens_total|vllm:request_success_total|
        vllm:prefix_cache_hits_total|vllm:request_(prompt|generation)_tokens_bucket"}'

Series of several servers are added up. Counters that start again at zero are followed.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field, field_validator, model_validator

from physim.engines.engine import engines
from physim.errors import InputError
from physim.inputs.lengths import Lengths, Tokens
from physim.inputs.profile import LoadProfile, Window, window_edges
from physim.records import Document, Moment, Text, Total, disagreement, read_document

# Counters of `physim.engines.engine.Counters`, and its histograms of lengths.
_COUNTERS = ("requests", "prompt", "output", "cached")
_HISTOGRAMS = {"prompt": "prompt_lengths", "output": "output_lengths"}
_NEEDED = ("requests", "prompt", "output")
# Of fewer requests a window's lengths say nothing.
_FEWEST = 5
# Lengths that stand for those of a histogram.
_DRAWN = 64

# A counter's times, seconds, and its values without resets, one pair for each series.
Series = list[tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]]


class _Series(Document):
    metric: dict[Text, Text]
    # Prometheus writes values as text, that they may be NaN: a counter's never is.
    values: Annotated[
        list[Annotated[tuple[Moment, Annotated[Total, Field(strict=False)]], Field(strict=False)]],
        Field(min_length=1, fail_fast=True),
    ]

    @field_validator("metric")
    @classmethod
    def _has_a_name(cls, labels: dict[str, str]) -> dict[str, str]:
        if "__name__" not in labels:
            raise disagreement("__name__", "is missing", "query the counters themselves")
        return labels

    @field_validator("values")
    @classmethod
    def _are_in_order(cls, samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
        for place, (before, after) in enumerate(itertools.pairwise(samples), start=1):
            if after[0] <= before[0]:
                raise disagreement(
                    place, f"its time {after[0]:.3f} is not after {before[0]:.3f}", "sort them"
                )
        return samples


class _Range(Document):
    resultType: Literal["matrix"]  # noqa: N815
    result: list[_Series]

    @field_validator("resultType", mode="before")
    @classmethod
    def _is_a_range(cls, kind: Any) -> Any:
        if kind in ("vector", "scalar", "string"):
            raise disagreement("", f"holds a {kind}, no range", "use query_range")
        return kind


class _Answer(Document):
    status: str
    data: _Range
    warnings: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _succeeded(cls, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        if answer.get("status") != "success":
            said = _line(str(answer.get("error") or "holds no result of Prometheus"))
            raise disagreement("status", said, "save what query_range returns")
        return answer


def read_prometheus(paths: Sequence[str | Path], window_s: float) -> LoadProfile:
    """A load profile from range queries of an engine's counters.

    Args:
        paths: JSON files, each as the API returns them. Several may hold parts of one series.
        window_s: How long a window of the profile is, seconds.

    Raises:
        InputError: A file cannot be read or is no range query, holds samples that are no counter's,
            or a counter is missing.
    """
    where = ", ".join(map(str, paths))
    answers = {
        path: read_document(_Answer, Path(path), "what query_range returns") for path in paths
    }
    series = _together(answers)
    counters = {what: _first(series, _names(what)) for what in _COUNTERS}
    for what in _NEEDED:
        if not counters[what]:
            raise InputError(
                where, f"has no {' or '.join(_names(what))}", "query it too, over a range"
            )
    times = [time for what in _NEEDED for time, _ in counters[what]]
    start, end = min(time[0] for time in times), max(time[-1] for time in times)
    edges = window_edges(start, end, window_s, where)
    edges[-1] = min(edges[-1], end)
    if not edges[-1] > edges[-2]:
        raise InputError(where, "has only one point in time", "query a range of time")
    rises = {what: _rise(own, edges) for what, own in counters.items()}
    shapes = {
        what: _buckets(series, _names(lengths), edges, where)
        for what, lengths in _HISTOGRAMS.items()
    }
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
    warned = {_line(text) for answer in answers.values() for text in answer.warnings or ()}
    notes = [f"Prometheus warned: {line}" for line in sorted(warned)]
    unknown = [
        name
        for what, lengths in _HISTOGRAMS.items()
        if shapes[what] is None
        for name in _names(lengths)
    ]
    if unknown:
        notes.append(
            f"lengths are the means of each window, since there is no {' or '.join(unknown)}"
        )
    return LoadProfile(tuple(windows), tuple(notes))


@dataclass(frozen=True)
class Rise:
    """What became of a series in a time.

    Attributes:
        name: The metric's name.
        labels: Its labels.
        rise: By how much it rose, of a counter, however often that started again at zero.
        level: Its mean value, of a gauge.
    """

    name: str
    labels: Mapping[str, str]
    rise: float
    level: float


def read_rises(path: Path) -> tuple[list[Rise], float]:
    """How series rose over a range query, and how long that is, seconds.

    Args:
        path: JSON as the API returns it.

    Raises:
        InputError: The file cannot be read, is no range query, or has only one point in time.
    """
    series = read_document(_Answer, path, "what query_range returns").data.result
    rises, ends = [], []
    for one in series:
        times, values = (np.array(column) for column in zip(*one.values, strict=True))
        name = canonical(one.metric["__name__"])
        risen = float(_without_resets(values)[-1])
        rises.append(Rise(name, one.metric, risen, float(values.mean())))
        ends.append((times[0], times[-1]))
    duration = max((end for _, end in ends), default=0.0) - min(
        (start for start, _ in ends), default=0.0
    )
    if not duration > 0:
        raise InputError(str(path), "has only one point in time", "query a range of time")
    return rises, float(duration)


def canonical(name: str) -> str:
    """A metric's name with the colon that some exporters write as an underscore.

    Args:
        name: The name as it is written.
    """
    for engine in engines():
        if name.startswith(f"{engine.name}_"):
            return f"{engine.name}:{name[len(engine.name) + 1 :]}"
    return name


def _together(answers: Mapping[str | Path, _Answer]) -> dict[str, Series]:
    """The series of all files by name, each once, however many files and results hold parts of it.

    Raises:
        InputError: Two parts of a series have different values at one time.
    """
    found: dict[str, dict[frozenset[tuple[str, str]], dict[float, float]]]
    found = defaultdict(lambda: defaultdict(dict))
    for path, answer in answers.items():
        for one in answer.data.result:
            labels = one.metric
            own = found[canonical(labels["__name__"]) + _edge(labels)][frozenset(labels.items())]
            for time, value in one.values:
                if own.setdefault(time, value) != value:
                    raise InputError(
                        f"{path}: {labels['__name__']}",
                        f"is {own[time]:g} and {value:g} at {time:.3f}",
                        "query it once",
                    )
    return {
        name: [
            (np.array(sorted(own)), _without_resets(np.array([own[time] for time in sorted(own)])))
            for own in of_labels.values()
        ]
        for name, of_labels in found.items()
    }


def _line(text: str) -> str:
    """Text as one line that a terminal shows as it is, and not all of a long one."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:200]


def _names(what: str) -> list[str]:
    """What engines call a counter or a histogram."""
    shown = [engine.counters for engine in engines() if engine.counters is not None]
    return [name for counters in shown if (name := getattr(counters, what))]


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
    series: Mapping[str, Series],
    names: Sequence[str],
    edges: Float[np.ndarray, " edges"],
    where: str,
) -> tuple[Float[np.ndarray, " buckets"], Float[np.ndarray, "buckets windows"]] | None:
    """A histogram's finite upper edges, and how many in each window are up to each."""
    found: dict[float, Float[np.ndarray, " windows"]] = {}
    for key, own in series.items():
        name, _, label = key.partition(" ")
        if name in names and label != "+Inf":
            try:
                edge = float(label)
            except ValueError:
                edge = math.nan
            if not 0 <= edge < math.inf:
                raise InputError(
                    f"{where}: le of {name}", f"{label[:40]!r} is no upper edge", "query it anew"
                )
            found[edge] = found.get(edge, 0.0) + _rise(own, edges)
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
