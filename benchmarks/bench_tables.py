"""Times tables: how long a look-up takes, how long a hundred take to make, and what a replay says.

Run with ``python benchmarks/bench_tables.py``; prints Markdown tables.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from physim.corrections.fields import Corrections
from physim.corrections.files import load_fit
from physim.inputs.case import Case
from physim.inputs.deployment import Deployment
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.models.lookup import shipped_models
from physim.models.parallelism import Parallelism
from physim.prediction.arrays import step_model_of
from physim.prediction.replayed import config_of
from physim.replay.cluster import replay
from physim.replay.step_times import LinearStepTimes, ModelStepTimes, StepTimes
from physim.replay.workload import drawn
from physim.tables import load
from physim.tables.build import Reach
from physim.tables.linear_models import blackbox
from physim.tables.operating_region import operating_region
from physim.tables.replay_adapter import TableStepTimes
from physim.tables.writer import write_table, write_tables

MODEL, GPU, TP = "Qwen/Qwen3-14B", "h100_sxm", 2
REPLAYED = ((MODEL, 2), ("meta-llama/Llama-3.1-8B-Instruct", 1), ("mistralai/Mixtral-8x7B-v0.1", 4))
LIMITS: dict[str, Any] = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "max_model_len": 4096,
}
# The "general" load of the seed's study.
GENERAL = Load(575, 248, stages=(Stage(8.0, 600.0), Stage(20.0, 600.0)), cached_tokens=560)
TABLES, SINGLE, TOGETHER = 100, 20_000, 100_000


def look_ups(folder: Path) -> None:
    table = load(folder)
    where = Reach(**table.metadata["reach"]).draw(TOGETHER, seed=0)
    rows = where[:SINGLE].tolist()
    start = time.perf_counter()
    for row in rows:
        table(*row)
    one = (time.perf_counter() - start) / SINGLE
    start = time.perf_counter()
    table.many(where)
    many = (time.perf_counter() - start) / TOGETHER
    print("| look-up | microseconds |\n| --- | --- |")
    print(f"| one | {one * 1e6:.1f} |\n| each of {TOGETHER:,} at once | {many * 1e6:.2f} |\n")


def hundred(folder: Path) -> None:
    models = [name for name in shipped_models() if "DeepSeek" not in name]
    print("| format | tables | seconds | largest | 99% of steps within, worst table |")
    print("| --- | --- | --- | --- | --- |")
    for kind in ("json", "csv", "parquet"):
        place = folder / kind
        # Compiles, where that was not done before.
        write_table(MODEL, folder / f"first-{kind}", gpu=GPU, tp=TP, kind=kind)
        start = time.perf_counter()
        made = []
        gpus = ("h100_sxm", "h200_sxm", "a100_sxm")
        for one in write_tables(models, gpus, (1, 2, 4), place, kind=kind):
            if one.folder is not None and one.error_pct is not None:
                made.append(one.error_pct)
            if len(made) == TABLES:
                break
        seconds = time.perf_counter() - start
        largest = max(path.stat().st_size for path in place.glob("*/table.*"))
        print(
            f"| {kind} | {len(made)} | {seconds:.1f} | {largest / 1e6:.2f} MB | {max(made):.2f}% |",
            flush=True,
        )
    print()


def replays(folder: Path) -> None:
    known = load_fit("default")
    print("| general workload | steps from | TTFT | ITL | E2E | error of a step, projected |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model, tp in REPLAYED:
        case = Case.from_parts(model, GPU, Deployment(Parallelism(tp), **LIMITS), GENERAL)
        corrections: Corrections = known.on(case).corrections
        exact = step_model_of(case, corrections)
        region = operating_region(case, exact, corrections)
        projection = blackbox(region)
        place = folder / model.replace("/", "--")
        write_table(model, place, gpu=GPU, tp=tp, kind="json", **LIMITS)
        config = config_of(case, corrections)
        ways: dict[str, StepTimes] = {
            "the model": ModelStepTimes(exact, 128, 2048, 1000),
            "its table": TableStepTimes(load(place), 1000),
            "blackbox": LinearStepTimes(*(1e-6 * beta for beta in projection.beta)),
        }
        means: dict[str, list[float]] = {}
        for name, times in ways.items():
            summary = replay(drawn(GENERAL, config, seed=0), times, config).summary()
            means[name] = [summary[metric]["mean"] for metric in ("ttft", "itl", "e2e")]
            off = (
                f"{100 * (own / true - 1):+.2f}%"
                for own, true in zip(means[name], means["the model"], strict=True)
            )
            stated = f"{projection.mean_error_pct}%" if name == "blackbox" else ""
            print(f"| {model} tp {tp} | {name} | {' | '.join(off)} | {stated} |")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(MODEL, folder / "one", gpu=GPU, tp=TP, kind="json")
        look_ups(folder / "one")
        hundred(folder)
        replays(folder)


if __name__ == "__main__":
    main()
