"""What the GPU waits between steps and, in steps with prefill, at each layer."""

from __future__ import annotations

from collections.abc import Iterator

from physim.step.component import Component, Part, Placement
from physim.step.rows import Row, SizeRow

# GPU idle time between two steps: inputs are copied and some forty small kernels of the order of
# 5 us are launched outside the CUDA graph (input preparation, sampling, hand-over of tokens).
STEP_OVERHEAD_S = 40 * 5e-6

# GPU idle time at each layer of a step with prefill. Such a step cannot be one CUDA graph, since
# its attention has no fixed shape: it is a graph for each layer with attention between, and the GPU
# waits some microseconds at each of the two borders. An order of magnitude, not a measurement.
LAYER_OVERHEAD_S = 2 * 2.5e-6


# The name of the first among a model's operations.
STEP_GAP = "step_gap"


def _lower(placement: Placement) -> Iterator[Row]:
    yield SizeRow(
        name=STEP_GAP,
        part="step_overhead",
        size="has_prefill",
        count=1.0,
        fixed_seconds=STEP_OVERHEAD_S,
        correction="step_overhead",
    )
    yield SizeRow(
        name="layer_gaps",
        part="step_overhead",
        size="has_prefill",
        count=1.0,
        seconds=sum(placement.model.attention_layers.values()) * LAYER_OVERHEAD_S,
        correction="layer_overhead",
    )


COMPONENT = Component(
    name="gpu_idle",
    parts=(Part("step_overhead", "gaps between kernels"),),
    lower=_lower,
    source="launches outside CUDA graphs: orders of magnitude",
)
