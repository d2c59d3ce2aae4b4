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


# ITL is the gap between two tokens, TPOT a request's mean of its gaps: their means are one number,
# their percentiles are not.
METRICS = {
    "ttft": Metric("TTFT", "time to first token", 1e3, "ms"),
    "itl": Metric("ITL", "time between tokens", 1e3, "ms"),
    "tpot": Metric("TPOT", "mean time between the tokens of a request", 1e3, "ms"),
    "e2e": Metric("E2E", "time of a request", 1.0, "s"),
}
