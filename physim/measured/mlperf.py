"""Results of MLPerf Inference: ``mlperf_log_summary.txt`` of the Server scenario.

The form is that of LoadGen 5.1 (``loadgen/results.cc``): lines of a name, a colon and a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import StageReport
from physim.records import Count, Positive, Record, Whole, checked

TITLE = "MLPerf Results Summary"
_SOURCE = "MLPerf's mlperf_log_summary.txt"
# More than any summary has, characters.
_LONGEST = 1_000_000
_TOKENS = "Completed tokens per second"
# Share of the scheduled rate below which the server did not keep up.
_KEPT_UP = 0.95
_Nanoseconds = Annotated[float, Field(gt=0, le=1e18)]


class _Scenario(Record):
    scenario: str = Field(alias="Scenario")
    mode: Literal["PerformanceOnly", "FindPeakPerformance"] = Field(alias="Mode")


class _Offline(Record):
    rate: Positive = Field(alias="Samples per second")
    longest: _Nanoseconds = Field(alias="Max latency (ns)")


class _Summary(Record):
    result: Literal["VALID", "INVALID"] = Field(alias="Result is")
    scheduled: Positive = Field(alias="Scheduled samples per second")
    completed: Positive = Field(alias="Completed samples per second")
    tokens: Positive = Field(alias="Completed tokens per second")
    latency: _Nanoseconds = Field(alias="Mean latency (ns)")
    first_token: _Nanoseconds = Field(alias="Mean First Token latency (ns)")
    min_duration: Count = Field(alias="min_duration (ms)")
    min_queries: Whole = Field(alias="min_query_count")


def read(
    path: Path, output_len: float | None = None, input_len: float | None = None
) -> list[StageReport]:
    """The one stage of a run of the Server scenario.

    Queries come by chance (Poisson). How many there were is not said: as many as the least time, or
    the least number, takes.

    Args:
        path: The summary.
        output_len: Tokens that were generated, if known better than from the report.
        input_len: Mean prompt, tokens, which the summary does not say.

    Raises:
        InputError: The file is no such summary, or of another scenario; or prompts are not given.
    """
    values = _values(path)
    kind = checked(_Scenario, values, str(path), _SOURCE)
    if kind.scenario != "Server":
        problem = f"{kind.scenario[:40]!r} has no times of first tokens, which runs are held to"
        raise InputError(f"{path}: Scenario", problem, _instead(kind.scenario, values, str(path)))
    if input_len is None:
        problem = "is not given, and the summary does not say how long prompts are"
        raise InputError("input", problem, "give --input, the mean of the dataset, or --lengths")
    inferred = f"{_TOKENS} (inferred)"
    if _TOKENS not in values and inferred in values:
        values[_TOKENS] = values[inferred]
    told = checked(_Summary, values, str(path), _SOURCE)
    duration_s = max(told.min_duration / 1e3, told.min_queries / told.scheduled)
    notes = [
        "the number of queries is the least that the test allows",
        "MLPerf calls it INVALID" if told.result == "INVALID" else "",
        f"{told.completed:.3g}/s of the {told.scheduled:.3g}/s scheduled were completed"
        if told.completed < _KEPT_UP * told.scheduled
        else "",
    ]
    return [
        StageReport(
            stage=0,
            rate_rps=told.scheduled,
            duration_s=duration_s,
            arrival="poisson",
            input_len_mean=input_len,
            output_len=output_len or told.tokens / told.completed,
            ttft_mean=told.first_token / 1e9,
            e2e_mean=told.latency / 1e9,
            n_success=max(round(told.scheduled * duration_s), 1),
            n_failed=0,
            note="; ".join(filter(None, notes)),
        )
    ]


def _instead(scenario: str, values: Mapping[str, str], place: str) -> str:
    """What to do with a summary that is none of Server."""
    if scenario != "Offline":
        return "pass a summary of Server"
    told = checked(_Offline, values, place, _SOURCE)
    # The rate is the number of samples over the longest latency.
    samples = max(round(told.rate * told.longest / 1e9), 1)
    return (
        f"compare its {told.rate:.4g} samples/s with those of "
        f"`physim predict --concurrency {samples} --requests {samples}`"
    )


def _values(path: Path) -> dict[str, str]:
    """The values of a summary by name, the first of each.

    Raises:
        InputError: It cannot be read, or is none.
    """
    with data.opened(path, errors="replace") as file:
        text = file.read(_LONGEST)
    if TITLE not in text:
        raise InputError(str(path), "is no summary of MLPerf", f"pass {_SOURCE}")
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found
