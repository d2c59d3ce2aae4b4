"""The efficiency grids that ship in ``bench_data``, one folder a GPU and one file a table."""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from physim import data
from physim.engines.profile import DEFAULT_ENGINE
from physim.errors import InputError
from physim.grids.efficiency import ExpertGrid, Grid
from physim.service.hardware import Hardware, load_hardware

# Where a GPU has no grids of its own, efficiencies are taken from this one: the best measured.
_STAND_IN = "h100_sxm"
# Boards of one chip, which was measured on the other where a table is missing.
_SAME_CHIP = {"gb200": "b200_sxm", "gb300": "b300_sxm", "b300_sxm": "gb300"}
# Share of another GPU's rate that counts as no lower: datasheets round.
_AS_HIGH = 0.99


@functools.lru_cache
def measured_gpus() -> tuple[str, ...]:
    """GPUs that have grids."""
    found = data.folder("bench_data").glob("*/provenance.json")
    return tuple(sorted(path.parent.name for path in found))


@functools.lru_cache
def measured_grids() -> tuple[str, ...]:
    """GPUs that have grids, and those with an engine that has some there (`grids_of`)."""
    root = data.folder("bench_data")
    found = (path.parent.relative_to(root) for path in root.glob("**/provenance.json"))
    return tuple(sorted(path.as_posix() for path in found))


def gpu_or_stand_in(gpu: str) -> str:
    """The GPU itself where it has grids, else the one whose efficiencies stand in for it."""
    return gpu if gpu in measured_gpus() else _STAND_IN


@functools.lru_cache
def better_gpus(gpu: Hardware) -> tuple[Hardware, ...]:
    """Measured GPUs whose memory, link and tensor cores are no slower, the next one first.

    Args:
        gpu: The GPU.
    """

    def rates(one: Hardware) -> np.ndarray:
        return np.array([one.memory_bandwidth, one.link_bandwidth, one.peak("bfloat16")])

    others = [load_hardware(key) for key in measured_gpus() if key != gpu.key]
    better = [one for one in others if np.all(rates(one) >= _AS_HIGH * rates(gpu))]
    return tuple(sorted(better, key=lambda one: tuple(rates(one))))


def peers(gpu: Hardware) -> tuple[Hardware, ...]:
    """Measured GPUs with the rates of a measured one: each is no slower than the other.

    Args:
        gpu: The GPU.
    """
    return tuple(
        one for one in better_gpus(gpu) if gpu.key in {better.key for better in better_gpus(one)}
    )


def grids_of(gpu: str, engine: str, version: str = "") -> str:
    """The folder of the tables of a GPU that were measured with an engine.

    The default engine's are the GPU's own; those of others stand in it, beside its, and so do
    those of an older version where the GPU was measured with it.
    """
    if engine == DEFAULT_ENGINE:
        return gpu
    older = older_grids(gpu, engine, version)
    return older if older in measured_grids() else f"{gpu}/{engine}"


def older_grids(gpu: str, engine: str, version: str) -> str:
    """The folder of the tables of a GPU that were measured with an older version of an engine."""
    return f"{gpu}/{engine}-{version}"


def _beneath(grids: str) -> str:
    """The folder that has what one lacks: the engine's newest, or the default engine's."""
    gpu, _, engine = grids.partition("/")
    name, _, version = engine.partition("-")
    return f"{gpu}/{name}" if version else gpu


def with_table(grids: str, table: str) -> str:
    """The grids themselves where they have a table, else those whose efficiencies stand in."""
    gpu = grids.partition("/")[0]
    alike = (grids, grids.replace(gpu, _SAME_CHIP.get(gpu, _STAND_IN)))
    return next((one for one in alike if table in tables(one)), _STAND_IN)


@functools.lru_cache
def tables(grids: str) -> tuple[str, ...]:
    """Names of the tables of a GPU, or of a GPU and an engine (`grids_of`).

    What was not measured with an older version is there as it was with the newest, and what was not
    measured with another engine as it was with the default one, but for experts, whose kernels each
    engine has of its own.
    """
    found = {path.stem for path in (data.folder("bench_data") / grids).glob("*.npz")}
    beneath = _beneath(grids)
    if beneath != grids:
        is_engines = "/" not in beneath and any(name.startswith("moe_") for name in found)
        found |= {name for name in tables(beneath) if not (is_engines and name.startswith("moe_"))}
    return tuple(sorted(found))


def provenance(gpu: str) -> dict[str, Any]:
    """Where a GPU's grids come from, and the measured error of their look-up.

    Raises:
        InputError: The GPU has no grids.
    """
    if gpu not in measured_gpus():
        raise InputError(
            f"GPU {gpu!r}",
            "has no measured kernels",
            f"GPUs that have: {', '.join(measured_gpus())}",
        )
    return data.read_json(data.folder("bench_data") / gpu / "provenance.json")


def load_grid(gpu: str, table: str) -> Grid:
    """A table with log axes.

    Raises:
        InputError: The GPU has no such table, or its file is damaged.
    """
    arrays = _load(gpu, table)
    names = [str(name) for name in arrays["axes"]]
    start = float(arrays.get("start_s", np.array(0.0)))
    return Grid(tuple((name, arrays[name]) for name in names), arrays["log_efficiency"], start)


def load_expert_grid(gpu: str, table: str) -> ExpertGrid:
    """A table of expert layers.

    Raises:
        InputError: The GPU has no such table, or its file is damaged.
    """
    arrays = _load(gpu, table)
    return ExpertGrid(arrays["shapes"], arrays["tokens"], arrays["log_efficiency"])


def save_grid(path: Path, grid: Grid | ExpertGrid) -> None:
    """Writes a table."""
    values = np.asarray(grid.log_efficiency, np.float32)
    if isinstance(grid, Grid):
        axes = dict(grid.axes)
        arrays = {"axes": np.array(list(axes)), **axes, "log_efficiency": values}
        if grid.start_s:
            arrays["start_s"] = np.array(grid.start_s)
    else:
        arrays = {"shapes": grid.shapes, "tokens": grid.tokens, "log_efficiency": values}
    with data.replacing(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


@functools.lru_cache(maxsize=64)
def _load(gpu: str, table: str) -> dict[str, np.ndarray]:
    path = data.folder("bench_data") / gpu / f"{table}.npz"
    # A name may be too long for a file's.
    is_there = data.modified_ns(path) > 0
    if not is_there and table in tables(gpu):
        return _load(_beneath(gpu), table)
    if not is_there:
        known = ", ".join(tables(gpu)) or f"none; GPUs with grids are {', '.join(measured_gpus())}"
        raise InputError(f"grid {gpu}/{table}", "does not exist", f"use one of {known}")
    try:
        with path.open("rb") as file, np.load(file) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(str(path), "is damaged", "install physim again") from error
