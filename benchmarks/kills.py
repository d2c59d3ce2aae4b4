"""Kills commands (SIGKILL) at random moments: each output is whole or not there.

Run with ``python benchmarks/kills.py``. Of each kind of output ten are killed, at moments spread
over the second half of the time that such a command takes; what it was to write is then compared
with what a command that was left alone wrote. It ends at the first that differs, or that leaves
anything beside it. A sweep is killed and taken up again ten times; its parts are then those of a
sweep that was left alone, byte for byte.
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
GRID = """
model: [Qwen/Qwen3-8B, Qwen/Qwen3-14B]
gpu: [h100_sxm, a100_sxm]
tp: [1, 2]
rate: {from: 1, to: 40, steps: 40, scale: log}
input_tokens: 786
output_tokens: 251
"""
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


def check_sweep(times: int, rng: np.random.Generator) -> None:
    """Kills a sweep at random moments, resumes it, and compares its parts."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        grid = folder / "grid.yaml"
        grid.write_text(GRID, encoding="utf-8")
        physim = str(Path(sys.executable).with_name("physim"))

        def sweep(out: Path, *options: str) -> list[str]:
            return [physim, "sweep", str(grid), "--out", str(out), "--size", "16", *options]

        for name in ("first", "whole"):  # the second has nothing to compile
            begun = time.perf_counter()
            subprocess.run(sweep(folder / name), check=True, capture_output=True)
            taken = time.perf_counter() - begun
        whole, missing = content(folder / "whole"), 0
        for number, wait in enumerate(rng.uniform(0.4, 1.0, times) * taken):
            out = folder / f"killed-{number}"
            with subprocess.Popen(
                sweep(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                time.sleep(wait)
                process.kill()
            missing += len(whole) - len(content(out))
            subprocess.run(sweep(out, "--resume"), check=True, capture_output=True)
            assert content(out) == whole, f"sweep: other parts after {wait:.2f} s"
    print(
        f"sweep: {times} killed, {missing / times:.0f} of {len(whole)} files missing in the mean, "
        "the same bytes after --resume"
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
    check_sweep(times, rng)


if __name__ == "__main__":
    main()
