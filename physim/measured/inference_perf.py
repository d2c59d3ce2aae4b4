"""Reports of inference-perf: a folder of ``stage_N_lifecycle_metrics.json``.

The form is that of inference-perf 0.7.0 (``reportgen/base.py``) and of the releases before it,
which call the prompt's and the output's tokens ``prompt_len`` and ``output_len``.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from pydantic import model_validator

from physim import data
from physim.errors import InputError
from physim.inputs.inference_perf import load_of
from physim.inputs.lengths import lengths
from physim.measured.stage_report import StageReport, cut_short
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
from physim.service.phases import decode_steps

# What inference-perf writes beside its reports.
_CONFIGURATION = "config.yaml"
_NAME = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")
# Chunks of a token from which on, and up to which, a server is taken to send two of each.
_TWO_CHUNKS = (1.7, 2.3)
# Share of the rate that was asked for below which a load generator did not keep up.
_KEPT_UP = 0.95


class _Time(Document):
    mean: Positive


class _Gap(Document):
    mean: Spread | None = None


class _Tokens(Document):
    mean: Length | None = None
    total: Spread | None = None
    # Of a prompt, as the server found it in its prefix cache.
    cached: Spread | None = None

    @model_validator(mode="after")
    def _agrees(self) -> _Tokens:
        if self.cached is not None and self.total is not None and self.cached > self.total:
            problem = f"{self.cached:g} are more than the total, {self.total:g}"
            raise disagreement("cached", problem, "correct it")
        return self


class _Latency(Document):
    time_to_first_token: _Time
    request_latency: _Time
    inter_token_latency: _Gap | None = None


class _Successes(Document):
    count: Count
    latency: _Latency
    # As the server counted them, or else the client.
    prompt_tokens: _Tokens | None = None
    prompt_len: _Tokens | None = None
    output_tokens: _Tokens | None = None
    output_len: _Tokens | None = None

    @model_validator(mode="after")
    def _says_how_long(self) -> _Successes:
        for side in ("prompt", "output"):
            if self.tokens(side) is None:
                raise disagreement(
                    f"{side}_len.mean", "is missing", "pass inference-perf's reports"
                )
        return self

    def tokens(self, side: str) -> float | None:
        """Mean tokens of the prompt or the output."""
        told = (getattr(self, f"{side}_tokens"), getattr(self, f"{side}_len"))
        return next((one.mean for one in told if one is not None and one.mean is not None), None)


class _Load(Document):
    requested_rate: Positive
    achieved_rate: Positive | None = None
    count: Whole


class _Failures(Document):
    count: Count


class _Report(Document):
    load_summary: _Load
    successes: _Successes
    failures: _Failures

    @model_validator(mode="after")
    def _adds_up(self) -> _Report:
        told = self.successes.count + self.failures.count
        if self.load_summary.count != told:
            problem = f"{self.load_summary.count} are not the {told} that succeeded or failed"
            raise disagreement("load_summary.count", problem, "correct it")
        return self


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
    asked = _asked(folder / _CONFIGURATION)
    return [_stage(stage, path, output_len, asked) for stage, path in files]


def _asked(path: Path) -> float:
    """Mean tokens of an output that the run's configuration asks for; 0 where it does not say."""
    if not path.is_file():
        return 0.0
    # The report stands for itself: a configuration of other data says no lengths.
    with contextlib.suppress(InputError):
        asked = load_of(data.read_yaml(path), str(path))["output_tokens"]
        assert not isinstance(asked, str)  # as `load_of` reads it
        return lengths(asked).mean
    return 0.0


def _stage(stage: int, path: Path, output_len: float | None, asked: float) -> StageReport:
    report = read_document(_Report, path, "inference-perf's reports")
    done, load = report.successes, report.load_summary
    prompt, generated = done.tokens("prompt"), output_len or done.tokens("output")
    assert prompt is not None  # so with the next: the report's own check
    assert generated is not None
    rate = load.requested_rate
    notes = [
        _chunks(done.latency, generated),
        _cached(done.prompt_tokens),
        cut_short(generated, asked),
    ]
    if load.achieved_rate is not None and load.achieved_rate < _KEPT_UP * rate:
        rate = load.achieved_rate
        notes.append(f"{rate:.3g}/s were sent instead of {load.requested_rate:g}, and are taken")
    return StageReport(
        stage=stage,
        rate_rps=rate,
        duration_s=load.count / rate,
        arrival="constant",
        input_len_mean=prompt,
        output_len=generated,
        ttft_mean=done.latency.time_to_first_token.mean,
        e2e_mean=done.latency.request_latency.mean,
        n_success=done.count,
        n_failed=report.failures.count,
        note="; ".join(filter(None, notes)),
    )


def _cached(prompts: _Tokens | None) -> str:
    """What the server's prefix cache says of the prompts."""
    if prompts is None or not prompts.total or not prompts.cached:
        return ""
    share = prompts.cached / prompts.total
    return f"{share:.0%} of the prompts' tokens were in the prefix cache; give --prompt-groups"


def _chunks(latency: _Latency, generated: float) -> str:
    """What the gap between chunks says of how many a token has."""
    mean = latency.inter_token_latency and latency.inter_token_latency.mean
    if not mean or generated <= 1:
        return ""
    rest = latency.request_latency.mean - latency.time_to_first_token.mean
    each = rest / mean / decode_steps(generated)
    if _TWO_CHUNKS[0] <= each <= _TWO_CHUNKS[1]:
        return (
            f"the server sent two chunks a token ({each:.2f}): the reported time between tokens of "
            f"{mean * 1e3:.2f} ms is half of it, and was taken from E2E instead"
        )
    return ""
