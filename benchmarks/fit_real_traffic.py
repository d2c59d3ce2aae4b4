"""Fits runs of real traffic whose corrections are known, and prints whether these come back.

``python benchmarks/fit_real_traffic.py`` (two minutes on two cores) replays conversations of Azure,
with Poisson arrivals, on layouts of two models on H100, at rates up to 80% of the saturation
throughput and with corrections that are known. It writes them as measured runs, each of which names
a table of its own requests, fits them through the fluid and prints two Markdown tables: errors of
the fluid with the true corrections, and what the fit finds of these.
``python benchmarks/fit_real_traffic.py FOLDER`` keeps the runs in that folder, or takes them from
there if it has some.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

TRAFFIC = "azure-conversation-2023"
# Model and tp.
LAYOUTS = (
    ("Qwen/Qwen3-14B", 1),
    ("Qwen/Qwen3-14B", 2),
    ("meta-llama/Llama-3.1-70B-Instruct", 4),
    ("meta-llama/Llama-3.1-70B-Instruct", 8),
)
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8)
REQUESTS = 8000
# Logarithms of factors.
TRUE: Mapping[str, Any] = {
    "gemm_memory": 0.15,
    "gemm_compute": 0.15,
    "decode_attention": 0.15,
    "all_reduce": 0.3,
    "step_overhead": 0.5,
    "front_end": 0.3,
}


def run(
    folder: Path,
    model: str,
    tp: int,
    share: float,
    true: Mapping[str, Any] = TRUE,
    requests: int = REQUESTS,
) -> dict[str, Any]:
    """A row of a replayed run, without the requests that warm it up and those that end it.

    Args:
        folder: Where the table of the row's requests is written.
        model: The model.
        tp: GPUs that share every layer.
        share: The rate, as a share of the saturation throughput.
        true: Logarithms of the factors with which it is replayed.
        requests: Requests that are sent.
    """
    from dataclasses import replace

    import physim
    from physim.corrections.fields import Corrections
    from physim.prediction.replayed import replay_of
    from physim.replay.workload import drawn

    corrections = Corrections(**true)
    lengths = physim.RequestLengths.read(TRAFFIC)
    load = physim.Load.of_requests(lengths, rate=1.0, arrival="poisson")
    deployment = physim.Deployment(
        physim.Parallelism(tp),
        max_model_len=32768,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.9,
    )
    alone = physim.Case.from_parts(model, "h100_sxm", deployment, load)
    (steady,) = physim.predict_cases([alone], corrections)
    load = replace(load, rate=share * steady.saturation_rps)
    case = alone.under(replace(load, requests=requests))
    workload = drawn(case.demanded, case.server, seed=round(1000 * share) + tp)
    frame = replay_of(workload, case, corrections).to_frame()
    middle = frame.iloc[len(frame) // 5 : int(0.9 * len(frame))]
    lasted = float(middle["arrival_s"].iloc[-1] - middle["arrival_s"].iloc[0])
    name = f"{model.split('/')[-1].lower()}-tp{tp}-{share:g}"
    middle[["input_tokens", "output_tokens"]].to_csv(folder / f"{name}.csv", index=False)
    return {
        "experiment": name,
        "stage": 0,
        "model": model,
        "hardware": "h100_sxm",
        "tp": tp,
        "max_model_len": alone.server.sizes.max_model_len,
        "max_num_seqs": alone.server.sizes.max_num_seqs,
        "max_num_batched_tokens": alone.server.sizes.max_num_batched_tokens,
        "gpu_memory_utilization": 0.9,
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "poisson",
        "rate_rps": (len(middle) - 1) / lasted,
        "duration_s": lasted,
        "lengths": f"{name}.csv",
        "input_len_mean": middle["input_tokens"].mean(),
        "output_len": middle["output_tokens"].mean(),
        "ttft_mean": middle["ttft_s"].mean(),
        "e2e_mean": middle["e2e_s"].mean(),
    }


def found(
    path: Path, true: Mapping[str, Any] = TRUE
) -> list[tuple[str, float, float, float, float]]:
    """What a fit finds of the corrections in a file of runs: name, truth, value, 90% interval.

    The other corrections are held where they are true, at zero.

    Args:
        path: The runs.
        true: Logarithms of the factors with which they were replayed.
    """
    import physim
    from physim.corrections.fields import CORRECTIONS

    frozen = [name for name in (*CORRECTIONS, "residual") if name not in true]
    outcome = physim.fit([path], base="none", frozen=frozen)
    known = {one.name: one for one in outcome.estimates}
    return [
        (name, value, known[name].value, known[name].low, known[name].high)
        for name, value in true.items()
    ]


def errors(path: Path, true: Mapping[str, Any] = TRUE) -> dict[str, np.ndarray]:
    """Errors of the fluid with the true corrections, percent, by metric.

    Args:
        path: The runs.
        true: Logarithms of the factors with which they were replayed.
    """
    import physim
    from physim.corrections.fields import Corrections
    from physim.fitting.observations import METRICS, observe

    observed = observe([path])
    predictions = physim.predict_cases(observed.cases, Corrections(**true))
    seen = np.exp(np.asarray(observed.stages.observed))
    return {
        metric: 100 * np.array([getattr(one, f"{metric}_s") or np.inf for one in predictions]) / own
        - 100
        for metric, own in zip(METRICS, seen.T, strict=True)
    }


def table(
    rows: Sequence[tuple[str, float, float, float, float]], off: Mapping[str, np.ndarray]
) -> None:
    """Prints errors and corrections as Markdown tables."""
    known = np.isfinite(off["e2e"])
    print("| with the true corrections, percent | mean absolute error | mean error | largest |")
    print("| --- | --- | --- | --- |")
    for metric, own in off.items():
        size, mean = np.abs(own[known]), own[known].mean()
        print(f"| {metric} | {size.mean():.1f} | {mean:+.1f} | {size.max():.1f} |")
    print(f"\n{np.sum(~known)} of {len(known)} above capacity by the fluid\n")
    print("| correction | true | found | 90% interval | inside |")
    print("| --- | --- | --- | --- | --- |")
    for name, true, value, low, high in rows:
        inside = "yes" if low <= true <= high else "no"
        print(f"| {name} | {true:.2f} | {value:.2f} | {low:.2f} to {high:.2f} | {inside} |")


def write(path: Path) -> None:
    """Replays all runs and writes them."""
    import pandas as pd

    wanted = [(path.parent, model, tp, share) for model, tp in LAYOUTS for share in SHARES]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(run, *zip(*wanted, strict=True)))
    pd.DataFrame(rows).to_csv(path, index=False)


def main() -> None:
    """Prints the tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(*sys.argv[1:2] or [folder]) / "runs.csv"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write(path)
        table(found(path), errors(path))


if __name__ == "__main__":
    main()
