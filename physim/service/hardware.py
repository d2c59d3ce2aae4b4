"""A GPU's rates and capacities, read from ``hardware/*.json``."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError

_SUFFIX = ".json"
# More than a GPU has of anything, in SI units.
_MOST = 1e21
_CAPABILITY = "compute_capability"
_NETWORK = "network_bandwidth_bytes_per_s"
_PEER_ACCESS = "peer_access"
_HOST = "host_bandwidth_bytes_per_s"
_PCIE = "pcie"
_CYCLES = "multiprocessor_cycles_per_s"
_SUSTAINED = "sustained_share_of_peak"


@dataclass(frozen=True)
class Hardware:
    """One GPU and its link to its neighbours.

    Attributes:
        key: The name that commands take, such as ``h100_sxm``.
        name: The product's name.
        peak_flops: Dense peak FLOP/s of the tensor cores for each number format, as pairs, and that
            of CUDA cores in float32.
        memory_bandwidth: HBM or GDDR bandwidth, bytes/s.
        memory_bytes: Memory that a process can see, bytes.
        link: What it is, such as ``nvlink`` or ``pcie``.
        link_bandwidth: Bandwidth to the other GPUs of the node, bytes/s in one direction.
        compute_capability: NVIDIA's number of what the GPU's kernels may use, such as 9.0; None for
            other makers' and where the file does not say.
        node_gpus: GPUs that the link connects, those of a node; None if the file does not say.
        network_bandwidth: Bandwidth to other nodes for each GPU, bytes/s in one direction; None if
            the file does not say.
        peer_access: Whether GPUs of a node reach each other's memory, or exchange all through that
            of the host. True over any link but PCIe, where it depends on the driver and the host:
            None if the file does not say.
        multiprocessor_cycles: Multiprocessors times their clock, 1/s: the pace of kernels that are
            bound neither by memory nor by tensor cores; None if the file does not say.
        host_bandwidth: Bandwidth to the host's memory, bytes/s in one direction; None if the file
            does not say.
        sustained_shares: Share of the peak that GEMMs keep up for seconds, at the power limit, for
            each number format as pairs. Formats that are not there are not limited.
    """

    key: str
    name: str
    peak_flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory_bytes: float
    link: str
    link_bandwidth: float
    compute_capability: float | None = None
    node_gpus: int | None = None
    network_bandwidth: float | None = None
    peer_access: bool | None = None
    multiprocessor_cycles: float | None = None
    host_bandwidth: float | None = None
    sustained_shares: tuple[tuple[str, float], ...] = ()

    @property
    def maker(self) -> str:
        """Who makes it: ``amd`` or ``nvidia``, whose software and resources in clusters differ."""
        return "amd" if "amd" in self.name.lower().split() else "nvidia"

    def peak(self, number_format: str) -> float | None:
        """Dense peak FLOP/s in a number format, None where the tensor cores lack it."""
        return dict(self.peak_flops).get(number_format)

    def sustained_share(self, number_format: str) -> float:
        """Share of the peak in a number format that GEMMs keep up, 1 if it is not known."""
        return dict(self.sustained_shares).get(number_format, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON holds them."""
        pairs = {name: dict(getattr(self, name)) for name in ("peak_flops", "sustained_shares")}
        return {**vars(self), **pairs}


def shipped_gpus() -> list[str]:
    """Keys of the GPUs that come with physim."""
    return data.names("hardware", _SUFFIX)


def load_hardware(gpu: str) -> Hardware:
    """A GPU by its key, or from a JSON file of the same layout as the shipped ones.

    Raises:
        InputError: The GPU is unknown, or its file lacks a figure or has one that is not positive.
    """
    path = Path(gpu) if gpu.endswith(_SUFFIX) else _shipped(gpu)
    # The file's time is part of the key, so that an edited file is read anew.
    return _load(path, data.modified_ns(path))


@functools.lru_cache(maxsize=64)
def _load(path: Path, _modified_ns: int) -> Hardware:
    fields = data.read_json(path)
    where = str(path)
    texts = {field: _text(fields, field, where) for field in ("key", "name", "link")}
    peaks = fields.get("peak_flops")
    if not isinstance(peaks, Mapping) or "bfloat16" not in peaks:
        raise InputError(f"{where}: peak_flops", "has no bfloat16 figure", "add it")
    link = texts["link"] or _PCIE
    return Hardware(
        key=texts["key"] or path.stem,
        name=texts["name"] or path.stem,
        peak_flops=tuple((k, _figure(peaks, k, where)) for k in sorted(peaks)),
        memory_bandwidth=_figure(fields, "memory_bandwidth_bytes_per_s", where),
        memory_bytes=_figure(fields, "memory_bytes", where),
        link=link,
        link_bandwidth=_figure(fields, "link_bandwidth_bytes_per_s", where),
        compute_capability=_figure(fields, _CAPABILITY, where) if _CAPABILITY in fields else None,
        node_gpus=_whole(fields, "node_gpus", where) if "node_gpus" in fields else None,
        network_bandwidth=_figure(fields, _NETWORK, where) if _NETWORK in fields else None,
        peer_access=_peer_access(fields, where, link),
        multiprocessor_cycles=_figure(fields, _CYCLES, where) if _CYCLES in fields else None,
        host_bandwidth=_figure(fields, _HOST, where) if _HOST in fields else None,
        sustained_shares=_sustained_shares(fields, peaks, where),
    )


def is_shipped_gpu(gpu: str) -> bool:
    """Whether a name is that of a GPU that ships with physim.

    Args:
        gpu: Its key, its name or one of its aliases.
    """
    return _bare(gpu) in _keys_by_name()


def _shipped(gpu: str) -> Path:
    """The file of a shipped GPU, by its key, its name or one of its aliases.

    Raises:
        InputError: There is none.
    """
    key = _keys_by_name().get(_bare(gpu))
    if key is None:
        near = difflib.get_close_matches(_bare(gpu), _keys_by_name(), n=1, cutoff=0.7)
        meant = f"did you mean {_keys_by_name()[near[0]]}? Or " if near else ""
        remedy = f"{meant}use one of {', '.join(shipped_gpus())}, or pass a JSON file"
        raise InputError(f"GPU {gpu!r}", "is unknown", remedy)
    return data.folder("hardware") / f"{key}{_SUFFIX}"


@functools.lru_cache
def _keys_by_name() -> dict[str, str]:
    keys = {}
    for key in shipped_gpus():
        fields = data.read_json(data.folder("hardware") / f"{key}{_SUFFIX}")
        for name in (key, fields.get("name") or key, *fields.get("aliases", ())):
            keys[_bare(name)] = key
    return keys


def _bare(name: str) -> str:
    """Letters and digits alone: ``H100-SXM`` and ``h100_sxm`` are one name."""
    return "".join(filter(str.isalnum, name)).lower()


def _text(fields: Mapping[str, Any], field: str, where: str) -> str:
    """Text, empty where it is not there."""
    value = fields.get(field)
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise InputError(f"{where}: {field}", f"{str(value)[:60]!r} is not a name", "correct it")
    return value or ""


def _peer_access(fields: Mapping[str, Any], where: str, link: str) -> bool | None:
    """Whether a GPU reaches the memory of others: as its file says, else by its link."""
    if _PEER_ACCESS not in fields:
        return None if link == _PCIE else True
    fact = fields[_PEER_ACCESS]
    value = fact.get("value") if isinstance(fact, Mapping) else None
    if not isinstance(value, bool):
        raise InputError(
            f"{where}: {_PEER_ACCESS}",
            "has neither true nor false as its value",
            'write {"value": true, "source": "..."}, or leave it out if it is not known',
        )
    return value


def _sustained_shares(
    fields: Mapping[str, Any], peaks: Mapping[str, Any], where: str
) -> tuple[tuple[str, float], ...]:
    """Shares of the peak that GEMMs keep up, by number format."""
    shares = fields.get(_SUSTAINED, {})
    field = f"{where}: {_SUSTAINED}"
    if not isinstance(shares, Mapping) or not set(shares) <= set(peaks):
        known = ", ".join(sorted(peaks))
        raise InputError(field, "is not by the formats of peak_flops", f"use some of {known}")
    found = tuple((name, _figure(shares, name, field)) for name in sorted(shares))
    for name, share in found:
        if share > 1:
            raise InputError(f"{field}: {name}", f"{share:g} is above 1", "give a share")
    return found


def _whole(fields: Mapping[str, Any], field: str, where: str) -> int:
    value = _figure(fields, field, where)
    if value != int(value):
        raise InputError(f"{where}: {field}", f"{value:g} is not a whole number", "correct it")
    return int(value)


def _figure(fields: Mapping[str, Any], field: str, where: str) -> float:
    figure = fields.get(field)
    value = figure.get("value") if isinstance(figure, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(
            f"{where}: {field}",
            "has no number as its value",
            'write {"value": ..., "source": "..."}',
        )
    if not value > 0:
        raise InputError(f"{where}: {field}", f"{value} is not positive", "correct it")
    if value > _MOST:
        raise InputError(f"{where}: {field}", f"is above {_MOST:g}", "give it in SI units")
    return float(value)
