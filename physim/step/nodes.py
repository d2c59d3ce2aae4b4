"""What exchanges between GPUs of several nodes take beyond those within one."""

from __future__ import annotations

import math

from physim.step.component import Placement
from physim.types import Number

# A message from node to node starts so late: an order of magnitude for RDMA through NCCL.
_START_S = 10e-6
_LINKS = {"nvlink": "NVLink", "pcie": "PCIe"}


def nodes_of(placement: Placement, gpus: int) -> int:
    """Nodes that so many GPUs are in; one where the size of a node is not known."""
    return math.ceil(gpus / (placement.gpu.node_gpus or gpus))


def between_nodes(placement: Placement, gpus: int, message_bytes: Number) -> Number:
    """Time in which every node gets the others' shares of a message, seconds; none in one node.

    Every GPU of a node fetches a part of them, each over its own network interface (the second
    step of a hierarchical all-gather, or the first of a reduce-scatter).

    Args:
        placement: The model on its GPUs.
        gpus: GPUs that exchange it.
        message_bytes: Bytes that all have together in the end.
    """
    nodes, gpu = nodes_of(placement, gpus), placement.gpu
    if nodes == 1 or gpu.network_bandwidth is None or gpu.node_gpus is None:
        return 0.0 * message_bytes
    share = message_bytes * (nodes - 1) / nodes / gpu.node_gpus
    return _START_S * math.log2(nodes) + share / gpu.network_bandwidth


def spanning_notes(placement: Placement, degree: str, gpus: int) -> list[str]:
    """A line where GPUs that exchange hidden states are more than a node has.

    Args:
        placement: The model on its GPUs.
        degree: The degree of parallelism that says how many they are.
        gpus: How many.
    """
    gpu, size = placement.gpu, getattr(placement.layout, degree)
    nodes = nodes_of(placement, gpus)
    if nodes == 1 or size == 1:
        return []
    how = (
        f"at the speed of {_LINKS.get(gpu.link, gpu.link)} within a node, which a network does not "
        "have"
    )
    if gpu.network_bandwidth is not None:
        how = f"by the bandwidth of the network, {gpu.network_bandwidth / 1e9:g} GB/s for each GPU"
    spans = f"{degree} {size} spans {nodes} nodes of {gpu.node_gpus} GPUs"
    return [f"{spans}: their exchange is taken {how}"]
