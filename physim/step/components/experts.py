"""Routed experts: the router's GEMM and the grouped GEMMs of a layer's experts.

``E (1 - (1 - k/E)^T)`` of ``E`` experts are visited by at least one of ``T`` tokens that choose
``k`` each; their weights are what a small batch reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.errors import InputError
from physim.grids.store import load_expert_grid, tables
from physim.inputs.architecture import Experts
from physim.inputs.quantization import BFLOAT16, WeightFormat
from physim.step.component import Component, Part, Placement
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.gemms import gemm_row
from physim.step.rows import Row, SizeRow


def _lower(placement: Placement) -> Iterator[Row]:
    hidden = placement.model.hidden_size
    for group in placement.model.groups:
        if group.experts is None:
            continue
        yield gemm_row(
            placement,
            "router",
            "experts",
            group.layers,
            group.experts.count,
            hidden,
            BFLOAT16,
            correction="experts",
            compute_correction=None,
        )
        yield _grouped_gemms(placement, group.experts, group.layers)


def _grouped_gemms(placement: Placement, experts: Experts, layers: int) -> SizeRow:
    hidden, form = placement.model.hidden_size, placement.model.formats.experts
    width = experts.intermediate_size / placement.tp
    peak, bandwidth = placement.peak_flops(form), placement.gpu.memory_bandwidth
    table, _ = _table(placement, form)
    curve = load_expert_grid(placement.grids, table).nearest(
        hidden, width, experts.per_token, experts.count
    )
    work = roofline.experts(
        TOKENS, hidden, width, experts.count, experts.per_token, form.bytes_per_weight
    )
    return SizeRow(
        name="experts",
        part="experts",
        count=layers,
        flops=6 * experts.per_token * hidden * width,
        bytes=2 * roofline.BYTES_16_BIT * hidden,
        expert_bytes=3 * hidden * width * form.bytes_per_weight,
        experts=experts.count,
        experts_per_token=experts.per_token,
        peak_flops=peak,
        bandwidth=bandwidth,
        log_seconds=rising_log_seconds(
            curve.resampled(tokens=TOKENS), np.asarray(roofline.seconds(work, peak, bandwidth))
        ),
        correction="experts",
        is_matrix=True,
        is_bent=True,
    )


def _table(placement: Placement, form: WeightFormat) -> tuple[str, bool]:
    """Table of an expert layer, and whether its number format was measured on this GPU."""
    deployment, known = placement.deployment, tables(placement.grids)
    kernel = {"int4": "marlin", "bfloat16": "triton"}.get(form.name, deployment.moe_kernel)
    for name in (f"{form.name.removesuffix('_block')}_{kernel}", "bfloat16_triton"):
        for load in (deployment.expert_load, "power_law_1.01"):
            table = f"moe_{name}_{load}"
            if table in known:
                return table, not (name == "bfloat16_triton" and form.name != "bfloat16")
    raise InputError(
        f"grids of {placement.grids}", "hold no expert layers", "run `physim grids build`"
    )


def _assumptions(placement: Placement) -> list[str]:
    if not placement.model.experts or _table(placement, placement.model.formats.experts)[1]:
        return []
    return ["no measured expert kernel for this format: that of bfloat16 is used"]


COMPONENT = Component(
    name="experts",
    parts=(Part("experts", "routed experts", blis_table="moe_compute"),),
    lower=_lower,
    source="MoE tables of aiconfigurator-core 0.12.0",
    assumptions=_assumptions,
)
