"""Measured runs in the common form: a CSV with a row for each load stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.engines.profile import DEFAULT_ENGINE
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.deployment import Deployment
from physim.inputs.lengths import Lengths, Tokens
from physim.inputs.load import Load, Stage
from physim.measured.recorded_traffic import (
    arrival_named,
    check_traces,
    folder_of,
    lengths_named,
)
from physim.measured.schema import COLUMNS, REQUIRED, SHARED, Row, checked
from physim.models.parallelism import Parallelism
from physim.records import read_cells

if TYPE_CHECKING:
    import pandas as pd

WHOLE_RUN = -1

_MEASURED = ("ttft_mean", "e2e_mean", "itl_mean")
# Of the requests that came in a stage, and no more than a check where the row names a trace.
_OF_REQUESTS = ("input_len_mean", "input_len_std", "output_len", "output_len_std")


def read_table(path: Path) -> pd.DataFrame:
    """A table of measured rows, checked; ``table`` is added, the file's path.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds a value that is missing, out
            of range or in contradiction with another or with the trace that it names, or a
            stage twice.
    """
    import pandas as pd

    places = [place for place, _ in read_cells(path)]
    try:
        # As text, for what a value is meant to be is the schema's to say: 0.10 is a version.
        frame = pd.read_csv(path, dtype=dict.fromkeys(COLUMNS, object))
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise InputError(str(path), "is not a CSV table with a header", "pass one") from error
    missing = [column for column in REQUIRED if column not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    rows = checked(frame.to_dict("records"), lambda number: places[number])
    for own, place in zip(rows, places, strict=True):
        check_traces(own, place, path.parent)
    for column in COLUMNS:
        if column in frame or column in _MEASURED:
            values = [getattr(row, column) for row in rows]
            frame[column] = [math.nan if value is None else value for value in values]
    again = frame.duplicated(["experiment", "stage"])
    if again.any():
        number = int(again.to_numpy().argmax())
        row = rows[number]
        raise InputError(
            f"{places[number]}: stage",
            f"{row.stage} of {row.experiment!r} is there twice",
            "remove one of the rows, or number the stages",
        )
    # Stages of a rate follow one another; of clients each is a run of its own.
    runs = [
        row.experiment if row.concurrency is None else f"{row.experiment} {row.stage}"
        for row in rows
    ]
    return frame.assign(table=str(path), run=runs)


def clients_of(row: Row) -> float | None:
    """Clients of a row whose requests came in a closed loop; None for a rate."""
    return number_of(row, "concurrency")


def number_of(row: Row, column: str) -> float | None:
    """A number that a row may lack."""
    value = row.get(column)
    return None if value is None or math.isnan(float(value)) else float(value)


def text_of(row: Row, column: str) -> str | None:
    """A text that a row may lack."""
    value = row.get(column)
    return value if isinstance(value, str) and value else None


def _flag(row: Row, column: str) -> bool | None:
    """A yes or no that a row may lack."""
    value = row.get(column)
    return value if isinstance(value, bool) else None


def measured(row: Row) -> dict[str, float]:
    """Mean TTFT, ITL and E2E of a row, seconds: those of them that it has.

    ITL is what is left of E2E without TTFT for each token but the first: the generated tokens are
    known, while the client's count and its chunks may differ. Only a row without them gives its
    own.
    """
    seen = {metric: number_of(row, f"{metric}_mean") for metric in ("ttft", "e2e", "itl")}
    ttft, e2e = seen["ttft"], seen["e2e"]
    if ttft is not None and e2e is not None and row["output_len"] > 1:
        seen["itl"] = (e2e - ttft) / (row["output_len"] - 1)
    return {metric: value for metric, value in seen.items() if value is not None}


def _lengths(row: Row, mean: str, spread: str) -> Tokens:
    std = number_of(row, spread)
    return Lengths.normal(float(row[mean]), std) if std else float(row[mean])


def _requests(row: Row, block_size: int) -> dict[str, Any]:
    """What a load says of its requests: those of a trace, or means and spreads."""
    named = text_of(row, "lengths")
    if named is not None:
        return {"lengths": lengths_named(named, folder_of(row), bool(row["prefix_caching"]))}
    return {
        "input_tokens": _lengths(row, "input_len_mean", "input_len_std"),
        "output_tokens": _lengths(row, "output_len", "output_len_std"),
        "cached_tokens": cached_tokens(row, block_size),
    }


def case_of(run: Sequence[Row], timeout_s: float | None) -> Case:
    """A run's rows as a case: its stages in order, or its overall row if it has no other.

    Raises:
        InputError: What must be the same in all stages is not, or the case cannot be predicted.
    """
    stages = stages_of(run)
    row = stages[0]
    differ = _OF_REQUESTS if text_of(row, "lengths") else ()
    for column in (name for name in SHARED if name not in differ):
        values = {None if (x := other.get(column)) != x else x for other in stages}
        if len(values) > 1:
            raise InputError(
                f"{row['experiment']}: {column}",
                f"differs between stages ({', '.join(sorted(map(str, values)))})",
                "give each its own experiment",
            )
    kv_blocks, every = number_of(row, "kv_blocks"), number_of(row, "receive_every")
    deployment = Deployment(
        parallelism_of(row),
        engine=text_of(row, "engine") or DEFAULT_ENGINE,
        engine_version=text_of(row, "engine_version"),
        sampling=text_of(row, "sampling") or "unknown",
        async_scheduling=_flag(row, "async_scheduling"),
        receive_every=1 if every is None else int(every),
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        max_model_len=int(row["max_model_len"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        kv_blocks=None if kv_blocks is None else int(kv_blocks),
        kv_cache_dtype=text_of(row, "kv_cache_dtype") or "auto",
    )
    clients, requests = clients_of(row), number_of(row, "requests")
    open_loop = () if clients else stages
    load = Load(
        **_requests(row, deployment.block_size),
        **({"arrival": "constant"} if clients else arrival_named(row["arrival"], folder_of(row))),
        concurrency=clients,
        requests=int(requests) if clients and requests else None,
        warm_up_s=number_of(row, "warm_up_s") or 0.0,
        burstiness=1.0 if clients else number_of(row, "burstiness") or 1.0,
        stages=tuple(Stage(float(s["rate_rps"]), float(s["duration_s"])) for s in open_loop),
        prefixes=max(int(row["prompt_groups"] * (number_of(row, "prompts_per_group") or 1)), 1),
        timeout_s=timeout_s,
    )
    return Case.from_parts(row["model"], row["hardware"], deployment, load)


def lasting(case: Case, row: Row) -> Case:
    """The case of a row's run under the load of the row's own stage, as if that lasted.

    Args:
        case: The run's.
        row: One of its stages.
    """
    load = case.demanded
    if load.concurrency is None:
        load = replace(load, stages=(), rate=float(row["rate_rps"]))
    return case.under(load)


def parallelism_of(row: Row) -> Parallelism:
    """How the GPUs of a row share its model.

    Raises:
        InputError: Its degrees do not go together.
    """
    return Parallelism(**degrees_of(row))


def degrees_of(row: Row) -> dict[str, int]:
    """Degrees of parallelism of a row: ``tp``, and ``pp``, ``dp`` and ``ep`` where it has them."""
    degrees = {name: number_of(row, name) for name in ("tp", "pp", "dp", "ep")}
    return {name: int(x) for name, x in degrees.items() if x is not None}


def stages_of(run: Sequence[Row]) -> list[Row]:
    """The rows of a run's stages in order, or its overall row if it has no other."""
    stages = [row for row in run if row["stage"] != WHOLE_RUN] or list(run)
    return sorted(stages, key=lambda row: row["stage"])


def cached_tokens(row: Row, block_size: int) -> float:
    """Prompt tokens of a row's requests that are in the prefix cache.

    The prompts of a shared-prefix load are sent again and again, so after the first round every
    full block is a hit, but for the one that holds the last token: vLLM computes at least that
    one anew, since its logits are needed. Groups of one prompt are another matter: in six of seven
    such runs (the ``reasoning`` ones of trainval.csv and seed16.csv) TTFT, and the time that
    overloaded servers take for their queue, are those of prompts that are computed whole.
    """
    alone = number_of(row, "prompts_per_group") == 1
    if not row["prefix_caching"] or row["prompt_groups"] < 1 or alone:
        return 0.0
    return (row["input_len_mean"] - 1) // block_size * block_size
