"""What GPUs exchange where none can reach another's memory: it goes through the host's.

Without peer access NCCL takes its transport of shared memory: a GPU writes over its link to memory
of the host, from where the next one reads over its own. What went over PCIe once goes there twice.
"""

from __future__ import annotations

from physim.service.hardware import Hardware
from physim.step.component import Placement
from physim.types import Number

_PASSES = 2
# NCCL's own tables over PCIe, with peer access (aiconfigurator-core 0.12.0, nccl_perf): 512 bytes
# among 2, 4 and 8 RTX PRO 6000 take an all-reduce of 2 (p - 1) hops 6.3, 13.0 and 24.6 us, among as
# many L40S 7.7, 11.9 and 22.6. Through the host the law says 45 us for eight; eight RTX 4090, which
# have no peer access, take 42 (NVIDIA/nccl issue 1530).
START_S, _HOP_S = 3.5e-6, 1.5e-6
HOST_HOP_S = _PASSES * _HOP_S
# The same tables: 2 and 16 MiB between two RTX PRO 6000 take 72 and 474 us, 0.45 and 0.55 of their
# 64 GB/s; between two L40S 121 and 850, 0.54 and 0.62 of 32. Through the host half of that, an
# order of magnitude: four and eight RTX 5090, with more channels than NCCL takes by itself and
# messages of gigabytes, reach 0.55 and 0.44 of their links (NVIDIA/nccl issue 1639).
_LINK_SHARE = 0.5


def exchange_bandwidth(gpu: Hardware) -> float:
    """Bandwidth from a GPU's memory to that of another of its node, bytes/s in one direction."""
    if gpu.peer_access is False:
        return _LINK_SHARE / _PASSES * gpu.link_bandwidth
    return gpu.link_bandwidth


def through_host(placement: Placement, hops: int, sent_bytes: Number) -> Number:
    """Least time of an exchange, seconds; none where GPUs reach each other's memory.

    Args:
        placement: The model on its GPUs.
        hops: How often it is sent on, one after the other.
        sent_bytes: Bytes that each GPU sends in all.
    """
    if placement.gpu.peer_access is not False:
        return 0.0 * sent_bytes
    return START_S + hops * HOST_HOP_S + sent_bytes / exchange_bandwidth(placement.gpu)


def peer_access_notes(placement: Placement) -> list[str]:
    """A line where GPUs exchange something, and it is not known how or is not directly."""
    gpu = placement.gpu
    if placement.layout.gpus == 1 or gpu.peer_access:
        return []
    if gpu.peer_access is None:
        return [
            f"whether {gpu.key} cards of this host reach each other's memory is not known: they "
            "are taken to, and the interval covers that they do not; if `nvidia-smi topo -p2p r` "
            "says no, pass a GPU file with peer_access false"
        ]
    return [f"{gpu.key} cards have no peer access: exchanges go through the host's memory"]
