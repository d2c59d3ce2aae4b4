"""What `physim recommend` recommends, and its cheaper neighbours, replayed request by request.

Usage: python benchmarks/recommended.py

For four models under three loads the recommended deployment is replayed: does it keep to the
objectives? So is every neighbour that is cheaper, which is one that differs in nothing or in one of
GPU, layout, slots and budget, with as many servers as cost less: does none of them keep to them?
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import physim
from physim.inputs.case import Case
from physim.prediction.many import predict_cases
from physim.questions.choices import Choice, Recommendation
from physim.questions.recommendation import shared

PRICES = {"a100_sxm": 1.4, "h100_sxm": 2.5, "h200_sxm": 3.2}
MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-70B-Instruct",
    "openai/gpt-oss-120b",
)
LOADS = {
    "chat": (20.0, 800, 250, ["ttft_p99=1s", "itl_mean=25ms"]),
    "long": (4.0, 8000, 400, ["ttft_mean=2s", "itl_mean=40ms"]),
    "code": (10.0, 2000, 60, ["e2e_p90=3s"]),
}


def main() -> None:
    """Prints a line for each model and load."""
    print(
        "| model | load | recommended | predicted, and replayed | cheaper neighbours that do too |"
    )
    print("| --- | --- | --- | --- | --- |")
    for model in MODELS:
        for name, (rate, prompt, output, slo) in LOADS.items():
            found = physim.recommend(
                model,
                slo=slo,
                prices=PRICES,
                max_gpus=32,
                count=1,
                rate=rate,
                input_tokens=prompt,
                output_tokens=output,
            )
            best = found.choices[0]
            said = f"{best.replicas} x {best.case.model.name.split('/')[-1]} on "
            said += best.case.server.where
            kept, latencies = replayed(best.case, found)
            checked = [replayed(case, found)[0] for case in cheaper(best, found)]
            print(
                f"| {model.split('/')[-1]} | {name} | {said} | {latencies}"
                f"{'' if kept else ' MISSED'} | {sum(checked)} of {len(checked)} |",
                flush=True,
            )


def replayed(case: Case, found: Recommendation) -> tuple[bool, str]:
    """Whether a server keeps to the objectives when it is replayed, and what it was off by."""
    known = physim.load_fit("default").on(case).corrections
    fluid, replay = (
        predict_cases([case], known, method=method)[0] for method in ("fluid", "replay")
    )
    if fluid.saturated or replay.saturated:
        return False, "above capacity"
    kept = found.asked.missed(replay) is None
    shown = [
        f"{one.name} {one.latency_s(fluid) * 1e3:.0f}, {one.latency_s(replay) * 1e3:.0f} ms"
        for one in found.asked.objectives
    ]
    return kept, "; ".join(shown)


def cheaper(best: Choice, found: Recommendation) -> Iterator[Case]:
    """Neighbours that cost less, with as many servers as that allows, under their share."""
    own = _coordinates(best.case)
    most = best.gpus * PRICES[best.case.server.gpu.key]
    for case in found.servers.cases:
        apart = sum(one != other for one, other in zip(own, _coordinates(case), strict=True))
        each = case.server.parallelism.gpus * PRICES[case.server.gpu.key]
        count = math.ceil(most / each - 1e-9) - 1
        if apart <= 1 and count > 0:
            yield shared(case, count)


def _coordinates(case: Case) -> tuple[object, ...]:
    limits = case.server.sizes
    of_engine = limits.max_num_seqs, limits.max_num_batched_tokens
    return (case.model.name, case.server.gpu.key, case.server.parallelism, *of_engine)


if __name__ == "__main__":
    main()
