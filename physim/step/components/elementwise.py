"""Kernels between the GEMMs of a layer that only move memory: a launch each, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator

from physim.inputs.architecture import LayerGroup, ModelArch
from physim.step.component import Component, Part, Placement
from physim.step.rows import Row, SizeRow

# Time of a kernel that moves next to nothing, and the share of the bandwidth that one reaches
# that moves much: median of the fp8 casts in aiconfigurator-core 0.12.0, scale_matrix_perf (2.07
# and 0.88 on the H100, 1.99 and 0.84 on the H200, 1.67 and 0.76 on the L40S).
KERNEL_S = 2.0e-6
STREAM_EFFICIENCY = 0.85


def _lower(placement: Placement) -> Iterator[Row]:
    moved, kernels = 0.0, 0
    for group in placement.model.groups:
        queries, keys = (
            heads * group.attention.head_dim for heads in placement.heads(group.attention)
        )
        own_moved, own_kernels = _layer(placement.model, group, placement.tp, queries, keys)
        moved += group.layers * own_moved
        kernels += group.layers * own_kernels
    yield SizeRow(
        name="elementwise",
        part="elementwise",
        count=1.0,
        bytes=moved,
        fixed_seconds=kernels * KERNEL_S,
        bandwidth=STREAM_EFFICIENCY * placement.gpu.memory_bandwidth,
        correction="elementwise",
        is_bent=True,
    )


def _layer(
    model: ModelArch, group: LayerGroup, tp: int, queries: int, keys: int
) -> tuple[float, int]:
    """Bytes that a layer's kernels read and write for each token, and how many there are."""
    hidden, experts, formats = model.hidden_size, group.experts, model.formats
    # Two norms with the residual added (read two, write two), rotary embedding in place, the
    # write of keys and values to the cache.
    values = 8.0 * hidden + 2 * (queries + keys) + 4 * keys
    kernels = 4
    if model.qk_norm:
        values += 2 * (queries + keys)
        kernels += 1
    # Gate times up: read two, write one; without a gate, read and write one. The expert kernels'
    # tables hold their own.
    width = (experts.shared_intermediate_size if experts else group.intermediate_size) / tp
    values += model.mlp_matrices * width
    kernels += 1 if width else 0
    if experts:
        # Top-k of the router, and the sum with the shared expert.
        values += 2 * experts.count + 3 * hidden
        kernels += 2
    moved = 2.0 * values
    # A cast to fp8 before a GEMM reads 16 bit and writes 8.
    if formats.attention.quantizes_activations:
        moved += 3.0 * (hidden + queries)
        kernels += 2
    if formats.mlp.quantizes_activations:
        moved += 3.0 * (hidden + width)
        kernels += 2 if width else 0
    return moved, kernels


COMPONENT = Component(
    name="elementwise",
    parts=(Part("elementwise", "element-wise kernels", blis_table="gemm"),),
    lower=_lower,
    source="vectors that a layer reads and writes; fp8 casts of aiconfigurator-core 0.12.0",
)
