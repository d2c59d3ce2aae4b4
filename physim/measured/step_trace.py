"""Tables of scheduler steps with start times, from which cycle times follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from physim.errors import InputError
from physim.measured.condition import filtered
from physim.measured.steps import MeasuredSteps
from physim.measured.table_files import read_parquet
from physim.records import (
    Count,
    Portion,
    Record,
    Text,
    Ticks,
    checked,
    disagreement,
    read_rows,
    required,
)

if TYPE_CHECKING:
    import pandas as pd


class _Step(Record):
    experiment: Annotated[Text, Field(alias="experiment_id")]
    step: Annotated[Ticks, Field(alias="step.id")]
    start_ns: Annotated[Ticks, Field(alias="step.ts_start_ns")]
    decode_requests: Annotated[Count, Field(alias="batch.num_decode_reqs")]
    prefill_requests: Annotated[Count, Field(alias="batch.num_prefill_reqs")]
    prefill_tokens: Annotated[Count, Field(alias="batch.prefill_tokens")]
    kv_usage: Annotated[Portion | None, Field(alias="kv.usage_gpu_ratio")] = None

    @model_validator(mode="after")
    def _agrees(self) -> _Step:
        if self.prefill_tokens and not self.prefill_requests:
            raise disagreement(
                "batch.num_prefill_reqs", f"is 0 of {self.prefill_tokens} tokens", "correct it"
            )
        return self


def read_steps(path: Path) -> pd.DataFrame:
    """Cycles of consecutive steps of an engine's trace.

    A tracer that samples steps sees the cycle of one whose successor it sampled too: the time from
    its start to the next's. A step's own duration, as a tracer sees it, is often no more than the
    time to launch it.

    Args:
        path: Parquet or CSV with ``experiment_id``, ``step.id``, ``step.ts_start_ns``,
            ``batch.num_decode_reqs``, ``batch.num_prefill_reqs`` and ``batch.prefill_tokens``, and
            ``kv.usage_gpu_ratio`` if it is there.

    Returns:
        A row for each step with a known cycle: ``experiment``, ``step``, ``start_s`` since the
        experiment's first, ``decode_requests``, ``prefill_requests``, ``prefill_tokens``,
        ``kv_usage`` and ``cycle_s``; in order of time.

    Raises:
        InputError: The file cannot be read, lacks a column, or has no two consecutive steps.
    """
    import pandas as pd

    rows = read_rows(_Step, path) if path.suffix == ".csv" else _rows_of_parquet(path)
    frame = pd.DataFrame([step.model_dump() for _, step in rows])
    twice = frame.duplicated(["experiment", "step"])
    if twice.any():
        experiment, step = frame.loc[twice, ["experiment", "step"]].iloc[0]
        raise InputError(
            f"{path}: step.id", f"{step} of {experiment} is there twice", "remove one of the rows"
        )
    frame = frame.sort_values(["experiment", "step"], ignore_index=True)
    # Whole nanoseconds since the first step, which a float holds as they are.
    since = frame["start_ns"] - frame.groupby("experiment")["start_ns"].transform("min")
    frame["start_s"], frame["cycle_s"] = since / 1e9, (since.shift(-1) - since) / 1e9
    goes_on = frame["experiment"].shift(-1) == frame["experiment"]
    late = goes_on & (frame["cycle_s"] <= 0)
    if late.any():
        experiment, step = frame.loc[late, ["experiment", "step"]].iloc[0]
        raise InputError(
            f"{path}: step.ts_start_ns",
            f"after step {step} of {experiment} a later one starts no later",
            "correct it",
        )
    follows = goes_on & (frame["step"].shift(-1) - frame["step"] == 1)
    busy = frame["decode_requests"] + frame["prefill_requests"] > 0
    cycles = frame[follows & busy].drop(columns="start_ns")
    if cycles.empty:
        raise InputError(str(path), "has no two consecutive steps", "sample more of them")
    kinds = {"cycle_s": float, "start_s": float, "kv_usage": float}
    return cycles.astype(kinds).reset_index(drop=True)


def read(path: Path, where: str = "") -> MeasuredSteps:
    """The steps of a trace, as `read_steps` has them.

    Args:
        path: The trace.
        where: Which of its rows; see `physim.measured.condition.filtered`.

    Raises:
        InputError: As `read_steps` does, or the steps are of several experiments.
    """
    cycles = read_steps(path)
    if where:
        cycles = filtered(cycles, where)
    names = cycles["experiment"].unique()
    if len(names) > 1:
        raise InputError(
            str(path),
            f"holds {len(names)} experiments",
            f'choose one with --where, such as experiment == "{names[0]}"',
        )
    columns = ("decode_requests", "prefill_requests", "prefill_tokens", "start_s", "kv_usage")
    found = {name: cycles[name].to_numpy(float) for name in columns}
    return MeasuredSteps.from_columns(
        {**found, "seconds": cycles["cycle_s"].to_numpy(float)}, "loop", str(path)
    )


def _rows_of_parquet(path: Path) -> Iterator[tuple[str, _Step]]:
    frame = read_parquet(path)
    missing = [column for column in required(_Step) if column not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    # What is missing in a column of pandas' own types is no number that can be compared.
    known = [one.alias or name for name, one in _Step.model_fields.items()]
    frame = frame[[name for name in known if name in frame]].astype(object)
    for number, row in enumerate(frame.where(frame.notna(), None).to_dict("records"), start=1):
        place = f"{path}, row {number}"
        yield place, checked(_Step, row, place)
