"""Predictions that are kept to the last digits: they say in seconds whether numbers moved.

`python tests/golden.py` writes them anew, where they were meant to move.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import physim
from physim.corrections.fields import Corrections

FILE = Path(__file__).with_suffix(".json")
_RANKS_APART = {"prefill": "tp=1,dp=8,ep=8,replicas=2", "decode": "tp=1,dp=16,ep=16"}
# What fits each model: GPU, engine and layout.
SERVERS: dict[str, tuple[dict[str, Any], ...]] = {
    "Qwen/Qwen3-14B": ({"gpu": "h100_sxm"}, {"gpu": "l40s", "tp": 2, "pp": 2}),
    "meta-llama/Llama-3.1-8B-Instruct": ({"gpu": "a100_sxm"}, {"gpu": "mi300x"}),
    "nvidia/Llama-3.3-70B-Instruct-FP4": (
        {"gpu": "b200_sxm", "engine": "trtllm"},
        {"gpu": "rtx_pro_6000_server", "tp": 2},
    ),
    "meta-llama/Llama-3.3-70B-Instruct": (
        {"gpu": "h200_sxm", "tp": 2},
        {"gpu": "h100_sxm", "tp": 4, "engine": "sglang"},
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        {"gpu": "h100_sxm", "tp": 4},
        {"gpu": "h100_sxm", "tp": 2, "engine_version": "0.11.1"},
    ),
    "Qwen/Qwen3-30B-A3B": (
        {"gpu": "b200_sxm", "tp": 2, "ep": 2},
        {"gpu": "h100_sxm", "dp": 2, "ep": 2},
    ),
    "openai/gpt-oss-120b": (
        {"gpu": "h100_sxm", "tp": 2},
        {"gpu": "b300_sxm", "engine": "trtllm"},
    ),
    "deepseek-ai/DeepSeek-V3": (
        {"gpu": "h200_sxm", "tp": 8},
        {"gpu": "b200_sxm", "dp": 8, "ep": 8, "engine": "sglang"},
        {"gpu": "h200_sxm", "engine": "sglang", **_RANKS_APART},
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ({"gpu": "h200_sxm", "tp": 4}, {"gpu": "gb300"}),
    "google/gemma-3-27b-it": ({"gpu": "h100_sxm", "tp": 2}, {"gpu": "gb200"}),
}
LOADS: tuple[dict[str, Any], ...] = (
    {
        "rate": 2.0,
        "arrival": "constant",
        "input_tokens": 786,
        "output_tokens": 251,
        "cached_tokens": 770,
    },
    {"concurrency": 48, "input_tokens": 1000, "output_tokens": 200},
    {
        "rate": 1.0,
        "arrival": "poisson",
        "input_tokens": physim.Lengths.exponential(1500),
        "output_tokens": physim.Lengths.exponential(150),
    },
)


def predicted() -> dict[str, dict[str, float | None]]:
    """What physim says, without a fit, of each server under each load."""
    cases = {
        f"{model} {_words(server)}, load {number}": physim.Case.from_options(
            model, **server, **load
        )
        for model, servers in SERVERS.items()
        for server in servers
        for number, load in enumerate(LOADS)
    }
    found = physim.predict_cases([*cases.values()], Corrections())
    return {name: _numbers(one) for name, one in zip(cases, found, strict=True)}


def _words(server: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in server.items())


def _numbers(found: physim.Prediction) -> dict[str, float | None]:
    pool = found.pools[-1]
    numbers = {
        "ttft_s": found.ttft_s,
        "itl_s": found.itl_s,
        "e2e_s": found.e2e_s,
        "saturation_rps": found.saturation_rps,
        "batch": pool.batch,
        "kv_use": pool.kv_use,
        "step_s": pool.step_s,
        "ttft_p99_s": found.whole.latencies.get("ttft", {}).get("p99"),
    }
    # As many digits as processors agree on.
    return {name: value and float(f"{value:.10g}") for name, value in numbers.items()}


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    FILE.write_text(json.dumps(predicted(), indent=1) + "\n", encoding="utf-8")
