"""Clients with requests of one length: ``python benchmarks/clients_in_step.py``.

Each row says how far the fluid's TTFT, ITL and E2E are from the replay's, percent.
"""

from typing import Any

import physim

MODEL = "Qwen/Qwen3-14B"
# Clients, prompt, output, cached tokens and what is not vLLM's default.
CASES: list[tuple[int, int, int, int, dict[str, Any]]] = [
    (2, 786, 251, 0, {}),
    (8, 786, 251, 0, {}),
    (12, 786, 251, 0, {}),
    (16, 786, 251, 0, {}),
    (40, 786, 251, 0, {}),
    (100, 786, 251, 0, {}),
    (40, 786, 251, 0, {"async_scheduling": False}),
    (40, 786, 251, 0, {"max_num_batched_tokens": 2048}),
    (40, 2000, 100, 0, {}),
    (40, 575, 248, 560, {}),
    (64, 1024, 1024, 0, {}),
    (16, 128, 128, 0, {}),
    (10, 4000, 50, 0, {"max_num_batched_tokens": 2048}),
    (100, 2000, 20, 0, {"max_num_batched_tokens": 2048}),
]


def main() -> None:
    print("clients prompt output cached   TTFT    ITL    E2E  options")
    for clients, prompt, output, cached, options in CASES:
        fluid, replayed = (
            physim.predict(
                MODEL,
                gpu="h100_sxm",
                tp=2,
                concurrency=clients,
                input_tokens=prompt,
                output_tokens=output,
                cached_tokens=cached,
                method=method,
                fit="none",
                **options,
            )
            for method in ("fluid", "replay")
        )
        off = (
            100 * (getattr(fluid, name) / getattr(replayed, name) - 1)
            for name in ("ttft_s", "itl_s", "e2e_s")
        )
        numbers = " ".join(f"{value:+6.1f}" for value in off)
        print(f"{clients:7d} {prompt:6d} {output:6d} {cached:6d} {numbers}  {options or ''}")


if __name__ == "__main__":
    main()
