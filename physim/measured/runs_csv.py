"""Measured runs in the common form: a CSV with a row for each load stage."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load, Stage
from physim.inputs.parallelism import Parallelism
from physim.prediction.cases import Case

if TYPE_CHECKING:
    import pandas as pd

WHOLE_RUN = -1

Row = Mapping[Hashable, Any]

_TEXT = ("experiment", "model", "hardware", "arrival")
_POSITIVE = (
    "tp",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "rate_rps",
    "duration_s",
    "input_len_mean",
    "output_len",
)
_MEASURED = ("ttft_mean", "e2e_mean")
_REQUIRED = (*_TEXT, "stage", *_POSITIVE, *_MEASURED, "prefix_caching", "prompt_groups")


def read_table(path: Path) -> pd.DataFrame:
    """A table of measured rows, checked; ``table`` is added, the file's path.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds a value that is missing or
            not positive where it has to be.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be read", "check the path") from error
    except (ValueError, UnicodeDecodeError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(str(path), "is not a CSV table with a header", "pass one") from error
    missing = [column for column in _REQUIRED if column not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    for column in ("stage", "prompt_groups", *_POSITIVE, *_MEASURED):
        _check(frame, column, path, positive=column in (*_POSITIVE, *_MEASURED))
    for column in _TEXT:
        for number, value in enumerate(frame[column]):
            if not isinstance(value, str):
                raise InputError(_place(path, number, column), "is empty", "fill it in")
    if "concurrency" in frame:
        given = frame[frame["concurrency"].notna()]
        _check(given, "concurrency", path, positive=True)
    # Stages of a rate follow one another; of clients each is a run of its own.
    closed = [clients_of(row) is not None for row in frame.to_dict("records")]
    runs = [
        f"{name} {stage}" if apart else name
        for name, stage, apart in zip(frame["experiment"], frame["stage"], closed, strict=True)
    ]
    return frame.assign(table=str(path), run=runs)


def clients_of(row: Row) -> float | None:
    """Clients of a row whose requests came in a closed loop; None for a rate."""
    clients = row.get("concurrency")
    return None if clients is None or math.isnan(float(clients)) else float(clients)


def _check(frame: pd.DataFrame, column: str, path: Path, positive: bool) -> None:
    import pandas as pd

    values = pd.to_numeric(frame[column], errors="coerce")
    for number, value in enumerate(values):
        if math.isnan(value) or math.isinf(value):
            raise InputError(
                _place(path, number, column),
                f"{frame[column].iloc[number]} is not a number",
                "fill it in or remove the row",
            )
        if positive and value <= 0:
            raise InputError(
                _place(path, number, column), f"{value:g} is not positive", "correct it"
            )


def _place(path: Path, number: int, column: str) -> str:
    # Line 1 of the file is the header.
    return f"{path}, line {number + 2}: {column}"


def filtered(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The rows for which a condition over the columns holds.

    Raises:
        InputError: The condition is none, or holds for no row.
    """
    place, columns = f"where {where!r}", f"columns: {', '.join(map(str, frame.columns))}"
    try:
        holds: Any = frame.eval(where)
    except Exception as error:  # the expression is the user's, and pandas raises many types
        raise InputError(
            place, f"is not an expression over the columns ({error})", columns
        ) from error
    if getattr(holds, "shape", None) != (len(frame),) or holds.dtype != bool:
        raise InputError(place, "is not a condition on rows", 'write one such as "tp == 2"')
    if not holds.any():
        raise InputError(place, "holds for no row", "relax it")
    return frame.loc[holds]


def case_of(run: Sequence[Row], timeout_s: float | None) -> Case:
    """A run's rows as a case: its stages in order, or its overall row if it has no other.

    Raises:
        InputError: What must be the same in all stages is not, or the case cannot be predicted.
    """
    stages = stages_of(run)
    row = stages[0]
    for column in ("tp", "input_len_mean", "output_len", "arrival", "model"):
        if any(other[column] != row[column] for other in stages):
            raise InputError(
                f"{row['experiment']}: {column}", "differs between stages", "split the run"
            )
    kv_blocks = row.get("kv_blocks")
    deployment = Deployment(
        parallelism_of(row),
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        max_model_len=int(row["max_model_len"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        kv_blocks=None if kv_blocks is None or math.isnan(kv_blocks) else int(kv_blocks),
    )
    clients, mean = clients_of(row), float(row["output_len"])
    spread = float(row.get("output_len_std") or 0.0)
    open_loop = () if clients else stages
    load = Load(
        input_tokens=float(row["input_len_mean"]),
        output_tokens=Lengths.normal(mean, spread) if spread > 0 else mean,
        concurrency=clients,
        cached_tokens=cached_tokens(row, deployment.block_size),
        arrival=row["arrival"],
        stages=tuple(Stage(float(s["rate_rps"]), float(s["duration_s"])) for s in open_loop),
        prefixes=max(int(row["prompt_groups"] * row.get("prompts_per_group", 1)), 1),
        timeout_s=timeout_s,
    )
    return Case.from_parts(row["model"], row["hardware"], deployment, load)


def parallelism_of(row: Row) -> Parallelism:
    """Degrees of parallelism of a row: ``tp``, and ``pp``, ``dp`` and ``ep`` where it has them."""
    degrees = {name: row.get(name) for name in ("tp", "pp", "dp", "ep")}
    return Parallelism(
        **{name: int(x) for name, x in degrees.items() if x is not None and not math.isnan(x)}
    )


def stages_of(run: Sequence[Row]) -> list[Row]:
    """The rows of a run's stages in order, or its overall row if it has no other."""
    return [row for row in run if row["stage"] != WHOLE_RUN] or list(run)


def cached_tokens(row: Row, block_size: int) -> float:
    """Prompt tokens of a row's requests that are in the prefix cache.

    The prompts of a shared-prefix load are sent again and again, so after the first round every
    full block is a hit, but for the one that holds the last token: vLLM computes at least that
    one anew, since its logits are needed.
    """
    if not row["prefix_caching"] or row["prompt_groups"] < 1:
        return 0.0
    return (row["input_len_mean"] - 1) // block_size * block_size
