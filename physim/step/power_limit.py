"""How far GEMMs that last are slowed by the GPU's power limit.

Kernels were timed in bursts, at a clock that a GPU does not keep up: multiplying without a pause
takes more power than it may draw, so that it lowers its clock within some tens of milliseconds.
H100 and H200 then reach 59 to 71% of the datasheet's FLOP/s
(``sustained_share_of_peak`` of ``hardware/*.json``), where bursts reach 71 to 82%. A step with a
short prompt is over before that, and decode steps between prompts draw less.
"""

from __future__ import annotations

import jax.numpy as jnp

from physim.types import Scalar

# How soon the clock falls: least squares over blocks of GEMMs of 5 to 250 ms with GEMMs of decode
# steps between them, on an H100 and an H200 (benchmarks/power_limit.py).
SETTLING_S = 0.023


def share_at_limit(seconds: Scalar) -> Scalar:
    """Share of a run of GEMMs in which the clock has fallen: its mean over an exponential approach.

    Args:
        seconds: How long the run takes at the power limit; may be zero.
    """
    settled = jnp.maximum(seconds / SETTLING_S, 1e-4)
    return 1.0 + jnp.expm1(-settled) / settled
