"""The projections about attention: queries, keys and values in one GEMM, and the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from physim.step.component import Component, Part, Placement
from physim.step.gemms import gemm_row
from physim.step.rows import Row


def _lower(placement: Placement) -> Iterator[Row]:
    model = placement.model
    shapes: Counter[tuple[int, int]] = Counter()
    for attention, layers in model.attention_layers.items():
        (heads, kv_heads), dim = placement.heads(attention), attention.head_dim
        shapes[(heads + 2 * kv_heads) * dim, heads * dim] += layers
    for (columns, queries), layers in shapes.items():
        form, hidden = model.formats.attention, model.hidden_size
        yield gemm_row(placement, "qkv", "qkv", layers, columns, hidden, form)
        yield gemm_row(
            placement, "attention_output", "attention_output", layers, hidden, queries, form
        )


COMPONENT = Component(
    name="projections",
    parts=(
        Part("qkv", "QKV projections", blis_table="gemm"),
        Part("attention_output", "attention output projections", blis_table="gemm"),
    ),
    lower=_lower,
    source="GEMM tables of aiconfigurator-core 0.12.0",
)
