"""Tables of scheduler steps with start times, from which cycle times follow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from physim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Column of the table, and what it is called here.
_COLUMNS = {
    "experiment_id": "experiment",
    "step.id": "step",
    "step.ts_start_ns": "start_ns",
    "batch.num_decode_reqs": "decode_requests",
    "batch.num_prefill_reqs": "prefill_requests",
    "batch.prefill_tokens": "prefill_tokens",
}


def read_steps(path: Path) -> pd.DataFrame:
    """Cycles of consecutive steps of an engine's trace.

    A tracer that samples steps sees the cycle of one whose successor it sampled too: the time from
    its start to the next's. A step's own duration, as a tracer sees it, is often no more than the
    time to launch it.

    Args:
        path: Parquet or CSV with ``experiment_id``, ``step.id``, ``step.ts_start_ns``,
            ``batch.num_decode_reqs``, ``batch.num_prefill_reqs`` and ``batch.prefill_tokens``.

    Returns:
        A row for each step with a known cycle: ``experiment``, ``step``, ``start_s`` since the
        experiment's first, ``decode_requests``, ``prefill_requests``, ``prefill_tokens`` and
        ``cycle_s``; in order of time.

    Raises:
        InputError: The file cannot be read, lacks a column, or has no two consecutive steps.
    """
    import numpy as np
    import pandas as pd

    try:
        raw = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except ImportError as error:
        raise InputError(str(path), "needs pyarrow", "pip install pyarrow") from error
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be read", "check the path") from error
    except ValueError as error:  # pandas' and pyarrow's errors of form are ValueErrors
        raise InputError(
            str(path), "is not a table", "pass Parquet, or CSV with a header"
        ) from error
    missing = [column for column in _COLUMNS if column not in raw]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    frame = raw[list(_COLUMNS)].rename(columns=_COLUMNS)
    numeric = frame.drop(columns="experiment").apply(pd.to_numeric, errors="coerce")
    bad = numeric.columns[~np.isfinite(numeric.astype(float)).all()]
    if len(bad):
        raise InputError(f"{path}: {bad[0]}", "holds a value that is not a number", "correct it")
    frame[numeric.columns] = numeric
    frame = frame.sort_values(["experiment", "step"], ignore_index=True)
    follows = (frame["step"].shift(-1) - frame["step"] == 1) & (
        frame["experiment"].shift(-1) == frame["experiment"]
    )
    frame["cycle_s"] = (frame["start_ns"].shift(-1) - frame["start_ns"]) / 1e9
    frame["start_s"] = (
        frame["start_ns"] - frame.groupby("experiment")["start_ns"].transform("min")
    ) / 1e9
    busy = frame["decode_requests"] + frame["prefill_requests"] > 0
    cycles = frame[follows & busy & (frame["cycle_s"] > 0)].drop(columns="start_ns")
    if cycles.empty:
        raise InputError(str(path), "has no two consecutive steps", "sample more of them")
    return cycles.astype({"cycle_s": float, "start_s": float}).reset_index(drop=True)
