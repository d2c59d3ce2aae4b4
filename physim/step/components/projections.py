"""The projections about attention: queries, keys and values, what else there is, and the output."""

from __future__ import annotations

from collections.abc import Iterator

from physim.step.component import Component, Part, Placement
from physim.step.gemms import linear_rows
from physim.step.rows import Row


def _lower(placement: Placement) -> Iterator[Row]:
    yield from linear_rows(placement, "qkv", "attention_output")


COMPONENT = Component(
    name="projections",
    parts=(
        Part("qkv", "QKV projections"),
        Part("attention_output", "attention output projections"),
    ),
    lower=_lower,
    source="GEMM tables of aiconfigurator-core 0.12.0",
)
