"""Reports of NVIDIA's AIPerf: the summary ``profile_export_aiperf.json``, or every request.

The form is that of AIPerf 0.13 (schema 1.4 of ``common/models/export_models.py``, and
``MetricRecordInfo`` for each line of ``profile_export.jsonl``).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import StageReport, cut_short, held_back
from physim.records import (
    Count,
    Document,
    Length,
    Positive,
    Spread,
    Ticks,
    Whole,
    checked,
    read_document,
)

_SOURCE = "AIPerf's profile_export_aiperf.json"
_LINES = "AIPerf's profile_export.jsonl"
# Phases of the load by AIPerf's names, with physim's for their arrivals.
_ARRIVALS = {"constant": "constant", "poisson": "poisson", "gamma": "gamma"}
_CLIENTS = "concurrency"
# Squared coefficient of variation of gaps from which on arrivals are nearer to Poisson's than even.
_SCATTERED = 0.5


class _Milliseconds(Document):
    unit: Literal["ms"]
    avg: Positive


class _Rate(Document):
    unit: Literal["requests/sec"]
    avg: Positive


class _Requests(Document):
    avg: Count


class _Seconds(Document):
    unit: Literal["sec"]
    avg: Positive


class _Tokens(Document):
    avg: Length
    std: Spread | None = None


class _Amount(Document):
    avg: Spread


class _Accepted(Document):
    avg: Positive


class _Phase(Document):
    # Of those that physim knows by name; others enter with the rate that they achieved.
    type: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
    name: str | None = None
    kind: str | None = None
    concurrency: Whole | None = None
    rate: Positive | None = None
    smoothness: Positive | None = None


class _Distribution(Document):
    mean: Spread | None = None
    value: Spread | None = None


class _Prompts(Document):
    osl: _Distribution | None = None


class _Dataset(Document):
    prompts: _Prompts | None = None


class _Config(Document):
    phases: Annotated[list[_Phase], Field(min_length=1)]
    datasets: list[_Dataset] = Field(default_factory=list)

    @property
    def asked(self) -> float | None:
        """Mean tokens of an output that prompts made by AIPerf ask for."""
        told = [one.prompts.osl for one in self.datasets if one.prompts and one.prompts.osl]
        return (told[0].mean or told[0].value) if told else None


class _Summary(Document):
    request_count: _Requests
    error_request_count: _Requests | None = None
    request_throughput: _Rate
    benchmark_duration: _Seconds
    time_to_first_token: _Milliseconds
    request_latency: _Milliseconds
    input_sequence_length: _Tokens
    output_sequence_length: _Tokens
    usage_prompt_cache_read_tokens: _Amount | None = None
    spec_decode_acceptance_length: _Accepted | None = None
    input_config: _Config | None = None
    is_complete: bool | None = None
    was_cancelled: bool | None = None


class _Metadata(Document):
    request_start_ns: Ticks
    benchmark_phase: str


class _Value(Document):
    value: Positive


class _OfTime(_Value):
    unit: Literal["ms"]


class _OfTokens(Document):
    value: Whole


class _Metrics(Document):
    time_to_first_token: _OfTime
    request_latency: _OfTime
    input_sequence_length: _OfTokens
    output_sequence_length: _OfTokens
    requested_osl: _OfTokens | None = None


class _Answered(Document):
    metrics: _Metrics


class _Line(Document):
    metadata: _Metadata
    error: dict[str, Any] | None = None


def read(path: Path, output_len: float | None = None) -> list[StageReport]:
    """The one stage of a run.

    A summary says how requests were sent. Lines of requests do not: they enter with the rate at
    which they came.

    Args:
        path: The summary, or lines of requests if its name ends in ``.jsonl``.
        output_len: Tokens that were generated, if known better than from the report.

    Raises:
        InputError: The file is no such report, or a field is missing.
    """
    stage = _of_lines if path.suffix == ".jsonl" else _of_summary
    return [stage(path, output_len)]


def _of_summary(path: Path, output_len: float | None) -> StageReport:
    report = read_document(_Summary, path, _SOURCE)
    achieved, phase = report.request_throughput.avg, _measured_phase(report.input_config)
    outputs, prompts = report.output_sequence_length, report.input_sequence_length
    paced = phase is not None and phase.type in _ARRIVALS and phase.rate is not None
    # AIPerf takes a bound on requests under way beside a rate; at that bound the rate is none.
    bound = phase.concurrency if phase is not None else None
    latency_s = report.request_latency.avg / 1e3
    if paced and held_back(achieved, latency_s, bound):
        paced = False
    clients = bound or 1 if phase is not None and phase.type == _CLIENTS else None
    rate = phase.rate if paced and phase is not None and phase.rate is not None else achieved
    shape = (phase.smoothness or 1.0) if paced and phase is not None else 1.0
    arrival = _ARRIVALS[phase.type] if paced and phase is not None else "constant"
    if arrival == "gamma" and shape == 1.0:
        arrival = "poisson"
    cached = report.usage_prompt_cache_read_tokens
    accepted = report.spec_decode_acceptance_length
    notes = [
        "" if paced or clients else f"no open rate: it enters with the {achieved:.3g}/s achieved",
        cut_short(outputs.avg, (report.input_config and report.input_config.asked) or 0.0),
        "the run ended before it was complete"
        if report.is_complete is False or report.was_cancelled
        else "",
    ]
    return StageReport(
        stage=0,
        rate_rps=rate,
        duration_s=report.benchmark_duration.avg,
        arrival=arrival,
        burstiness=shape if arrival == "gamma" else None,
        input_len_mean=prompts.avg,
        input_len_std=prompts.std,
        output_len=output_len or outputs.avg,
        output_len_std=outputs.std,
        ttft_mean=report.time_to_first_token.avg / 1e3,
        e2e_mean=latency_s,
        n_success=report.request_count.avg,
        n_failed=report.error_request_count.avg if report.error_request_count else 0,
        note="; ".join(filter(None, notes)),
        concurrency=clients,
        draft_acceptance=None if accepted is None else f"{accepted.avg:.6g}",
        cached_len_mean=None if cached is None else cached.avg,
    )


def _measured_phase(config: _Config | None) -> _Phase | None:
    """The phase whose requests are reported: the last one that warms nothing up."""
    phases = [] if config is None else config.phases
    found = [one for one in phases if "warmup" not in (one.kind, one.name)]
    return found[-1] if found else None


def _of_lines(path: Path, output_len: float | None) -> StageReport:
    starts: list[int] = []
    answered: list[_Metrics] = []
    for place, content in data.read_json_lines(path):
        line = checked(_Line, content, place, _LINES)
        if line.metadata.benchmark_phase != "profiling":
            continue
        starts.append(line.metadata.request_start_ns)
        if line.error is None:
            answered.append(checked(_Answered, content, place, _LINES).metrics)
    if len(answered) < 2:
        raise InputError(str(path), "has fewer than two answered requests", "pass a longer run")
    starts.sort()
    span = (starts[-1] - starts[0]) / 1e9
    if span <= 0:
        raise InputError(f"{path}: request_start_ns", "is the same for all", "correct it")
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    scatter = statistics.pvariance(gaps) / statistics.fmean(gaps) ** 2
    prompts = [one.input_sequence_length.value for one in answered]
    outputs = [one.output_sequence_length.value for one in answered]
    asked = [one.requested_osl.value for one in answered if one.requested_osl is not None]
    rate = (len(starts) - 1) / span
    notes = [
        f"the lines do not say how requests were sent: their mean rate is taken, {rate:.3g}/s",
        cut_short(statistics.fmean(outputs), statistics.fmean(asked)) if asked else "",
    ]
    return StageReport(
        stage=0,
        rate_rps=rate,
        duration_s=span,
        arrival="poisson" if scatter > _SCATTERED else "constant",
        input_len_mean=statistics.fmean(prompts),
        input_len_std=statistics.pstdev(prompts),
        output_len=output_len or statistics.fmean(outputs),
        output_len_std=statistics.pstdev(outputs),
        ttft_mean=_mean_s([one.time_to_first_token for one in answered]),
        e2e_mean=_mean_s([one.request_latency for one in answered]),
        n_success=len(answered),
        n_failed=len(starts) - len(answered),
        note="; ".join(filter(None, notes)),
    )


def _mean_s(times: Sequence[_OfTime]) -> float:
    return statistics.fmean(one.value for one in times) / 1e3
