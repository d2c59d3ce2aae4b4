"""Time of each component of a step: its roofline over its measured efficiency."""

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
from physim.types import AnyArray, Scalar

# Time of a kernel that moves next to nothing, and the share of the bandwidth that one reaches
# that moves much: median of the fp8 casts in aiconfigurator-core 0.12.0, scale_matrix_perf (2.07
# and 0.88 on the H100, 1.99 and 0.84 on the H200, 1.67 and 0.76 on the L40S).
KERNEL_S = 2.0e-6
STREAM_EFFICIENCY = 0.85


def gemm_seconds(
    ops: GemmOps, tokens: Scalar, sampled: Scalar, bandwidth: Scalar
) -> Float[AnyArray, " gemms"]:
    """Time of each of a step's GEMMs, seconds, over all layers.

    Args:
        ops: The GEMMs, in the order of `physim.step.lowering.GEMM_NAMES`.
        tokens: Tokens of the step.
        sampled: Tokens that lm_head works on.
        bandwidth: Memory bandwidth, bytes/s.
    """
    is_output = np.array([name == "lm_head" for name in GEMM_NAMES])
    rows = jnp.where(is_output, sampled, tokens)
    flops, moved = roofline.gemm(rows, ops.n, ops.k, ops.weight_bytes, ops.activation_bytes)
    bound = jnp.maximum(flops / ops.peak_flops, moved / bandwidth)
    return ops.count * bound / jnp.exp(along(ops.log_efficiency, TOKENS, rows))


def expert_seconds(ops: ExpertOps, tokens: Scalar, bandwidth: Scalar) -> Scalar:
    """Time of the routed experts of all layers, seconds."""
    flops, moved = roofline.experts(
        tokens, ops.hidden, ops.width, ops.count, ops.per_token, ops.weight_bytes
    )
    bound = jnp.maximum(flops / ops.peak_flops, moved / bandwidth)
    efficiency = jnp.exp(along(ops.log_efficiency, TOKENS, tokens))
    return ops.layers * bound / efficiency


def decode_attention_seconds(ops: AttentionOps, batch: Batch, bandwidth: Scalar) -> Scalar:
    """Time of the attention of decoding requests in all layers, seconds; 0 where there are none."""
    requests = batch.decode_requests
    context = batch.decode_context / _at_least_one(requests)
    flops, moved = roofline.decode_attention(
        requests, context, ops.heads, ops.kv_heads, ops.dim, ops.kv_bytes
    )
    bound = jnp.maximum(flops / ops.peak_flops, moved / bandwidth)
    log_efficiency = along(along(ops.log_decode_efficiency, CONTEXT, context), REQUESTS, requests)
    return ops.layers * bound / jnp.exp(log_efficiency)


def prefill_attention_seconds(ops: AttentionOps, batch: Batch, bandwidth: Scalar) -> Scalar:
    """Time of the attention of prefill chunks in all layers, seconds; 0 where there are none.

    Attention among the new tokens has a measured efficiency. Attention of the new tokens to those
    in the cache was not measured apart: it takes the efficiency of a chunk as long as both.
    """
    requests = batch.prefill_requests
    count = _at_least_one(requests)
    chunk = jnp.sqrt(_safe(batch.prefill_squares / count, requests))
    cached = batch.cached_tokens / count
    curve = along(jnp.swapaxes(ops.log_prefill_efficiency, -1, -2), REQUESTS, requests)

    def seconds(flops: Scalar, moved: Scalar, length: Scalar) -> Scalar:
        bound = jnp.maximum(flops / ops.peak_flops, moved / bandwidth)
        return ops.layers * bound / jnp.exp(along(curve, CHUNK, length))

    own = seconds(
        *roofline.prefill_attention(requests, chunk, ops.heads, ops.kv_heads, ops.dim), chunk
    )
    on_cached = seconds(
        *roofline.cached_attention(
            batch.cached_products,
            batch.cached_tokens,
            ops.heads,
            ops.kv_heads,
            ops.dim,
            ops.kv_bytes,
        ),
        chunk + cached,
    )
    return jnp.where(requests > 0, own + on_cached, 0.0)


def all_reduce_seconds(ops: CollectiveOps, tokens: Scalar, sampled: Scalar) -> Scalar:
    """Time of a step's all-reduces and of gathering its logits, seconds; 0 on one GPU."""
    message = tokens * ops.bytes_per_token
    bound = roofline.all_reduce(message, ops.gpus) / ops.link_bandwidth
    log_efficiency = along(ops.log_efficiency, MESSAGE_BYTES, message)
    logits = sampled * ops.logit_bytes / ops.link_bandwidth
    return ops.count * bound / jnp.exp(log_efficiency) + logits


def elementwise_seconds(ops: ElementwiseOps, tokens: Scalar, bandwidth: Scalar) -> Scalar:
    """Time of the kernels between the GEMMs, seconds: a floor for each, and what they move."""
    moved = tokens * ops.bytes_per_token / (STREAM_EFFICIENCY * bandwidth)
    return ops.kernels * KERNEL_S + moved


def sampling_seconds(ops: ElementwiseOps, sampled: Scalar, bandwidth: Scalar) -> Scalar:
    """Time of drawing tokens from their logits, seconds."""
    return sampled * ops.sampling_bytes / (STREAM_EFFICIENCY * bandwidth)


def _at_least_one(count: Scalar) -> Scalar:
    """A count to divide by: fractions of a request have the means of a whole one."""
    return jnp.where(count > 0, count, 1.0)


def _safe(value: Scalar, count: Scalar) -> Scalar:
    """The value, or one where nothing is counted, so that a root has a finite gradient there."""
    return jnp.where(count > 0, value, 1.0)
