"""Reports of GuideLLM: its ``benchmarks.json`` (the form of release 0.8)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import StageReport, count, number, number_if_given


def read(path: Path, output_len: float | None = None) -> list[StageReport]:
    """The benchmarks of a report, each as a stage.

    Concurrent streams are clients; a benchmark of throughput enters with the rate that it achieved.

    Args:
        path: The file.
        output_len: Tokens that were generated, if known better than from the report.

    Raises:
        InputError: The file is no such report, or a field is missing.
    """
    benchmarks = data.read_json(path).get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        raise InputError(f"{path}: benchmarks", "is missing", "pass GuideLLM's JSON report")
    return [
        _stage(stage, benchmark, f"{path}: benchmarks[{stage}]", output_len)
        for stage, benchmark in enumerate(benchmarks)
    ]


def _stage(stage: int, benchmark: Any, where: str, output_len: float | None) -> StageReport:
    metrics = benchmark.get("metrics") if isinstance(benchmark, Mapping) else None
    if not isinstance(metrics, Mapping):
        raise InputError(f"{where}.metrics", "is missing", "pass GuideLLM's JSON report")
    config = benchmark.get("config")
    strategy = config.get("strategy") if isinstance(config, Mapping) else None
    kind = str(strategy.get("type_", "constant")) if isinstance(strategy, Mapping) else "constant"
    achieved = number(metrics, where, "requests_per_second", "successful", "mean")
    rate = clients = None
    if kind == "synchronous":
        clients = 1.0
    elif kind == "concurrent":
        clients = number(strategy, where, "streams")
    elif strategy and kind in ("constant", "poisson"):
        rate = number(strategy, where, "rate")
    return StageReport(
        stage=stage,
        rate_rps=rate or achieved,
        duration_s=number(benchmark, where, "duration"),
        arrival="poisson" if kind == "poisson" else "constant",
        input_len_mean=number(metrics, where, "prompt_token_count", "successful", "mean"),
        output_len=output_len or number(metrics, where, "output_token_count", "successful", "mean"),
        ttft_mean=number(metrics, where, "time_to_first_token_ms", "successful", "mean") / 1e3,
        e2e_mean=number(metrics, where, "request_latency", "successful", "mean"),
        n_success=count(metrics, where, "request_totals", "successful"),
        n_failed=count(metrics, where, "request_totals", "errored"),
        note=""
        if rate or clients
        else f"{kind} load: it enters with the {achieved:.3g}/s that it achieved",
        concurrency=clients,
        output_len_std=number_if_given(
            metrics, where, "output_token_count", "successful", "std_dev"
        ),
    )
