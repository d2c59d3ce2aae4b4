"""Times predictions: cold in a shell, warm in a process, and many at once.

Run with ``python benchmarks/bench_predict.py``; prints a Markdown table. Each figure is the
median of several runs, and its least.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COLD_RUNS, WARM_RUNS, SWEEP_RUNS, SWEEP_SIZE = 7, 300, 5, 10_000
COMMAND = (
    "predict Qwen/Qwen3-14B --gpu h100_sxm --tp 2 --rate 6 --input 786 --output 251 --cached 770"
)


def timed(action: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median and least time of an action, seconds."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), min(seconds)


def cold() -> tuple[float, float]:
    physim = str(Path(sys.executable).with_name("physim"))

    def run() -> None:
        subprocess.run([physim, *COMMAND.split()], check=True, stdout=subprocess.DEVNULL)

    run()  # byte-compiles the packages
    return timed(run, COLD_RUNS)


def cold_peak_bytes() -> int:
    """Peak memory of the largest child so far, which is the cold prediction."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def warm() -> tuple[float, float]:
    import physim

    def run() -> None:
        physim.predict(
            "Qwen/Qwen3-14B",
            gpu="h100_sxm",
            tp=2,
            rate=6,
            input_tokens=786,
            output_tokens=251,
            cached_tokens=770,
        )

    run()
    return timed(run, WARM_RUNS)


def sweep() -> tuple[tuple[float, float], float]:
    """Median and least time of one vmapped call, and the time of the first with its compilation."""
    import jax
    import numpy as np

    from physim.corrections.fields import Corrections
    from physim.fluid.steady import SteadyState, steady_state
    from physim.inputs.case import Case
    from physim.prediction.arrays import CaseArrays

    models = ("Qwen/Qwen3-14B", "meta-llama/Llama-3.1-70B-Instruct", "mistralai/Mixtral-8x7B-v0.1")
    rng = np.random.default_rng(0)
    cases = [
        Case.from_options(
            models[i % 3],
            gpu="h100_sxm",
            tp=(4, 8)[i // 3 % 2],
            input_tokens=float(rng.integers(100, 4000)),
            output_tokens=float(rng.integers(2, 1000)),
            rate=rate,
        )
        for i, rate in enumerate(rng.uniform(0.1, 30, SWEEP_SIZE))
    ]
    systems = jax.device_put(CaseArrays.from_cases(cases))

    @jax.jit
    @jax.vmap
    def solve(system: CaseArrays) -> SteadyState:
        return steady_state(system.model(Corrections()), system.demand, system.limits)

    def run() -> None:
        jax.block_until_ready(solve(systems))

    first, _ = timed(run, 1)
    return timed(run, SWEEP_RUNS), first


def main() -> None:
    cold_median, cold_least = cold()
    peak = cold_peak_bytes()
    warm_median, warm_least = warm()
    (sweep_median, sweep_least), first = sweep()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| what | median | least |\n| --- | --- | --- |")
    print(f"| `physim predict`, cold in a shell | {cold_median:.2f} s | {cold_least:.2f} s |")
    print(f"| its peak memory | {peak / 1e6:.0f} MB | |")
    print(f"| `physim.predict`, warm | {warm_median * 1e3:.2f} ms | {warm_least * 1e3:.2f} ms |")
    print(
        f"| {SWEEP_SIZE:,} configurations in one `vmap` | {sweep_median:.2f} s | "
        f"{sweep_least:.2f} s |"
    )
    print(f"| the first such call, with compilation | {first:.2f} s | |")


if __name__ == "__main__":
    main()
