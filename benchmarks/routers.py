"""Routers that count the requests of servers: ``python benchmarks/routers.py`` (two minutes).

Prints a Markdown table: how far the fluid is from a replay behind ``least_requests``, percent, mean
(largest) of 36 services, where it takes requests to come to a server in turn, by chance, and as
behind that router.
"""

import itertools
from typing import Any

import numpy as np

import physim
from physim.corrections.fields import Corrections

ENGINES = ("vllm", "sglang", "trtllm")
# Model, GPUs of a server, mean prompt and mean output.
MODELS = (("Qwen/Qwen3-8B", 1, 1500, 150), ("Qwen/Qwen3-30B-A3B", 2, 400, 300))
SERVERS, USES = (2, 6), (0.3, 0.55, 0.75)
METRICS = ("TTFT", "TTFT p99", "ITL", "TPOT p99")
ZERO_SHOT = Corrections()
ROUTER = "least_requests"


def services(router: str) -> list[physim.Case]:
    """The services behind a router."""
    found = []
    for engine, (model, tp, prompt, output) in itertools.product(ENGINES, MODELS):
        options: dict[str, Any] = {
            "gpu": "h100_sxm",
            "tp": tp,
            "engine": engine,
            "input_tokens": physim.Lengths.gamma(prompt, 0.3 * prompt),
            "output_tokens": physim.Lengths.gamma(output, 0.3 * output),
            "max_model_len": 32_768,
            "arrival": "poisson",
        }
        light = physim.Case.from_options(model, rate=1e-3, **options)
        most = physim.predict_cases([light], ZERO_SHOT)[0].saturation_rps
        found += [
            physim.Case.from_options(
                model, **options, replicas=count, router=router, rate=count * use * most
            )
            for count, use in itertools.product(SERVERS, USES)
        ]
    return found


def latencies(router: str, method: str) -> np.ndarray:
    """Latencies of each service behind a router, by `METRICS`, seconds."""
    found = physim.predict_cases(services(router), ZERO_SHOT, method=method)
    return np.array(
        [
            (one.ttft_s, of["ttft"]["p99"], one.itl_s, of["tpot"]["p99"])
            for one in found
            for of in [one.whole.latencies]
        ]
    )


def main() -> None:
    """Prints the table."""
    replayed = latencies(ROUTER, "replay")
    print(f"| from step to step | {' | '.join(METRICS)} |\n|{' --- |' * (len(METRICS) + 1)}")
    for name, router in (
        ("in turn", "round_robin"),
        ("by chance", "random"),
        ("as it is", ROUTER),
    ):
        off = np.abs(100 * (latencies(router, "fluid") / replayed - 1))
        cells = [f"{one.mean():.1f} ({one.max():.1f})" for one in off.T]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
