"""A replay as a trace of BLIS (TraceV2, version 3), which `physim.measured.blis_trace` reads.

Source of fields and columns: inference-sim/inference-sim, ``sim/workload/tracev2.go``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from physim.exports.block_yaml import as_yaml
from physim.inputs.case import Case
from physim.replay.outcome import Replayed

if TYPE_CHECKING:
    import pandas as pd

_STATUS = {"completed": "ok", "dropped": "timeout", "queued": "incomplete", "running": "incomplete"}


def prefixes_of(result: Replayed, tokens: int) -> list[tuple[str, int]]:
    """Of each request of a replay, a name of the prefix that others share, and its tokens.

    Args:
        result: The replay.
        tokens: Tokens of such a prefix.
    """
    numbers: dict[tuple[int, ...], int] = {}
    found = []
    for request in result.requests:
        path = tuple(map(id, request.path))
        name = f"prefix-{numbers.setdefault(path, len(numbers))}" if path else ""
        found.append((name, tokens if path else 0))
    return found


def trace_rows(
    requests: pd.DataFrame, prefixes: Sequence[tuple[str, int]], model: str
) -> pd.DataFrame:
    """Requests as the 27 columns of a trace, whose times are whole microseconds.

    A request that was not answered has zero for the times of its chunks.

    Args:
        requests: Rows of `physim.replay.outcome.Replayed.to_frame`.
        prefixes: Those of each, as `prefixes_of` has them.
        model: The model's name.
    """
    import pandas as pd

    names, shared = zip(*prefixes, strict=True) if prefixes else ((), ())
    length, arrival = np.array(shared, int), _ticks(requests["arrival_s"])
    answered = (requests["state"] == "completed").to_numpy()
    # The reader, like BLIS, wants some time before the first chunk.
    first = arrival + np.maximum(_ticks(requests["ttft_s"]), 1)
    last = np.maximum(arrival + _ticks(requests["e2e_s"]), first)
    rest = requests["input_tokens"].to_numpy() - length
    columns: dict[str, Any] = {
        "request_id": requests["number"],
        "client_id": "",
        "tenant_id": "",
        "slo_class": "",
        "session_id": "",
        "round_index": 0,
        "prefix_group": names,
        "prefix_length": length,
        "streaming": "true",
        "input_tokens": rest,
        "output_tokens": requests["output_tokens"],
        "text_tokens": rest,
        "image_tokens": 0,
        "audio_tokens": 0,
        "video_tokens": 0,
        "reason_ratio": 0.0,
        "model": model,
        "deadline_us": 0,
        "server_input_tokens": requests["input_tokens"],
        "arrival_time_us": arrival,
        "send_time_us": arrival,
        "first_chunk_time_us": np.where(answered, first, 0),
        "last_chunk_time_us": np.where(answered, last, 0),
        "num_chunks": np.where(answered, requests["output_tokens"], 0),
        "status": [_STATUS[state] for state in requests["state"]],
        "error_message": "",
        "finish_reason": np.where(answered, "length", ""),
    }
    return pd.DataFrame(columns, index=range(len(requests)))


def write_trace(path: Path, rows: pd.DataFrame, case: Case, comments: Sequence[str]) -> None:
    """Writes a trace's CSV, and its header beside it.

    Args:
        path: The CSV; the header has the same name and ends in ``.yaml``.
        rows: The requests, by `trace_rows`.
        case: What served them.
        comments: Lines above the header.
    """
    server = case.server
    header = {
        "trace_version": 3,
        "time_unit": "microseconds",
        "mode": "replayed",
        "warm_up_requests": 0,
        "server": {
            "type": server.profile.engine,
            "model": case.model.name,
            "tensor_parallel": server.parallelism.tp,
            "max_num_seqs": server.sizes.max_num_seqs,
            "block_size": server.kv.block_size,
            "max_model_len": server.sizes.max_model_len,
            "gpu_memory_utilization": server.to_dict()["gpu_memory_utilization"],
        },
    }
    rows.to_csv(path, index=False)
    path.with_suffix(".yaml").write_text(as_yaml([header], comments), encoding="utf-8")


def _ticks(seconds: pd.Series) -> np.ndarray:
    """Whole microseconds; zero where there is no time."""
    return np.rint(1e6 * np.nan_to_num(seconds.to_numpy(float))).astype(np.int64)
