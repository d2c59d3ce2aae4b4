"""GEMMs at numbers of tokens that fill no tiles: how far their curves are from measured times.

Usage: python benchmarks/gemm_curves.py

Each measured shape of each table of GEMMs in bench_data is read off its curve over tokens
(physim/step/curves.py) at 200 numbers of tokens from 65 to 4,353, drawn evenly in logarithm, and
off a curve that has knots on both sides of full tiles too. Both are held against the measured
times, which lie close (every 256 tokens and a token more), and straight lines between them. Prints
the mean error, which is negative where the curve is too quick, and the mean absolute error, in
percent.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from physim import data, roofline
from physim.grids.efficiency import hat_weights
from physim.grids.store import load_grid, measured_grids
from physim.models.formats import BFLOAT16, FP8, FP8_BLOCK, NVFP4
from physim.service.hardware import Hardware, load_hardware
from physim.step.curves import TOKENS, rising_log_seconds
from physim.types import Knots

_FORMS = {f"gemm_{one.name}": one for one in (BFLOAT16, FP8, FP8_BLOCK, NVFP4)}
_TILES = np.array([64, 128, 256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096])
# Steps of one load differ by more tokens than lie between a full tile and the knot above it.
_CURVES = {
    "physim": TOKENS,
    "beside full tiles too": np.unique([*TOKENS, *_TILES, *_TILES * (1 + 1 / 64)]),
}
_LEAST, _MOST, _DRAWN, _SEED = 65, 4353, 200, 0
# Smaller weights are read from the cache.
_LEAST_SIDE = 1024


def main() -> None:
    rows = []
    for grids in measured_grids():
        gpu = load_hardware(grids.split("/")[0])
        for path in sorted((data.folder("bench_data") / grids).glob("gemm_*.npz")):
            rows += [{"table": f"{grids}, {path.stem}", **_errors(grids, path.stem, gpu)}]
    print(pd.DataFrame(rows).round(1).to_string(index=False))


def _errors(grids: str, table: str, gpu: Hardware) -> dict[str, float]:
    """Errors of one table, percent, by the knots of the curves."""
    grid, size = load_grid(grids, table), _FORMS[table].bytes_per_weight
    peak = gpu.peak(_FORMS[table].compute)
    assert peak is not None  # its GEMMs were measured
    drawn = np.random.default_rng(_SEED).uniform(np.log(_LEAST), np.log(_MOST), _DRAWN)
    tokens = np.rint(np.exp(drawn))
    logs: dict[str, list[np.ndarray]] = {name: [] for name in _CURVES}
    for n in (one for one in grid.knots("n") if one >= _LEAST_SIDE):
        for k in (one for one in grid.knots("k") if one >= _LEAST_SIDE):
            own = grid.sliced(n=n, k=k)

            def bound_s(at: Knots, n: float = n, k: float = k) -> np.ndarray:
                work = roofline.gemm(at, n, k, size, size)
                return np.asarray(roofline.seconds(work, peak, gpu.memory_bandwidth))

            measured = np.log(bound_s(tokens)) - own.resampled(tokens=tokens)
            for name, knots in _CURVES.items():
                curve = rising_log_seconds(own.resampled(tokens=knots), bound_s(knots))
                logs[name].append(hat_weights(knots, tokens, np) @ curve - measured)
    found = {name: 100 * np.expm1(np.array(own)) for name, own in logs.items()}
    means = {f"{name}, mean": float(own.mean()) for name, own in found.items()}
    return means | {f"{name}, absolute": float(np.abs(own).mean()) for name, own in found.items()}


if __name__ == "__main__":
    main()
