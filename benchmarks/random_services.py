"""Holds the fluid against the replay on random services, and prints Markdown tables.

Run with ``python benchmarks/random_services.py`` (four minutes on two cores). Model, GPU, engine,
layout, token budget, slots, lengths, arrivals and load are drawn from a seeded generator; what a
server cannot run is left out. Requests are drawn as `benchmarks/real_traffic.py` draws them. With
``--worst N`` the services whose TTFT is furthest off are printed, too.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from real_traffic import FILES, cut, latencies, middle
from real_traffic import lengths as lengths_of

MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen2.5-72B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "google/gemma-3-27b-it",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V2-Lite",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
)
GPUS = ("a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s", "mi300x")
ENGINES = ("vllm", "vllm", "sglang", "trtllm")
SHARES = (0.3, 0.5, 0.7, 0.85, 0.92)
# Squared coefficients of variation of the times between arrivals.
ARRIVAL_CV2 = (0.5, 1.0, 1.0, 1.0, 3.0)
REQUESTS, BLOCK = 6_000, 500
METRICS = ("ttft mean", "ttft p50", "ttft p99", "itl mean", "itl p99", "e2e mean")


@dataclass(frozen=True)
class Outcome:
    """A service, and how far off the fluid is.

    Attributes:
        what: The service, in words.
        engine: Its engine.
        share: Its load, of what it serves at most.
        errors: Errors of the fluid, percent.
    """

    what: str
    engine: str
    share: float
    errors: dict[str, float]


def joint_lengths(rng: np.random.Generator) -> tuple[str, Any]:
    """Lengths of requests, and their name: a trace's, a family's, or those of two tasks."""
    import physim

    kind = rng.choice(["trace", "family", "tasks"], p=[0.3, 0.55, 0.15])
    if kind == "trace":
        name = list(FILES)[rng.integers(len(FILES))]
        return name, lengths_of(name)
    if kind == "family":
        means = np.exp(rng.uniform(np.log([100, 20]), np.log([8000, 1000])))
        family = rng.choice(["lognormal", "exponential", "fixed"], p=[0.55, 0.3, 0.15])
        spread = rng.uniform(0.4, 2.0, 2) * means
        texts = {
            "lognormal": [f"lognormal:{m:.0f}:{s:.0f}" for m, s in zip(means, spread, strict=True)],
            "exponential": [f"exponential:{m:.0f}" for m in means],
            "fixed": [f"{m:.0f}" for m in means],
        }[family]
        prompt, output = (physim.Lengths.parse(text) for text in texts)
        both = physim.RequestLengths.independent(prompt, output)
        (inputs, _, outputs), name = both.arrays, "/".join(texts)
    else:
        # Short prompts and long ones, each with answers of their own.
        short = rng.random(2000) < rng.uniform(0.5, 0.95)
        few, many = np.exp(rng.uniform(np.log([50, 2000]), np.log([1000, 20_000])))
        answers = np.exp(rng.uniform(np.log(20), np.log(800), 2))
        inputs = np.where(short, few, many) * np.exp(rng.normal(0, 0.4, 2000))
        outputs = np.where(short, answers[0], answers[1]) * np.exp(rng.normal(0, 0.6, 2000))
        inputs, outputs = np.maximum(np.rint(np.stack([inputs, outputs])), 1)
        name = f"{few:.0f} in and {answers[0]:.0f} out, or {many:.0f} and {answers[1]:.0f}"
    return name, physim.RequestLengths.from_columns(*(own.tolist() for own in cut(inputs, outputs)))


def service(seed: int, number: int) -> tuple[str, str, Any, Any, float, float]:
    """A service in words: its engine, case at a request a second, lengths, arrivals and share."""
    import physim

    rng = np.random.default_rng([seed, number])
    model, gpu, engine = (str(rng.choice(names)) for names in (MODELS, GPUS, ENGINES))
    options: dict[str, Any] = {"engine": engine, "tp": int(rng.choice([1, 2, 4, 8]))}
    if rng.random() < 0.3:
        options["max_num_batched_tokens"] = int(rng.choice([1024, 2048, 4096, 16_384]))
    if rng.random() < 0.3:
        options["max_num_seqs"] = int(rng.choice([16, 48, 128, 512]))
    name, own = joint_lengths(rng)
    cv2, share = float(rng.choice(ARRIVAL_CV2)), float(rng.choice(SHARES))
    load = physim.Load.of_requests(own, rate=1.0)
    case = physim.Case.from_options(model, gpu=gpu, max_model_len=32_768, **options)
    about = ", ".join(f"{key}={value}" for key, value in options.items())
    what = f"{model} on {gpu}, {about}: {name}, arrival cv2 {cv2:g}, {share:.0%}"
    return what, engine, case.under(load), own, cv2, share


def workload(own: Any, rate: float, cv2: float) -> Any:
    """Requests in blocks, each of which has the load's own lengths and rate."""
    from physim.replay.request import Request
    from physim.replay.workload import Workload

    rng = np.random.default_rng(1)
    inputs, _, outputs = own.arrays
    ranked = np.lexsort((outputs, inputs))
    gaps = rng.gamma(1 / cv2, 1.0, (REQUESTS // BLOCK, BLOCK))
    times = np.cumsum(gaps * BLOCK / rate / gaps.sum(axis=1, keepdims=True))
    places = (np.arange(BLOCK) + rng.random((len(gaps), BLOCK))) / BLOCK * len(ranked)
    picked = ranked[rng.permuted(places.astype(int), axis=1)].ravel()
    columns = zip(times.tolist(), inputs[picked], outputs[picked], strict=True)
    requests = [Request(n, at, int(i), int(o)) for n, (at, i, o) in enumerate(columns)]
    return Workload(requests, int((inputs + outputs).max()))


def outcome(seed: int, number: int) -> Outcome | None:
    """How far off the fluid is for a service; None for one that cannot run."""
    import physim
    from physim.corrections.fields import Corrections
    from physim.errors import InputError
    from physim.prediction.replayed import replay_of

    try:
        what, engine, alone, own, cv2, share = service(seed, number)
        (unloaded,) = physim.predict_cases([alone], Corrections())
    except InputError:
        return None
    rate = share * unloaded.saturation_rps
    shape: dict[str, Any] = {} if cv2 == 1.0 else {"arrival": "gamma", "burstiness": 1 / cv2}
    case = alone.under(physim.Load.of_requests(own, rate=rate, **shape))
    (fluid,) = physim.predict_cases([case], Corrections())
    result = replay_of(workload(own, rate, cv2), case, Corrections())
    found = latencies(result, *middle(result.to_frame()))
    errors = {}
    for name in METRICS:
        metric, which = name.split()
        errors[name] = 100 * (fluid.whole.latencies[metric][which] / found[metric][which] - 1)
    return Outcome(what, engine, share, errors)


def table(found: list[Outcome], by: str, kinds: tuple[Any, ...]) -> None:
    """Prints median and 90th percentile of absolute errors, for each kind and for all."""
    print(f"\n| {by} | services | {' | '.join(METRICS)} |\n| --- | --- |{' --- |' * len(METRICS)}")
    for kind in (*kinds, None):
        own = [one for one in found if kind is None or getattr(one, by) == kind]
        cells = [np.percentile([abs(o.errors[name]) for o in own], [50, 90]) for name in METRICS]
        texts = " | ".join(f"{middle:.1f}, {high:.0f}" for middle, high in cells)
        print(f"| {'all' if kind is None else kind} | {len(own)} | {texts} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worst", type=int, default=0)
    asked = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        every = pool.map(partial(outcome, asked.seed), range(asked.count), chunksize=10)
        found = [one for one in every if one is not None]
    table(found, "engine", tuple(dict.fromkeys(ENGINES)))
    table(found, "share", SHARES)
    for one in sorted(found, key=lambda one: -abs(one.errors["ttft mean"]))[: asked.worst]:
        print(one.what, {name: round(value) for name, value in one.errors.items()})


if __name__ == "__main__":
    main()
