"""Kernels between the GEMMs of a layer that only move memory: a launch each, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from physim.engines.engine import engine_named
from physim.models.formats import BYTES_16_BIT
from physim.models.layers import LayerGroup
from physim.step.component import Component, Part, Placement
from physim.step.gemms import holds_casts
from physim.step.rows import Row, SizeRow

# Time of a kernel that moves next to nothing, and the share of the bandwidth that one reaches
# that moves much: median of the fp8 casts in aiconfigurator-core 0.12.0, scale_matrix_perf (2.07
# and 0.88 on the H100, 1.99 and 0.84 on the H200, 1.67 and 0.76 on the L40S).
KERNEL_S = 2.0e-6
STREAM_EFFICIENCY = 0.85


def _lower(placement: Placement) -> Iterator[Row]:
    moved, kernels = 0.0, 0
    for group in placement.model.groups:
        for values, count, casts in (_of_mixer(placement, group), _of_mlp(placement, group)):
            moved += group.layers * (2.0 * values + casts)
            kernels += group.layers * count
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


# Numbers that a layer's kernels read and write for each token, how many kernels there are, and the
# bytes of casts before GEMMs.
_Vectors = tuple[float, int, float]


def _of_mixer(placement: Placement, group: LayerGroup) -> _Vectors:
    """About attention, or what stands for it."""
    mixer, tp, hidden = group.attention, placement.tp, placement.model.hidden_size
    if mixer is None:
        return 0.0, 0, 0.0
    values, kernels = mixer.around(tp, placement.model.qk_norm)
    casts, more = _casts(placement, group, "qkv", hidden + mixer.output_width(tp), 2)
    # A norm with the residual added: read two, write two.
    return 4.0 * hidden + values, _norms(placement) + kernels + more, casts


def _of_mlp(placement: Placement, group: LayerGroup) -> _Vectors:
    """About a dense MLP or experts."""
    model, tp, experts = placement.model, placement.tp, group.experts
    if experts is None and not group.intermediate_size:
        return 0.0, 0, 0.0
    # A norm with the residual added; gate times up: read two, write one; without a gate, read and
    # write one. The expert kernels' tables hold their own.
    shared = experts.shared_intermediate_size if experts else 0
    width = (shared + group.intermediate_size) / tp
    values = 4.0 * model.hidden_size + model.mlp_matrices * width
    kernels = _norms(placement) + (1 if width else 0)
    if experts:
        # Top-k of the router, and the sum with the shared expert.
        values += 2 * experts.count + 3 * model.hidden_size
        kernels += 2
    entering = model.hidden_size + width
    casts, more = _casts(placement, group, "mlp", entering, 2 if width else 0)
    return values, kernels + more, casts


def _norms(placement: Placement) -> int:
    """Kernels of the norm before attention or an MLP: none where an all-reduce does it as well.

    Those of many tokens are NCCL's, with the norm in a kernel of its own (TensorRT-LLM,
    thop/allreduceOp.cpp), whose bytes count then, not its start.
    """
    model, engine = placement.model, engine_named(placement.server.profile.engine)
    least = engine.norms_in_sums.get(model.family, math.inf)
    return 0 if placement.tp > 1 and model.hidden_size >= least else 1


def _casts(
    placement: Placement, group: LayerGroup, part: str, entering: float, kernels: int
) -> tuple[float, int]:
    """Bytes of the casts before the GEMMs of a part for each token, and their kernels.

    A cast reads 16 bit and writes what the GEMM takes. What a table of GEMMs holds is not counted
    again, nor what is fused.
    """
    form = placement.multiplied(group.form(part))
    is_fused = engine_named(placement.server.profile.engine).kernels.fuses_casts
    if is_fused or not form.quantizes_activations or holds_casts(placement, form):
        return 0.0, 0
    return (BYTES_16_BIT + form.activation_bytes) * entering, kernels


COMPONENT = Component(
    name="elementwise",
    parts=(Part("elementwise", "element-wise kernels"),),
    lower=_lower,
    source="vectors that a layer reads and writes; fp8 casts of aiconfigurator-core 0.12.0",
)
