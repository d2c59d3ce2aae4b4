"""Measured steps in a few numbers for each kind of step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physim.measured.steps import MeasuredSteps


@dataclass(frozen=True)
class StepSummary:
    """Steps of one kind. Means are over steps.

    Attributes:
        kind: One of `physim.measured.steps.KINDS`.
        steps: How many there are.
        time_share: Their share of the time of all steps.
        decode_requests: Requests that decode, mean.
        context_tokens: Tokens that each of these has in the KV cache, mean; NaN if not known.
        prefill_tokens: Tokens of prompts, mean.
        median_s: Median time of a step, seconds.
        p90_s: Time that nine of ten keep to, seconds.
    """

    kind: str
    steps: int
    time_share: float
    decode_requests: float
    context_tokens: float
    prefill_tokens: float
    median_s: float
    p90_s: float


def summary_of(steps: MeasuredSteps) -> tuple[StepSummary, ...]:
    """Each kind of step that there is, in numbers.

    Args:
        steps: The steps.
    """
    found = []
    for kind, chosen in steps.kinds.items():
        if not chosen.any():
            continue
        own = steps[chosen]
        requests = own.decode_requests.sum()
        found.append(
            StepSummary(
                kind=kind,
                steps=len(own),
                time_share=float(own.seconds.sum() / steps.seconds.sum()),
                decode_requests=float(own.decode_requests.mean()),
                context_tokens=float(own.context_tokens.sum() / requests) if requests else 0.0,
                prefill_tokens=float(own.prefill_tokens.mean()),
                median_s=float(np.median(own.seconds)),
                p90_s=float(np.percentile(own.seconds, 90)),
            )
        )
    return tuple(found)
