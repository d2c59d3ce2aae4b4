"""Reports of inference-perf: a folder of ``stage_N_lifecycle_metrics.json``.

The form is that of inference-perf 0.7.0 (``reportgen/base.py``) and of the releases before it,
which call the prompt's and the output's tokens ``prompt_len`` and ``output_len``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import StageReport, count, number, number_if_given

_NAME = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")
# Chunks of a token from which on, and up to which, a server is taken to send two of each.
_TWO_CHUNKS = (1.7, 2.3)


def read(folder: Path, output_len: float | None = None) -> list[StageReport]:
    """The stages of a report.

    The client counts output tokens by tokenising the text again, which some tokenisers make fewer
    of than were generated. Where the requests ignored the end of the sequence, what was asked for
    is what was generated: pass that. The mean gap between chunks is not used, since a server may
    send two chunks of a token; where it did, the report says so.

    Args:
        folder: The folder of the report.
        output_len: Tokens that were generated, if known better than by the client's count.

    Raises:
        InputError: There is no such report, or a field is missing.
    """
    files = sorted(
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name))
    )
    if not files:
        raise InputError(
            str(folder), "holds no stage_N_lifecycle_metrics.json", "pass inference-perf's reports"
        )
    return [_stage(stage, path, output_len) for stage, path in files]


def _stage(stage: int, path: Path, output_len: float | None) -> StageReport:
    report, where = data.read_json(path), str(path)
    successes = report.get("successes")
    if not isinstance(successes, Mapping):
        raise InputError(f"{where}: successes", "is missing", "pass inference-perf's report")
    ttft = number(successes, where, "latency", "time_to_first_token", "mean")
    e2e = number(successes, where, "latency", "request_latency", "mean")
    generated = output_len or _tokens(successes, where, "output")
    rate = number(report, where, "load_summary", "requested_rate")
    sent = number(report, where, "load_summary", "count")
    return StageReport(
        stage=stage,
        rate_rps=rate,
        duration_s=sent / rate,
        arrival="constant",
        input_len_mean=_tokens(successes, where, "prompt"),
        output_len=generated,
        ttft_mean=ttft,
        e2e_mean=e2e,
        n_success=count(successes, where, "count"),
        n_failed=count(report, where, "failures", "count"),
        note=_chunks(successes, where, ttft, e2e, generated),
    )


def _tokens(successes: Mapping[str, Any], where: str, side: str) -> float:
    """Mean tokens of the prompt or the output: as the server counted them, else the client."""
    counted = successes.get(f"{side}_tokens")
    if isinstance(counted, Mapping) and "mean" in counted:
        return number(successes, where, f"{side}_tokens", "mean")
    return number(successes, where, f"{side}_len", "mean")


def _chunks(
    successes: Mapping[str, Any], where: str, ttft: float, e2e: float, generated: float
) -> str:
    """What the gap between chunks says of how many a token has."""
    mean = number_if_given(successes, where, "latency", "inter_token_latency", "mean") or 0.0
    if mean <= 0 or generated <= 1:
        return ""
    each = (e2e - ttft) / mean / (generated - 1)
    if _TWO_CHUNKS[0] <= each <= _TWO_CHUNKS[1]:
        return (
            f"the server sent two chunks a token ({each:.2f}): the reported time between tokens of "
            f"{mean * 1e3:.2f} ms is half of it, and was taken from E2E instead"
        )
    return ""
