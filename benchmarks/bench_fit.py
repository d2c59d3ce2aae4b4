"""Times a fit: cold in a shell, where nothing is compiled, and again, where everything is.

Usage: python benchmarks/bench_fit.py --data RUNS.csv [--data RUNS.csv ...] [--steps STEPS.parquet]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    physim = str(Path(sys.executable).with_name("physim"))
    print("| `physim fit` | seconds | peak memory so far |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        command = [physim, "fit", *sys.argv[1:], "--out", str(Path(folder) / "fit.json")]
        own = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(Path(folder) / "compiled")}
        for what in ("the first on a machine", "again"):
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=own)
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            print(f"| {what} | {seconds:.1f} | {peak / 1e9:.2f} GB |", flush=True)


if __name__ == "__main__":
    main()
