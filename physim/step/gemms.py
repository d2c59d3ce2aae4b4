"""Dense GEMMs as rows: their roofline, and the time that was measured of their shapes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.engines.engine import engine_named
from physim.grids.store import gpu_or_stand_in, load_grid, tables
from physim.models.formats import FLOAT32, WeightFormat
from physim.service.hardware import load_hardware
from physim.step.better_gpus import Missed, no_faster, no_faster_note
from physim.step.component import Placement
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.rows import SizeRow

# A router in float32, which cuBLAS multiplies on CUDA cores: on GB300 6,144 x 128 take 15.4 us for
# 64 tokens, 22.0 for 256, 53.7 for 1,024, 174 for 4,096 and 439 for 16,384 (vllm-project/vllm pull
# request 55899), 59 of 80 TFLOP/s. Fewer than 64 take 7 to 22 us (pull requests 44343 and 47973, on
# GB200), and MiniMax-M2's, of 3,072 x 256, 9.1% of a step of 64 requests
# (sgl-project/sglang pull request 22744).
FLOAT32_START_S = 15e-6
FLOAT32_EFFICIENCY = 0.75
# The table of GEMMs in 16 bit, which stands for formats that were not measured.
_IN_16_BIT = "gemm_bfloat16"


def gemm_row(
    placement: Placement,
    name: str,
    part: str,
    count: float,
    n: float,
    k: float,
    form: WeightFormat,
    *,
    size: str = "tokens",
    correction: str = "gemm_memory",
    compute_correction: str | None = "gemm_compute",
) -> SizeRow:
    """``[tokens, k] @ [k, n]`` on one GPU.

    Args:
        placement: The model on its GPU.
        name: Its name among the model's operations.
        part: The part of a step's time that it belongs to.
        count: Times that it runs in a step.
        n: Columns of the weight on one GPU.
        k: Rows of the weight on one GPU.
        form: Format of the weight.
        size: ``tokens`` of the step, or those that are ``sampled``.
        correction: The correction that multiplies it,
        compute_correction: and the one that takes over where FLOP/s bound it; None for the same.
    """
    taken = placement.multiplied(form)
    return SizeRow(
        name=name,
        part=part,
        count=count,
        size=size,
        flops=2 * n * k,
        bytes=taken.activation_bytes * k + roofline.BYTES_16_BIT * n,
        fixed_bytes=taken.bytes_per_weight * n * k,
        peak_flops=placement.peak_flops(form),
        sustained_share=placement.sustained_share(form),
        bandwidth=placement.gpu.memory_bandwidth,
        log_seconds=no_faster(
            placement, _missed(form), functools.partial(_log_seconds, n=n, k=k, form=form)
        ),
        correction=correction,
        compute_correction=compute_correction,
        is_matrix=size == "tokens",
        is_bent=size == "tokens",
        gemm=(n, k),
    )


def _log_seconds(placement: Placement, n: float, k: float, form: WeightFormat) -> np.ndarray:
    """Logarithm of the time of a GEMM at `TOKENS`."""
    taken = placement.multiplied(form)
    work = roofline.gemm(TOKENS, n, k, taken.bytes_per_weight, taken.activation_bytes)
    bound = roofline.seconds(work, placement.peak_flops(form), placement.gpu.memory_bandwidth)
    if taken == FLOAT32:
        return np.log(FLOAT32_START_S + np.asarray(bound) / FLOAT32_EFFICIENCY)
    measured = load_grid(placement.grids, gemm_table(placement.grids, taken)).sliced(n=n, k=k)
    return rising_log_seconds(measured.resampled(tokens=TOKENS), np.asarray(bound))


def _missed(form: WeightFormat) -> Missed:
    """How many tables were missed for GEMMs of a format."""

    def missed(placement: Placement) -> int:
        table = gemm_table(placement.grids, placement.multiplied(form))
        return form.gemm_tables.index(table.removeprefix("gemm_"))

    return missed


def linear_rows(
    placement: Placement,
    *parts: str,
    correction: str = "gemm_memory",
    compute_correction: str | None = "gemm_compute",
) -> Iterator[SizeRow]:
    """The linear layers of some parts of a step; those of one shape are one row.

    Args:
        placement: The model on its GPU.
        parts: The parts.
        correction: As `gemm_row` takes it,
        compute_correction: likewise.
    """
    layers: Counter[tuple[str, str, float, float, WeightFormat]] = Counter()
    for group in placement.model.groups:
        for linear in group.linears:
            if linear.part in parts:
                shape = linear.on_gpu(placement.tp)
                layers[linear.name, linear.part, *shape, linear.form] += group.layers
    for (name, part, n, k, form), count in layers.items():
        yield gemm_row(
            placement,
            *(name, part, count, n, k, form),
            correction=correction,
            compute_correction=compute_correction,
        )


def format_notes(placement: Placement, form: WeightFormat) -> list[str]:
    """What stands for what where weights of a format are multiplied, a line each.

    Args:
        placement: The model on its GPU.
        form: The format.
    """
    linears = (one for group in placement.model.groups for one in group.linears if one.part)
    is_gemm = form.name != "bfloat16" and any(linear.form == form for linear in linears)
    limit = no_faster_note(placement, _missed(form)) if is_gemm else ""
    if not placement.gpu.peak(form.compute):
        compute = f"{placement.gpu.key} has no {form.compute} tensor cores"
        return [f"{compute}: {form.name} weights, 16-bit compute{limit}"]
    taken = placement.multiplied(form)
    if taken == FLOAT32:
        return ["no measured float32 GEMM: by measurements of routers on GB200 and GB300"]
    table = gemm_table(placement.grids, taken).removeprefix("gemm_")
    if is_gemm and table != form.name and taken == form:
        return [f"no measured {form.name} GEMM: efficiencies of {table} are used{limit}"]
    return []


def gemm_table(grids: str, form: WeightFormat) -> str:
    """The measured table that stands for GEMMs of a format.

    Args:
        grids: The GPU whose tables they are.
        form: The format, as the GPU multiplies it.
    """
    known = tables(grids)
    names = (f"gemm_{one}" for one in form.gemm_tables)
    return next((name for name in names if name in known), _IN_16_BIT)


def holds_casts(placement: Placement, form: WeightFormat) -> bool:
    """Whether the measured GEMMs of a format hold the cast of what is multiplied.

    NVIDIA's collectors time linear layers (collect_gemm.py), so that all do but those in 16 bit,
    which stand for what was not measured, and cuBLAS's in fp8, off which it was taken.

    Args:
        placement: The model on its GPU.
        form: The format, as the GPU multiplies it.
    """
    table = gemm_table(placement.grids, form)
    gpu = load_hardware(gpu_or_stand_in(placement.gpu.key))
    kernels = engine_named(placement.server.profile.engine).kernels
    is_cublas = table == "gemm_fp8" and kernels.has_cublas_fp8(gpu.compute_capability)
    return table != _IN_16_BIT and not is_cublas
