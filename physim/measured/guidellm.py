"""Reports of GuideLLM: its ``benchmarks.json`` (the form of release 0.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from physim.measured.stage_report import StageReport, cut_short, held_back
from physim.records import (
    Count,
    Document,
    Length,
    Positive,
    Spread,
    Whole,
    disagreement,
    read_document,
)


class _Strategy(Document):
    # Of those that physim knows by name; others enter with the rate that they achieved.
    type_: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
    rate: Positive | None = None
    max_concurrency: Whole | None = None
    streams: Whole | None = None

    @model_validator(mode="after")
    def _says_how_much(self) -> _Strategy:
        needed = {"constant": "rate", "poisson": "rate", "concurrent": "streams"}.get(self.type_)
        if needed and getattr(self, needed) is None:
            raise disagreement(needed, f"is missing of a {self.type_} load", "add it")
        return self


class _Config(Document):
    strategy: _Strategy


class _Tokens(Document):
    mean: Length
    std_dev: Spread | None = None


class _Figure(Document):
    mean: Positive


class _OfTokens(Document):
    successful: _Tokens


class _OfFigures(Document):
    successful: _Figure


class _Totals(Document):
    successful: Count
    errored: Count


class _Metrics(Document):
    request_totals: _Totals
    requests_per_second: _OfFigures
    request_latency: _OfFigures
    prompt_token_count: _OfTokens
    output_token_count: _OfTokens
    time_to_first_token_ms: _OfFigures


class _Benchmark(Document):
    config: _Config
    duration: Positive
    metrics: _Metrics


class _Data(Document):
    # Of prompts that GuideLLM makes, the mean output that they ask for.
    output_tokens: Whole | None = None


class _Spec(Document):
    data: list[_Data] = Field(default_factory=list)


class _Scenario(Document):
    spec: _Spec | None = None


class _Report(Document):
    benchmarks: Annotated[list[_Benchmark], Field(min_length=1)]
    config: _Scenario | None = None

    @property
    def asked(self) -> float:
        """Mean tokens of an output that are asked for; 0 where that is not said."""
        data = self.config.spec.data if self.config and self.config.spec else []
        return float(data[0].output_tokens or 0) if len(data) == 1 else 0.0


def read(path: Path, output_len: float | None = None) -> list[StageReport]:
    """The benchmarks of a report, each as a stage.

    Concurrent streams are clients; a benchmark of throughput enters with the rate that it achieved.

    Args:
        path: The file.
        output_len: Tokens that were generated, if known better than from the report.

    Raises:
        InputError: The file is no such report, or a field is missing.
    """
    report = read_document(_Report, path, "GuideLLM's JSON report")
    return [
        _stage(stage, benchmark, output_len, report.asked)
        for stage, benchmark in enumerate(report.benchmarks)
    ]


def _stage(
    stage: int, benchmark: _Benchmark, output_len: float | None, asked: float
) -> StageReport:
    metrics, strategy = benchmark.metrics, benchmark.config.strategy
    kind, achieved = strategy.type_, metrics.requests_per_second.successful.mean
    clients = {"synchronous": 1, "concurrent": strategy.streams}.get(kind)
    latency, prompts = metrics.request_latency.successful.mean, metrics.prompt_token_count
    outputs = metrics.output_token_count.successful
    held = held_back(achieved, latency, strategy.max_concurrency)
    rate = strategy.rate if kind in ("constant", "poisson") and not held else None
    notes = [
        ""
        if rate or clients
        else f"{kind} load{' held back by max_concurrency' if held else ''}: it enters with the "
        f"{achieved:.3g}/s that it achieved",
        cut_short(output_len or outputs.mean, asked),
    ]
    return StageReport(
        stage=stage,
        rate_rps=rate or achieved,
        duration_s=benchmark.duration,
        arrival="poisson" if kind == "poisson" and rate else "constant",
        input_len_mean=prompts.successful.mean,
        input_len_std=prompts.successful.std_dev,
        output_len=output_len or outputs.mean,
        ttft_mean=metrics.time_to_first_token_ms.successful.mean / 1e3,
        e2e_mean=latency,
        n_success=metrics.request_totals.successful,
        n_failed=metrics.request_totals.errored,
        note="; ".join(filter(None, notes)),
        concurrency=clients,
        output_len_std=outputs.std_dev,
    )
