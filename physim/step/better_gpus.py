"""Kernels that a GPU was not measured with are no faster than on the next better GPU that was.

What stands in for such a kernel is the efficiency of another, which may reach a share of the
roofline that the kernel itself does not: experts whose weights are unpacked first come less near
to it than those in 16 bit. A GPU without the measurement would come out ahead of a better one with
it. Held to that one's time, a kernel no longer follows the rates of its own GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from physim.grids.store import better_gpus
from physim.step.component import Placement

# How many tables that stand in for a kernel come before the one that is taken on a GPU: 0 where the
# kernel itself was measured.
Missed = Callable[[Placement], int]
# The logarithm of a kernel's time on a GPU, at some knots.
Cut = Callable[[Placement], np.ndarray]


def no_faster(placement: Placement, missed: Missed, cut: Cut) -> np.ndarray:
    """Logarithm of a kernel's time, no shorter than on the next better GPU that measured it.

    Args:
        placement: The model on its GPU.
        missed: How many tables were missed for the kernel's.
        cut: The time on a GPU.
    """
    own, better = cut(placement), _next_better(placement, missed)
    return own if better is None else np.maximum(own, no_faster(better, missed, cut))


def no_faster_note(placement: Placement, missed: Missed) -> str:
    """What a note on a stand-in ends in: the GPU that the kernel is no faster than, if any.

    Args:
        placement: The model on its GPU.
        missed: How many tables were missed for the kernel's.
    """
    better = _next_better(placement, missed)
    return f", no faster than on {better.gpu.key}" if better else ""


def _next_better(placement: Placement, missed: Missed) -> Placement | None:
    """The model on the next better GPU whose table is nearer to the kernel's, if there is one."""
    own = _distance(placement, missed)
    if own == 0:
        return None
    others = (Placement(replace(placement.server, gpu=gpu)) for gpu in better_gpus(placement.gpu))
    return next((other for other in others if _distance(other, missed) < own), None)


def _distance(placement: Placement, missed: Missed) -> float:
    return missed(placement) if placement.is_measured else np.inf
