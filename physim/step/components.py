"""Time of each component of a step: its measured time, and never less than its roofline.

A lowered model carries the measured time of every operation at knots, from the efficiency that
was measured and the roofline there. Between knots the logarithm of time is interpolated along the
logarithm of size. Held against measured rows between the knots, that is closer than interpolating
the efficiency, and it rises wherever the knots do.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim import roofline
from physim.grids.efficiency import along
from physim.step.batch import Batch
from physim.step.lowering import (
    CHUNK,
    CONTEXT,
    GEMM_NAMES,
    MESSAGE_BYTES,
    REQUESTS,
    TOKENS,
    AttentionOps,
    CollectiveOps,
    ElementwiseOps,
    ExpertOps,
    GemmOps,
)
from physim.types import AnyArray, Number, Scalar

# Time of a kernel that moves next to nothing, and the share of the bandwidth that one reaches
# that moves much: median of the fp8 casts in aiconfigurator-core 0.12.0, scale_matrix_perf (2.07
# and 0.88 on the H100, 1.99 and 0.84 on the H200, 1.67 and 0.76 on the L40S).
KERNEL_S = 2.0e-6
STREAM_EFFICIENCY = 0.85

# With penalties the sampler waits for the tokens of the step before, and makes a tensor of every
# request's tokens in Python, some 30 ns each. Orders of magnitude, not measurements (the slowdown
# is known: vllm-project/vllm issue 13247).
PENALTY_STEP_S = 2e-4
PENALTY_REQUEST_S = 1000 * 30e-9


def gemm_seconds(
    ops: GemmOps, tokens: Scalar, sampled: Scalar, bandwidth: Scalar
) -> tuple[Float[AnyArray, " gemms"], Float[AnyArray, " gemms"]]:
    """Time of each of a step's GEMMs, seconds, over all layers; and how far FLOP/s bound it.

    The latter goes from 0 to 1 as the ratio of the roofline's two times, cubed: a step of a
    hundred tokens, which memory bounds, says nothing of how fast the GPU computes.

    Args:
        ops: The GEMMs, in the order of `physim.step.lowering.GEMM_NAMES`.
        tokens: Tokens of the step.
        sampled: Tokens that lm_head works on.
        bandwidth: Memory bandwidth, bytes/s.
    """
    is_output = np.array([name == "lm_head" for name in GEMM_NAMES])
    rows = jnp.where(is_output, sampled, tokens)
    work = roofline.gemm(rows, ops.n, ops.k, ops.weight_bytes, ops.activation_bytes)
    measured = jnp.exp(along(ops.log_seconds, TOKENS, rows))
    seconds = ops.count * jnp.maximum(measured, _bound(work, ops.peak_flops, bandwidth))
    ratio = (work[0] / ops.peak_flops) / (work[1] / bandwidth)
    return seconds, ratio**3 / (1 + ratio**3)


def matrix_work(gemms: GemmOps, experts: ExpertOps, tokens: Scalar) -> tuple[Scalar, Scalar]:
    """Seconds at peak FLOP/s, and bytes, of a step's matrix products but lm_head."""
    layers = np.array([float(name != "lm_head") for name in GEMM_NAMES]) * gemms.count
    flops, moved = roofline.gemm(
        tokens, gemms.n, gemms.k, gemms.weight_bytes, gemms.activation_bytes
    )
    expert_flops, expert_moved = _expert_work(experts, tokens)
    compute = jnp.sum(layers * flops / gemms.peak_flops)
    compute += experts.layers * expert_flops / experts.peak_flops
    return compute, jnp.sum(layers * moved) + experts.layers * expert_moved


def expert_seconds(ops: ExpertOps, tokens: Scalar, bandwidth: Scalar) -> Scalar:
    """Time of the routed experts of all layers, seconds."""
    bound = _bound(_expert_work(ops, tokens), ops.peak_flops, bandwidth)
    return ops.layers * jnp.maximum(jnp.exp(along(ops.log_seconds, TOKENS, tokens)), bound)


def _expert_work(ops: ExpertOps, tokens: Scalar) -> roofline.Work:
    return roofline.experts(
        tokens, ops.hidden, ops.width, ops.count, ops.per_token, ops.weight_bytes
    )


def decode_attention_seconds(ops: AttentionOps, batch: Batch, bandwidth: Scalar) -> Scalar:
    """Time of the attention of decoding requests in all layers, seconds; 0 where there are none."""
    requests = batch.decode_requests
    context = batch.decode_context / _divisor(requests)
    work = roofline.decode_attention(
        requests, context, ops.heads, ops.kv_heads, ops.dim, ops.kv_bytes
    )
    log_seconds = along(along(ops.log_decode_seconds, CONTEXT, context), REQUESTS, requests)
    seconds = jnp.maximum(jnp.exp(log_seconds), _bound(work, ops.peak_flops, bandwidth))
    return jnp.where(requests > 0, ops.layers * seconds, 0.0)


def prefill_attention_seconds(
    ops: AttentionOps, batch: Batch, bandwidth: Scalar
) -> tuple[Scalar, Scalar]:
    """Time of the attention of prefill chunks in all layers, seconds; 0 where there are none.

    Apart: that among the new tokens, and that of the new tokens to those in the cache.

    Attention among the new tokens was measured. Attention of the new tokens to those in the cache
    was not measured apart: it has the efficiency of a chunk as long as both together.
    """
    requests = batch.prefill_requests
    count = _divisor(requests)
    # Where there is none, any length does, so long as its root has a finite gradient.
    chunk = jnp.sqrt(jnp.where(requests > 0, batch.prefill_squares / count, 1.0))
    of_requests = along(jnp.swapaxes(ops.log_prefill_seconds, -1, -2), REQUESTS, requests)

    def alone(length: Scalar) -> tuple[Scalar, Scalar]:
        """Time of chunks of a length with nothing cached, and its roofline."""
        work = roofline.prefill_attention(requests, length, ops.heads, ops.kv_heads, ops.dim)
        bound = _bound(work, ops.peak_flops, bandwidth)
        return jnp.maximum(jnp.exp(along(of_requests, CHUNK, length)), bound), bound

    own, _ = alone(chunk)
    whole, whole_bound = alone(chunk + batch.cached_tokens / count)
    across = roofline.cached_attention(
        batch.cached_products,
        batch.cached_tokens,
        ops.heads,
        ops.kv_heads,
        ops.dim,
        ops.kv_bytes,
    )
    slowdown = whole / jnp.where(requests > 0, whole_bound, 1.0)
    cached = slowdown * _bound(across, ops.peak_flops, bandwidth)
    own, cached = (jnp.where(requests > 0, ops.layers * part, 0.0) for part in (own, cached))
    return own, cached


def all_reduce_seconds(ops: CollectiveOps, tokens: Scalar) -> Scalar:
    """Time of a step's all-reduces, seconds; 0 on one GPU."""
    message = tokens * ops.bytes_per_token
    bound = roofline.all_reduce(message, ops.gpus) / ops.link_bandwidth
    measured = jnp.exp(along(ops.log_seconds, MESSAGE_BYTES, message))
    return ops.count * jnp.maximum(measured, bound)


def gather_seconds(ops: CollectiveOps, sampled: Scalar) -> Scalar:
    """Time of gathering the logits of sampled tokens, seconds; 0 on one GPU."""
    return sampled * ops.logit_bytes / ops.link_bandwidth


def elementwise_seconds(ops: ElementwiseOps, tokens: Scalar, bandwidth: Scalar) -> Scalar:
    """Time of the kernels between the GEMMs, seconds: a floor for each, and what they move."""
    moved = tokens * ops.bytes_per_token / (STREAM_EFFICIENCY * bandwidth)
    return ops.kernels * KERNEL_S + moved


def sampling_seconds(ops: ElementwiseOps, sampled: Scalar, bandwidth: Scalar) -> Scalar:
    """Time of drawing tokens from their logits, seconds, but for penalties' bookkeeping."""
    return sampled * ops.sampling_bytes / (STREAM_EFFICIENCY * bandwidth)


def penalty_seconds(ops: ElementwiseOps, sampled: Scalar) -> Scalar:
    """Time of the bookkeeping of penalties, seconds: 0 where there are none."""
    return ops.penalties * (PENALTY_STEP_S + sampled * PENALTY_REQUEST_S)


def _bound(work: roofline.Work, peak_flops: Number, bandwidth: Scalar) -> Number:
    """Roofline time, seconds."""
    flops, moved = work
    return jnp.maximum(flops / peak_flops, moved / bandwidth)


def _divisor(count: Scalar) -> Scalar:
    """A count to divide by, one where nothing is counted."""
    return jnp.where(count > 0, count, 1.0)
