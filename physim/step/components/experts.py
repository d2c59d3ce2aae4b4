"""Routed experts: the router's GEMM and the grouped GEMMs of a layer's experts.

``E (1 - (1 - k/E)^T)`` of ``E`` experts are visited by at least one of ``T`` tokens that choose
``k`` each on their own; their weights are what a small batch reads. `physim.step.routing` says how
many of a step's tokens do, and under which spread the measured time is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.errors import InputError
from physim.grids.store import load_expert_grid, tables
from physim.inputs.architecture import Experts
from physim.inputs.deployment import EXPERT_LOADS
from physim.inputs.quantization import BFLOAT16, WeightFormat
from physim.step.component import Component, Part, Placement
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.gemms import gemm_row
from physim.step.rows import Row, SizeRow

# Expert kernel of what was not measured.
_STAND_IN = "bfloat16_triton"


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
    work = roofline.experts(
        TOKENS, hidden, width, experts.count, experts.per_token, form.bytes_per_weight
    )
    bound = np.asarray(roofline.seconds(work, peak, bandwidth))
    measured = _tables(placement, form)
    curves = []
    for spread in EXPERT_LOADS:
        load = measured[min(measured, key=lambda known: abs(known - spread))]
        grid = load_expert_grid(placement.grids, load).nearest(
            hidden, width, experts.per_token, experts.count
        )
        curves.append(rising_log_seconds(grid.resampled(tokens=TOKENS), bound))
    if min(measured) == 0.0:
        even = curves[0]
        curves = [
            np.maximum(_chosen(even, curve, experts, spread), np.log(bound))
            for spread, curve in zip(EXPERT_LOADS, curves, strict=True)
        ]
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
        by_spread=np.array(curves),
        correction="experts",
        is_matrix=True,
        is_bent=True,
    )


def _chosen(
    even: np.ndarray, measured: np.ndarray, experts: Experts, exponent: float
) -> np.ndarray:
    """What tokens that choose on their own take, of rows whose tokens took turns.

    The collector's even load hands experts out in turn, so that ``T`` tokens visit ``k T`` of them
    until none is left, more than any choice would. Its kernel takes the time of the experts that
    are visited; once all are, what is left is that of the tokens, and where the load is uneven the
    wait for the fullest. (Below ``E / k`` tokens its uneven loads follow a law of their own.)

    Args:
        even: Logarithm of the time under the even load, at `TOKENS`.
        measured: That under the load.
        experts: The experts.
        exponent: The load's: of the power law by which experts are chosen.
    """

    def at(tokens: np.ndarray) -> np.ndarray:
        return np.interp(np.log(tokens), np.log(TOKENS), even)

    turns = experts.count / experts.per_token
    visited = roofline.visited_experts(TOKENS, experts.count, experts.per_token, exponent)
    uneven = np.maximum(measured - even, 0.0)
    return even + at(visited / experts.per_token) - at(np.minimum(TOKENS, turns)) + uneven


def _tables(placement: Placement, form: WeightFormat) -> dict[float, str]:
    """Tables of an expert layer by the spread that they were measured under.

    Raises:
        InputError: There is none.
    """
    own = {"int4": "marlin", "bfloat16": "triton"}.get(form.name, placement.deployment.moe_kernel)
    for kernel in (f"{form.name.removesuffix('_block')}_{own}", _STAND_IN):
        names = {spread: f"moe_{kernel}_{load}" for spread, load in EXPERT_LOADS.items()}
        found = {x: name for x, name in names.items() if name in tables(placement.grids)}
        if found:
            return found
    raise InputError(
        f"grids of {placement.grids}", "hold no expert layers", "run `physim grids build`"
    )


def _assumptions(placement: Placement) -> list[str]:
    if not placement.model.experts:
        return []
    form, lines = placement.model.formats.experts, []
    measured = _tables(placement, form)
    if form.name != "bfloat16" and all(_STAND_IN in name for name in measured.values()):
        lines.append("no measured expert kernel for this format: that of bfloat16 is used")
    if placement.deployment.expert_load < min(measured):
        lines.append(
            f"no measured experts under a load more even than {EXPERT_LOADS[min(measured)]}"
        )
    return lines


COMPONENT = Component(
    name="experts",
    parts=(Part("experts", "routed experts", blis_table="moe_compute"),),
    lower=_lower,
    source="MoE tables of aiconfigurator-core 0.12.0",
    assumptions=_assumptions,
)
