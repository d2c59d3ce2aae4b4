"""Benchmarks of clients that all begin at once: ``python benchmarks/clients.py``.

Prints a Markdown table of how far the fluid's means over all requests are from the replay's,
percent, as outputs vary more and more around their mean (a minute on two cores). With
``--percentiles``, how far percentiles are where outputs are of one length. With ``--data`` and
``--where``, how far means are on rows of measured runs, whatever was measured.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import physim
from physim.corrections.fields import Corrections

MODEL = "Qwen/Qwen3-14B"
SPREADS = (0.0, 0.001, 0.003, 0.01, 0.05, 0.2)
ROUNDS = 10
# Clients, prompt, output and what is not vLLM's default.
LOADS: list[tuple[int, int, int, dict[str, Any]]] = [
    (2, 786, 251, {}),
    (8, 1024, 1024, {}),
    (12, 786, 251, {}),
    (16, 8000, 1000, {}),
    (32, 1024, 1024, {}),
    (40, 786, 251, {"async_scheduling": False}),
    (40, 786, 251, {"max_num_batched_tokens": 2048}),
    (64, 1024, 128, {}),
    (64, 4000, 500, {}),
    (64, 1024, 256, {"max_num_seqs": 16}),
    (100, 2000, 20, {"max_num_batched_tokens": 2048}),
    (128, 1024, 1024, {}),
]
METRICS = ("ttft_s", "itl_s", "e2e_s", "requests_per_s")
# Others whose percentiles are looked at: clients, prompt, output, rounds and the server.
OTHERS: list[tuple[int, int, int, int, dict[str, Any]]] = [
    (64, 1000, 200, 10, {"engine": "sglang"}),
    (32, 4000, 500, 10, {"engine": "sglang"}),
    (64, 1000, 200, 10, {"engine": "trtllm"}),
    (64, 2000, 300, 10, {"model": "Qwen/Qwen3-30B-A3B", "dp": 2}),
    (48, 1000, 200, 1, {}),
    (48, 1000, 200, 3, {}),
]


def case(
    clients: int, prompt: int, output: physim.Lengths | int, rounds: int, **server: Any
) -> physim.Case:
    """Clients that send so many rounds of requests to a server."""
    return physim.Case.from_options(
        gpu="h100_sxm",
        concurrency=clients,
        requests=rounds * clients,
        input_tokens=prompt,
        output_tokens=output,
        **server,
    )


def cases(spread: float) -> list[physim.Case]:
    """The loads where outputs have a relative spread."""
    return [
        case(
            clients,
            prompt,
            physim.Lengths.normal(output, spread * output),
            ROUNDS,
            model=MODEL,
            tp=2,
            **options,
        )
        for clients, prompt, output, options in LOADS
    ]


def by_method(some: Sequence[physim.Case]) -> list[list[physim.Prediction]]:
    """The fluid's predictions of some cases, and the replay's."""
    return [
        physim.predict_cases(some, Corrections(), method=method) for method in ("fluid", "replay")
    ]


def errors(spread: float) -> np.ndarray:
    """Errors of each load and metric where outputs have a relative spread, percent."""
    fluid, replayed = (
        np.array([[getattr(one, metric) for metric in METRICS] for one in found])
        for found in by_method(cases(spread))
    )
    return 100 * (fluid / replayed - 1)


def on_rows(tables: list[str], where: str | None) -> None:
    """Prints absolute differences on rows of measured runs: median, 90th percentile and largest."""
    fluid, replayed = (
        physim.evaluate(tables, fit="none", where=where, method=method).to_frame()
        for method in ("fluid", "replay")
    )
    print(f"| {len(fluid)} rows | median | 90th percentile | largest |\n|{' --- |' * 4}")
    for metric in ("ttft_mean", "itl_mean", "e2e_mean"):
        off = 100 * np.abs(fluid[f"{metric}_predicted"] / replayed[f"{metric}_predicted"] - 1)
        print(f"| {metric} | {off.median():.2f} | {off.quantile(0.9):.1f} | {off.max():.1f} |")


def percentiles() -> None:
    """Prints absolute errors of percentiles where outputs are of one length: means of all loads."""
    others = [
        case(clients, prompt, output, rounds, **{"model": "Qwen/Qwen3-8B"} | server)
        for clients, prompt, output, rounds, server in OTHERS
    ]
    fluid, replayed = (
        [one.whole.latencies for one in found] for found in by_method([*cases(0.0), *others])
    )
    names = ("p50", "p90", "p95", "p99")
    print(f"| | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for metric in ("ttft", "tpot", "e2e"):
        found, exact = (
            np.array([[of[metric][name] for name in names] for of in every])
            for every in (fluid, replayed)
        )
        off = np.abs(100 * (found / exact - 1)).mean(axis=0)
        print(f"| {metric} | {' | '.join(f'{value:.1f}' for value in off)} |")


def main() -> None:
    """Prints the table: a row for each load, then the mean and the largest of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--percentiles", action="store_true", help="of outputs of one length")
    parser.add_argument("--data", action="append", help="a table of measured runs")
    parser.add_argument("--where", help="which of its rows")
    asked = parser.parse_args()
    if asked.data:
        on_rows(asked.data, asked.where)
        return
    if asked.percentiles:
        percentiles()
        return
    found = np.stack([errors(spread) for spread in SPREADS])
    heads = [f"TTFT, {100 * spread:g}%" for spread in SPREADS]
    print(f"| clients, prompt, output | {' | '.join(heads)} | ITL, largest | E2E, largest |")
    print(f"|{' --- |' * (len(SPREADS) + 3)}")
    for row, (clients, prompt, output, options) in enumerate(LOADS):
        what = ", ".join(f"{name} {value}" for name, value in options.items())
        name = f"{clients}, {prompt}, {output}{what and f' ({what})'}"
        ttft = " | ".join(f"{value:+.1f}" for value in found[:, row, 0])
        largest = (found[np.abs(found[:, row, m]).argmax(), row, m] for m in (1, 2))
        print(f"| {name} | {ttft} | {' | '.join(f'{value:+.1f}' for value in largest)} |")
    for metric, of in zip(METRICS, np.moveaxis(np.abs(found), 2, 0), strict=True):
        print(f"\n{metric}: mean {of.mean():.2f}, median {np.median(of):.2f}, most {of.max():.1f}")


if __name__ == "__main__":
    main()
