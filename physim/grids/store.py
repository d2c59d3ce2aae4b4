"""The efficiency grids that ship in ``bench_data``, one folder a GPU and one file a table."""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from physim import data
from physim.errors import InputError
from physim.grids.efficiency import ExpertGrid, Grid

# Where a GPU has no grids of its own, efficiencies are taken from this one: the best measured.
_STAND_IN = "h100_sxm"
# Boards of which one chip was measured on another, where a table of their own is missing.
_SAME_CHIP = {"gb200": "b200_sxm", "gb300": "b300_sxm"}


@functools.lru_cache
def measured_gpus() -> tuple[str, ...]:
    """GPUs that have grids."""
    found = data.folder("bench_data").glob("*/provenance.json")
    return tuple(sorted(path.parent.name for path in found))


def gpu_or_stand_in(gpu: str) -> str:
    """The GPU itself where it has grids, else the one whose efficiencies stand in for it."""
    return gpu if gpu in measured_gpus() else _STAND_IN


def with_table(gpu: str, table: str) -> str:
    """The GPU itself where it has a table, else the one whose efficiencies stand in for it."""
    alike = (gpu, _SAME_CHIP.get(gpu, _STAND_IN))
    return next((one for one in alike if table in tables(one)), _STAND_IN)


@functools.lru_cache
def tables(gpu: str) -> tuple[str, ...]:
    """Names of a GPU's tables."""
    found = (data.folder("bench_data") / gpu).glob("*.npz")
    return tuple(sorted(path.stem for path in found))


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
    if not path.is_file():
        known = ", ".join(tables(gpu)) or f"none; GPUs with grids are {', '.join(measured_gpus())}"
        raise InputError(f"grid {gpu}/{table}", "does not exist", f"use one of {known}")
    try:
        with path.open("rb") as file, np.load(file) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(str(path), "is damaged", "rebuild it with `physim grids build`") from error
