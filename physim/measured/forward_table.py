"""Steps from NVIDIA's tables of measured forward passes.

``fpm_forward_perf.parquet`` with ``fpm_forward_perf.metadata.json`` beside it, as AIConfigurator's
collector publishes them: totals of a rank's step, shared out evenly among its requests
(``balanced_v1``), of which each latency is that of the slowest rank.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from physim import data
from physim.errors import InputError
from physim.measured.condition import filtered
from physim.measured.steps import MeasuredSteps
from physim.measured.table_files import numbers, read_parquet
from physim.records import Count, Document, Text, read_document

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = ("batch_size", "total_prefill_tokens", "total_kv_read_tokens", "latency_ms")
_POLICY = "balanced_v1"
# What tells deployments apart, as far as a table has it.
_DEPLOYMENT = (
    *("model_path", "system", "backend", "backend_version", "gemm_quant_mode", "moe_quant_mode"),
    *("fmha_quant_mode", "comm_quant_mode", "kv_cache_dtype"),
    *("tp", "pp", "dp", "moe_tp", "moe_ep", "cp", "moe_backend", "attention_backend"),
    *("enable_wideep", "enable_eplb"),
)


class _Metadata(Document):
    schema_name: Literal["aic_fpm_forward_perf"]
    row_count: Count
    parquet_sha256: Annotated[Text, Field(pattern=r"^[0-9a-f]{64}$")]


def is_table(frame: pd.DataFrame) -> bool:
    """Whether a table has the columns of such a one."""
    return {"workload_kind", *_MEASURED} <= set(frame)


def read(path: Path, where: str = "") -> MeasuredSteps:
    """The steps of a table.

    Args:
        path: The Parquet file.
        where: Which of its rows; see `physim.measured.condition.filtered`.

    Raises:
        InputError: A file cannot be read, the two are no pair, a column is missing or holds
            something else, or the rows are of several deployments.
    """
    frame = read_parquet(path)
    beside = path.with_suffix(".metadata.json")
    notes = []
    if beside.is_file():
        _check_pair(path, frame, beside)
    else:
        notes.append(f"{beside.name} is not beside it: nothing says that the table is whole")
    missing = [name for name in ("workload_kind", *_MEASURED) if name not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    if where:
        frame = filtered(frame, where)
    _check_one_deployment(path, frame)
    requests, tokens, read_tokens, latency = (numbers(path, frame, name) for name in _MEASURED)
    kind = frame["workload_kind"].astype(str).to_numpy()
    decodes = kind == "decode"
    strange = ~decodes & (kind != "prefill") | decodes & (tokens > 0)
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{path}, row {row + 1}: workload_kind",
            f"{str(kind[row])[:40]!r} does not go with {tokens[row]:g} prefill tokens",
            "correct it",
        )
    if "partition_policy" in frame and not (frame["partition_policy"] == _POLICY).all():
        raise InputError(f"{path}: partition_policy", f"is not {_POLICY}", "choose with --where")
    none = np.zeros(len(frame))
    own = {
        name: str(frame[column].iloc[0])
        for name, column in (("engine", "backend"), ("engine_version", "backend_version"))
        if column in frame
    }
    return MeasuredSteps.from_columns(
        {
            "decode_requests": np.where(decodes, requests, none),
            "drafts": none,
            "context_tokens": np.where(decodes, read_tokens, none),
            "context_variance": none,
            "prefill_requests": np.where(decodes, none, requests),
            "prefill_tokens": tokens,
            "prefill_variance": none,
            "cached_tokens": np.where(decodes, none, read_tokens),
            "seconds": latency / 1e3,
        },
        # It is what Dynamo's instrumented scheduler reports of the step.
        "scheduler",
        str(path),
        notes=tuple(notes),
        **own,
    )


def _check_pair(path: Path, frame: pd.DataFrame, beside: Path) -> None:
    metadata = read_document(_Metadata, beside, "the file that was published with the table")
    if metadata.row_count != len(frame):
        raise InputError(
            f"{beside}: row_count", f"is {metadata.row_count} of {len(frame)} rows", "fetch both"
        )
    with data.reading(path):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != metadata.parquet_sha256:
        raise InputError(f"{beside}: parquet_sha256", "is another file's", "fetch both")


def _check_one_deployment(path: Path, frame: pd.DataFrame) -> None:
    differ = [
        name for name in _DEPLOYMENT if name in frame and len(frame[name].astype(str).unique()) > 1
    ]
    if differ:
        raise InputError(
            str(path),
            f"holds steps of deployments with different {', '.join(differ)}",
            "choose one with --where",
        )
