"""CPU work of a step beside the GPU's: a floor for small models, hidden behind large ones."""

from __future__ import annotations

import jax.numpy as jnp

from physim.corrections.fields import Corrections
from physim.step.component import Part
from physim.types import Number, Scalar

PART = Part("host", "CPU time not hidden", sweep="requests")

# CPU work of a step in the engine's process, hidden behind the GPU unless it is the longer one.
# Orders of magnitude for a Python scheduler, not measurements; a fit is expected to move them.
HOST_STEP_S = 2e-3
HOST_REQUEST_S = 10e-6

# Sharpness of the smooth maximum of GPU and CPU time: where both are equal, the step is 9% longer
# than either.
HOST_SHARPNESS = 8.0


def host_seconds(corrections: Corrections, requests: Number) -> Number:
    """CPU time of a step with so many requests, seconds."""
    each = HOST_REQUEST_S * jnp.exp(corrections.host_request)
    return HOST_STEP_S * jnp.exp(corrections.host_step) + requests * each


def host_sharpness(corrections: Corrections) -> Scalar:
    """Sharpness of the smooth maximum of GPU and CPU time."""
    return HOST_SHARPNESS * jnp.exp(corrections.host_sharpness)


def beside_host(gpu: Number, host: Number, sharpness: Number) -> Number:
    """Time of a step whose GPU and CPU work side by side, seconds.

    A smooth maximum: the p-norm, never below the larger of the two, and at a sharpness of one
    their sum.
    """
    return gpu * (1 + (host / gpu) ** sharpness) ** (1 / sharpness)
