"""Holds the fluid against the replay on random configurations, and prints Markdown tables.

Run with ``python benchmarks/fluid_against_replay.py`` (about a quarter of an hour on two cores),
with ``layouts`` for the layouts alone, or with ``services`` for servers as they start by default,
of three engines, whose prompts and answers have long tails. Models, layouts, lengths, arrivals,
limits and rates are drawn from a seeded generator. Below the saturation throughput the steady state
is compared with the middle of a long replay; above it, the fluid's trajectory with a replay of the
same requests from an idle engine to the last answer.
"""

from __future__ import annotations

import functools
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

BELOW, ABOVE, LAYOUTS, SERVICES = 200, 60, 60, 40
MODELS = (
    ("Qwen/Qwen3-14B", (1, 2, 4)),
    ("meta-llama/Llama-3.1-70B-Instruct", (4, 8)),
    ("mistralai/Mixtral-8x7B-v0.1", (2, 4)),
    ("Qwen/Qwen2.5-7B-Instruct", (1, 2)),
    ("meta-llama/Llama-3.1-8B-Instruct", (1, 2)),
    ("Qwen/Qwen3-30B-A3B", (1, 2)),
)
# Layouts beyond tensor parallelism: tp, pp, dp and ep.
SPREAD = (
    ("meta-llama/Llama-3.1-70B-Instruct", ((4, 2, 1, 1), (2, 4, 1, 1), (8, 2, 1, 1))),
    ("Qwen/Qwen3-14B", ((1, 2, 1, 1), (2, 2, 1, 1), (1, 4, 1, 1))),
    ("mistralai/Mixtral-8x7B-v0.1", ((4, 1, 1, 4), (2, 1, 2, 4), (1, 1, 4, 4), (2, 2, 1, 1))),
    ("Qwen/Qwen3-30B-A3B", ((1, 1, 2, 2), (1, 1, 4, 1), (2, 1, 1, 2), (1, 1, 8, 8))),
    ("Qwen/Qwen3-235B-A22B-FP8", ((4, 1, 2, 8), (2, 1, 4, 8), (4, 1, 1, 4), (4, 2, 1, 1))),
)
# Servers with their defaults: tp, pp, dp and ep.
SERVERS = (
    ("Qwen/Qwen3-8B", (1, 1, 1, 1)),
    ("meta-llama/Llama-3.1-70B-Instruct", (4, 1, 1, 1)),
    ("Qwen/Qwen3-30B-A3B", (2, 1, 1, 1)),
    ("Qwen/Qwen3-30B-A3B", (1, 1, 4, 4)),
    ("deepseek-ai/DeepSeek-V2-Lite", (1, 1, 2, 2)),
)
KINDS = ("below", "above", "layouts", "services")


def case(seed: int, kind: str) -> tuple[Any, float]:
    """A random case at one request per second, and its share of the saturation throughput."""
    import physim

    rng = np.random.default_rng([seed, KINDS.index(kind)])
    models = SPREAD if kind == "layouts" else MODELS
    model, degrees = models[rng.integers(len(models))]
    inputs = int(np.exp(rng.uniform(np.log(32), np.log(3000))))
    outputs = int(np.exp(rng.uniform(np.log(16), np.log(1200))))
    cached = int(inputs * rng.choice([0, 0, 0.5, 0.95]))
    family = rng.choice(["fixed", "normal", "exponential"])
    lengths = {
        "fixed": physim.Lengths.fixed(outputs),
        "normal": physim.Lengths.normal(outputs, 0.3 * outputs),
        "exponential": physim.Lengths.exponential(outputs),
    }[family]
    varied = cached == 0 and rng.random() < 0.5
    arrival, burstiness = str(rng.choice(["constant", "poisson", "gamma"])), rng.choice([0.5, 2.0])
    load = physim.Load(
        physim.Lengths.normal(inputs, 0.3 * inputs) if varied else inputs,
        lengths,
        rate=1.0,
        cached_tokens=cached,
        arrival=arrival,
        burstiness=float(burstiness) if arrival == "gamma" else 1.0,
    )
    deployment = physim.Deployment(
        physim.Parallelism(*np.ravel(rng.choice(np.array(degrees))).tolist()),
        max_num_seqs=int(rng.choice([16, 32, 64, 128, 256])),
        max_num_batched_tokens=int(rng.choice([1024, 2048, 8192])),
        max_model_len=32768,
        async_scheduling=bool(rng.integers(2)),
    )
    share = float(rng.uniform(*{"above": (1.1, 2.0), "below": (0.05, 0.95)}.get(kind, (0.05, 0.8))))
    return physim.Case.from_parts(model, "h100_sxm", deployment, load), share


def service(seed: int) -> tuple[Any, float]:
    """A server with its defaults under a load of long tails, and its share of the saturation."""
    import physim

    rng = np.random.default_rng([seed, KINDS.index("services")])
    model, layout = SERVERS[rng.integers(len(SERVERS))]
    inputs, outputs = float(rng.integers(300, 4000)), float(rng.integers(100, 600))
    load = physim.Load(
        physim.Lengths.lognormal(inputs, inputs * rng.uniform(0.7, 1.4)),
        physim.Lengths.lognormal(outputs, outputs * rng.uniform(0.7, 1.2)),
        rate=1.0,
        arrival="poisson",
    )
    engine = str(rng.choice(["vllm", "sglang", "trtllm"]))
    deployment = physim.Deployment(physim.Parallelism(*layout), engine=engine)
    case_ = physim.Case.from_parts(model, "h100_sxm", deployment, load)
    return case_, float(rng.uniform(0.05, 0.8))


def below(seed: int, kind: str = "below") -> dict[str, float] | None:
    """Errors of the steady state, percent; None where the fluid finds the load above capacity.

    A pipeline's capacity is that of full batches, which a load that never fills one does not reach.
    """
    import physim
    from physim.corrections.fields import Corrections

    one, share = service(seed) if kind == "services" else case(seed, kind)
    (alone,) = physim.predict_cases([one], Corrections())
    rate = share * alone.saturation_rps
    # Near saturation a queue takes long to show its mean.
    lives = 240 if share > 0.75 else 60
    count = int(np.clip(rate * (alone.e2e_s or 1.0) * lives, 12_000, 150_000))
    steady = one.under(replace(one.demanded, rate=rate))
    (fluid,) = physim.predict_cases([steady], Corrections())
    if fluid.saturated:
        return None
    frame = replayed(one.under(replace(one.demanded, rate=rate, requests=count)), seed)
    middle = frame.iloc[len(frame) // 5 : int(0.9 * len(frame))]
    whole = fluid.whole.latencies

    def error(metric: str, which: str, value: float) -> float:
        return 100 * (whole[metric][which] / value - 1)

    tokens = middle["output_tokens"] - 1
    decode = (middle["e2e_s"] - middle["ttft_s"]).sum()
    return {
        "share": share,
        "ttft": error("ttft", "mean", middle["ttft_s"].mean()),
        "itl": error("itl", "mean", decode / tokens.sum()),
        "e2e": error("e2e", "mean", middle["e2e_s"].mean()),
        "e2e_p90": error("e2e", "p90", middle["e2e_s"].quantile(0.9)),
        "ttft_p99": error("ttft", "p99", middle["ttft_s"].quantile(0.99)),
        "tpot_p99": error("tpot", "p99", middle["tpot_s"].quantile(0.99)),
        "e2e_p99": error("e2e", "p99", middle["e2e_s"].quantile(0.99)),
    }


def above(seed: int) -> dict[str, float] | None:
    """Errors of the trajectory above the saturation throughput, percent; None where refused."""
    import physim
    from physim.corrections.fields import Corrections
    from physim.errors import InputError

    one, share = case(seed, "above")
    (alone,) = physim.predict_cases([one], Corrections())
    rate = share * alone.saturation_rps
    case_ = one.under(replace(one.demanded, rate=rate, requests=6000))
    try:
        (fluid,) = physim.predict_cases([case_], Corrections())
    except InputError:
        return None
    frame = replayed(case_, seed)
    throughput = len(frame) / (frame["finished_s"].max() - frame["arrival_s"].min())
    return {
        "share": share,
        "ttft": 100 * ((fluid.ttft_s or np.nan) / frame["ttft_s"].mean() - 1),
        "throughput": 100 * (fluid.requests_per_s / throughput - 1),
    }


def replayed(case: Any, seed: int) -> Any:
    """The replay's requests as a frame."""
    from physim.corrections.fields import Corrections
    from physim.prediction.replayed import replay_of
    from physim.replay.workload import drawn

    workload = drawn(case.demanded, case.server, seed)
    return replay_of(workload, case, Corrections()).to_frame()


def table(rows: list[dict[str, float]], title: str) -> None:
    """Prints median, 95th percentile and mean of absolute errors."""
    print(f"\n{title}, {len(rows)} configurations\n")
    print("| absolute error, percent | median | 95th percentile | mean error |")
    print("| --- | --- | --- | --- |")
    for name in rows[0]:
        if name != "share":
            errors = np.array([row[name] for row in rows])
            median, high = np.percentile(np.abs(errors), [50, 95])
            print(f"| {name} | {median:.2f} | {high:.1f} | {errors.mean():+.1f} |")


def main() -> None:
    """Prints the tables."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        if sys.argv[1:] == ["services"]:
            served = list(pool.map(functools.partial(below, kind="services"), range(SERVICES)))
            known = [row for row in served if row is not None]
            table(known, "Servers with their defaults, 5% to 80% of the saturation throughput")
            return
        spread = list(
            pool.map(functools.partial(below, kind="layouts"), range(LAYOUTS), chunksize=5)
        )
        known = [row for row in spread if row is not None]
        table(known, "Layouts, 5% to 80% of the saturation throughput")
        print(f"\n{LAYOUTS - len(known)} of {LAYOUTS} above capacity by the fluid")
        if sys.argv[1:] == ["layouts"]:
            return
        steady = list(pool.map(below, range(BELOW), chunksize=5))
        found = list(pool.map(above, range(ABOVE), chunksize=5))
    over = [row for row in found if row is not None]
    under = [row for row in steady if row is not None]
    table(under, "5% to 95% of the saturation throughput")
    table([row for row in under if row["share"] < 0.8], "5% to 80% of the saturation throughput")
    table(over, "1.1 to 2 times the saturation throughput")
    print(f"\n{ABOVE - len(over)} of {ABOVE} refused by the fluid's solver")


if __name__ == "__main__":
    main()
