"""The latencies that are predicted and measured: what they are called and shown in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A latency.

    Attributes:
        label: What it is called.
        meaning: What it is.
        scale: Units in a second.
        unit: The unit that it is shown in.
    """

    label: str
    meaning: str
    scale: float
    unit: str


# ITL is over the gaps between tokens, TPOT over requests, each with the mean of its gaps, as
# `vllm bench serve` has them.
METRICS = {
    "ttft": Metric("TTFT", "time to first token", 1e3, "ms"),
    "itl": Metric("ITL", "time from a token to the next", 1e3, "ms"),
    "tpot": Metric("TPOT", "a request's mean time from a token to the next", 1e3, "ms"),
    "e2e": Metric("E2E", "time of a request", 1.0, "s"),
}

PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", *(f"p{q}" for q in PERCENTILES))
