"""The time of a step, composed from its components."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim import roofline
from physim.corrections import (
    DECODE_CONTEXT,
    HOST_REQUEST_S,
    HOST_SHARPNESS,
    HOST_STEP_S,
    LAYER_OVERHEAD_S,
    STEP_OVERHEAD_S,
    Corrections,
)
from physim.errors import InputError
from physim.step import components
from physim.step.batch import Batch
from physim.step.lowering import GEMM_NAMES, StepOps
from physim.step.residual import features
from physim.types import AnyArray, Number, Scalar

MIXED_MODES = ("additive", "weighted-average", "smooth-weighted")


# Components of a step by name, each with the correction that multiplies it, if it is one. The last
# two are what the GPU waits within and between steps, and the CPU time that it does not hide.
_CORRECTION_OF = {
    "qkv": None,
    "attention_output": None,
    "mlp": None,
    "experts": "experts",
    "prefill_attention": "prefill_attention",
    "decode_attention": "decode_attention",
    "elementwise": "elementwise",
    "all_reduce": "all_reduce",
    "output": "sampling",
    "step_overhead": None,
}
PART_NAMES = (*_CORRECTION_OF, "host")
_PART_OF_GEMM = {
    "qkv": "qkv",
    "attention_output": "attention_output",
    "gate_up": "mlp",
    "down": "mlp",
    "router": "experts",
    "shared_gate_up": "mlp",
    "shared_down": "mlp",
    "lm_head": "output",
}
# Sums GEMMs into parts: a row a part, a column a GEMM.
_GEMM_SUMS = np.array(
    [[float(_PART_OF_GEMM[gemm] == part) for gemm in GEMM_NAMES] for part in _CORRECTION_OF]
)
_IS_ROUTER, _IS_LM_HEAD = (
    np.array([n == name for n in GEMM_NAMES]) for name in ("router", "lm_head")
)
_IS_OUTPUT, _IS_PREFILL_ATTENTION = (
    np.array([float(part == name) for part in _CORRECTION_OF])
    for name in ("output", "prefill_attention")
)
# Parts that work on all tokens of a step, and so bear what the residual learned.
_ON_TOKENS = np.array(
    [
        part in ("qkv", "attention_output", "mlp", "experts", "elementwise", "all_reduce")
        for part in _CORRECTION_OF
    ]
)


class StepTime(eqx.Module):
    """The time of a step and where it goes, seconds.

    Attributes:
        total: The step's time.
        seconds: Its components in the order of `PART_NAMES`; they sum to ``total``.
    """

    total: Scalar
    seconds: Float[AnyArray, " parts"]

    @property
    def parts(self) -> dict[str, Scalar]:
        """The components by name. ``host`` is the CPU time that the GPU's does not hide."""
        return dict(zip(PART_NAMES, self.seconds, strict=True))


class StepModel(eqx.Module):
    """Time of an engine step as a function of its batch.

    Attributes:
        ops: The lowered model.
        corrections: Corrections of the components.
        mixed: How a batch of both prefill and decode is composed. ``additive``: GEMMs on all
            tokens together, attention apart. The other two are the seed study's, which blend the
            times of a prefill-only and a decode-only step: ``weighted-average`` by regimes,
            ``smooth-weighted`` with the regimes' borders smoothed.
    """

    ops: StepOps
    corrections: Corrections
    mixed: str = eqx.field(static=True, default="additive")

    def __check_init__(self) -> None:
        if self.mixed not in MIXED_MODES:
            known = ", ".join(MIXED_MODES)
            raise InputError("mixed", f"{self.mixed!r} is unknown", f"known are {known}")

    def __call__(self, batch: Batch) -> StepTime:
        """The time of a step."""
        if self.mixed == "additive":
            return self._composed(batch)
        prefill, decode = self._composed(batch.prefill_only()), self._composed(batch.decode_only())
        weight = _prefill_weight(batch, smooth=self.mixed == "smooth-weighted")
        blended: StepTime = jax.tree.map(
            lambda p, d: weight * p + (1 - weight) * d, prefill, decode
        )
        return blended

    def _composed(self, batch: Batch) -> StepTime:
        parts = self._gpu_seconds(batch)
        gpu = jnp.sum(parts)
        host = host_seconds(self.corrections, batch.requests)
        total = beside_host(gpu, host, host_sharpness(self.corrections))
        return StepTime(total, jnp.append(parts, total - gpu))

    def _gpu_seconds(self, batch: Batch) -> Float[AnyArray, " parts"]:
        """Corrected time of every part but the host's."""
        ops, bandwidth, tokens, sampled = self.ops, self.ops.bandwidth, batch.tokens, batch.requests
        with_prefill = jnp.minimum(batch.prefill_requests, 1.0)
        context = batch.decode_context / jnp.maximum(batch.decode_requests, 1e-6)
        longer = jnp.log(jnp.maximum(context, 1.0) / DECODE_CONTEXT)
        fresh, cached = components.prefill_attention_seconds(ops.attention, batch, bandwidth)
        apart = {
            "experts": components.expert_seconds(ops.experts, tokens, bandwidth),
            "prefill_attention": fresh,
            "decode_attention": jnp.exp(self.corrections.decode_context * longer)
            * components.decode_attention_seconds(ops.attention, batch, bandwidth),
            "elementwise": components.elementwise_seconds(ops.elementwise, tokens, bandwidth),
            "all_reduce": components.all_reduce_seconds(ops.collectives, tokens),
            "output": components.sampling_seconds(ops.elementwise, sampled, bandwidth),
            "step_overhead": self._idle_seconds(with_prefill),
        }
        zero = jnp.zeros(())
        cached *= jnp.exp(self.corrections.cached_attention)
        seconds = jnp.stack([apart.get(part, zero) for part in _CORRECTION_OF])
        logs = [
            getattr(self.corrections, name) if name else zero for name in _CORRECTION_OF.values()
        ]
        seconds *= jnp.exp(jnp.stack([jnp.asarray(log) for log in logs]))
        seconds += _GEMM_SUMS @ self.gemm_seconds(tokens, sampled)
        penalties = components.penalty_seconds(ops.elementwise, sampled)
        seconds += _IS_PREFILL_ATTENTION * cached
        gather = components.gather_seconds(ops.collectives, sampled)
        seconds += _IS_OUTPUT * gather * jnp.exp(self.corrections.all_reduce)
        seconds += _IS_OUTPUT * penalties * jnp.exp(self.corrections.penalties)
        return seconds * jnp.where(_ON_TOKENS, jnp.exp(self._residual(tokens)), 1.0)

    def gemm_seconds(self, tokens: Scalar, sampled: Scalar) -> Float[AnyArray, " gemms"]:
        """Corrected time of each GEMM over all layers, seconds.

        Args:
            tokens: Tokens of the step.
            sampled: Tokens that lm_head works on.
        """
        corrections = self.corrections
        seconds, compute = components.gemm_seconds(
            self.ops.gemms, tokens, sampled, self.ops.bandwidth
        )
        logs = (1 - compute) * corrections.gemm_memory + compute * corrections.gemm_compute
        logs = jnp.where(_IS_ROUTER, corrections.experts, logs)
        return seconds * jnp.exp(jnp.where(_IS_LM_HEAD, corrections.lm_head, logs))

    def _idle_seconds(self, with_prefill: Scalar) -> Scalar:
        """What the GPU waits between steps and, if there is prefill, at each layer."""
        layers = self.ops.attention.layers * LAYER_OVERHEAD_S * with_prefill
        between = STEP_OVERHEAD_S * jnp.exp(self.corrections.step_overhead)
        return between + layers * jnp.exp(self.corrections.layer_overhead)

    def _residual(self, tokens: Scalar) -> Scalar:
        """What the residual adds to the logarithm of the time of the work on all tokens."""
        # A step of nothing, which blends of steps ask for, has no intensity.
        tokens = jnp.maximum(tokens, 1.0)
        ops, experts = self.ops, self.ops.experts
        compute, moved = components.matrix_work(ops.gemms, experts, tokens)
        memory = moved / ops.bandwidth
        visited = roofline.active_experts(tokens, experts.count, experts.per_token)
        activity = jnp.where(experts.layers > 0, visited / experts.count, 0.0)
        ratio = compute / memory
        log_factor = self.corrections.residual.log_factor(
            features(ratio, 1 / (1 + ratio), tokens, ops.collectives.gpus, activity)
        )
        # It is for what memory bounds, of which it is learned; where FLOP/s do, kernels are within
        # a tenth of the roofline, and it would take them beyond.
        return log_factor / (1 + ratio**3)


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


def _prefill_weight(batch: Batch, smooth: bool) -> Scalar:
    """Weight of the prefill-only time in the seed study's blends.

    Prefill has 0.75 where its tokens are more than four times the decode tokens and over 100,
    0.35 where decode tokens are more than twice the prefill tokens and over 50, else its share of
    the tokens (inference-sim, sim/roofline_step.go, as recorded in its hypothesis H27). Batches
    of one kind have the time of that kind.
    """
    prefill, decode = jnp.asarray(batch.prefill_tokens), jnp.asarray(batch.decode_requests)

    def above(value: Scalar, limit: Scalar) -> Scalar:
        ratio = (value + 1e-6) / (limit + 1e-6)
        return jax.nn.sigmoid(4 * jnp.log(ratio)) if smooth else 1.0 * (ratio > 1)

    prefill_rules = above(prefill, 4 * decode) * above(prefill, 100.0)
    decode_rules = above(decode, 2 * prefill) * above(decode, 50.0)
    share = prefill / jnp.maximum(prefill + decode, 1e-6)
    blend = prefill_rules * 0.75 + decode_rules * 0.35 + (1 - prefill_rules - decode_rules) * share
    return jnp.where(prefill == 0, 0.0, jnp.where(decode == 0, 1.0, blend))
