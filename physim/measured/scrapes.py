"""How an engine's counters rose between two scrapes of ``/metrics``, or over a range query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from physim import data
from physim.engines.engine import engines
from physim.errors import InputError
from physim.measured.exposition import Sample, read_samples
from physim.measured.prometheus import Rise, canonical, read_rises

# What names of series that only rise end in.
_COUNTERS = ("_total", "_bucket", "_count", "_sum")
# When a series began, which the Python client shows beside it.
_BEGAN = "_created"
# Files that were copied are of one time. Nobody scrapes twice a second.
_SHORTEST_S = 1.0
Key = tuple[str, frozenset[tuple[str, str]]]


def rises_between(
    paths: Sequence[Path], interval_s: float | None
) -> tuple[list[Rise], float, tuple[str, ...]]:
    """How series rose, in how many seconds, and what was made of the files.

    Args:
        paths: Two scrapes, the earlier first; or JSON of one range query.
        interval_s: Seconds between the scrapes; None for what the samples say, else the times at
            which the files were written.

    Raises:
        InputError: A file cannot be read, the scrapes are of two servers or in the wrong order, or
            the server was started anew between them.
    """
    if interval_s is not None and not 0 < interval_s < float("inf"):
        raise InputError("interval", f"{interval_s} is no length of time", "give seconds")
    if len(paths) == 1:
        if _is_exposition(paths[0]):
            raise InputError(str(paths[0]), "is one scrape", "pass another of some minutes later")
        rises, duration = read_rises(paths[0])
        return rises, duration, ()
    if len(paths) != 2:
        raise InputError("files", f"are {len(paths)}", "pass two scrapes, or one range query")
    before, after = ([*read_samples(path, _prefixes())] for path in paths)
    for path, samples in zip(paths, (before, after), strict=True):
        if not samples:
            names = " or ".join(one.name for one in engines() if one.counters)
            raise InputError(str(path), f"holds no metric of {names}", "scrape /metrics anew")
    rises = _risen(paths, _by_series(paths[0], before), _by_series(paths[1], after))
    notes: tuple[str, ...] = ()
    if interval_s is None:
        interval_s = _time_s(after) - _time_s(before)
        if interval_s != interval_s:
            earlier, later = (data.modified_ns(path) for path in paths)
            interval_s = (later - earlier) / 1e9
            notes = (f"the interval of {interval_s:.1f} s is that between the files' times",)
        if interval_s < _SHORTEST_S:
            raise InputError(
                f"{paths[0]} and {paths[1]}",
                "are of one time, or in the wrong order",
                "pass the earlier first, or say the seconds between them (--interval)",
            )
    return rises, interval_s, notes


def _prefixes() -> tuple[str, ...]:
    return tuple(f"{one.name}{mark}" for one in engines() if one.counters for mark in ":_")


def _is_exposition(path: Path) -> bool:
    with data.opened(path, errors="replace") as file:
        return not file.read(100).lstrip().startswith("{")


def _by_series(path: Path, samples: Sequence[Sample]) -> dict[Key, Sample]:
    found: dict[Key, Sample] = {}
    for one in samples:
        key = (canonical(one.name), frozenset(one.labels.items()))
        if key in found:
            raise InputError(f"{path}: {one.name}", "is there twice", "scrape one server")
        found[key] = one
    return found


def _risen(
    paths: Sequence[Path], before: Mapping[Key, Sample], after: Mapping[Key, Sample]
) -> list[Rise]:
    for key, sample in after.items():
        if key[0].endswith(_BEGAN) and key in before and before[key].value != sample.value:
            raise InputError(
                f"{paths[1]}: {key[0]}",
                "is another than before: the server was started anew",
                "pass two scrapes of one start",
            )
    rises = []
    for key, sample in after.items():
        name, _ = key
        # A series begins with its first event.
        first = before[key].value if key in before else 0.0
        if name.endswith(_COUNTERS):
            rise = sample.value - first
            if not 0 <= rise < float("inf"):
                raise InputError(
                    f"{paths[1]}: {name}",
                    f"is {sample.value:g} after {first:g}: the scrapes are in the wrong order, or "
                    "the server was started anew between them",
                    "pass two scrapes of one start, the earlier first",
                )
        else:
            rise = sample.value - first
        level = (sample.value + first) / 2 if key in before else sample.value
        rises.append(Rise(name, sample.labels, rise, level))
    lost = next((name for name, _ in before.keys() - after.keys() if name.endswith("_total")), None)
    if lost is not None:
        raise InputError(
            f"{paths[1]}: {lost}",
            "lacks a series that was there before: the server is another",
            "pass two scrapes of one start, the earlier first",
        )
    return rises


def _time_s(samples: Sequence[Sample]) -> float:
    """When samples were taken; NaN where they do not say it."""
    times = [one.time_s for one in samples if one.time_s is not None]
    return max(times) if times else float("nan")
