"""Linear models of a step's time, for simulators that have nothing else.

A projection is the least-squares fit of the step model's time, in relative error, over the steps
that an engine goes through under a load (`physim.tables.operating_region`). Its error is part of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from physim.corrections.fields import Corrections
from physim.service.server import Server
from physim.step.batch import Batch
from physim.step.front_end import handover_beyond_steps, output_s, outside_s
from physim.tables.operating_region import Region

# BLIS's units.
MICROSECOND = 1e-6
# What the coefficients of trained physics multiply, in BLIS's order.
TRAINED_PHYSICS = (
    "prefill compute",
    "decode compute",
    "weight load",
    "all-reduce",
    "layer, us",
    "request, us",
    "step, us",
    "expert layer, us",
    "prefill KV write",
    "decode KV read",
    "expert exchange",
)
_REQUEST, _STEP, _KV_READ = 5, 6, 9


@dataclass(frozen=True)
class Projection:
    """A linear model of the step time, and how far it is off.

    Attributes:
        names: What each coefficient multiplies.
        beta: The coefficients, none negative: microseconds for each unit of what they multiply.
        mean_error_pct: Mean absolute error of the time of steps.
        p95_error_pct: Its 95th percentile.
        total_error_pct: Error of the time of all steps together, signed.
    """

    names: tuple[str, ...]
    beta: tuple[float, ...]
    mean_error_pct: float
    p95_error_pct: float
    total_error_pct: float

    def to_dict(self) -> dict[str, Any]:
        """The projection as plain numbers."""
        return {
            "beta": dict(zip(self.names, self.beta, strict=True)),
            "error_pct": {
                "mean": self.mean_error_pct,
                "p95": self.p95_error_pct,
                "all_steps": self.total_error_pct,
            },
        }


def blackbox(region: Region) -> Projection:
    """``beta0 + beta1 x prefill tokens + beta2 x decode tokens``: BLIS's blackbox."""
    names = ("step, us", "prefill token, us", "decode token, us")
    return _projected(names, _blackbox_basis(region), region)


def blackbox_errors(projection: Projection, region: Region) -> dict[str, float]:
    """How far a blackbox is off over other steps, as in `Projection.to_dict`."""
    return _errors(projection.beta, _blackbox_basis(region), region)


def _blackbox_basis(region: Region) -> Float[np.ndarray, "rows 3"]:
    steps = region.batches
    ones = np.ones_like(region.seconds)
    return np.stack([ones, steps.prefill_tokens, steps.decode_requests], axis=1)


def trained_physics(region: Region, server: Server) -> Projection:
    """The eleven terms of BLIS's trained-physics backend.

    The weight load and the time of a layer are constants of a model, which a fit to one model
    cannot tell from the time of a step; they stay zero, and so do the terms that BLIS charges for
    interleaved experts and for expert parallelism.
    """
    basis = trained_physics_basis(region.batches, region.prompt_tokens, server)
    basis[:, [2, 4, 7, 10]] = 0.0
    return _projected(TRAINED_PHYSICS, basis, region)


def trained_physics_errors(
    projection: Projection, region: Region, server: Server
) -> dict[str, float]:
    """How far trained physics is off over other steps, as in `Projection.to_dict`."""
    basis = trained_physics_basis(region.batches, region.prompt_tokens, server)
    return _errors(projection.beta, basis, region)


def trained_physics_basis(
    steps: Batch, prompt_tokens: float, server: Server
) -> Float[np.ndarray, "rows 11"]:
    """What the coefficients of trained physics multiply, microseconds where it is a time.

    As BLIS has it (inference-sim/inference-sim, sim/latency/trained_physics_model.go): every term
    is FLOP or bytes over the GPU's peak; heads are as wide as the hidden size over their number,
    the attention of a chunk counts the whole prompt before it, and a step's time is cut to whole
    microseconds.

    Args:
        steps: What steps carry, as arrays.
        prompt_tokens: Length of the prompts that are prefilled, mean.
        server: What is served.
    """
    decode, context = np.asarray(steps.decode_requests), np.asarray(steps.attended)[:, -1]
    prefills, prefill = np.asarray(steps.prefill_requests), np.asarray(steps.prefill_tokens)
    model, gpu, tp = server.model, server.gpu, server.parallelism.tp
    hidden, layers = model.hidden_size, model.layers
    dim = hidden // model.attention.heads
    kv_dim, heads = model.attention.kv_heads * dim, model.attention.heads / tp
    format_ = model.weight_format.compute
    flops = (gpu.peak(format_) or dict(gpu.peak_flops)["bfloat16"]) * MICROSECOND
    bandwidth = gpu.memory_bandwidth * MICROSECOND
    of_token = layers * 2 * hidden * (2 * hidden + 2 * kv_dim) / tp
    of_token += model.dense_layers * 2 * model.mlp_matrices * hidden * model.intermediate_size / tp
    if model.experts:
        width = model.experts.per_token * model.experts.intermediate_size
        width += model.experts.shared_intermediate_size
        of_token += model.expert_layers * 6 * hidden * width / tp
    pairs = prefill * prompt_tokens + np.asarray(steps.prefill_squares) / 2
    kv_bytes = layers * 2 * (kv_dim / tp) * 2.0
    reduced = (2 * layers) * hidden * 2.0 * 2.0 * (tp - 1) / tp
    basis = np.zeros((len(decode), len(TRAINED_PHYSICS)))
    basis[:, 0] = (prefill * of_token + layers * 4 * heads * dim * pairs) / flops
    basis[:, 1] = (decode * of_token + layers * 4 * heads * dim * context) / flops
    basis[:, 3] = reduced * (prefill + decode) / bandwidth
    basis[:, 4] = layers
    basis[:, _REQUEST] = decode + prefills
    basis[:, _STEP] = 1.0
    basis[:, 8] = kv_bytes * prefill / bandwidth
    basis[:, _KV_READ] = kv_bytes * (context + decode) / bandwidth
    return basis


def linear_as_trained_physics(
    step_s: float,
    request_s: float,
    context_s: float,
    server: Server,
) -> list[float]:
    """The coefficients with which trained physics is exactly a line.

    ``step_s + request_s x requests + context_s x (context + 1)`` of decoding requests, summed.

    Args:
        step_s: Time of a step, seconds.
        request_s: Time of each request in it.
        context_s: Time of each token that is attended to.
        server: What is served.
    """
    model, tp = server.model, server.parallelism.tp
    dim = model.hidden_size // model.attention.heads
    kv_bytes = 4.0 * model.layers * model.attention.kv_heads * dim / tp
    beta = [0.0] * len(TRAINED_PHYSICS)
    beta[_STEP], beta[_REQUEST] = step_s / MICROSECOND, request_s / MICROSECOND
    beta[_KV_READ] = context_s * server.gpu.memory_bandwidth / kv_bytes
    return beta


def alphas(region: Region, corrections: Corrections, server: Server) -> tuple[float, float, float]:
    """What BLIS adds outside of steps, microseconds: before the queue, at the end, for a token.

    All that a request spends outside of steps comes once, and so before the queue: the front end's
    time for a mean prompt, that in which a step's tokens leave it, and what the correction of the
    handover adds, in units of the steps when requests arrive. BLIS starts a request with the step
    that is formed next; under asynchronous scheduling that one is formed already, so such a step is
    added.

    Args:
        region: The steps of a load.
        corrections: Corrections of the constants.
        server: What is served.
    """
    ahead = server.policy.async_scheduling
    prompt_s = server.profile.prompt_token_s * region.prompt_tokens
    once = outside_s(corrections, prompt_s) + output_s(corrections, region.met_requests)
    steps = ahead + float(handover_beyond_steps(corrections, ahead))
    # BLIS takes no negative coefficient.
    return max(float(once) + steps * region.met_step_s, 0.0) / MICROSECOND, 0.0, 0.0


def nonnegative(
    basis: Float[np.ndarray, "rows terms"],
    seconds: Float[np.ndarray, " rows"],
    share: Float[np.ndarray, " rows"],
    relative_to: Float[np.ndarray, " rows"],
) -> Float[np.ndarray, " terms"]:
    """Coefficients, none negative, with the least square of the error over a time."""
    weight = np.sqrt(share) / relative_to
    # Terms of one size, or the solver gives up on the small ones.
    size = np.maximum(np.max(np.abs(basis), axis=0), 1e-300)
    found, _ = nnls(basis / size * weight[:, None], seconds * weight)
    return np.asarray(found / size)


def _projected(
    names: tuple[str, ...], basis: Float[np.ndarray, "rows terms"], region: Region
) -> Projection:
    microseconds = region.seconds / MICROSECOND
    found = nonnegative(basis, microseconds, region.share, microseconds)
    beta = tuple(float(f"{value:.6g}") for value in found)
    return Projection(names, beta, *_errors(beta, basis, region).values())


def _errors(
    beta: Sequence[float], basis: Float[np.ndarray, "rows terms"], region: Region
) -> dict[str, float]:
    """Errors of a linear model over steps, percent: ``mean``, ``p95``, ``all_steps``."""
    microseconds = region.seconds / MICROSECOND
    predicted = basis @ np.array(beta)
    error = 100 * (predicted / microseconds - 1)
    order = np.argsort(np.abs(error))
    below = np.cumsum(region.share[order])
    total = region.share @ predicted / (region.share @ microseconds)
    return {
        "mean": round(float(region.share @ np.abs(error)), 2),
        "p95": round(float(np.abs(error)[order][np.searchsorted(below, 0.95)]), 2),
        "all_steps": round(100 * float(total - 1), 3),
    }
