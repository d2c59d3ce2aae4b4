"""Dense MLPs and shared experts: gate and up in one GEMM, or up alone, and down."""

from __future__ import annotations

from collections.abc import Iterator

from physim.step.component import Component, Part, Placement
from physim.step.gemms import linear_rows
from physim.step.rows import Row


def _lower(placement: Placement) -> Iterator[Row]:
    yield from linear_rows(placement, "mlp")


COMPONENT = Component(
    name="mlp",
    parts=(Part("mlp", "MLPs"),),
    lower=_lower,
    source="GEMM tables of aiconfigurator-core 0.12.0",
)
