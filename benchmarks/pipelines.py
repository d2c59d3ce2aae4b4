"""Holds the fluid against the replay on pipelines, and prints a Markdown table.

Run with ``python benchmarks/pipelines.py`` (two minutes). Ten servers with two to eight stages take
30, 60 and 80% of their saturation throughput; requests come by chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import physim

SHARES = (0.3, 0.6, 0.8)
REQUESTS = 6000
# What of each case: its model, its GPU and layout, and the tokens of prompts and answers.
SERVERS: list[tuple[str, str, dict[str, Any], Any, Any]] = [
    ("Qwen/Qwen3-32B", "h100_sxm", {"tp": 2, "pp": 4}, 1024, 512),
    (
        "Qwen/Qwen3-32B-FP8",
        "h100_sxm",
        {"tp": 2, "pp": 4, "max_num_batched_tokens": 512, "max_num_seqs": 256},
        2000,
        300,
    ),
    ("Qwen/Qwen3-32B", "h100_sxm", {"tp": 2, "pp": 2}, 2000, 300),
    (
        "meta-llama/Llama-3.1-70B-Instruct",
        "h100_sxm",
        {"tp": 2, "pp": 2},
        "lognormal:1200:1200",
        "lognormal:250:250",
    ),
    (
        "meta-llama/Llama-3.1-70B-Instruct",
        "a100_sxm",
        {"pp": 4, "max_num_batched_tokens": 2048},
        3000,
        200,
    ),
    ("Qwen/Qwen3-14B", "h100_sxm", {"pp": 2, "max_num_batched_tokens": 1024}, 500, 500),
    (
        "Qwen/Qwen3-235B-A22B",
        "h100_sxm",
        {"tp": 4, "pp": 2},
        "lognormal:1200:1200",
        "lognormal:250:250",
    ),
    ("Qwen/Qwen3-32B", "h100_sxm", {"pp": 4, "max_num_batched_tokens": 2048}, 8000, 200),
    (
        "Qwen/Qwen3-32B",
        "l40s",
        {"tp": 2, "pp": 4, "max_num_batched_tokens": 2048},
        "lognormal:2000:2000",
        "exponential:200",
    ),
    (
        "Qwen/Qwen3-8B",
        "l40s",
        {"pp": 8, "max_num_batched_tokens": 4096},
        "exponential:2000",
        "exponential:200",
    ),
]
METRICS = {
    "TTFT": "ttft_s",
    "TTFT p99": "ttft_p99_s",
    "ITL": "itl_s",
    "ITL p99": "itl_p99_s",
    "E2E": "e2e_s",
    "E2E p99": "e2e_p99_s",
}


def main() -> None:
    """Prints a row of absolute differences for each share of the saturation throughput."""
    off: dict[float, list[list[float]]] = {share: [] for share in SHARES}
    for model, gpu, layout, prompt, answer in SERVERS:
        options = {
            "gpu": gpu,
            "input_tokens": prompt,
            "output_tokens": answer,
            "arrival": "poisson",
            "fit": "none",
            **layout,
        }
        most = physim.predict(model, rate=0.1, **options).saturation_rps
        for share in SHARES:
            own = {**options, "rate": share * most}
            fluid = physim.predict(model, **own).to_frame().iloc[0]
            replay = physim.predict(model, **own, requests=REQUESTS, method="replay")
            exact = replay.to_frame().iloc[0]
            off[share].append([100 * abs(fluid[one] / exact[one] - 1) for one in METRICS.values()])
    print(f"| of saturation | {' | '.join(METRICS)} |")
    print(f"| --- |{' --- |' * len(METRICS)}")
    for share, rows in off.items():
        median, high = (np.quantile(rows, one, axis=0) for one in (0.5, 0.9))
        cells = (f"{one:.1f} ({two:.0f})" for one, two in zip(median, high, strict=True))
        print(f"| {share:.0%} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
