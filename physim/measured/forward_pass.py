"""Steps from the forward-pass metrics that engines publish, a JSON message on each line.

Version 1 of `ForwardPassMetrics` (Dynamo's ``common/forward_pass_metrics.py``, which engines write
too). A subscriber of the stream writes the lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from physim import data
from physim.errors import InputError
from physim.measured.steps import MeasuredSteps
from physim.records import Count, Document, Moment, Ticks, Total, checked

# What a message says its clock covers, and which clock that is.
_SCOPES = {"execute_model_cuda": "gpu"}
# From `schedule` to `update_from_output`, as Dynamo defines the time of a message without a scope.
_CLOCK = "scheduler"


class _Scheduled(Document):
    num_prefill_requests: Count = 0
    sum_prefill_tokens: Count = 0
    var_prefill_length: Total = 0.0
    sum_prefill_kv_tokens: Count = 0
    num_decode_requests: Count = 0
    sum_decode_kv_tokens: Count = 0
    var_decode_kv_tokens: Total = 0.0


class _Message(Document):
    version: Literal[1] = 1
    worker_id: str = ""
    dp_rank: Count = 0
    counter_id: Ticks = 0
    timing_scope: str | None = None
    wall_time: Moment
    scheduled_requests: _Scheduled

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The sums where a message has them beside its time, as Dynamo's replay writes it."""
        if "scheduled_requests" not in message and "num_prefill_requests" in message:
            return {**message, "scheduled_requests": message}
        return message


def read(path: Path, clock: str | None = None) -> MeasuredSteps:
    """The steps that messages tell of.

    The variance of prompts is that of whole prompts; it is the chunks' where nothing is cached of
    them, and says nothing else. A last line that is cut off is left out.

    Args:
        path: The messages, which may be compressed (``.gz``).
        clock: What the time of a message covers, of `physim.measured.steps.CLOCKS`; None for what
            the messages say, or else from scheduling a step to handling its tokens.

    Raises:
        InputError: The file cannot be read, a line is no message, messages have clocks of several
            kinds, or none tells of a step.
    """
    notes: list[str] = []
    messages = list(_messages(path, notes))
    steps = [one for one in messages if one.wall_time > 0]
    asleep = sum(
        not one.scheduled_requests.num_prefill_requests + one.scheduled_requests.num_decode_requests
        for one in messages
        if one.wall_time == 0
    )
    untimed = len(messages) - len(steps) - asleep
    if untimed:
        notes.append(f"{untimed} steps without a time are left out")
    scopes = {one.timing_scope for one in steps}
    if len(scopes) > 1:
        raise InputError(
            f"{path}: timing_scope", "differs between messages", "separate their workers"
        )
    scope = next(iter(scopes), None)
    if clock is None and scope is not None and scope not in _SCOPES:
        raise InputError(
            f"{path}: timing_scope", f"{scope[:40]!r} is unknown", "say what it covers (--clock)"
        )
    if missing := _missing(messages):
        notes.append(f"{missing} messages between these were not received")
    fields = {
        "prefill_requests": "num_prefill_requests",
        "prefill_tokens": "sum_prefill_tokens",
        "prefill_variance": "var_prefill_length",
        "cached_tokens": "sum_prefill_kv_tokens",
        "decode_requests": "num_decode_requests",
        "context_tokens": "sum_decode_kv_tokens",
        "context_variance": "var_decode_kv_tokens",
    }
    columns = {
        name: np.array([getattr(one.scheduled_requests, field) for one in steps], float)
        for name, field in fields.items()
    }
    columns["seconds"] = np.array([one.wall_time for one in steps], float)
    columns["prefill_variance"] = _of_chunks(columns)
    return MeasuredSteps.from_columns(
        columns, clock or _SCOPES.get(scope or "", _CLOCK), str(path), notes=tuple(notes)
    )


def _of_chunks(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Variance of chunks where prompts are computed whole, of none more than their sum lets it."""
    requests = np.maximum(columns["prefill_requests"], 1)
    most = (columns["prefill_tokens"] / requests) ** 2 * (requests - 1)
    known = np.minimum(columns["prefill_variance"], most)
    return np.where(columns["cached_tokens"] == 0, known, np.where(requests == 1, 0.0, np.nan))


def _messages(path: Path, notes: list[str]) -> Iterator[_Message]:
    with data.opened(path, errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                # Only the last line has no end.
                if not line.endswith("\n") and number > 1:
                    notes.append("the last line is cut off and left out")
                    return
                raise InputError(place, "is no JSON message", "correct it") from error
            if not isinstance(content, dict):
                raise InputError(place, "is no JSON object", "pass one message a line")
            yield checked(_Message, content, place, "the messages as they were published")


def _missing(messages: list[_Message]) -> int:
    """How many messages were not received, by the numbers that each worker's rank gives them."""
    last: dict[tuple[str, int], int] = {}
    missing = 0
    for one in messages:
        sender = (one.worker_id, one.dp_rank)
        # A worker that is started anew begins at 0.
        missing += max(one.counter_id - last.get(sender, one.counter_id) - 1, 0)
        last[sender] = one.counter_id
    return missing
