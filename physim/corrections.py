"""The physical corrections that a fit may move, and the constants that they multiply."""

from __future__ import annotations

import equinox as eqx

from physim.types import Scalar


class Corrections(eqx.Module):
    """Logarithms of factors on components of the step time and on the serving loop's constants.

    A component's time is its physics times ``exp`` of its correction; at zero, the default, the
    physics stands alone. The prior of each is zero. All are scalars without unit.

    Attributes:
        gemm: Dense GEMMs of the layers.
        experts: Expert layers.
        prefill_attention: Attention of prefill chunks.
        decode_attention: Attention of decoding requests.
        elementwise: Norms, rotary embedding, activation, cache writes and casts.
        all_reduce: All-reduces and the gathering of logits.
        output: lm_head and sampling.
        step_overhead: GPU idle time between steps.
        host_step: CPU time of a step, whatever its batch.
        host_request: CPU time of a step for each of its requests.
        front_end: Time of a request outside the engine.
        handover: Wait of an arriving request for the steps that are under way.
        output_handling: Time in which the tokens of a step leave the front end.
    """

    gemm: Scalar = 0.0
    experts: Scalar = 0.0
    prefill_attention: Scalar = 0.0
    decode_attention: Scalar = 0.0
    elementwise: Scalar = 0.0
    all_reduce: Scalar = 0.0
    output: Scalar = 0.0
    step_overhead: Scalar = 0.0
    host_step: Scalar = 0.0
    host_request: Scalar = 0.0
    front_end: Scalar = 0.0
    handover: Scalar = 0.0
    output_handling: Scalar = 0.0


# GPU idle time between two steps: inputs are copied and some forty small kernels of the order of
# 5 us are launched outside the CUDA graph (input preparation, sampling, hand-over of tokens).
STEP_OVERHEAD_S = 40 * 5e-6

# CPU work of a step in the engine's process, hidden behind the GPU unless it is the longer one.
# Orders of magnitude for a Python scheduler, not measurements; a fit is expected to move them.
HOST_STEP_S = 2e-3
HOST_REQUEST_S = 10e-6

# Sharpness of the smooth maximum of GPU and CPU time: where both are equal, the step is 9% longer
# than either.
HOST_SHARPNESS = 8.0

# Time of a request outside the engine: HTTP, tokenisation, two messages between processes,
# detokenisation. An order of magnitude, not a measurement.
FRONT_END_S = 5e-3

# CPU time of the front end for each token that leaves it (detokenisation, a message, a chunk of
# HTTP), a step's tokens one after another. An order of magnitude, not a measurement.
OUTPUT_REQUEST_S = 20e-6
