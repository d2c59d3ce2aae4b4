"""Traces of the simulator BLIS: a header in YAML and a CSV of requests beside it (version 3)."""

from __future__ import annotations

from pathlib import Path

from physim.errors import InputError
from physim.measured.stage_report import StageReport

_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "arrival_time_us",
    "send_time_us",
    "first_chunk_time_us",
    "last_chunk_time_us",
    "status",
)
_VERSION = "3"


def read(path: Path, output_len: float | None = None) -> list[StageReport]:
    """The requests of a trace as one stage of their mean rate.

    Args:
        path: The CSV, whose header is the file of the same name that ends in ``.yaml``.
        output_len: Tokens that were generated, if known better than from the trace.

    Raises:
        InputError: A file is missing or of another version, or a column is.
    """
    import pandas as pd

    header = path.with_suffix(".yaml")
    try:
        lines = header.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(str(header), error.strerror or "cannot be read", "add it") from error
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    for field, expected in (("trace_version", _VERSION), ("time_unit", "microseconds")):
        if fields.get(field) != expected:
            raise InputError(
                f"{header}: {field}", f"{fields.get(field)} is unknown", f"physim reads {expected}"
            )
    try:
        frame = pd.read_csv(path)
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be read", "check the path") from error
    except ValueError as error:
        raise InputError(str(path), "is not a CSV table with a header", "pass one") from error
    missing = [column for column in _COLUMNS if column not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "pass BLIS's trace")
    warm_up = int(fields.get("warm_up_requests") or 0)
    frame = frame.sort_values("arrival_time_us").iloc[warm_up:]
    answered = frame[frame["status"] == "ok"]
    if len(answered) < 2:
        raise InputError(str(path), "has fewer than two answered requests", "pass a longer trace")
    span = (frame["arrival_time_us"].max() - frame["arrival_time_us"].min()) / 1e6
    if span <= 0:
        raise InputError(f"{path}: arrival_time_us", "is the same for all", "correct it")
    gaps = frame["arrival_time_us"].diff().dropna()
    spread = float((gaps.std() / gaps.mean()) ** 2)
    ttft = (answered["first_chunk_time_us"] - answered["send_time_us"]).mean() / 1e6
    e2e = (answered["last_chunk_time_us"] - answered["send_time_us"]).mean() / 1e6
    return [
        StageReport(
            stage=0,
            rate_rps=(len(frame) - 1) / span,
            duration_s=span,
            arrival="poisson" if spread > 0.5 else "constant",
            input_len_mean=float(answered["input_tokens"].mean()),
            output_len=output_len or float(answered["output_tokens"].mean()),
            ttft_mean=float(ttft),
            e2e_mean=float(e2e),
            n_success=len(answered),
            n_failed=len(frame) - len(answered),
        )
    ]
