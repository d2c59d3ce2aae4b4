"""How many deployments `physim recommend` looks at in a second, and in how much memory.

Usage: python benchmarks/bench_recommend.py [COUNT ...]

A question is asked twice, the first time with nothing compiled. Then so many candidates, each a
server (GPU, layout, limits, format) with a share of the load, are predicted as `recommend` does.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np

import physim

COUNTS = (10_000, 100_000, 1_000_000)
QUESTION: dict[str, Any] = {
    "slo": ["ttft_p99=2s", "itl_mean=30ms"],
    "gpus": ["h100_sxm", "h200_sxm", "a100_sxm"],
    "max_gpus": 16,
    "rate": 20.0,
    "input_tokens": 2000.0,
    "output_tokens": 300.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS)
    counts = parser.parse_args().counts
    begun = time.perf_counter()
    found = physim.recommend("Qwen/Qwen3-32B", **QUESTION)
    print(f"first question: {time.perf_counter() - begun:.1f} s, with what it compiles")
    begun = time.perf_counter()
    physim.recommend("Qwen/Qwen3-32B", **QUESTION)
    servers = len(found.servers.cases)
    print(f"the next: {time.perf_counter() - begun:.1f} s, of {servers:,} servers, with replays")
    rng = np.random.default_rng(0)
    for count in counts:
        which = rng.integers(servers, size=count)
        begun, cpu = time.perf_counter(), time.process_time()
        shares = 1.0 / rng.integers(1, 17, size=count)
        met = found.servers.under(which, shares, found.asked).kept
        taken, busy = time.perf_counter() - begun, time.process_time() - cpu
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{count:,} candidates: {taken:.1f} s, {busy:.1f} s of CPU, {count / taken:,.0f} a "
            f"second, {met.mean():.0%} meet the objectives; {most:.1f} GiB at most"
        )


if __name__ == "__main__":
    main()
