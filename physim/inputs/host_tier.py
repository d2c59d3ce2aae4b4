"""The memory of the host as a tier of the KV cache."""

from __future__ import annotations

import math

from physim.engines.engine import Engine, engines
from physim.errors import InputError
from physim.service.hardware import Hardware
from physim.service.kv_store import KVTier

# Share of the link's bandwidth at which KV blocks come up: about 50 GB/s of the 64 GB/s of PCIe 5.0
# in copies of blocks of 2 MB on an H100 (Ozeri and Harnik, Inside vLLM's new KV offloading
# connector, vLLM blog, 8 January 2026). The same text has blocks of less than 0.1 MB, as vLLM had
# them before 0.12, come up several times slower.
COPIED_SHARE = 50 / 64


def host_tier(
    engine: Engine,
    gpu: Hardware,
    gpu_blocks: int,
    block_bytes: float,
    size_bytes: float,
    bandwidth: float | None,
) -> KVTier:
    """The host's memory as a tier, as an engine uses it.

    Args:
        engine: The engine.
        gpu: The GPU.
        gpu_blocks: KV blocks that the GPU's memory holds.
        block_bytes: A block on a GPU, bytes.
        size_bytes: The host's memory for the blocks of one GPU, bytes.
        bandwidth: At which they come up to it, bytes/s; None for `COPIED_SHARE` of its link.

    Raises:
        InputError: The engine keeps nothing there, it is too small, or its bandwidth is not known.
    """
    if engine.host_memory is None:
        able = ", ".join(one.name for one in engines() if one.host_memory is not None)
        problem = f"is for {able}, not {engine.name}"
        raise InputError("kv_host_bytes", problem, "leave it out")
    blocks = math.floor(size_bytes / block_bytes)
    least = gpu_blocks + 1 if engine.host_memory.above_gpu else 1
    if blocks < least:
        raise InputError(
            "kv_host_bytes",
            f"has room for {blocks:,} KV blocks of {block_bytes:,.0f} bytes on each GPU, and "
            f"{engine.name} needs {least:,}",
            f"give at least {least * block_bytes:.3g} a GPU",
        )
    if bandwidth is None:
        if gpu.host_bandwidth is None:
            problem = f"is not given, and {gpu.key} has no host_bandwidth_bytes_per_s"
            raise InputError("kv_host_bandwidth", problem, "give it")
        bandwidth = COPIED_SHARE * gpu.host_bandwidth
    return KVTier(blocks, bandwidth, size_bytes=size_bytes)
