"""Errors of predictions on whole campaigns, bare and with the default fit.

    python benchmarks/campaigns.py trainval.csv seed16.csv ml_energy.csv silicon.csv

Each table is a campaign in the common form; `physim data convert` writes the last two. Cases are
made by names, those that a version of physim does not know left out, so that it can be run on older
commits: `PYTHONPATH=checkout python benchmarks/campaigns.py ...`.
"""

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

import physim
from physim.corrections.fields import Corrections

METRICS = ("ttft", "itl", "e2e")
OPTIONS = physim.CaseOptions.__annotations__
ENGINE = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization")


Row = dict[str, Any]


def options(row: Row) -> Row:
    """A row as a case by names."""
    clients = row.get("concurrency")
    spreads: Row = {}
    for name in ("input", "output"):
        mean = row["input_len_mean"] if name == "input" else row["output_len"]
        std = row.get(f"{name}_len_std", 0.0)
        spreads[f"{name}_tokens"] = physim.Lengths.normal(mean, std) if std > 0 else mean
    cached = 0.0
    if row["prefix_caching"] and row["prompt_groups"] > 0 and row["prompts_per_group"] > 1:
        cached = (row["input_len_mean"] - 1) // 16 * 16
    found: Row = {
        "gpu": row["hardware"],
        "tp": int(row["tp"]),
        **{name: row[name] for name in ENGINE},
        **spreads,
        "cached_tokens": cached,
        "prefixes": max(int(row["prompt_groups"] * (row.get("prompts_per_group") or 1)), 1)
        if cached
        else 1,
        "arrival": row["arrival"] if clients is None else None,
        "engine_version": row.get("engine_version"),
        "sampling": row.get("sampling") or "unknown",
        "async_scheduling": row.get("async_scheduling"),
        "kv_cache_dtype": row.get("kv_cache_dtype") or "auto",
    }
    if clients is None:
        found["rate"] = row["rate_rps"]
    else:
        found |= {"concurrency": clients, "requests": row.get("requests")}
    if "engine_version" not in OPTIONS:
        # Of old, what is not said is the model's default, and scheduling is asynchronous.
        found["sampling"] = {"unknown": "model", "greedy": "plain"}[found["sampling"]]
        found["async_scheduling"] = found["async_scheduling"] is not False
    whole = {name: int(found[name]) for name in ENGINE[:3]}
    return {name: x for name, x in (found | whole).items() if name in OPTIONS and x is not None}


def rows_of(path: str) -> Iterator[Row]:
    """The stages of a table that are not overloaded, without what is empty."""
    frame = pd.read_csv(path, dtype={"engine_version": "string"})
    if (frame["stage"] < 0).any():
        frame = frame[frame["stage"] >= 0]
    for record in frame.to_dict("records"):
        row: Row = {str(name): value for name, value in record.items() if not pd.isna(value)}
        row.setdefault("prompts_per_group", 1)
        if row.get("requests"):
            row["requests"] = int(row["requests"])
        if row.get("ttft_mean", 0.0) <= 0.5 * row.get("e2e_mean", math.inf):
            yield row


def measured(row: Row) -> dict[str, float]:
    """TTFT, ITL and E2E of a row, seconds, those that it has."""
    if "e2e_mean" not in row:
        return {"itl": row["itl_mean"]}
    ttft, e2e = row["ttft_mean"], row["e2e_mean"]
    return {"ttft": ttft, "itl": (e2e - ttft) / (row["output_len"] - 1), "e2e": e2e}


def errors(path: str, fit: str) -> tuple[dict[str, list[float]], int]:
    """Errors of a campaign by metric, percent, and how many rows were refused."""
    cases, rows, refused = [], [], 0
    for row in rows_of(path):
        try:
            if row.get("ep", 1) != 1:
                raise physim.InputError("ep", "is not modelled", "leave it out")
            cases.append(physim.Case.from_options(row["model"], **options(row)))
            rows.append(row)
        except physim.InputError:
            refused += 1
    corrections = [
        Corrections() if fit == "none" else physim.load_fit(fit).on(case).corrections
        for case in cases
    ]
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for row, prediction in zip(rows, physim.predict_cases(cases, corrections), strict=True):
        for metric, seen in measured(row).items():
            value = getattr(prediction, f"{metric}_s")
            if value is not None:
                found[metric].append(100 * (value / seen - 1))
    return found, refused


def main(paths: Sequence[str]) -> None:
    """Prints a table."""
    print("| campaign | fit | rows | TTFT | ITL | E2E |\n| --- | --- | --- | --- | --- | --- |")
    for path in paths:
        for fit in ("none", "default"):
            found, refused = errors(path, fit)
            cells = [
                f"{statistics.fmean(map(abs, e)):.1f}, {statistics.median(map(abs, e)):.1f} "
                f"({statistics.fmean(e):+.1f})"
                if e
                else "-"
                for e in found.values()
            ]
            count = f"{len(found['itl'])} ({refused} refused)" if refused else len(found["itl"])
            print(f"| {path} | {fit} | {count} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
