"""Dense GEMMs as rows: their roofline, and the time that was measured of their shapes."""

from __future__ import annotations

import numpy as np

from physim import roofline
from physim.grids.store import load_grid, tables
from physim.inputs.quantization import WeightFormat
from physim.step.component import Placement
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.rows import SizeRow


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
    gpu, peak = placement.gpu, placement.peak_flops(form)
    activation_bytes = 1.0 if form.quantizes_activations and gpu.peak(form.compute) else 2.0
    work = roofline.gemm(TOKENS, n, k, form.bytes_per_weight, activation_bytes)
    measured = load_grid(placement.grids, _table(placement.grids, form)).at(n=n, k=k)
    return SizeRow(
        name=name,
        part=part,
        count=count,
        size=size,
        flops=2 * n * k,
        bytes=activation_bytes * k + roofline.BYTES_16_BIT * n,
        fixed_bytes=form.bytes_per_weight * n * k,
        peak_flops=peak,
        bandwidth=gpu.memory_bandwidth,
        log_seconds=rising_log_seconds(
            measured.resampled(tokens=TOKENS),
            np.asarray(roofline.seconds(work, peak, gpu.memory_bandwidth)),
        ),
        correction=correction,
        compute_correction=compute_correction,
        is_matrix=size == "tokens",
        is_bent=size == "tokens",
        gemm=(n, k),
    )


def _table(grids: str, form: WeightFormat) -> str:
    table = f"gemm_{form.compute}"
    return table if table in tables(grids) else "gemm_bfloat16"
