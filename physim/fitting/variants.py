"""physim without one of its parts, to see what that part is worth."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np

from physim import roofline
from physim.corrections import HOST_SHARPNESS, Corrections, labels
from physim.fitting.objective import Problem
from physim.step.lowering import CHUNK, CONTEXT, MESSAGE_BYTES, REQUESTS, TOKENS, StepOps

VARIANTS = ("no residual", "constant MFU", "additive host")
# The seed study's mixed steps. They are not fitted: a step with prefill may be shorter than one
# without, for which the serving loop has no slopes.
BLENDS = ("weighted-average", "smooth-weighted")
# Efficiencies that are commonly assumed where none was measured: of FLOP/s and bandwidth alike.
_EFFICIENCY = 0.7


def variant(name: str, problem: Problem) -> Problem:
    """A problem with a part of the model taken away.

    Args:
        name: ``no residual``: without the small network. ``constant MFU``: every operation at 70%
            of its roofline, whatever was measured. ``additive host``: CPU time is added, not
            hidden.
        problem: The whole.
    """
    if name == "no residual":
        fast = np.array([label.startswith("residual") for label in labels()])
        return replace(problem, widths=np.where(fast, 0.0, problem.widths))
    if name == "constant MFU":
        stages = eqx.tree_at(lambda s: s.ops, problem.stages, _all_flat(problem.stages.ops))
        cycles = problem.cycles
        if cycles is not None:
            cycles = eqx.tree_at(lambda c: c.ops, cycles, _all_flat(cycles.ops))
        return replace(problem, stages=stages, cycles=cycles)
    fast = np.array(labels()) == "host_sharpness"
    # At a sharpness of one the smooth maximum is the sum.
    centre = Corrections(host_sharpness=-float(np.log(HOST_SHARPNESS)))
    return replace(problem, widths=np.where(fast, 0.0, problem.widths), centre=centre)


def _all_flat(ops: StepOps) -> StepOps:
    """Stacked models, each as `_flat` makes it."""
    flat: StepOps = jax.tree.map(np.asarray, jax.vmap(_flat)(jax.tree.map(np.asarray, ops)))
    return flat


def _flat(ops: StepOps) -> StepOps:
    """A lowered model whose operations all take their roofline's time over one efficiency."""
    import jax.numpy as jnp

    gemms, experts, attention = ops.gemms, ops.experts, ops.attention
    columns = (gemms.n, gemms.k, gemms.weight_bytes, gemms.activation_bytes)
    gemm = roofline.gemm(TOKENS, *(column[:, None] for column in columns))
    expert = roofline.experts(
        TOKENS,
        experts.hidden,
        experts.width,
        experts.count,
        experts.per_token,
        experts.weight_bytes,
    )
    heads = (attention.heads, attention.kv_heads, attention.dim)
    requests = REQUESTS[:, None]
    decode = roofline.decode_attention(requests, CONTEXT, *heads, attention.kv_bytes)
    prefill = roofline.prefill_attention(requests, CHUNK, *heads)
    message = roofline.all_reduce(MESSAGE_BYTES, ops.collectives.gpus)

    def log_seconds(work: roofline.Work, peak: jax.Array) -> jax.Array:
        longer = jnp.maximum(work[0] / peak, work[1] / ops.bandwidth)
        return jnp.log(jnp.maximum(longer, 1e-12) / _EFFICIENCY)

    return eqx.tree_at(
        lambda o: (
            o.gemms.log_seconds,
            o.experts.log_seconds,
            o.attention.log_decode_seconds,
            o.attention.log_prefill_seconds,
            o.collectives.log_seconds,
        ),
        ops,
        (
            log_seconds(gemm, gemms.peak_flops[:, None]),
            log_seconds(expert, experts.peak_flops),
            log_seconds(decode, attention.peak_flops),
            log_seconds(prefill, attention.peak_flops),
            jnp.log(jnp.maximum(message / ops.collectives.link_bandwidth, 1e-12) / _EFFICIENCY),
        ),
    )
