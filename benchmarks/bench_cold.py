"""Times what a newcomer waits for: commands and a notebook's first calls, cold and warm.

Run with ``python benchmarks/bench_cold.py``; prints a Markdown table, in CPU and wall seconds and
in units of a bare ``import jax.numpy`` in the same run, and then what a first prediction's time is
made of. Another installation is timed with ``--python PATH``.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5
CASE = "Qwen/Qwen3-14B --gpu h100_sxm --tp 2"
LENGTHS = "--input 786 --output 251"
STAGES = "--stage 8:600 --stage 20:600"
SERVERS = "--gpus h100_sxm,a100_sxm --max-gpus 16 --price h100_sxm=2.5 --price a100_sxm=1.5"
ASKED = "--rate 20 --input 2000 --output 300 --slo ttft_p99=2s --slo itl_mean=30ms"
NOTEBOOK = (
    "import physim; physim.predict('Qwen/Qwen3-14B', gpu='h100_sxm', tp=2, rate=6, "
    "input_tokens=786, output_tokens=251)"
)
COMMANDS = {
    "`predict --help`": "predict --help",
    "an unknown GPU": f"predict Qwen/Qwen3-14B --gpu h100_smx --rate 6 {LENGTHS}",
    "`predict --rate 6`": f"predict {CASE} --rate 6 {LENGTHS}",
    "`predict --concurrency 32`": f"predict {CASE} --concurrency 32 {LENGTHS}",
    f"`predict {STAGES}`": f"predict {CASE} {STAGES} {LENGTHS}",
    "`explain --rate 6`": f"explain {CASE} --rate 6 {LENGTHS}",
    "`predict --trace`, 16,800 requests": f"predict {CASE} --trace trace.csv",
    "`predict --method replay`, 5,000 requests": f"predict {CASE} --rate 6 {LENGTHS} "
    "--method replay",
    "README's `recommend`": f"recommend Qwen/Qwen3-32B {SERVERS} {ASKED}",
    "`report --rate 6`": f"report {CASE} --rate 6 {LENGTHS} --out report.html",
}
# Each in a process of its own, so that what one loads is not there for the next.
PARTS = """
import time
moments = [("start", time.process_time())]
def mark(name):
    moments.append((name, time.process_time()))
import jax, jax.numpy as jnp
mark("import jax.numpy")
import physim.api
from physim.corrections.files import load_fit
from physim.inputs.case import Case
from physim.prediction.arrays import CaseArrays, stack
from physim.prediction.steady import _solve
mark("import physim")
load = {"rate": 6, "input_tokens": 786, "output_tokens": 251}
case = Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2, **load)
arguments = CaseArrays.from_cases([case]), stack([load_fit("default").on(case).corrections])
mark("reading and lowering the model")
if kept:
    _solve(*arguments)
    mark("loading what is kept, and running")
else:
    from physim.programs.writing import written
    flat = lambda *own: jax.tree.leaves(_solve.__wrapped__(*own))
    traced = jax.jit(flat).trace(*arguments)
    mark("tracing")
    program = written(traced.jaxpr)
    mark("writing the program")
    program.run(jax.tree.leaves(arguments))
    mark("running")
for (_, before), (name, after) in zip(moments, moments[1:]):
    print(f"{name},{after - before:.3f}")
"""


def timed(command: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """CPU and wall seconds of a command, whatever it ends with."""
    own = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, cwd=folder, env=own, capture_output=True, check=False)
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, wall


def median(command: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """Medians of several runs."""
    cpu, wall = zip(*(timed(command, folder, cache) for _ in range(RUNS)), strict=True)
    return statistics.median(cpu), statistics.median(wall)


def write_trace(path: Path) -> None:
    """A trace of 16,800 requests over 28 minutes."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_s", "input_tokens", "output_tokens"])
        rows.writerows([place / 10, 786, 251] for place in range(16_800))


def parts(python: str, kept: bool, cache: Path) -> list[tuple[str, float]]:
    """What a prediction in a fresh process takes, in CPU seconds."""
    own = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [python, "-c", f"kept = {kept}\n{PARTS}"],
        env=own,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines()]
    return [(name, float(seconds)) for name, seconds in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of the installation to time")
    parser.add_argument("--parts", action="store_true", help="what the time is made of")
    python = parser.parse_args().python
    physim = str(Path(python).with_name("physim"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_trace(folder / "trace.csv")
        bare = [python, "-c", "import jax.numpy"]
        timed([python, "-c", "import physim.api"], folder, folder / "none")  # byte-compiles
        unit, unit_wall = median(bare, folder, folder / "none")
        print("| what | first, CPU | in units | again, CPU | in units | again, wall |")
        print("| --- | --- | --- | --- | --- | --- |")
        print(f"| a bare `import jax.numpy` | | | {unit:.2f} s | 1.0 | {unit_wall:.2f} s |")
        calls = {name: [physim, *line.split()] for name, line in COMMANDS.items()}
        calls["a notebook's first `predict`"] = [python, "-c", NOTEBOOK]
        for number, (what, command) in enumerate(calls.items()):
            cache = folder / f"cache {number}"
            first, _ = timed(command, folder, cache)
            again, wall = median(command, folder, cache)
            print(
                f"| {what} | {first:.2f} s | {first / unit:.1f} | {again:.2f} s "
                f"| {again / unit:.1f} | {wall:.2f} s |",
                flush=True,
            )
        if parser.parse_args().parts:
            cache = folder / "parts"
            parts(python, True, cache)
            for kept in (False, True):
                print(f"\n| {'again' if kept else 'the first time'} | CPU |\n| --- | --- |")
                for what, seconds in parts(python, kept, cache):
                    print(f"| {what} | {seconds:.2f} s |")


if __name__ == "__main__":
    main()
