"""Where the time curves that a lowered model carries have their knots, and how they are made.

The knots are the same for every model and GPU, so that all share one compiled function, and reach
beyond what was measured: there the efficiency is held and the roofline carries on.
"""

from __future__ import annotations

import numpy as np

from physim.service.server import EXPERT_LOADS

TOKENS = 2.0 ** np.arange(0, 18.5, 0.5)
REQUESTS = 2.0 ** np.arange(14)
CONTEXT = 2.0 ** np.arange(1, 22)
CHUNK = 2.0 ** np.arange(19)
# Spreads over experts: exponents of the power laws that were measured, 0 for an even load.
SPREADS = np.array(list(EXPERT_LOADS))
# Below the smallest message that matters a curve is held: these knots are there so that curves over
# any size have as many.
LEAST_MESSAGE_BYTES = 2.0**7
MESSAGE_BYTES = 2.0 ** np.arange(35 - len(TOKENS), 35)


def rising_log_seconds(
    log_efficiency: np.ndarray, bound_s: np.ndarray, start_s: float = 0.0
) -> np.ndarray:
    """Time at the knots from measured efficiency: rising, and no shorter than the roofline.

    Some kernels were timed faster than their roofline, on data that stayed in the cache.

    Args:
        log_efficiency: Logarithm of roofline time over measured time, at the knots.
        bound_s: Roofline time at the knots, seconds.
        start_s: Time beside it that the efficiency is relative to (`Grid.start_s`).
    """
    log_time = np.log(bound_s + start_s) - log_efficiency
    return np.maximum(rising(log_time), np.log(bound_s))


def rising(log_time: np.ndarray) -> np.ndarray:
    """Time that rises along every axis.

    More work never takes less time. Where measured kernels say otherwise, because the library
    chose a worse one for the smaller shape, the time is put midway (in logarithm) between the
    longest so far and the shortest to come, which both rise.

    Args:
        log_time: Logarithm of the time at the knots.
    """
    longest, shortest = log_time, log_time
    for axis in range(log_time.ndim):
        longest = np.maximum.accumulate(longest, axis=axis)
        shortest = np.flip(np.minimum.accumulate(np.flip(shortest, axis), axis=axis), axis)
    return (longest + shortest) / 2
