"""Files of measured steps, whatever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from physim import data
from physim.errors import InputError
from physim.measured import (
    forward_pass,
    forward_table,
    iteration_log,
    step_table,
    step_trace,
    vllm_bench_forward,
)
from physim.measured.steps import COLUMNS, MeasuredSteps
from physim.measured.table_files import read_table

_READERS: Mapping[str, Callable[..., MeasuredSteps]] = {
    "iteration-log": iteration_log.read,
    "forward-pass-metrics": forward_pass.read,
    "vllm-bench-forward": vllm_bench_forward.read,
    "forward-table": forward_table.read,
    "step-trace": step_trace.read,
    "table": step_table.read,
}
STEP_FORMATS = tuple(_READERS)
# Those of tables, of whose rows some can be chosen.
_TABLES = ("forward-table", "step-trace", "table")


def read_step_files(
    paths: str | Path | Sequence[str | Path],
    *,
    kind: str | None = None,
    where: str = "",
    clock: str | None = None,
) -> MeasuredSteps:
    """Reads measured steps of one engine.

    Args:
        paths: Files: an engine's log with a line for each step, forward-pass metrics
            as JSON lines, the JSON of ``vllm bench forward``, NVIDIA's table of forward passes, a
            trace of steps with their start times, or a table that `physim` wrote.
        kind: The format, one of `STEP_FORMATS`; None for what each file looks like.
        where: Which rows of a table; see `physim.measured.condition.filtered`.
        clock: What the times of forward-pass metrics cover, where they do not say it.

    Raises:
        InputError: A file cannot be read, is of no known format, or holds no steps, a value is
            missing or out of range, or the files' clocks or engines differ.
    """
    return _joined([_read(path, kind, where, clock) for path in data.paths_of(paths, "files")])


def _read(path: Path, kind: str | None, where: str, clock: str | None) -> MeasuredSteps:
    kind = kind or _looks_like(path)
    if kind not in _READERS:
        raise InputError("format", f"{kind!r} is unknown", f"use one of {', '.join(STEP_FORMATS)}")
    options: dict[str, str] = {}
    if where:
        if kind not in _TABLES:
            raise InputError("where", f"chooses rows of tables, not of {kind}", "leave it out")
        options["where"] = where
    if clock is not None:
        if kind != "forward-pass-metrics":
            raise InputError("clock", f"is given by {kind} already", "leave it out")
        options["clock"] = clock
    return _READERS[kind](path, **options)


def _looks_like(path: Path) -> str:
    """The format of a file, by how it begins."""
    if path.suffix in (".parquet", ".csv"):
        frame = read_table(path, step_table.ABOUT)
        if step_table.is_table(frame):
            return "table"
        return "forward-table" if forward_table.is_table(frame) else "step-trace"
    with data.opened(path, errors="replace") as file:
        start = file.read(4096).lstrip()
    if not start:
        raise InputError(str(path), "is empty", "pass a file with steps")
    if start.startswith("["):
        return "vllm-bench-forward"
    return "forward-pass-metrics" if start.startswith("{") else "iteration-log"


def _joined(parts: Sequence[MeasuredSteps]) -> MeasuredSteps:
    """Steps of several files as one table."""
    first = parts[0]
    for name in ("clock", "engine", "engine_version"):
        for other in parts[1:]:
            if getattr(other, name) != getattr(first, name):
                raise InputError(
                    other.source,
                    f"has {name} {getattr(other, name)}, unlike {first.source}",
                    "read them one by one",
                )
    notes = [f"{one.source}: {note}" for one in parts for note in one.notes]
    return MeasuredSteps(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in COLUMNS},
        clock=first.clock,
        source=", ".join(one.source for one in parts),
        engine=first.engine,
        engine_version=first.engine_version,
        notes=first.notes if len(parts) == 1 else tuple(notes),
    )
