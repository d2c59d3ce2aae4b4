"""Predictions held against a table of measured runs."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim import data
from physim.errors import InputError
from physim.fits import NO_FIT, load_corrections
from physim.inputs.deployment import Deployment
from physim.prediction import Case, Part, Prediction, predict_cases
from physim.serving.load import Load, Stage

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("e2e_mean", "ttft_mean", "itl_mean")
WHOLE_RUN = -1

_Row = Mapping[Hashable, Any]

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


@dataclass(frozen=True)
class Evaluation:
    """Measured rows beside their predictions.

    Attributes:
        rows: For each row that could be predicted its identity and, by metric, what was observed
            and predicted (seconds) and the error (percent).
        summary: For each metric the number of rows and statistics of their errors, percent.
        skipped: The other rows, each with the reason.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, dict[str, float]]
    skipped: list[dict[str, Any]]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table, a column for each metric's observed, predicted and error."""
        import pandas as pd

        flat = []
        for row in self.rows:
            metrics = {
                f"{metric}_{kind}": value
                for metric, values in row["metrics"].items()
                for kind, value in values.items()
            }
            flat.append({k: v for k, v in row.items() if k != "metrics"} | metrics)
        return pd.DataFrame(flat)

    def write_json(self, path: Path) -> None:
        """Writes rows, summary and skipped rows; the file appears whole or not at all.

        Raises:
            InputError: The file cannot be written.
        """
        content = {"rows": self.rows, "summary": self.summary, "skipped": self.skipped}
        with data.replacing(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def evaluate(
    tables: Sequence[str | Path],
    fit: str | Path = NO_FIT,
    where: str | None = None,
    method: str = "fluid",
    timeout_s: float | None = None,
    seed: int = 0,
) -> Evaluation:
    """Predicts every row of tables of measured runs and compares.

    The stages of a run follow one another, so that a queue is carried from one to the next; its
    overall row (stage -1) is compared with all its requests.

    Args:
        tables: CSV files of one row for each stage of a run, in the common form: identity
            (``experiment``, ``stage``, ``model``, ``hardware``, ``tp``), the server's limits, the
            load (``arrival``, ``rate_rps``, ``duration_s``, ``prefix_caching``, ``prompt_groups``,
            ``input_len_mean``, ``output_len``) and what was measured (``ttft_mean``,
            ``e2e_mean``), in seconds and tokens; optional columns ``kv_blocks`` and
            ``prompts_per_group``.
        fit: Name or path of a fit, or ``none`` for the bare physics.
        where: Keeps only rows for which this expression over the columns holds.
        method: ``fluid`` or ``replay``.
        timeout_s: Time after which the clients gave up; None for never.
        seed: Seed of the replay's requests.

    Raises:
        InputError: A file cannot be read, lacks a column, or holds a value that is missing or
            not positive where it has to be.
    """
    import pandas as pd

    frame = pd.concat([_read(Path(table)) for table in tables], ignore_index=True)
    kept = frame if where is None else _filtered(frame, where)
    runs = {
        key: sorted(run.to_dict("records"), key=lambda row: row["stage"])
        for key, run in frame.groupby(["table", "experiment"])
    }
    cases, skipped, wanted = [], [], []
    for key, some in kept.groupby(["table", "experiment"], sort=False):
        records = some.to_dict("records")
        try:
            cases.append(_case(runs[key], timeout_s))
            wanted.append(records)
        except InputError as error:
            skipped += [_skipped(row, str(error)) for row in records]
    predictions = predict_cases(cases, load_corrections(fit), str(fit), method=method, seed=seed)
    rows = [
        _compared(row, _part_of(row, runs[row["table"], row["experiment"]], prediction))
        for records, prediction in zip(wanted, predictions, strict=True)
        for row in records
    ]
    return Evaluation(rows, {metric: _summary(rows, metric) for metric in METRICS}, skipped)


def _part_of(row: _Row, run: Sequence[_Row], prediction: Prediction) -> Part:
    """The part of a run's prediction that a row is about."""
    if row["stage"] == WHOLE_RUN or not prediction.stages:
        return prediction.whole
    return prediction.stages[[stage["stage"] for stage in _stages(run)].index(row["stage"])]


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be read", "check the path") from error
    except (ValueError, UnicodeDecodeError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(str(path), "is no CSV table with a header", "pass one") from error
    missing = [column for column in _REQUIRED if column not in frame]
    if missing:
        raise InputError(str(path), f"has no column {', '.join(missing)}", "add it")
    for column in ("stage", "prompt_groups", *_POSITIVE, *_MEASURED):
        _check(frame, column, path, positive=column in (*_POSITIVE, *_MEASURED))
    for column in _TEXT:
        for number, value in enumerate(frame[column]):
            if not isinstance(value, str):
                raise InputError(_place(path, number, column), "is empty", "fill it in")
    return frame.assign(table=str(path))


def _check(frame: pd.DataFrame, column: str, path: Path, positive: bool) -> None:
    import pandas as pd

    values = pd.to_numeric(frame[column], errors="coerce")
    for number, value in enumerate(values):
        if math.isnan(value) or math.isinf(value):
            raise InputError(
                _place(path, number, column),
                f"{frame[column].iloc[number]} is no number",
                "fill it in or remove the row",
            )
        if positive and value <= 0:
            raise InputError(
                _place(path, number, column), f"{value:g} is not positive", "correct it"
            )


def _place(path: Path, number: int, column: str) -> str:
    # Line 1 of the file is the header.
    return f"{path}, line {number + 2}: {column}"


def _filtered(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    place, columns = f"where {where!r}", f"columns: {', '.join(map(str, frame.columns))}"
    try:
        holds: Any = frame.eval(where)
    except Exception as error:  # the expression is the user's, and pandas raises many types
        raise InputError(place, f"is no expression over the columns ({error})", columns) from error
    if getattr(holds, "shape", None) != (len(frame),) or holds.dtype != bool:
        raise InputError(place, "is no condition on a row", 'write one such as "tp == 2"')
    if not holds.any():
        raise InputError(place, "holds for no row", "relax it")
    return frame.loc[holds]


def _case(run: Sequence[_Row], timeout_s: float | None) -> Case:
    """A run's rows as a case: its stages in order, or its overall row if it has no other."""
    stages = _stages(run)
    row = stages[0]
    for column in ("tp", "input_len_mean", "output_len", "arrival", "model"):
        if any(other[column] != row[column] for other in stages):
            raise InputError(
                f"{row['experiment']}: {column}", "differs between stages", "split the run"
            )
    kv_blocks = row.get("kv_blocks")
    deployment = Deployment(
        tp=int(row["tp"]),
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        max_model_len=int(row["max_model_len"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        kv_blocks=None if kv_blocks is None or math.isnan(kv_blocks) else int(kv_blocks),
    )
    load = Load(
        input_tokens=float(row["input_len_mean"]),
        output_tokens=float(row["output_len"]),
        cached_tokens=cached_tokens(row, deployment.block_size),
        arrival=row["arrival"],
        stages=tuple(Stage(float(s["rate_rps"]), float(s["duration_s"])) for s in stages),
        prefixes=max(int(row["prompt_groups"] * row.get("prompts_per_group", 1)), 1),
        timeout_s=timeout_s,
    )
    return Case.of(row["model"], row["hardware"], deployment, load)


def _stages(run: Sequence[_Row]) -> list[_Row]:
    """The rows of a run's stages in order, or its overall row if it has no other."""
    return [row for row in run if row["stage"] != WHOLE_RUN] or list(run)


def cached_tokens(row: _Row, block_size: int) -> float:
    """Prompt tokens of a row's requests that are in the prefix cache.

    The prompts of a shared-prefix load are sent again and again, so after the first round every
    full block is a hit, but for the one that holds the last token: vLLM computes at least that
    one anew, since its logits are needed.
    """
    if not row["prefix_caching"] or row["prompt_groups"] < 1:
        return 0.0
    return (row["input_len_mean"] - 1) // block_size * block_size


def _skipped(row: _Row, reason: str) -> dict[str, Any]:
    return {"experiment": row["experiment"], "stage": int(row["stage"]), "reason": reason}


def _compared(row: _Row, part: Part) -> dict[str, Any]:
    means = {metric: values["mean"] for metric, values in part.latencies.items()}
    observed = {"e2e_mean": row["e2e_mean"], "ttft_mean": row["ttft_mean"]}
    predicted = {"e2e_mean": means["e2e"], "ttft_mean": means["ttft"]}
    if "itl" in means:
        # The generated tokens are known, while the client's count and its chunks may differ.
        decoding = row["e2e_mean"] - row["ttft_mean"]
        observed["itl_mean"] = decoding / (row["output_len"] - 1)
        predicted["itl_mean"] = means["itl"]
    return {
        "experiment": row["experiment"],
        "stage": int(row["stage"]),
        "model": row["model"],
        "hardware": row["hardware"],
        "tp": int(row["tp"]),
        "metrics": {
            metric: {
                "observed": observed[metric],
                "predicted": predicted[metric],
                "error_pct": (predicted[metric] / observed[metric] - 1) * 100,
            }
            for metric in METRICS
            if metric in observed
        },
    }


def _summary(rows: list[dict[str, Any]], metric: str) -> dict[str, float]:
    import statistics

    errors = [row["metrics"][metric]["error_pct"] for row in rows if metric in row["metrics"]]
    if not errors:
        return {"n": 0}
    absolute = [abs(error) for error in errors]
    return {
        "n": len(errors),
        "mape": statistics.fmean(absolute),
        "median_ape": statistics.median(absolute),
        "max_ape": max(absolute),
        "bias_pct": statistics.fmean(errors),
        "within_10pct": 100 * sum(error <= 10 for error in absolute) / len(absolute),
    }
