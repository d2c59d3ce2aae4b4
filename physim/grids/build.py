"""Builds efficiency grids from measured rows, and holds their look-up against unseen rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from physim import data, roofline
from physim.engines.profile import DEFAULT_ENGINE
from physim.grids.aiconfigurator import (
    EXPERT_SHAPE,
    OLDER_PACKAGE,
    PACKAGE,
    PACKAGE_VERSION,
    Older,
    read_measurements,
)
from physim.grids.efficiency import ExpertGrid, Grid, hat_weights
from physim.grids.measurements import Measurements
from physim.grids.store import load_grid, save_grid
from physim.service.hardware import Hardware

_HELD_OUT_SHARE = 0.1
_SEED = 0
# Share of a layer's time that is left at least when its GEMMs are taken off.
_LEAST_LEFT = 0.05


@dataclass(frozen=True)
class BuiltTable:
    """What is known of a table besides its values; the record in ``provenance.json``.

    Attributes:
        table: The table's name.
        source: Path of the measured rows inside the source package.
        source_sha256: Hash of that file.
        kernels: Kernels that were measured.
        rows: Measured rows.
        cells: Values of the grid.
        filled_share: Share of the values that were not measured but filled in from neighbours.
        above_roofline_share: Share of rows faster than the roofline (data that stayed in cache).
        held_out_rows: Rows that a second build did without, a tenth.
        held_out_median_pct: Median error of the look-up's time on those rows, percent.
        held_out_p95_pct: 95th percentile of that error.
    """

    table: str
    source: str
    source_sha256: str
    kernels: tuple[str, ...]
    rows: int
    cells: int
    filled_share: float
    above_roofline_share: float
    held_out_rows: int
    held_out_median_pct: float
    held_out_p95_pct: float


def build_gpu(
    gpu: Hardware, folder: Path, engine: str = DEFAULT_ENGINE, older: Older | None = None
) -> Iterator[BuiltTable]:
    """Builds all tables of a GPU and an engine into a folder, with ``provenance.json``.

    Args:
        gpu: The GPU.
        folder: Where.
        engine: The engine.
        older: Where tables of an older version of it are, if they are wanted.

    Yields:
        The record of each table, once its file is written.

    Raises:
        InputError: The source package is missing or has no tables for this GPU.
    """
    built = []
    is_default = engine == DEFAULT_ENGINE
    gemms = None if is_default else load_grid(gpu.key, "gemm_bfloat16")
    for measured in read_measurements(gpu, engine, older):
        folder.mkdir(parents=True, exist_ok=True)
        if measured.other_gemms and gemms is not None:
            measured = without_gemms(measured, gemms, gpu)
        if measured.starts_by:
            measured = with_start(measured)
        grid, record = build_table(measured)
        if measured.table == "gemm_bfloat16" and isinstance(grid, Grid):
            gemms = grid
        save_grid(folder / f"{measured.table}.npz", grid)
        built.append(record)
        yield record
    package = f"{PACKAGE}=={PACKAGE_VERSION}" if older is None else OLDER_PACKAGE
    command = f"physim grids build --gpu {gpu.key} --engine {engine}"
    command += f" --older {older.version} --wheel WHEEL" if older else ""
    provenance = {
        "gpu": gpu.key,
        "engine": engine,
        "package": package,
        "licence": "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES",
        "command": f"{command} --out grids",
        "held_out": f"{_HELD_OUT_SHARE:.0%} of the rows, seed {_SEED}, left out of a second build",
        "tables": [asdict(record) for record in built],
    }
    data.write_json(folder / "provenance.json", provenance)


def without_gemms(measured: Measurements, gemms: Grid, gpu: Hardware) -> Measurements:
    """Rows without the time of the GEMMs that they hold beside what they are of.

    Args:
        measured: The rows.
        gemms: The grid of GEMMs in 16 bit.
        gpu: The GPU.
    """
    peak = gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has it: load_hardware
    left = measured.measured_s.copy()
    for tokens, n, k in measured.other_gemms:
        work = roofline.gemm(tokens, n, k, roofline.BYTES_16_BIT, roofline.BYTES_16_BIT)
        efficiency = np.exp(_interpolate(gemms, {"tokens": tokens, "n": n, "k": k}))
        taken = roofline.seconds(work, peak, gpu.memory_bandwidth) / efficiency
        left -= np.where(tokens > 0, taken, 0.0)
    # What else the layer takes of a single token are kernels between those: an engine compiles what
    # the collector ran one by one.
    most = np.broadcast_to(measured.around_s, left.shape)
    for heads in np.unique(measured.coordinates["heads"]):
        own = measured.coordinates["heads"] == heads
        left[own] -= max(float((left - most)[own].min()), 0.0)
    # Projections that were timed in their layer a little faster than alone leave too little.
    left = np.maximum(left, np.maximum(measured.roofline_s, _LEAST_LEFT * measured.measured_s))
    return replace(measured, measured_s=left, taken_s=measured.measured_s - left)


def with_start(measured: Measurements) -> Measurements:
    """Rows relative to their roofline and to what the smallest take.

    Decoding layers are many small kernels, whose time hardly depends on how much there is to do,
    and an exchange waits for others first. So the efficiency is near one over all sizes, and holds
    where none was measured.
    """
    knots, seconds = measured.coordinates[measured.starts_by], measured.measured_s
    start = float(np.median([seconds[knots == own].min() for own in np.unique(knots)]))
    return replace(measured, roofline_s=measured.roofline_s + start, start_s=start)


def build_table(measured: Measurements) -> tuple[Grid | ExpertGrid, BuiltTable]:
    """The grid of all rows, and its record with the errors of a build that left a tenth out."""
    held_out = np.random.default_rng(_SEED).random(len(measured.measured_s)) < _HELD_OUT_SHARE
    partial, _ = _grid(measured.subset(~held_out), measured)
    errors = look_up_errors_pct(partial, measured.subset(held_out))
    grid, filled = _grid(measured, measured)
    record = BuiltTable(
        table=measured.table,
        source=measured.source,
        source_sha256=measured.sha256,
        kernels=measured.kernels,
        rows=len(measured.measured_s),
        cells=grid.log_efficiency.size,
        filled_share=round(filled, 4),
        above_roofline_share=round(float(np.mean(measured.measured_s < measured.roofline_s)), 4),
        held_out_rows=int(held_out.sum()),
        held_out_median_pct=round(float(np.median(errors)), 2),
        held_out_p95_pct=round(float(np.percentile(errors, 95)), 2),
    )
    return grid, record


def look_up_errors_pct(grid: Grid | ExpertGrid, rows: Measurements) -> np.ndarray:
    """Absolute error of the look-up's time on measured rows, percent of all that was measured."""
    efficiency = np.exp(_interpolate(grid, rows.coordinates))
    error = rows.roofline_s / efficiency - rows.measured_s
    return np.abs(error) / (rows.measured_s + rows.taken_s) * 100


def _interpolate(grid: Grid | ExpertGrid, coordinates: dict[str, np.ndarray]) -> np.ndarray:
    """Log-efficiency at many points; NumPy, for the rows are too many to vmap at once."""
    if isinstance(grid, ExpertGrid):
        rows = _expert_rows(grid.shapes, coordinates)
        weights = _weights(grid.tokens, coordinates["tokens"])
        return np.einsum("rt,rt->r", grid.log_efficiency[rows], weights)
    out = np.empty(len(next(iter(coordinates.values()))))
    per_axis = [_weights(knots, coordinates[name]) for name, knots in grid.axes]
    for row in range(len(out)):
        value = grid.log_efficiency
        for weights in per_axis:
            used = np.flatnonzero(weights[row])
            value = np.tensordot(weights[row, used], value[used], axes=1)
        out[row] = value
    return out


def _weights(knots: np.ndarray, points: np.ndarray) -> np.ndarray:
    distinct, inverse = np.unique(points, return_inverse=True)
    return np.stack([hat_weights(knots, x, np) for x in distinct])[inverse]


def _grid(rows: Measurements, axes_from: Measurements) -> tuple[Grid | ExpertGrid, float]:
    """The grid of ``rows`` on the knots of ``axes_from``, and the share of it that was filled."""
    log_efficiency = np.log(rows.roofline_s / rows.measured_s)
    if "width" in rows.coordinates:
        shapes = np.unique(_expert_shapes(axes_from.coordinates), axis=0)
        tokens = np.unique(axes_from.coordinates["tokens"])
        cells = _expert_rows(shapes, rows.coordinates)
        columns = np.searchsorted(tokens, rows.coordinates["tokens"])
        values = _cell_means((len(shapes), len(tokens)), (cells, columns), log_efficiency)
        # Shapes are no axis: gaps are filled along the tokens alone.
        filled = np.stack([fill_gaps(row, [tokens]) for row in values])
        return ExpertGrid(shapes, tokens, filled), float(np.isnan(values).mean())
    knots = {name: np.unique(points) for name, points in axes_from.coordinates.items()}
    index = tuple(np.searchsorted(knots[name], x) for name, x in rows.coordinates.items())
    values = _cell_means(tuple(len(axis) for axis in knots.values()), index, log_efficiency)
    filled = fill_gaps(values, list(knots.values()))
    grid = Grid(tuple(knots.items()), filled, rows.start_s)
    return grid, float(np.isnan(values).mean())


def _expert_shapes(coordinates: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack([coordinates[name] for name in EXPERT_SHAPE], axis=1)


def _expert_rows(shapes: np.ndarray, coordinates: dict[str, np.ndarray]) -> np.ndarray:
    """Which of the listed shapes each measured row has."""
    order = {tuple(shape): row for row, shape in enumerate(shapes)}
    return np.array([order[tuple(shape)] for shape in _expert_shapes(coordinates)])


def _cell_means(
    shape: tuple[int, ...], index: tuple[np.ndarray, ...], values: np.ndarray
) -> np.ndarray:
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, index, values)
    np.add.at(count, index, 1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def fill_gaps(values: np.ndarray, axes: list[np.ndarray]) -> np.ndarray:
    """Fills NaNs from their neighbours, nearest gaps first.

    Along each axis a gap is interpolated between its two neighbours, or takes its only one. The
    axes' estimates are averaged with the inverse square of the error that the same estimate makes
    where the value is known, so that smooth directions count and rough ones do not.
    """
    values = np.array(values, float)
    while np.isnan(values).any():
        total, weight = np.zeros(values.shape), np.zeros(values.shape)
        for axis, knots in enumerate(axes):
            estimate, precision = _estimate(values, axis, np.log(knots))
            total += np.where(precision > 0, precision * np.nan_to_num(estimate), 0.0)
            weight += precision
        gaps = np.isnan(values) & (weight > 0)
        if not gaps.any():
            raise ValueError("nothing was measured: there is no neighbour to fill gaps from")
        values[gaps] = total[gaps] / weight[gaps]
    return values


def _estimate(values: np.ndarray, axis: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the neighbours along one axis say of every cell, and how far to trust that."""
    moved = np.moveaxis(values, axis, -1)
    edge = np.full((*moved.shape[:-1], 1), np.nan)
    left = np.concatenate([edge, moved[..., :-1]], axis=-1)
    right = np.concatenate([moved[..., 1:], edge], axis=-1)
    gap = np.concatenate([[1.0], np.diff(u), [1.0]])
    share = gap[:-1] / (gap[:-1] + gap[1:])
    between = (1 - share) * left + share * right
    both, one = ~np.isnan(between), np.isnan(left) ^ np.isnan(right)
    nearest = np.where(np.isnan(left), right, left)
    error_both = _typical(np.abs(between - moved))
    error_one = max(_typical(np.abs(left - moved)), 2 * error_both)
    precision = np.where(both, error_both**-2, np.where(one, error_one**-2, 0.0))
    estimate = np.where(both, between, nearest)
    return np.moveaxis(estimate, -1, axis), np.moveaxis(precision, -1, axis)


def _typical(errors: np.ndarray) -> float:
    """Median error, kept off zero; large where the data cannot tell."""
    known = errors[~np.isnan(errors)]
    return max(float(np.median(known)), 0.01) if known.size else 2.0
