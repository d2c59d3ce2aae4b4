"""Lowers a model on a GPU to arrays of one shape: an architecture is data, not code."""

from __future__ import annotations

import functools

import equinox as eqx
import numpy as np
from jaxtyping import Float

from physim import roofline
from physim.errors import InputError
from physim.grids.store import gpu_or_stand_in, load_expert_grid, load_grid, tables
from physim.inputs.architecture import ModelArch
from physim.inputs.deployment import ResolvedDeployment
from physim.inputs.hardware import Hardware
from physim.inputs.quantization import BFLOAT16, WeightFormat
from physim.types import AnyArray, Scalar

# Knots of the time curves that a lowered model carries. They are the same for every model and
# GPU, so that all share one compiled function, and reach beyond what was measured: there the
# efficiency is held and the roofline carries on.
TOKENS = 2.0 ** np.arange(0, 18.5, 0.5)
REQUESTS = 2.0 ** np.arange(14)
CONTEXT = 2.0 ** np.arange(1, 22)
CHUNK = 2.0 ** np.arange(19)
MESSAGE_BYTES = 2.0 ** np.arange(7, 35)

GEMM_NAMES = (
    "qkv",
    "attention_output",
    "gate_up",
    "down",
    "router",
    "shared_gate_up",
    "shared_down",
    "lm_head",
)


# Bytes that sampling moves for each logit. Logits are cast to 32 bit, scaled, normalised and drawn
# from: some five passes. To draw from the likeliest they are sorted with their indices (a radix
# sort of 4 + 8 bytes reads and writes them in some four rounds), normalised, summed up, masked and
# put back. Penalties count each token's occurrences in 64 bit and rescale.
_SAMPLING_BYTES = {
    "plain": 5.0 * 4.0,
    "truncated": 5.0 * 4.0 + 4 * 2 * 12.0 + 8 * 4.0,
    "penalised": 5.0 * 4.0 + 4 * 2 * 12.0 + 8 * 4.0 + 6 * 8.0,
}


class GemmOps(eqx.Module):
    """The GEMMs of a step, one row each in the order of `GEMM_NAMES`; absent ones count 0.

    Attributes:
        n: Columns of the weight on one GPU.
        k: Rows of the weight on one GPU.
        weight_bytes: Bytes of a weight.
        activation_bytes: Bytes of an activation as it is read.
        peak_flops: Peak FLOP/s in the format that is multiplied.
        count: Times that the GEMM runs in a step.
        log_seconds: Measured time of one of them over `TOKENS`.
    """

    n: Float[AnyArray, " gemms"]
    k: Float[AnyArray, " gemms"]
    weight_bytes: Float[AnyArray, " gemms"]
    activation_bytes: Float[AnyArray, " gemms"]
    peak_flops: Float[AnyArray, " gemms"]
    count: Float[AnyArray, " gemms"]
    log_seconds: Float[AnyArray, "gemms tokens"]


class ExpertOps(eqx.Module):
    """The routed experts of a layer; a dense model has ``layers`` 0.

    Attributes:
        hidden: Width of the residual stream.
        width: Hidden width of an expert on one GPU.
        count: Experts.
        per_token: Experts that a token visits.
        weight_bytes: Bytes of a weight.
        peak_flops: Peak FLOP/s in the format that is multiplied.
        layers: Layers with experts.
        log_seconds: Measured time of a layer over `TOKENS`.
    """

    hidden: Scalar
    width: Scalar
    count: Scalar
    per_token: Scalar
    weight_bytes: Scalar
    peak_flops: Scalar
    layers: Scalar
    log_seconds: Float[AnyArray, " tokens"]


class AttentionOps(eqx.Module):
    """Attention on one GPU.

    Attributes:
        heads: Query heads.
        kv_heads: KV heads, at least one.
        dim: Width of a head.
        kv_bytes: Bytes of an element of the KV cache.
        peak_flops: Peak FLOP/s in 16 bit.
        layers: Layers.
        log_decode_seconds: Measured time of a layer over `REQUESTS` and `CONTEXT`.
        log_prefill_seconds: Measured time of a layer over `REQUESTS` and `CHUNK`.
    """

    heads: Scalar
    kv_heads: Scalar
    dim: Scalar
    kv_bytes: Scalar
    peak_flops: Scalar
    layers: Scalar
    log_decode_seconds: Float[AnyArray, "requests context"]
    log_prefill_seconds: Float[AnyArray, "requests chunk"]


class CollectiveOps(eqx.Module):
    """All-reduces of a step; one GPU has ``count`` 0.

    Attributes:
        gpus: GPUs that take part.
        bytes_per_token: Bytes of a message for each token of the step.
        count: All-reduces of a step.
        logit_bytes: Bytes of logits that each GPU gathers for each sampled token.
        link_bandwidth: Bytes/s of the link in one direction.
        log_seconds: Measured time of one all-reduce over `MESSAGE_BYTES`.
    """

    gpus: Scalar
    bytes_per_token: Scalar
    count: Scalar
    logit_bytes: Scalar
    link_bandwidth: Scalar
    log_seconds: Float[AnyArray, " messages"]


class ElementwiseOps(eqx.Module):
    """Kernels that only move memory.

    Attributes:
        bytes_per_token: Bytes that they read and write for each token of the step, all layers.
        kernels: Their number in a step.
        sampling_bytes: Bytes that sampling reads and writes for each sampled token.
        penalties: Whether tokens that occurred before are made less likely, 0 or 1.
    """

    bytes_per_token: Scalar
    kernels: Scalar
    sampling_bytes: Scalar
    penalties: Scalar


class StepOps(eqx.Module):
    """A model on a GPU as numbers: the leaves of every model have the same shapes.

    Attributes:
        gemms: Dense GEMMs.
        experts: Expert layers.
        attention: Attention.
        collectives: All-reduces.
        elementwise: Kernels that only move memory.
        bandwidth: Memory bandwidth, bytes/s.
    """

    gemms: GemmOps
    experts: ExpertOps
    attention: AttentionOps
    collectives: CollectiveOps
    elementwise: ElementwiseOps
    bandwidth: Scalar


@functools.lru_cache(maxsize=1024)
def lower(model: ModelArch, gpu: Hardware, deployment: ResolvedDeployment) -> StepOps:
    """The operations of a step as arrays, with measured times at the model's shapes.

    No component is faster than its roofline, though some kernels were timed so, on data that
    stayed in the cache. A GPU without grids takes its efficiencies from the best-measured GPU;
    `assumptions` says so.

    Raises:
        InputError: A grid file is damaged.
    """
    grids = gpu_or_stand_in(gpu.key)
    tp = deployment.tp
    heads, kv_heads = model.heads // tp, max(model.kv_heads // tp, 1)
    return StepOps(
        gemms=_gemms(model, gpu, grids, tp, heads, kv_heads),
        experts=_experts(model, gpu, grids, deployment),
        attention=_attention(model, gpu, grids, heads, kv_heads),
        collectives=_collectives(model, gpu, grids, tp),
        elementwise=_elementwise(model, deployment.sampling, tp, heads, kv_heads),
        bandwidth=gpu.memory_bandwidth,
    )


def assumptions(model: ModelArch, gpu: Hardware, deployment: ResolvedDeployment) -> list[str]:
    """Where a lowered model leans on physics because nothing was measured, one line each."""
    grids, formats = gpu_or_stand_in(gpu.key), model.formats
    lines = []
    if grids != gpu.key:
        lines.append(f"no measured kernels for {gpu.key}: efficiencies of {grids} are used")
    used = [formats.attention, formats.mlp]
    if model.experts:
        used.append(formats.experts)
        if not _moe_table(formats.experts, grids, deployment)[1]:
            lines.append("no measured expert kernel for this format: that of bfloat16 is used")
    if any(form.name == "int4" for form in used):
        lines.append("no measured 4-bit GEMM: efficiencies of bfloat16 are used")
    if any(form.name == "fp8_block" for form in used) and gpu.peak("fp8"):
        lines.append("no measured block-scaled fp8 GEMM: efficiencies of per-tensor fp8 are used")
    if any(form.compute == "fp8" and gpu.peak("fp8") is None for form in used):
        lines.append(f"{gpu.key} has no fp8 tensor cores: fp8 weights, 16-bit compute")
    if formats.kv_cache_bytes == 1:
        lines.append("no measured attention on an fp8 cache: efficiencies of bfloat16 are used")
    return lines


def _peak(gpu: Hardware, form: WeightFormat) -> float:
    # A GPU without fp8 tensor cores keeps fp8 weights and multiplies in 16 bit.
    peak = gpu.peak(form.compute) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has bfloat16: load_hardware
    return peak


def _gemms(
    model: ModelArch, gpu: Hardware, grids: str, tp: int, heads: int, kv_heads: int
) -> GemmOps:
    hidden, formats, experts = model.hidden_size, model.formats, model.experts
    dense, sparse = model.dense_layers, experts.layers if experts else 0
    shared = experts.shared_intermediate_size / tp if experts else 0.0
    width = model.intermediate_size / tp
    # Columns, rows, format and count of each, in the order of GEMM_NAMES.
    rows: list[tuple[float, float, WeightFormat, int]] = [
        ((heads + 2 * kv_heads) * model.head_dim, hidden, formats.attention, model.layers),
        (hidden, heads * model.head_dim, formats.attention, model.layers),
        (2 * width, hidden, formats.mlp, dense),
        (hidden, width, formats.mlp, dense),
        (experts.count if experts else 1, hidden, BFLOAT16, sparse),
        (2 * shared, hidden, formats.mlp, sparse if shared else 0),
        (hidden, shared, formats.mlp, sparse if shared else 0),
        (model.vocab_size / tp, hidden, BFLOAT16, 1),
    ]
    n = np.array([max(n, 1.0) for n, _, _, _ in rows])
    k = np.array([max(k, 1.0) for _, k, _, _ in rows])
    weight_bytes = np.array([form.bytes_per_weight for _, _, form, _ in rows])
    activation_bytes = np.array([_activation_bytes(gpu, form) for _, _, form, _ in rows])
    peak_flops = np.array([_peak(gpu, form) for _, _, form, _ in rows])
    work = roofline.gemm(TOKENS, *(x[:, None] for x in (n, k, weight_bytes, activation_bytes)))
    bound = roofline.seconds(work, peak_flops[:, None], gpu.memory_bandwidth)
    measured = [
        load_grid(grids, _gemm_table(grids, form)).at(n=columns, k=depth).resampled(tokens=TOKENS)
        for columns, depth, (_, _, form, _) in zip(n, k, rows, strict=True)
    ]
    return GemmOps(
        n=n,
        k=k,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        peak_flops=peak_flops,
        count=np.array([float(count) for _, _, _, count in rows]),
        log_seconds=np.stack(
            [_log_seconds(curve, seconds) for curve, seconds in zip(measured, bound, strict=True)]
        ),
    )


def _activation_bytes(gpu: Hardware, form: WeightFormat) -> float:
    return 1.0 if form.quantizes_activations and gpu.peak(form.compute) else 2.0


def _gemm_table(grids: str, form: WeightFormat) -> str:
    table = f"gemm_{form.compute}"
    return table if table in tables(grids) else "gemm_bfloat16"


def _log_seconds(log_efficiency: np.ndarray, bound_s: np.ndarray) -> np.ndarray:
    """Time at the knots from measured efficiency: rising, and no shorter than the roofline.

    More work never takes less time. Where measured kernels say otherwise, because the library
    chose a worse one for the smaller shape, the time is put midway (in logarithm) between the
    longest so far and the shortest to come, which both rise.

    Args:
        log_efficiency: At the knots.
        bound_s: Roofline time at the knots, seconds.
    """
    log_bound = np.log(bound_s)
    log_time = log_bound - log_efficiency
    longest, shortest = log_time, log_time
    for axis in range(log_time.ndim):
        longest = np.maximum.accumulate(longest, axis=axis)
        shortest = np.flip(np.minimum.accumulate(np.flip(shortest, axis), axis=axis), axis)
    return np.maximum((longest + shortest) / 2, log_bound)


def _attention(
    model: ModelArch, gpu: Hardware, grids: str, heads: int, kv_heads: int
) -> AttentionOps:
    dim, kv_bytes, peak = model.head_dim, model.formats.kv_cache_bytes, _peak(gpu, BFLOAT16)
    shape = {"group": heads / kv_heads, "head_dim": float(dim)}
    requests = REQUESTS[:, None]
    decode = load_grid(grids, "decode_attention").at(**shape)
    decode_work = roofline.decode_attention(requests, CONTEXT, heads, kv_heads, dim, kv_bytes)
    prefill = load_grid(grids, "prefill_attention").at(**shape)
    prefill_work = roofline.prefill_attention(requests, CHUNK, heads, kv_heads, dim)
    return AttentionOps(
        heads=float(heads),
        kv_heads=float(kv_heads),
        dim=float(dim),
        kv_bytes=kv_bytes,
        peak_flops=peak,
        layers=float(model.layers),
        log_decode_seconds=_log_seconds(
            decode.resampled(sequences=REQUESTS * kv_heads, context=CONTEXT),
            roofline.seconds(decode_work, peak, gpu.memory_bandwidth),
        ),
        log_prefill_seconds=_log_seconds(
            prefill.resampled(sequences=REQUESTS * heads, tokens=CHUNK),
            roofline.seconds(prefill_work, peak, gpu.memory_bandwidth),
        ),
    )


def _experts(
    model: ModelArch, gpu: Hardware, grids: str, deployment: ResolvedDeployment
) -> ExpertOps:
    experts, form = model.experts, model.formats.experts
    if experts is None:
        return ExpertOps(1.0, 1.0, 1.0, 1.0, 2.0, _peak(gpu, form), 0.0, np.log(TOKENS))
    width = experts.intermediate_size / deployment.tp
    table, _ = _moe_table(form, grids, deployment)
    grid = load_expert_grid(grids, table)
    curve = grid.nearest(model.hidden_size, width, experts.per_token, experts.count)
    work = roofline.experts(
        TOKENS, model.hidden_size, width, experts.count, experts.per_token, form.bytes_per_weight
    )
    bound = roofline.seconds(work, _peak(gpu, form), gpu.memory_bandwidth)
    return ExpertOps(
        hidden=float(model.hidden_size),
        width=width,
        count=float(experts.count),
        per_token=float(experts.per_token),
        weight_bytes=form.bytes_per_weight,
        peak_flops=_peak(gpu, form),
        layers=float(experts.layers),
        log_seconds=_log_seconds(curve.resampled(tokens=TOKENS), bound),
    )


def _moe_table(form: WeightFormat, grids: str, deployment: ResolvedDeployment) -> tuple[str, bool]:
    """Table of an expert layer, and whether its number format was measured on this GPU."""
    kernel = {"int4": "marlin", "bfloat16": "triton"}.get(form.name, deployment.moe_kernel)
    known = tables(grids)
    for name in (f"{form.name.removesuffix('_block')}_{kernel}", "bfloat16_triton"):
        for load in (deployment.expert_load, "power_law_1.01"):
            table = f"moe_{name}_{load}"
            if table in known:
                return table, not (name == "bfloat16_triton" and form.name != "bfloat16")
    raise InputError(f"grids of {grids}", "hold no expert layers", "run `physim grids build`")


def _collectives(model: ModelArch, gpu: Hardware, grids: str, tp: int) -> CollectiveOps:
    if tp == 1:
        return CollectiveOps(1.0, 0.0, 0.0, 0.0, gpu.link_bandwidth, np.log(MESSAGE_BYTES))
    curve = load_grid(grids, "all_reduce").at(gpus=tp)
    return CollectiveOps(
        gpus=float(tp),
        bytes_per_token=2.0 * model.hidden_size,
        # After attention and after the MLP of each layer, and after the sharded embedding.
        count=2.0 * model.layers + 1.0,
        logit_bytes=2.0 * model.vocab_size * (tp - 1) / tp,
        link_bandwidth=gpu.link_bandwidth,
        log_seconds=_log_seconds(
            curve.resampled(message_bytes=MESSAGE_BYTES),
            roofline.all_reduce(MESSAGE_BYTES, tp) / gpu.link_bandwidth,
        ),
    )


def _elementwise(
    model: ModelArch, sampling: str, tp: int, heads: int, kv_heads: int
) -> ElementwiseOps:
    """Reads and writes of 16-bit vectors between the GEMMs of a layer, kernel by kernel."""
    hidden, formats = model.hidden_size, model.formats
    queries, keys = heads * model.head_dim, kv_heads * model.head_dim
    experts, dense = model.experts, model.dense_layers
    sparse = experts.layers if experts else 0
    shared = experts.shared_intermediate_size / tp if experts else 0.0
    width = model.intermediate_size / tp
    # Two norms with the residual added (read two, write two), rotary embedding in place, the
    # write of keys and values to the cache.
    values: float = model.layers * (8 * hidden + 2 * (queries + keys) + 4 * keys)
    kernels = 4 * model.layers
    if model.qk_norm:
        values += model.layers * 2 * (queries + keys)
        kernels += model.layers
    # Gate times up: read two, write one. The expert kernels' tables hold their own.
    values += 3 * (dense * width + sparse * shared)
    kernels += dense + (sparse if shared else 0)
    if experts:
        # Top-k of the router, and the sum with the shared expert.
        values += sparse * (2 * experts.count + 3 * hidden)
        kernels += 2 * sparse
    moved = 2.0 * float(values)
    # A cast to fp8 before a GEMM reads 16 bit and writes 8.
    if formats.attention.quantizes_activations:
        moved += 3.0 * model.layers * (hidden + queries)
        kernels += 2 * model.layers
    if formats.mlp.quantizes_activations:
        moved += 3.0 * (dense * (hidden + width) + sparse * (hidden + shared))
        kernels += 2 * (dense + (sparse if shared else 0))
    return ElementwiseOps(
        bytes_per_token=moved,
        kernels=float(kernels),
        sampling_bytes=_SAMPLING_BYTES[sampling] * model.vocab_size,
        penalties=float(sampling == "penalised"),
    )
