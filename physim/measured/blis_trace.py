"""Traces of the simulator BLIS: a header in YAML and a CSV of requests beside it (version 3)."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from physim import data
from physim.engines.engine import engines
from physim.errors import InputError
from physim.measured.stage_report import StageReport
from physim.records import (
    Count,
    Record,
    Share,
    Text,
    Ticks,
    Whole,
    checked,
    disagreement,
    read_rows,
)

# Times of a request, in their order.
_TIMES = ("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us")


class _Header(Record):
    trace_version: Literal["3"]
    time_unit: Literal["microseconds"]
    warm_up_requests: Count = 0


class _Server(Record):
    type: Text | None = None
    model: Text | None = None
    tensor_parallel: Whole | None = None
    max_num_seqs: Whole | None = None
    gpu_memory_utilization: Share | None = None
    max_model_len: Whole | None = None


class _Request(Record):
    # Tokens after a prefix that others share.
    input_tokens: Count
    prefix_length: Count | None = None
    # All of the prompt, as the server counted; 0 if it did not say.
    server_input_tokens: Count | None = None
    output_tokens: Count
    streaming: bool | None = None
    arrival_time_us: Ticks
    send_time_us: Ticks
    first_chunk_time_us: Ticks
    last_chunk_time_us: Ticks
    status: Literal["ok", "error", "timeout", "incomplete"]

    @model_validator(mode="after")
    def _agrees(self) -> _Request:
        if self.status != "ok":
            return self
        if self.streaming is False:
            raise disagreement(
                "streaming", "is false, so that no first token was seen", "measure with streaming"
            )
        if not (self.prompt_tokens and self.output_tokens):
            field = "output_tokens" if self.prompt_tokens else "input_tokens"
            raise disagreement(field, "is 0 of an answered request", "correct it")
        for earlier, later in itertools.pairwise(_TIMES):
            before, after = getattr(self, earlier), getattr(self, later)
            # Some time passes before the first chunk.
            if after < before or (later == "first_chunk_time_us" and after == before):
                raise disagreement(
                    later, f"{after} is not after {earlier}, {before}", "correct them"
                )
        return self

    @property
    def prompt_tokens(self) -> int:
        """All tokens of its prompt."""
        return self.server_input_tokens or (self.prefix_length or 0) + self.input_tokens


def read_run(
    path: Path, output_len: float | None = None
) -> tuple[list[StageReport], Mapping[str, Any]]:
    """The requests of a trace as one stage of their mean rate, and the server of its header.

    Args:
        path: The CSV, or its header, the file of the same name that ends in ``.yaml``.
        output_len: Tokens that were generated, if known better than from the trace.

    Returns:
        The stage; and the ``model`` and options of a deployment by name, as far as the header says
        them.

    Raises:
        InputError: A file is missing or of another version, lacks a field, or holds a value that
            is missing, out of range or in contradiction with another.
    """
    path = path.with_suffix(".csv")
    requests = sorted((row for _, row in read_rows(_Request, path)), key=_arrival)
    header, server = _header(path.with_suffix(".yaml"))
    stage = _stage(requests[header.warm_up_requests :], path, output_len)
    return [stage], _options(server)


def _stage(requests: Sequence[_Request], path: Path, output_len: float | None) -> StageReport:
    answered = [request for request in requests if request.status == "ok"]
    if len(answered) < 2:
        raise InputError(str(path), "has fewer than two answered requests", "pass a longer trace")
    arrivals = [request.arrival_time_us for request in requests]
    span = (arrivals[-1] - arrivals[0]) / 1e6
    if span <= 0:
        raise InputError(f"{path}: arrival_time_us", "is the same for all", "correct it")
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    spread = statistics.pvariance(gaps) / statistics.fmean(gaps) ** 2

    def mean(field: str) -> float:
        return statistics.fmean(getattr(request, field) for request in answered)

    def mean_s(field: str) -> float:
        waits = (getattr(one, field) - one.send_time_us for one in answered)
        return statistics.fmean(waits) / 1e6

    return StageReport(
        stage=0,
        rate_rps=(len(requests) - 1) / span,
        duration_s=span,
        arrival="poisson" if spread > 0.5 else "constant",
        input_len_mean=mean("prompt_tokens"),
        input_len_std=statistics.pstdev(request.prompt_tokens for request in answered),
        output_len=output_len or mean("output_tokens"),
        output_len_std=statistics.pstdev(request.output_tokens for request in answered),
        ttft_mean=mean_s("first_chunk_time_us"),
        e2e_mean=mean_s("last_chunk_time_us"),
        n_success=len(answered),
        n_failed=len(requests) - len(answered),
    )


def _options(server: _Server) -> Mapping[str, Any]:
    """What a header says of the server, by the names of options."""
    told = {
        "engine": server.type if server.type in {one.name for one in engines()} else None,
        "model": server.model,
        "tp": server.tensor_parallel,
        "max_num_seqs": server.max_num_seqs,
        "gpu_memory_utilization": server.gpu_memory_utilization,
        "max_model_len": server.max_model_len,
    }
    return {name: value for name, value in told.items() if value is not None}


def _arrival(request: _Request) -> int:
    return request.arrival_time_us


def _header(path: Path) -> tuple[_Header, _Server]:
    """The fields of a header, and those of its server, whose YAML is one to a line."""
    try:
        with data.reading(path):
            lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not UTF-8 text", "pass BLIS's header") from error
    fields: dict[str, str] = {}
    nested: dict[str, dict[str, str]] = {"server": {}}
    block = ""
    for line in lines:
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key == key.strip():
            block, known = key, fields
        else:
            # Other blocks may have a name at several depths.
            known = nested.get(block, {})
        if key.strip() in known:
            raise InputError(f"{path}: {key.strip()}", "is there twice", "remove one")
        known[key.strip()] = value.partition(" #")[0].strip().strip("'\"")
    where = "the header of a trace of version 3"
    server = checked(_Server, nested["server"], f"{path}: server", where)
    return checked(_Header, fields, str(path), where), server
