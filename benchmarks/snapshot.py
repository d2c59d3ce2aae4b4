"""Writes every number that physim's documents and exports rest on, and compares two such files.

A change that is meant to move no number is shown to move none: write a snapshot before and after,
and compare them. Numbers are computed in 64 bit, so that what differs is not rounding.

    python benchmarks/snapshot.py write before.json --data ../shared/ground_truth
    python benchmarks/snapshot.py compare before.json after.json
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"-?\d+\.?\d*(?:[eE][+-]?\d+)?")
_LOAD = ["--input", "786", "--output", "251", "--cached", "770"]
_MODELS = (
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-30B-A3B",
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "mistralai/Mixtral-8x7B-v0.1",
    "google/gemma-7b",
)
_METHODS = "physim,zero-shot,no residual,constant MFU,additive host,blackbox,ridge"
_BLENDS = ",weighted-average,smooth-weighted"


def _commands(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Commands by name; OUT stands for a file or folder that they write."""
    trainval, seed16 = str(data / "trainval.csv"), str(data / "seed16.csv")
    both, steps = ["--data", trainval, "--data", seed16], str(data / "steps_vllm_h100.parquet")
    for fit in ("none", "default"):
        yield f"evaluate {fit}", ["evaluate", *both, "--fit", fit, "--out", "OUT.json"]
        overload = "experiment.str.contains('codellama-34b-tp2-reasoning') and stage == 0"
        yield (
            f"overload {fit}",
            [
                *("evaluate", "--data", seed16, "--timeout", "300", "--where", overload),
                *("--fit", fit, "--out", "OUT.json"),
            ],
        )
    bf16 = "stage >= 0 and weight_dtype == 'bf16'"
    yield (
        "evaluate replay",
        [
            *("evaluate", "--data", trainval, "--fit", "none", "--where", bf16),
            *("--method", "replay", "--out", "OUT.json"),
        ],
    )
    yield "fit", ["fit", *both, "--steps", steps, "--out", "OUT.json"]
    yield "fit trainval", ["fit", "--data", trainval, "--out", "OUT.json"]
    for kind in ("model", "workload", "tp", "experiment"):
        methods = _METHODS + (_BLENDS if kind == "model" else "")
        methods = "physim,zero-shot" if kind == "experiment" else methods
        yield (
            f"crossval {kind}",
            ["crossval", *both, "--leave-out", kind, "--methods", methods, "--out", "OUT.json"],
        )
    yield (
        "crossval time",
        ["crossval", *both, "--steps", steps, "--leave-out", "time", "--out", "OUT.json"],
    )
    for model in _MODELS:
        for gpu, tp in (("h100_sxm", 2), ("a100_sxm", 4), ("l40s", 8), ("b200_sxm", 1)):
            where = [model, "--gpu", gpu, "--tp", str(tp)]
            for name, load in (
                ("rate", ["--rate", "3"]),
                ("clients", ["--concurrency", "24"]),
                ("stages", ["--stage", "2:60", "--stage", "5:30", "--arrival", "poisson"]),
            ):
                if (name == "stages" and gpu != "h100_sxm") or (gpu == "l40s" and "Qwen" in model):
                    continue
                yield (
                    f"predict {name} {model} {gpu}",
                    ["predict", *where, *_LOAD, *load, "--json"],
                )
    for mixed in ("weighted-average", "smooth-weighted"):
        yield (
            f"predict {mixed}",
            [
                *("predict", "Qwen/Qwen3-14B", "--gpu", "h100_sxm", *_LOAD),
                *("--rate", "6", "--json", "--mixed", mixed),
            ],
        )
    dense = ["Qwen/Qwen3-14B", "--gpu", "h100_sxm", "--tp", "2"]
    lengths = ["--input", "normal:900:300", "--output", "exponential:200"]
    yield (
        "predict replay",
        ["predict", *dense, *lengths, "--rate", "9", "--method", "replay", "--json"],
    )
    slo = ["--slo", "ttft_p99=500ms", "--slo", "itl_mean=25ms"]
    yield "capacity", ["capacity", *dense, "--input", "786", "--output", "251", *slo, "--json"]
    yield (
        "explain",
        ["explain", *dense, "--input", "786", "--output", "251", "--rate", "20", "--json"],
    )
    yield (
        "compare",
        [
            *("compare", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B", "--gpus", "h100_sxm,a100_sxm"),
            *("--tps", "1,2,4", "--rate", "4", "--input", "786", "--output", "251", "--json"),
        ],
    )
    for model, tp in (("Qwen/Qwen3-14B", 2), (_MODELS[2], 4), (_MODELS[5], 2)):
        where = [model, "--gpu", "h100_sxm", "--tp", str(tp), "--out", "OUT"]
        for kind in ("csv", "json", "blis"):
            yield (
                f"table {kind} {model}",
                [
                    *("table", *where, "--format", kind, "--stage", "4:300", "--stage", "8:300"),
                    *("--input", "575", "--output", "248"),
                ],
            )


def _numbers(content: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON value, or of a text, with its place."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _numbers(value, f"{place}/{key}")
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _numbers(value, f"{place}/{number}")
    elif isinstance(content, bool):
        return
    elif isinstance(content, int | float):
        yield place, float(content)


def _of_text(text: str, place: str) -> Iterator[tuple[str, float]]:
    for number, match in enumerate(_NUMBER.finditer(text)):
        yield f"{place}#{number}", float(match[0])


def _of_file(path: Path, place: str) -> Iterator[tuple[str, float]]:
    if path.suffix == ".gz":
        yield from _of_text(gzip.decompress(path.read_bytes()).decode(), place)
    elif path.suffix == ".json":
        yield from _numbers(json.loads(path.read_text()), place)
    else:
        yield from _of_text(path.read_text(), place)


def _run(name: str, arguments: list[str], folder: Path) -> dict[str, float]:
    from physim.cli import app

    out = folder / re.sub(r"\W+", "_", name)
    argv = [one.replace("OUT", str(out)) for one in arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app(argv, standalone_mode=False)
    found: dict[str, float] = {}
    if out.is_dir():
        for path in sorted(out.rglob("*")):
            # Hashes and versions are no results.
            if path.is_file() and path.name not in ("config.json", "README.md"):
                found.update(_of_file(path, str(path.relative_to(out))))
    elif Path(f"{out}.json").is_file():
        found.update(_of_file(Path(f"{out}.json"), ""))
    else:
        found.update(_numbers(json.loads(printed.getvalue())))
    return found


def write(path: Path, data: Path, only: str) -> None:
    """Runs every command and writes its numbers."""
    os.environ["JAX_ENABLE_X64"] = "1"
    os.environ.setdefault("COLUMNS", "200")
    snapshot: dict[str, dict[str, float]] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, arguments in _commands(data):
                if not re.search(only, name):
                    continue
                start = time.process_time()
                try:
                    snapshot[name] = _run(name, arguments, Path(folder))
                except ValueError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    snapshot[name] = {"refused": 1.0}
                spent = time.process_time() - start
                print(f"{name}: {len(snapshot[name])} numbers, {spent:.1f} CPU s", file=sys.stderr)
    finally:
        # What was found is kept, though the rest was interrupted.
        path.write_text(json.dumps(snapshot) + "\n")


def compare(before: Path, after: Path, most: float, renamed: list[str]) -> int:
    """Prints what moved, and counts the numbers that are gone; new ones are not looked at.

    Places are looked up under their new names, by patterns ``OLD=NEW``.
    """
    names = [one.split("=", 1) for one in renamed]
    one, other = (json.loads(path.read_text()) for path in (before, after))
    worst_of_all, moved, missing, held = 0.0, 0, 0, 0
    for name in one:
        if name not in other:
            print(f"{name}: was not run")
            missing += 1
            continue
        worst = (0.0, "")
        for place, was in one[name].items():
            for old, new in names:
                place = re.sub(f"^{old}$", new, place)
            now = other[name].get(place)
            if now is None:
                missing += 1
                print(f"{name}: {place} is gone")
                continue
            both_none = math.isnan(was) and math.isnan(now)
            size = max(abs(was), abs(now), 1e-12)
            off = 0.0 if was == now or both_none else abs(now - was) / size
            held += 1
            moved += off > most
            worst = max(worst, (off, place))
        worst_of_all = max(worst_of_all, worst[0])
        if worst[0] > most:
            print(f"{name}: {worst[1]} moved by {worst[0]:.2e}")
    print(
        f"{held:,} numbers: {moved} moved by more than {most:g}, the most by {worst_of_all:.1e}; "
        f"{missing} are gone"
    )
    return 1 if moved or missing else 0


def main() -> None:
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write")
    writing.add_argument("path", type=Path)
    writing.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    writing.add_argument("--only", default="", help="A pattern that names of commands hold.")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--most", type=float, default=1e-5)
    comparing.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    given = parser.parse_args()
    if given.verb == "write":
        write(given.path, given.data, given.only)
    else:
        sys.exit(compare(given.before, given.after, given.most, given.renamed))


if __name__ == "__main__":
    main()
