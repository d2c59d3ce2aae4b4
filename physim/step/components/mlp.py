"""Dense MLPs and shared experts: gate and up in one GEMM, or up alone, and down."""

from __future__ import annotations

from collections.abc import Iterator

from physim.step.component import Component, Part, Placement
from physim.step.gemms import gemm_row
from physim.step.rows import Row


def _lower(placement: Placement) -> Iterator[Row]:
    model, form = placement.model, placement.model.formats.mlp
    for group in model.groups:
        experts = group.experts
        name = "shared_" if experts else ""
        width = experts.shared_intermediate_size if experts else group.intermediate_size
        if width == 0:
            continue
        columns, hidden = width / placement.tp, model.hidden_size
        first = "gate_up" if model.gated_mlp else "up"
        wide = (model.mlp_matrices - 1) * columns
        yield gemm_row(placement, f"{name}{first}", "mlp", group.layers, wide, hidden, form)
        yield gemm_row(placement, f"{name}down", "mlp", group.layers, hidden, columns, form)


COMPONENT = Component(
    name="mlp",
    parts=(Part("mlp", "MLPs", blis_table="gemm"),),
    lower=_lower,
    source="GEMM tables of aiconfigurator-core 0.12.0",
)
