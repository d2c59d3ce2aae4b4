"""Steps from the log of an engine that writes a line for each."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from physim import data
from physim.engines.engine import engines
from physim.errors import InputError
from physim.measured.steps import WAITS, WHOLE_STEPS, MeasuredSteps, too_short

# A line that is a step's, whole or cut off: many times as fast to look for as the pattern.
_MARK = "Iteration("
_STAMP = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b")
# Lines of several processes may run into each other, so many of a log's.
_MOST_BROKEN = 0.01


def read(path: Path) -> MeasuredSteps:
    """The steps that an engine's log has lines of.

    The clock starts when a step is handed to the workers and ends when its tokens are back. Such a
    log says nothing of contexts, which follow from the KV cache in use, nor of cached prompts.

    Args:
        path: The log, which may be compressed (``.gz``) and still be written to: a last line that
            is cut off is left out.

    Raises:
        InputError: The file cannot be read, holds no line of a step, or more than one in a hundred
            is broken.
    """
    patterns = {one.name: re.compile(one.step_line) for one in engines() if one.step_line}
    found: dict[str, list[re.Match[str]]] = {name: [] for name in patterns}
    broken: list[int] = []
    stamps: list[str] = []
    number, is_whole = 0, True
    with data.opened(path, errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            is_whole = line.endswith("\n")
            if _MARK not in line:
                continue
            match = _step_in(line, patterns, found)
            if match is None:
                broken.append(number)
            elif stamp := _STAMP.search(line, 0, match.start()):
                stamps = [*stamps[:1], stamp[1]]
    name, steps = max(found.items(), key=lambda one: len(one[1]))
    notes = []
    if broken and broken[-1] == number and not is_whole:
        notes.append("the last line is cut off and left out")
        broken.pop()
    if not steps:
        raise InputError(
            str(path),
            "holds no line of a step",
            "start the engine so that it logs its iterations, and record some under load",
        )
    if len(broken) > _MOST_BROKEN * len(steps):
        raise InputError(f"{path}, line {broken[0]}", "is no whole line of a step", "correct it")
    if broken:
        notes.append(f"{len(broken)} broken lines are left out, the first of them {broken[0]}")
    busy = [one for one in steps if not one["dummy"]]
    if len(busy) < len(steps):
        notes.append(f"{len(steps) - len(busy)} steps without requests are left out")
    return _table(path, name, busy, notes, stamps)


def _step_in(
    line: str, patterns: dict[str, re.Pattern[str]], found: dict[str, list[re.Match[str]]]
) -> re.Match[str] | None:
    """What an engine's pattern finds in a line, which is kept."""
    for engine, pattern in patterns.items():
        match = pattern.search(line)
        if match is not None:
            found[engine].append(match)
            return match
    return None


def _table(
    path: Path, engine: str, steps: list[re.Match[str]], notes: list[str], stamps: list[str]
) -> MeasuredSteps:
    names = ("decode_requests", "decode_tokens", "prefill_requests", "prefill_tokens")
    whole = {name: np.array([float(one[name]) for one in steps]) for name in names}
    decode, tokens = whole["decode_requests"], whole.pop("decode_tokens")
    short = tokens < decode
    if short.any():
        raise InputError(
            f"{path}, step {int(np.argmax(short)) + 1}: tokens",
            "are fewer than the requests that decode",
            "correct it",
        )
    seconds = np.array([float(one["milliseconds"]) for one in steps]) / 1e3
    # Two digits of milliseconds are written.
    measured = seconds > 0
    if not measured.all():
        notes.append(f"{int((~measured).sum())} steps of 0.00 ms are left out")
    if share := too_short(seconds):
        notes.append(f"{100 * share:.0f}% of the steps {WAITS}; {WHOLE_STEPS}")
    restarts = sum(
        int(after["index"]) <= int(before["index"])
        for before, after in itertools.pairwise(steps)
        if before["rank"] == after["rank"]
    )
    if restarts:
        notes.append(f"the engine was started {restarts + 1} times")
    span = _span_s(stamps)
    if span and not restarts and len({one["rank"] for one in steps}) == 1:
        notes.append(f"its steps took {seconds.sum():.1f} s of the {span:.0f} s that it covers")
    columns = {
        **whole,
        "drafts": np.where(decode > 0, tokens / np.maximum(decode, 1) - 1, 0.0),
        "seconds": seconds,
        "kv_usage": np.array([float(one["kv_percent"] or "nan") / 100 for one in steps]),
    }
    return MeasuredSteps.from_columns(
        {name: values[measured] for name, values in columns.items()},
        "worker",
        str(path),
        engine=engine,
        notes=tuple(notes),
    )


def _span_s(stamps: list[str]) -> float:
    """Seconds from the first to the last stamp of a log, which has no year; 0 if not known."""
    try:
        # 2000 was a leap year.
        times = [datetime.strptime(f"2000-{one}", "%Y-%m-%d %H:%M:%S") for one in stamps]
    except ValueError:
        return 0.0
    if not times:
        return 0.0
    span = times[-1] - times[0]
    return (span if span >= timedelta(0) else span + timedelta(days=366)).total_seconds()
