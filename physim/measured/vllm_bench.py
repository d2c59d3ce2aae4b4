"""Results of ``vllm bench serve --save-result`` (the form of vLLM 0.33, unchanged since 0.10).

``vllm bench sweep serve`` writes a list of them for each combination, ``summary.json``.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import StageReport, cut_short, held_back
from physim.records import Count, Document, Positive, Spread, Whole, checked, disagreement
from physim.service.phases import decode_steps

# Spread of lengths that are known to differ, as a share of their mean: enough that clients do not
# stay in step, and of hardly any account beyond that.
_GUESS = 0.1
_SOURCE = "a result of vllm bench serve"
# Of times that are not negative, the least that their mean is of their median: a half, but for
# rounding.
_LEAST_MEAN = 0.499


def _limited(rate: Any) -> Any:
    """None for a rate without limit, which is written as "inf"."""
    return None if rate in ("inf", math.inf) else rate


def _either(name: str) -> AliasChoices:
    return AliasChoices(f"spec_decode_{name}", name)


class _Result(Document):
    completed: Count
    failed: Count | None = None
    num_prompts: Count | None = None
    duration: Positive
    request_rate: Annotated[Positive | None, BeforeValidator(_limited)] = None
    burstiness: Positive = 1.0
    max_concurrency: Whole | None = None
    request_throughput: Positive
    model_id: str | None = None
    total_input_tokens: Whole
    total_output_tokens: Whole
    input_lens: list[Count] | None = None
    output_lens: list[Count] | None = None
    # Of random prompts, where a sweep varies it: the mean that was asked for.
    random_output_len: Annotated[
        Whole | None,
        Field(validation_alias=AliasChoices("random_output_len", "random-output-len")),
    ] = None
    mean_ttft_ms: Positive
    mean_tpot_ms: Spread | None = None
    mean_e2el_ms: Positive | None = None
    median_ttft_ms: Spread | None = None
    median_tpot_ms: Spread | None = None
    median_e2el_ms: Spread | None = None
    # Of drafts, where there were any; without the prefix in what some versions write.
    accepted_length: Annotated[
        Positive | None,
        Field(validation_alias=_either("acceptance_length")),
    ] = None
    accepted_by_position: Annotated[
        list[Spread] | None,
        Field(validation_alias=_either("per_position_acceptance_rates")),
    ] = None

    @model_validator(mode="after")
    def _adds_up(self) -> _Result:
        back = self.completed + (self.failed or 0)
        if self.num_prompts is not None and self.num_prompts < back:
            problem = f"{self.num_prompts} were sent, fewer than the {back} that came back"
            raise disagreement("num_prompts", problem, "correct it")
        for metric in ("ttft", "tpot", "e2el"):
            name = f"mean_{metric}_ms"
            mean, median = getattr(self, name), getattr(self, f"median_{metric}_ms")
            # Half of the requests took the median or longer.
            if mean is not None and median is not None and mean < _LEAST_MEAN * median:
                problem = f"{mean:g} is less than half of the median, {median:g}"
                raise disagreement(name, problem, "give both in milliseconds")
        return self


def read(path: Path, output_len: float | None = None) -> list[StageReport]:
    """The one stage of a result, or a stage for each of a sweep's summary.

    E2E is what was reported (``--percentile-metrics e2el``), or else follows from TTFT and TPOT.
    Without a rate it is one of clients, ``--max-concurrency`` of them: without that either all
    requests are sent at once, each by a client of its own. A rate that ``--max-concurrency`` held
    back enters as what was achieved. Outputs are of one length if their mean is a whole number and
    the result does not list them (``--save-detailed``).

    Args:
        path: The file.
        output_len: Tokens that were generated, if known better than from the result.

    Raises:
        InputError: The file is no such result, or a field is missing.
    """
    results = data.read_json_objects(path)
    places = [f"{path}: [{run}]" if len(results) > 1 else str(path) for run in range(len(results))]
    return [
        _stage(run, checked(_Result, one, place, _SOURCE), place, output_len)
        for run, (one, place) in enumerate(zip(results, places, strict=True))
    ]


def _stage(run: int, result: _Result, path: str, output_len: float | None) -> StageReport:
    completed = result.completed
    if completed < 1:
        raise InputError(f"{path}: completed", "no request was answered", "measure again")
    generated = output_len or result.total_output_tokens / completed
    achieved, rate, clients = result.request_throughput, result.request_rate, result.max_concurrency
    # Older versions do not say how many failed.
    failed = (
        (result.num_prompts or completed) - completed if result.failed is None else result.failed
    )
    sent, e2e_s = completed + failed, _e2e_s(result, path, generated)
    held = rate is not None and held_back(achieved, e2e_s, clients)
    paced = rate is not None and not held
    streams = None if rate is not None else clients or sent
    offered = rate if rate is not None and paced else achieved
    is_gamma = paced and result.burstiness != 1.0
    notes = [
        f"max_concurrency held the rate back: it enters with the {achieved:.3g}/s achieved"
        if held
        else "",
        f"no rate: all {sent} requests are sent at once" if rate is None and not clients else "",
        cut_short(generated, result.random_output_len or 0.0),
    ]
    return StageReport(
        stage=run,
        rate_rps=offered,
        duration_s=sent / offered if paced else result.duration,
        arrival="gamma" if is_gamma else "poisson" if paced else "constant",
        burstiness=result.burstiness if is_gamma else None,
        input_len_mean=result.total_input_tokens / completed,
        output_len=generated,
        ttft_mean=result.mean_ttft_ms / 1e3,
        e2e_mean=e2e_s,
        n_success=completed,
        n_failed=failed,
        note="; ".join(filter(None, notes)),
        concurrency=streams,
        requests=sent if streams else None,
        output_len_std=_spread(result, generated),
        input_len_std=statistics.pstdev(result.input_lens) if result.input_lens else None,
        draft_acceptance=_acceptance(result),
        model=result.model_id,
    )


def _acceptance(result: _Result) -> str | None:
    """How many drafts were accepted, by position where that is said."""
    if result.accepted_by_position:
        return ",".join(f"{chance:.6g}" for chance in result.accepted_by_position)
    return None if result.accepted_length is None else f"{result.accepted_length:.6g}"


def _e2e_s(result: _Result, path: str, generated: float) -> float:
    if result.mean_e2el_ms is not None:
        return result.mean_e2el_ms / 1e3
    if result.mean_tpot_ms is None:
        raise InputError(f"{path}: mean_tpot_ms", "is missing", "pass a result of vllm bench serve")
    return (result.mean_ttft_ms + result.mean_tpot_ms * max(decode_steps(generated), 0.0)) / 1e3


def _spread(result: _Result, mean: float) -> float:
    """Standard deviation of the generated tokens, as they are listed or else guessed."""
    # Requests that failed are listed with none.
    lengths = [length for length in result.output_lens or () if length]
    if not lengths:
        return 0.0 if mean == int(mean) else _GUESS * mean
    return statistics.pstdev(lengths)
