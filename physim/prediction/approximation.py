"""How far the fluid is from a replay of the same requests: a part of what is not known.

The standard deviations of the logarithm of the fluid over the replay are measured and printed by
``benchmarks/real_traffic.py poisson``: by the share of the saturation throughput that is asked for,
and by how much prompts differ.
"""

from __future__ import annotations

import numpy as np

from physim.inputs.case import Case
from physim.prediction.results import Prediction

# Shares of the saturation throughput at which the next row begins, and coefficients of variation of
# the tokens of prompts that are computed at which the next column does.
SHARES, SPREADS = (0.45, 0.7), (0.5,)
# By row and column, of each latency.
ERRORS = {
    "ttft": ((0.016, 0.046), (0.022, 0.077), (0.020, 0.093)),
    "itl": ((0.005, 0.016), (0.004, 0.023), (0.008, 0.034)),
    "e2e": ((0.005, 0.018), (0.004, 0.023), (0.008, 0.034)),
}


def errors_of(case: Case, prediction: Prediction) -> dict[str, float]:
    """Standard deviation of the logarithm of what the fluid says over what a replay does.

    Args:
        case: The case.
        prediction: Its prediction. What is replayed has no such error.
    """
    if prediction.method != "fluid":
        return dict.fromkeys(ERRORS, 0.0)
    load = case.demanded
    # Clients never ask for more than is served, and are not crowded by chance.
    share = 0.0
    if load.concurrency is None:
        share = prediction.requests_per_s / prediction.saturation_rps
    row, column = np.searchsorted(SHARES, share), np.searchsorted(SPREADS, spread_of(case))
    return {metric: table[int(row)][int(column)] for metric, table in ERRORS.items()}


def spread_of(case: Case) -> float:
    """Coefficient of variation of the tokens of prompts that are computed."""
    return float(np.sqrt(case.demanded.moments().new_cv2))
