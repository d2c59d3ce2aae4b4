"""How far the fluid is from a replay of the same requests: a part of what is not known.

The standard deviations of the logarithm of the fluid over the replay are measured and printed by
``benchmarks/real_traffic.py``: by whether requests come by chance or in bursts, by the share of the
saturation throughput that is asked for, and by how much prompts differ.
"""

from __future__ import annotations

import numpy as np

from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.prediction.results import Prediction

# Shares of the saturation throughput at which the next row begins, and coefficients of variation of
# the tokens of prompts that are computed at which the next column does.
SHARES, SPREADS = (0.45, 0.7), (0.5,)
# By row and column, of each latency, where requests come by chance and where in bursts.
ERRORS = {
    "ttft": (
        ((0.019, 0.039), (0.024, 0.061), (0.019, 0.09)),
        ((0.051, 0.081), (0.038, 0.073), (0.113, 0.231)),
    ),
    "itl": (
        ((0.003, 0.012), (0.003, 0.015), (0.007, 0.015)),
        ((0.012, 0.015), (0.008, 0.024), (0.021, 0.041)),
    ),
    "e2e": (
        ((0.003, 0.014), (0.003, 0.017), (0.007, 0.012)),
        ((0.013, 0.021), (0.009, 0.029), (0.034, 0.052)),
    ),
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
    bursts = in_bursts(load)
    return {metric: tables[bursts][int(row)][int(column)] for metric, tables in ERRORS.items()}


def in_bursts(load: Load) -> bool:
    """Whether requests come in bursts, or as a record has them."""
    return load.dispersion is not None or load.arrival_cv2 > 1.0


def spread_of(case: Case) -> float:
    """Coefficient of variation of the tokens of prompts that are computed."""
    return float(np.sqrt(case.demanded.moments().new_cv2))
