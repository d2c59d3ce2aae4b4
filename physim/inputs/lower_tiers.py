"""The memory of the host and its disk as tiers of the KV cache."""

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


def disk_tier(
    engine: Engine,
    block_bytes: float,
    size_bytes: float,
    bandwidth: float | None,
    write_bandwidth: float | None,
    latency_s: float | None,
) -> KVTier:
    """A disk as the tier below the host's memory, as an engine uses it.

    Args:
        engine: The engine.
        block_bytes: A block on a GPU, bytes.
        size_bytes: The disk for the blocks of one GPU, bytes.
        bandwidth: At which they are read, of one GPU's share, bytes/s; None if it was not given.
        write_bandwidth: At which they are written, likewise; None if it was not said.
        latency_s: Time until the first is read, seconds; None for none.

    Raises:
        InputError: The engine keeps nothing there, it is too small, or its bandwidth is not given.
    """
    if engine.host_memory is None or not engine.host_memory.disk:
        able = ", ".join(one.name for one in engines() if one.host_memory and one.host_memory.disk)
        raise InputError("kv_disk_bytes", f"is for {able}, not {engine.name}", "leave it out")
    blocks = math.floor(size_bytes / block_bytes)
    if not blocks:
        raise InputError(
            "kv_disk_bytes",
            f"has no room for a KV block of {block_bytes:,.0f} bytes on each GPU",
            f"give at least {block_bytes:.3g} a GPU",
        )
    if bandwidth is None:
        raise InputError("kv_disk_bandwidth", "is not given", "give what the disk reads, bytes/s")
    return KVTier(
        blocks,
        bandwidth,
        latency_s=latency_s or 0.0,
        size_bytes=size_bytes,
        write_bandwidth=math.inf if write_bandwidth is None else write_bandwidth,
    )
