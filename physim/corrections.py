"""The physical corrections that a fit may move, and the constants that they multiply."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from physim.step.residual import Residual
from physim.types import AnyArray, Scalar


class Corrections(eqx.Module):
    """Logarithms of factors on components of the step time and on the serving loop's constants.

    A component's time is its physics times ``exp`` of its correction; at zero, the default, the
    physics stands alone. The prior of each is zero. All but the last are scalars without unit.
    Kernels were measured on requests of one context; an engine's batch mixes them, so that decode
    attention has an exponent of its own for the context.

    Attributes:
        gemm_memory: Dense GEMMs of the layers, as far as memory bounds them.
        gemm_compute: The same, as far as FLOP/s do.
        experts: Expert layers.
        prefill_attention: Attention of prefill chunks among their own tokens.
        cached_attention: Attention of prefill chunks to what is in the cache before them.
        decode_attention: Attention of decoding requests at a context of 1,000 tokens.
        decode_context: How its time grows with the context beyond what was measured: an exponent.
        elementwise: Norms, rotary embedding, activation, cache writes and casts.
        all_reduce: All-reduces and the gathering of logits.
        lm_head: The GEMM that makes logits.
        sampling: Drawing tokens from them.
        penalties: Bookkeeping of repetition penalties and the like.
        step_overhead: GPU idle time between steps.
        layer_overhead: GPU idle time at each layer of a step with prefill.
        host_step: CPU time of a step, whatever its batch.
        host_request: CPU time of a step for each of its requests.
        host_sharpness: Sharpness of the smooth maximum of GPU and CPU time.
        front_end: Time of a request outside the engine.
        handover: Wait of an arriving request for the steps that are under way.
        output_handling: Time in which the tokens of a step leave the front end.
        residual: A small network for what is left in the work on all tokens of a step.
    """

    gemm_memory: Scalar = 0.0
    gemm_compute: Scalar = 0.0
    experts: Scalar = 0.0
    prefill_attention: Scalar = 0.0
    cached_attention: Scalar = 0.0
    decode_attention: Scalar = 0.0
    decode_context: Scalar = 0.0
    elementwise: Scalar = 0.0
    all_reduce: Scalar = 0.0
    lm_head: Scalar = 0.0
    sampling: Scalar = 0.0
    penalties: Scalar = 0.0
    step_overhead: Scalar = 0.0
    layer_overhead: Scalar = 0.0
    host_step: Scalar = 0.0
    host_request: Scalar = 0.0
    host_sharpness: Scalar = 0.0
    front_end: Scalar = 0.0
    handover: Scalar = 0.0
    output_handling: Scalar = 0.0
    residual: Residual = eqx.field(default_factory=Residual.silent)


# Standard deviations of the priors: how far each constant may be off before anything is measured.
# Kernels were measured, on another machine and with other libraries; what carries an order of
# magnitude may be off by a factor of two.
PRIOR_WIDTHS = Corrections(
    gemm_memory=0.10,
    gemm_compute=0.15,
    experts=0.20,
    prefill_attention=0.15,
    cached_attention=0.50,
    decode_attention=0.15,
    decode_context=0.15,
    elementwise=0.30,
    all_reduce=0.30,
    lm_head=0.20,
    sampling=0.70,
    penalties=0.70,
    step_overhead=0.70,
    layer_overhead=0.70,
    host_step=0.50,
    host_request=0.70,
    host_sharpness=0.50,
    front_end=0.50,
    handover=0.20,
    output_handling=0.70,
    residual=Residual.widths(0.3, 0.5),
)

# The context at which the correction of decode attention stands alone.
DECODE_CONTEXT = 1000.0

# What does not depend on the GPU.
CARRIED = (
    "host_step",
    "host_request",
    "host_sharpness",
    "front_end",
    "handover",
    "output_handling",
)


def flat(corrections: Corrections) -> Float[np.ndarray, " n"]:
    """Every number of some corrections, in the order of the fields."""
    leaves = jax.tree.leaves(corrections)
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves])


def unflat(numbers: Float[AnyArray, " n"]) -> Corrections:
    """The corrections of which `flat` gives these numbers; traced numbers are kept so."""
    leaves, structure = jax.tree.flatten(PRIOR_WIDTHS)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = [
        numbers[end - np.size(leaf) : end].reshape(np.shape(leaf))
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    corrections: Corrections = jax.tree.unflatten(structure, parts)
    return corrections


def meanings() -> dict[str, str]:
    """What each correction multiplies, from the documentation of `Corrections`."""
    listed = (Corrections.__doc__ or "").partition("Attributes:")[2].strip().splitlines()
    pairs = [line.strip().partition(": ")[::2] for line in listed if ": " in line]
    return {name: meaning.rstrip(".") for name, meaning in pairs}


def labels() -> list[str]:
    """Names of `flat`'s numbers: those of the residual are counted."""
    names = []
    for field in dataclasses.fields(Corrections):
        value = getattr(PRIOR_WIDTHS, field.name)
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(value))
        names += [field.name] if size == 1 else [f"{field.name}[{i}]" for i in range(size)]
    return names


# GPU idle time between two steps: inputs are copied and some forty small kernels of the order of
# 5 us are launched outside the CUDA graph (input preparation, sampling, hand-over of tokens).
STEP_OVERHEAD_S = 40 * 5e-6

# GPU idle time at each layer of a step with prefill. Such a step cannot be one CUDA graph, since
# its attention has no fixed shape: it is a graph for each layer with attention between, and the GPU
# waits some microseconds at each of the two borders. An order of magnitude, not a measurement.
LAYER_OVERHEAD_S = 2 * 2.5e-6

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
