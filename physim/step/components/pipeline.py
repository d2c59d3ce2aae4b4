"""Hidden states on their way from one stage of a pipeline to the next."""

from __future__ import annotations

from collections.abc import Iterator

from physim import roofline
from physim.step.component import Component, Part, Placement
from physim.step.host_memory import exchange_bandwidth
from physim.step.nodes import nodes_of, spanning_notes
from physim.step.rows import Row, SizeRow

# A send and its receipt, between the last kernel of a stage and the first of the next: as long as
# the smallest exchange of two GPUs takes (NCCL's tables of aiconfigurator-core 0.12.0, 5 us), with
# the launch of each, which no CUDA graph hides.
SEND_S = 2 * 5e-6


def _lower(placement: Placement) -> Iterator[Row]:
    stages, gpu = placement.layout.pp, placement.gpu
    if stages == 1:
        return
    # In several nodes each send is taken to be between two of them.
    spans = nodes_of(placement, placement.layout.gpus) > 1
    network = gpu.network_bandwidth if spans else None
    yield SizeRow(
        name="pipeline_send",
        part="pipeline",
        count=stages - 1,
        # The residual stream and what the last layer adds to it, of which each GPU sends a share.
        bytes=2 * roofline.BYTES_16_BIT * placement.model.hidden_size / placement.tp,
        fixed_seconds=SEND_S,
        bandwidth=network or exchange_bandwidth(gpu),
        correction="all_reduce",
    )


COMPONENT = Component(
    name="pipeline",
    parts=(Part("pipeline", "sends between stages"),),
    lower=_lower,
    assumptions=lambda placement: spanning_notes(placement, "pp", placement.layout.gpus),
    source="bytes over the link; starts from NCCL's tables of aiconfigurator-core 0.12.0",
)
