"""Results of ``vllm bench serve --save-result`` (the form of vLLM 0.33, unchanged since 0.10)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import StageReport, count, number

# Spread of lengths that are known to differ, as a share of their mean: enough that clients do not
# stay in step, and of hardly any account beyond that.
_GUESS = 0.1


def read(path: Path, output_len: float | None = None) -> list[StageReport]:
    """The one stage of a result.

    E2E is what was reported (``--percentile-metrics e2el``), or else follows from TTFT and TPOT.
    Without a rate but with ``--max-concurrency`` it is one of clients; without either, or with
    both, it enters with the rate that it achieved. Outputs are of one length if their mean is a
    whole number and the result does not list them (``--save-detailed``).

    Args:
        path: The file.
        output_len: Tokens that were generated, if known better than from the result.

    Raises:
        InputError: The file is no such result, or a field is missing.
    """
    result, where = data.read_json(path), str(path)
    completed = count(result, where, "completed")
    if completed < 1:
        raise InputError(f"{where}: completed", "no request was answered", "measure again")
    ttft = number(result, where, "mean_ttft_ms") / 1e3
    generated = output_len or number(result, where, "total_output_tokens") / completed
    if "mean_e2el_ms" in result:
        e2e = number(result, where, "mean_e2el_ms") / 1e3
    else:
        rest = number(result, where, "mean_tpot_ms") / 1e3 if generated > 1 else 0.0
        e2e = ttft + rest * (generated - 1)
    achieved = number(result, where, "request_throughput")
    # An unlimited rate is written as "inf".
    unlimited = result.get("request_rate") in (None, "inf", math.inf)
    rate = None if unlimited else number(result, where, "request_rate")
    clients = number(result, where, "max_concurrency") if result.get("max_concurrency") else None
    streams = clients if rate is None else None
    offered = achieved if rate is None or clients else rate
    paced = rate is not None and not clients
    spread = _spread(result, where, generated)
    burstiness = result.get("burstiness", 1.0)
    duration = number(result, where, "duration")
    failed = count(result, where, "failed") if "failed" in result else 0
    return [
        StageReport(
            stage=0,
            rate_rps=offered,
            duration_s=(completed + failed) / offered if paced else duration,
            arrival="poisson" if paced and burstiness == 1.0 else "constant",
            input_len_mean=number(result, where, "total_input_tokens") / completed,
            output_len=generated,
            ttft_mean=ttft,
            e2e_mean=e2e,
            n_success=completed,
            n_failed=failed,
            note=""
            if paced or streams
            else f"no open rate: it enters with the {achieved:.3g}/s achieved",
            concurrency=streams,
            output_len_std=spread,
        )
    ]


def _spread(result: Mapping[str, Any], where: str, mean: float) -> float:
    """Standard deviation of the generated tokens, as they are listed or else guessed."""
    lengths = result.get("output_lens")
    if not isinstance(lengths, list) or not lengths:
        return 0.0 if mean == int(mean) else _GUESS * mean
    places = map(str, range(len(lengths)))
    listed = dict(zip(places, lengths, strict=True))
    return statistics.pstdev(count(listed, f"{where}: output_lens", place) for place in listed)
