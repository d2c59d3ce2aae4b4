"""Experts of a shape that was not measured: how far its time is from that of the nearest.

Usage: python benchmarks/expert_shapes.py

Each measured shape of each table in bench_data is left out in turn and read off the nearest other
one: with that one's efficiency, and with what its kernels take to start apart from the work
(physim/step/components/experts.py). Prints the mean and median absolute error in percent, by the
tokens of a step.
"""

from __future__ import annotations

import numpy as np

from physim import data, roofline
from physim.grids.efficiency import ExpertGrid
from physim.grids.store import load_expert_grid, measured_grids
from physim.models.formats import (
    BFLOAT16,
    FP8,
    FP8_BLOCK,
    MXFP4,
    MXFP4_MXFP8,
    NVFP4,
    WeightFormat,
    int4,
)
from physim.service.hardware import Hardware, load_hardware
from physim.step.components.experts import start_s, started_s

_FORMS = {one.name: one for one in (MXFP4_MXFP8, MXFP4, NVFP4, FP8_BLOCK, FP8, BFLOAT16)}
_FORMS["int4"] = int4(-1)
_ENDS = (8, 64, 512, np.inf)


def main() -> None:
    errors: dict[tuple[float, str], list[float]] = {}
    shapes = 0
    for grids in measured_grids():
        gpu = load_hardware(grids.split("/")[0])
        for path in sorted((data.folder("bench_data") / grids).glob("moe_*_balanced.npz")):
            if "_spread_" in path.stem:
                continue
            grid, form = load_expert_grid(grids, path.stem), _form(path.stem)
            for left_out in range(len(grid.shapes)):
                if len(grid.shapes) > 2:
                    shapes += 1
                    _compare(grid, left_out, gpu, form, errors)
    print(f"{shapes} shapes left out\n\n| tokens | efficiency | start and work apart |")
    print("| --- | --- | --- |")
    for end in _ENDS:
        cells = (np.array(errors[end, way]) * 100 for way in ("efficiency", "apart"))
        told = " | ".join(f"{one.mean():.0f} ({np.median(one):.0f})" for one in cells)
        print(f"| up to {end:g} | {told} |")


def _form(table: str) -> WeightFormat:
    return next(form for name, form in _FORMS.items() if table.startswith(f"moe_{name}_"))


def _compare(
    grid: ExpertGrid,
    left_out: int,
    gpu: Hardware,
    form: WeightFormat,
    errors: dict[tuple[float, str], list[float]],
) -> None:
    """Adds the errors of one shape."""
    peak = gpu.peak(form.compute) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has it: load_hardware

    def bound_s(tokens: np.ndarray, shape: np.ndarray) -> np.ndarray:
        hidden, width, per_token, count = shape
        work = roofline.experts(tokens, hidden, width, count, per_token, form.bytes_per_weight)
        return np.asarray(roofline.seconds(work, peak, gpu.memory_bandwidth))

    distance = np.linalg.norm(np.log(grid.shapes / grid.shapes[left_out]), axis=1)
    distance[left_out] = np.inf
    nearest = int(np.argmin(distance))
    own, near = grid.shapes[left_out], grid.shapes[nearest]
    tokens, log_efficiency = grid.tokens, grid.log_efficiency[nearest]
    at = np.maximum(own[2] / own[3] / (near[2] / near[3]) * tokens, tokens[0])
    known = np.interp(np.log(at), np.log(tokens), log_efficiency)
    work = bound_s(tokens, own)
    start = start_s(np.exp(log_efficiency), float(bound_s(tokens[:1], near)[0]))
    apart = started_s(known, start, bound_s(at, near), work)
    measured = work / np.exp(grid.log_efficiency[left_out])
    for way, found in (("efficiency", work / np.exp(known)), ("apart", np.maximum(apart, work))):
        off = np.abs(np.log(found / measured))
        for begin, end in zip((0, *_ENDS), _ENDS, strict=False):
            some = off[(tokens > begin) & (tokens <= end)]
            if some.size:
                errors.setdefault((end, way), []).append(float(some.mean()))


if __name__ == "__main__":
    main()
