"""Kills commands (SIGKILL) at random moments: each output is whole or not there.

Run with ``python benchmarks/kills.py``. Of each kind of output ten are killed, at moments spread
over the second half of the time that such a command takes; what it was to write is then compared
with what a command that was left alone wrote. It ends at the first that differs, or that leaves
anything beside it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "bench_data" / "runs.csv"
CASE = ["Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--input", "575", "--output", "248"]
SMALL = ["--max-num-seqs", "16", "--max-num-batched-tokens", "256", "--max-model-len", "1024"]
FOLDS = ["--leave-out", "tp", "--methods", "zero-shot"]
COMMANDS = {
    "picture": ["predict", *CASE, "--rate", "4", "--plot", "OUT.png"],
    "drawing": ["predict", *CASE, "--rate", "4", "--plot", "OUT.svg"],
    "report": ["report", *CASE, "--rate", "4", "--out", "OUT.html"],
    "evaluation": ["evaluate", "--data", str(RUNS), "--out", "OUT.json"],
    "fit": ["fit", "--data", str(RUNS), "--out", "OUT.json"],
    "folds": ["crossval", "--data", str(RUNS), *FOLDS, "--csv", "OUT.csv"],
    "table": ["table", *CASE[:3], *SMALL, "--format", "csv", "--out", "OUT"],
}


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def started(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    """A command that writes into a folder."""
    words = [word.replace("OUT", str(folder / "out")) for word in COMMANDS[kind]]
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("physim")), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    times = parser.parse_args().times
    rng = np.random.default_rng(0)
    for kind in COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for _ in range(2):  # the second has nothing to compile
                shutil.rmtree(folder)
                folder.mkdir()
                begun = time.perf_counter()
                _, said = started(kind, folder).communicate()
                taken = time.perf_counter() - begun
            whole = content(folder)
            assert whole, said.decode()
            absent = 0
            for wait in rng.uniform(0.5, 1.0, times) * taken:
                shutil.rmtree(folder)
                folder.mkdir()
                with started(kind, folder) as process:
                    time.sleep(wait)
                    process.kill()
                left = content(folder)
                assert left in ({}, whole), f"{kind}: {sorted(left)} after {wait:.2f} s"
                absent += not left
        print(f"{kind}: {times} killed, {absent} before the output was there, none in part")


if __name__ == "__main__":
    main()
