"""Conversations: hit rate, TTFT and E2E of the fluid against the replay.

    python benchmarks/conversations.py [--cases 60]

Random conversations, at a rate or of clients, with caches of a fifth to twice the contexts that
wait for their next turn. Without the first and the last fifth of the requests, while conversations
begin and end.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import physim
from physim.corrections.fields import Corrections
from physim.prediction.replayed import replay_load
from physim.replay.outcome import completed_of

MODEL, ZERO_SHOT = "Qwen/Qwen3-8B", Corrections()
_BLOCK = 16
# Requests that are replayed at least and at most; below that share of its capacity a server is
# compared.
_REQUESTS, _BUSY = (8000, 60_000), 0.8
# Contexts of which a cache holds few.
_FEW = 20


def options_of(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """A random load on a server whose cache is large."""
    lengths, prefix = physim.Lengths, float(rng.choice([0, 512, 1000]))
    turns, new, output = rng.uniform(2, 8), rng.uniform(100, 1500), rng.uniform(50, 400)
    load: dict[str, Any] = {
        "gpu": "h100_sxm",
        "max_num_seqs": 256,
        "input_tokens": lengths.gamma(prefix + new, 0.5 * new),
        "output_tokens": lengths.exponential(output),
        "cached_tokens": prefix,
        "turns": lengths.exponential(turns) if number % 2 else float(round(turns)),
        "think_s": float(np.exp(rng.uniform(np.log(2), np.log(60)))),
    }
    if number % 4 < 2:
        return {**load, "rate": 1.0, "arrival": "poisson"}
    return {**load, "concurrency": int(rng.integers(8, 150))}


def compared(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Figures of a random case."""
    options = options_of(rng, number)
    case = physim.Case.from_options(MODEL, **options)
    (light,) = physim.predict_cases([case], ZERO_SHOT)
    if "rate" in options:
        options["rate"] = float(rng.uniform(0.1, 0.7) * light.saturation_rps)
    rate, turns = options.get("rate", light.requests_per_s), case.demanded.turn_sample
    waiting = rate * options["think_s"] * turns.context.mean() / _BLOCK
    share = np.exp(rng.uniform(np.log(0.2), np.log(2.0)))
    options["kv_blocks"] = int(max(share * waiting + 200 * light.pool.running, 3000))
    case = physim.Case.from_options(MODEL, **options)
    (fluid,) = physim.predict_cases([case], ZERO_SHOT)
    count = int(np.clip(5 * rate * options["think_s"] * turns.met_turns, *_REQUESTS))
    whole = case.under(replace(case.demanded, requests=count))
    result = replay_load(whole, ZERO_SHOT, 0)
    middle = slice(count // 5, 4 * count // 5)
    some = result.requests[middle]
    frame = completed_of(result.to_frame().iloc[middle])
    return {
        "load": case.demanded.describe(),
        "kv_blocks": options["kv_blocks"],
        "contexts": options["kv_blocks"] * _BLOCK / turns.context.mean(),
        "use": fluid.requests_per_s / fluid.saturation_rps,
        "hit_rate": fluid.pool.hit_rate,
        "hit_rate_replayed": sum(r.cached_tokens for r in some) / sum(r.input_tokens for r in some),
        "ttft": (fluid.ttft_s or np.nan) / frame["ttft_s"].mean() - 1,
        "e2e": (fluid.e2e_s or np.nan) / frame["e2e_s"].mean() - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame([compared(rng, number) for number in range(parser.parse_args().cases)])
    print(frame.round(3).to_string())
    light = frame["use"] < _BUSY
    for name, some in (
        ("all", frame),
        ("below 80%", frame[light]),
        (f"and with room for {_FEW} contexts", frame[light & (frame["contexts"] >= _FEW)]),
    ):
        hits = 100 * (some["hit_rate"] - some["hit_rate_replayed"]).abs()
        latencies = 100 * some[["ttft", "e2e"]].abs()
        print(
            f"{name}: {len(some)} cases, hit rate off by {hits.median():.1f} points in the median, "
            f"90% within {hits.quantile(0.9):.1f}, at most {hits.max():.1f}; TTFT by "
            f"{latencies['ttft'].median():.1f}% (90% within {latencies['ttft'].quantile(0.9):.0f}),"
            f" E2E by {latencies['e2e'].median():.1f}% "
            f"(90% within {latencies['e2e'].quantile(0.9):.0f})"
        )


if __name__ == "__main__":
    main()
