"""Dense GEMMs as rows: their roofline, and the time that was measured of their shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.grids.store import load_grid, tables
from physim.models.formats import WeightFormat
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
    gpu, peak, form = placement.gpu, placement.peak_flops(form), placement.multiplied(form)
    activation_bytes = form.activation_bytes
    work = roofline.gemm(TOKENS, n, k, form.bytes_per_weight, activation_bytes)
    measured = load_grid(placement.grids, gemm_table(placement.grids, form)).at(n=n, k=k)
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
    lines, taken = [], placement.multiplied(form)
    if not placement.gpu.peak(form.compute):
        lines.append(
            f"{placement.gpu.key} has no {form.compute} tensor cores: {form.name} weights, 16-bit "
            "compute"
        )
    linears = (one for group in placement.model.groups for one in group.linears if one.part)
    if form.name == "bfloat16" or not any(linear.form == form for linear in linears):
        return lines
    table = gemm_table(placement.grids, taken).removeprefix("gemm_")
    if table != form.name and taken == form:
        lines.append(f"no measured {form.name} GEMM: efficiencies of {table} are used")
    return lines


def gemm_table(grids: str, form: WeightFormat) -> str:
    """The measured table that stands for GEMMs of a format.

    Args:
        grids: The GPU whose tables they are.
        form: The format, as the GPU multiplies it.
    """
    known = tables(grids)
    names = (f"gemm_{one}" for one in form.gemm_tables)
    return next((name for name in names if name in known), "gemm_bfloat16")
