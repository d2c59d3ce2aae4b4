"""The time of a step, composed from its components."""

from __future__ import annotations

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from physim.corrections import (
    HOST_REQUEST_S,
    HOST_SHARPNESS,
    HOST_STEP_S,
    STEP_OVERHEAD_S,
    Corrections,
)
from physim.errors import InputError
from physim.step import components
from physim.step.batch import Batch, Scalar
from physim.step.lowering import GEMM_NAMES, StepOps

MixedMode = Literal["additive", "weighted-average", "smooth-weighted"]


class StepTime(eqx.Module):
    """The time of a step and where it goes, seconds.

    Attributes:
        total: The step's time.
        parts: Its components by name; they sum to ``total``. ``host`` is the CPU time that the
            GPU's does not hide.
    """

    total: Float[Array, ""]
    parts: dict[str, Float[Array, ""]]


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
    mixed: MixedMode = eqx.field(static=True, default="additive")

    def __check_init__(self) -> None:
        if self.mixed not in get_args(MixedMode):
            known = ", ".join(get_args(MixedMode))
            raise InputError("mixed", f"{self.mixed!r} is unknown", f"known are {known}")

    def __call__(self, batch: Batch) -> StepTime:
        """The time of a step."""
        if self.mixed == "additive":
            return self._composed(batch)
        prefill, decode = self._composed(batch.prefill_only()), self._composed(batch.decode_only())
        weight = _prefill_weight(batch, smooth=self.mixed == "smooth-weighted")
        blended: StepTime = jax.tree.map(lambda p, d: weight * p + (1 - weight) * d, prefill, decode)
        return blended

    def _composed(self, batch: Batch) -> StepTime:
        parts = self._gpu_parts(batch)
        gpu = sum(parts.values(), start=jnp.zeros(()))
        factor = self.corrections
        host = HOST_STEP_S * jnp.exp(factor.host_step)
        host += batch.requests * HOST_REQUEST_S * jnp.exp(factor.host_request)
        # A smooth maximum: the p-norm, never below the larger of the two.
        ratio = host / gpu
        total = gpu * (1 + ratio**HOST_SHARPNESS) ** (1 / HOST_SHARPNESS)
        return StepTime(total, {**parts, "host": total - gpu})

    def _gpu_parts(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        ops, bandwidth, tokens = self.ops, self.ops.bandwidth, batch.tokens
        sampled = batch.requests
        factor = jax.tree.map(jnp.exp, self.corrections)
        gemms = components.gemm_seconds(ops.gemms, tokens, sampled, bandwidth)
        named = dict(zip(GEMM_NAMES, gemms, strict=True))
        sampling = components.sampling_seconds(ops.elementwise, sampled, bandwidth)
        attention = ops.attention
        return {
            "qkv": factor.gemm * named["qkv"],
            "attention_output": factor.gemm * named["attention_output"],
            "mlp": factor.gemm
            * (named["gate_up"] + named["down"] + named["shared_gate_up"] + named["shared_down"]),
            "experts": factor.gemm * named["router"]
            + factor.experts * components.expert_seconds(ops.experts, tokens, bandwidth),
            "prefill_attention": factor.prefill_attention
            * components.prefill_attention_seconds(attention, batch, bandwidth),
            "decode_attention": factor.decode_attention
            * components.decode_attention_seconds(attention, batch, bandwidth),
            "elementwise": factor.elementwise
            * components.elementwise_seconds(ops.elementwise, tokens, bandwidth),
            "all_reduce": factor.all_reduce
            * components.all_reduce_seconds(ops.collectives, tokens, sampled),
            "output": factor.output * (named["lm_head"] + sampling),
            "step_overhead": factor.step_overhead * STEP_OVERHEAD_S,
        }


def _prefill_weight(batch: Batch, smooth: bool) -> Float[Array, ""]:
    """Weight of the prefill-only time in the seed study's blends.

    Prefill has 0.75 where its tokens are more than four times the decode tokens and over 100,
    0.35 where decode tokens are more than twice the prefill tokens and over 50, else its share of
    the tokens (inference-sim, sim/roofline_step.go, as recorded in its hypothesis H27). Batches
    of one kind have the time of that kind.
    """
    prefill, decode = jnp.asarray(batch.prefill_tokens), jnp.asarray(batch.decode_requests)

    def above(value: Scalar, limit: Scalar) -> Float[Array, ""]:
        ratio = (value + 1e-6) / (limit + 1e-6)
        return jax.nn.sigmoid(4 * jnp.log(ratio)) if smooth else 1.0 * (ratio > 1)

    prefill_rules = above(prefill, 4 * decode) * above(prefill, 100.0)
    decode_rules = above(decode, 2 * prefill) * above(decode, 50.0)
    share = prefill / jnp.maximum(prefill + decode, 1e-6)
    blend = prefill_rules * 0.75 + decode_rules * 0.35 + (1 - prefill_rules - decode_rules) * share
    return jnp.where(prefill == 0, 0.0, jnp.where(decode == 0, 1.0, blend))
