"""Fleets: latencies of the fluid against the replay, and what 16 replicas cost the replay.

    python benchmarks/fleets.py [--cases 120] [--seed 0] [--kinds replicas apart ranks]

Random fleets of each kind (replicas behind a router, prefill and decode apart, the same on
data-parallel ranks with experts over all of their GPUs; three engines, dense models and with
experts) under random loads below 80% of what they serve at most, at a rate or of clients. Without
the first fifth of the requests and the last tenth, as ``physim check``.
Then 100,000 requests on one server and on 16, in CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd

import physim
from physim.corrections.fields import Corrections
from physim.prediction.replayed import replay_load
from physim.service.routers import BY_LOAD, ROUTERS

ZERO_SHOT = Corrections()
KINDS = ("replicas", "apart", "ranks")
_MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B")
# Models with experts, and ranks of a server that computes prompts and of one that generates.
_RANKS = (
    ("Qwen/Qwen3-30B-A3B", (2, 4), (2, 8)),
    ("Qwen/Qwen3-235B-A22B-FP8", (4, 8), (4, 8)),
    ("deepseek-ai/DeepSeek-V3", (8, 16), (8, 16)),
)
_ENGINES = ("vllm", "sglang", "trtllm")
_STATISTICS = (("ttft", "mean"), ("ttft", "p99"), ("itl", "mean"), ("e2e", "mean"))
_REQUESTS = 100_000


def options_of(rng: np.random.Generator, kind: str, number: int) -> dict[str, Any]:
    """A random fleet, its model, and the lengths of its requests."""
    lengths = physim.Lengths
    prompt, answer = np.exp(rng.uniform(np.log([100, 20]), np.log([5000, 500])))
    options: dict[str, Any] = {
        "model": _MODELS[int(rng.integers(len(_MODELS)))],
        "gpu": str(rng.choice(["h100_sxm", "h200_sxm"])),
        "tp": 2,
        "engine": _ENGINES[number % 3],
        "max_model_len": 32_768,
        "input_tokens": lengths.gamma(float(prompt), float(rng.uniform(0.1, 0.5) * prompt)),
        "output_tokens": lengths.gamma(float(answer), float(rng.uniform(0.1, 0.5) * answer)),
    }
    if kind == "replicas":
        routers = [name for name in ROUTERS if name != "least_kv"]
        router = routers[number % len(routers)]
        found = {**options, "replicas": int(rng.integers(2, 7)), "router": router}
        # The fluid has routers that see the present.
        return found | ({"router_age_s": 0.0} if router in BY_LOAD else {})
    first, second = (int(rng.integers(1, 4)) for _ in range(2))
    if kind == "ranks":
        model, *ranks = _RANKS[int(rng.integers(len(_RANKS)))]
        dp = [int(rng.choice(one)) for one in ranks]
        options |= {"model": model, "gpu": "h200_sxm"}
        pools = [f"tp=1,dp={n},ep={n},replicas={m}" for n, m in zip(dp, (first, 1), strict=True)]
        return {**options, **dict(zip(("prefill", "decode"), pools, strict=True))}
    return {**options, "prefill": f"tp=2,replicas={first}", "decode": f"tp=2,replicas={second}"}


def compared(rng: np.random.Generator, kind: str, number: int) -> dict[str, Any]:
    """Errors of the fluid on a random fleet, percent."""
    options = options_of(rng, kind, number)
    model = options.pop("model")
    if number % 4 == 3:
        # So many that fewer than all slots are taken.
        load: dict[str, Any] = {"concurrency": int(rng.integers(4, 200))}
        load["requests"] = 20 * load["concurrency"]
    else:
        light = physim.Case.from_options(model, rate=1e-3, **options)
        most = physim.predict_cases([light], ZERO_SHOT)[0].saturation_rps
        load = {"rate": float(rng.uniform(0.1, 0.8) * most), "arrival": "poisson"}
    check = physim.check(model, fit="none", **options, **load)
    found = {(row.quantity, row.statistic): row.difference_pct for row in check.rows}
    return {
        "kind": kind,
        "engine": options["engine"],
        "layout": "/".join(str(options.get(name, "")) for name in ("prefill", "decode")),
        "what": options.get("router", "clients" if "requests" in load else "rate"),
        "use": check.prediction.requests_per_s / check.prediction.saturation_rps,
        **{f"{metric} {which}": found.get((metric, which)) for metric, which in _STATISTICS},
    }


def seconds_of(replicas: int) -> float:
    """CPU seconds of a replay of as many requests to each server as one has."""
    options: dict[str, Any] = {"gpu": "h100_sxm", "replicas": replicas, "arrival": "poisson"}
    options |= {"input_tokens": 500, "output_tokens": 200, "rate": 8.0 * replicas}
    case = physim.Case.from_options("Qwen/Qwen3-8B", **options, requests=_REQUESTS)
    few = physim.Case.from_options("Qwen/Qwen3-8B", **options, requests=100)
    replay_load(few, ZERO_SHOT, 0)
    begin = time.process_time()
    replay_load(case, ZERO_SHOT, 0)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    frame = pd.DataFrame(
        [compared(rng, kind, number) for kind in asked.kinds for number in range(asked.cases)]
    )
    print(frame.round(2).to_string())
    columns = [f"{metric} {which}" for metric, which in _STATISTICS]
    for by in (["kind"], ["kind", "what"], ["kind", "engine"]):
        errors = frame[columns].abs().groupby([frame[name] for name in by])
        print(errors.median().round(2).to_string())
    print(frame[columns].abs().groupby(frame["kind"]).quantile(0.9).round(1).to_string())
    one, many = seconds_of(1), seconds_of(16)
    print(f"{_REQUESTS:,} requests: {one:.1f} CPU s on one server, {many:.1f} on 16")


if __name__ == "__main__":
    main()
