"""Holds TTFT of evenly and nearly evenly spaced requests against the replay.

Run with ``python benchmarks/even_arrivals.py``; prints a Markdown table. Of `ENGINES`, arrivals of
some gamma shapes (the first evenly spaced), prompts of one length and of many, and shares of what a
server serves at most.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np

import physim

MODEL = "Qwen/Qwen3-14B"
SERVER: dict[str, Any] = {"gpu": "h100_sxm", "tp": 2, "fit": "none"}
ENGINES = ("vllm", "sglang", "trtllm")
SHAPES = (None, 8.0, 3.0, 1.5)
TOKENS = ((786, 251), (6000, 150))
SHARES = (0.3, 0.6, 0.85)
STATISTICS = ("mean", "p50", "p90", "p99")


def errors(
    engine: str, shape: float | None, varied: bool, tokens: tuple[int, int], share: float
) -> list[float]:
    """Differences of the fluid's TTFT from the replay's, percent, by statistic."""
    means: list[Any] = [
        physim.Lengths.parse(f"lognormal:{mean}:{0.8 * mean}") if varied else float(mean)
        for mean in tokens
    ]
    about: dict[str, Any] = {
        "input_tokens": means[0],
        "output_tokens": means[1],
        "engine": engine,
        **SERVER,
    }
    about |= {"arrival": "constant"} if shape is None else {"arrival": "gamma", "burstiness": shape}
    most = physim.predict(MODEL, rate=1.0, **about).saturation_rps
    found = physim.check(MODEL, rate=round(share * most, 3), **about)
    rows = {row.statistic: row for row in found.rows if row.quantity == "ttft"}
    return [rows[name].difference_pct or 0.0 for name in STATISTICS]


def main() -> None:
    off: dict[tuple[float | None, bool], list[Any]] = defaultdict(list)
    for shape, varied in itertools.product(SHAPES, (False, True)):
        for engine, tokens, share in itertools.product(ENGINES, TOKENS, SHARES):
            off[shape, varied].append(np.abs(errors(engine, shape, varied, tokens, share)))
    print(f"| arrivals | lengths | {' | '.join(f'TTFT {name}' for name in STATISTICS)} |")
    print("| --- | --- |" + " --- |" * len(STATISTICS))
    for (shape, varied), rows in off.items():
        middle, most = np.median(rows, axis=0), np.percentile(rows, 90, axis=0)
        cells = [f"{a:.1f} ({b:.0f})" for a, b in zip(middle, most, strict=True)]
        name = "evenly spaced" if shape is None else f"gamma, shape {shape:g}"
        print(f"| {name} | {'varied' if varied else 'one'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
