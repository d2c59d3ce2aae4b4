"""Holds H100 grids against kernel times that somebody else measured, in BLIS's layout.

Usage: python benchmarks/against_blis.py BENCH_DATA; prints a Markdown table. Ratios are our time
over theirs.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import numpy as np

from physim import roofline
from physim.grids.store import load_grid
from physim.service.hardware import load_hardware

GPU = load_hardware("h100_sxm")
PEAK = dict(GPU.peak_flops)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def gemm(row: dict[str, str]) -> float:
    """Seconds of an fp8 GEMM: BLIS's MFU of GEMMs is over the fp8 peak."""
    m, k, n = (float(row[name]) for name in "mkn")
    curve = load_grid(GPU.key, "gemm_fp8").sliced(n=n, k=k).resampled(tokens=np.array([m]))
    bound = roofline.seconds(roofline.gemm(m, n, k, 1.0, 1.0), PEAK["fp8"], GPU.memory_bandwidth)
    return float(bound * np.exp(-curve[0]))


def prefill(row: dict[str, str], heads: int, kv_heads: int, dim: int) -> float:
    length = float(row["seq_len"])
    grid = load_grid(GPU.key, "prefill_attention").sliced(
        group=heads / kv_heads, head_dim=float(dim)
    )
    work = roofline.prefill_attention(1.0, length, heads, kv_heads, dim)
    bound = roofline.seconds(work, PEAK["bfloat16"], GPU.memory_bandwidth)
    found = grid.resampled(sequences=np.array([float(heads)]), tokens=np.array([length]))
    return float(bound * np.exp(-found[0, 0]))


def decode(row: dict[str, str], heads: int, kv_heads: int, dim: int) -> float:
    batch, context = float(row["batch_size"]), float(row["kv_len"])
    grid = load_grid(GPU.key, "decode_attention").sliced(
        group=heads / kv_heads, head_dim=float(dim)
    )
    work = roofline.decode_attention(batch, context, heads, kv_heads, dim, 2.0)
    bound = roofline.seconds(work, PEAK["bfloat16"], GPU.memory_bandwidth)
    found = grid.resampled(sequences=np.array([batch * kv_heads]), context=np.array([context]))
    return float(bound * np.exp(-found[0, 0]))


def shown(name: str, ratios: dict[str, float]) -> None:
    values = np.array(list(ratios.values()))
    worst = max(ratios, key=lambda key: abs(np.log(ratios[key])))
    print(
        f"| {name} | {len(values)} | {np.median(values):.2f} | "
        f"{np.quantile(values, 0.1):.2f} to {np.quantile(values, 0.9):.2f} | "
        f"{ratios[worst]:.2f} ({worst}) |"
    )


def main() -> None:
    folder = Path(sys.argv[1])
    print("| table | rows | median | 10% to 90% | worst |\n| --- | --- | --- | --- | --- |")
    found = {}
    for row in rows(folder / "gemm/h100/data.csv"):
        key = f"m {row['m']}, k {row['k']}, n {row['n']}"
        found[key] = gemm(row) / (float(row["latency_us"]) * 1e-6)
    shown("gemm, fp8", found)
    for kind in ("prefill", "decode"):
        for path in sorted((folder / "mha" / kind / "h100").glob("*.csv")):
            match = re.fullmatch(r"(\d+)-(\d+)-(\d+)(?:-tp(\d+))?", path.stem)
            assert match
            heads, kv_heads, dim, tp = (int(part or 1) for part in match.groups())
            shape = (heads // tp, max(kv_heads // tp, 1), dim)
            found = {}
            for row in rows(path):
                if row["dtype"] != "bf16" or row.get("kv_dtype", "bf16") != "bf16":
                    continue
                if kind == "prefill":
                    key, seconds = f"{row['seq_len']} tokens", prefill(row, *shape)
                else:
                    key = f"{row['batch_size']} x {row['kv_len']}"
                    seconds = decode(row, *shape)
                found[key] = seconds / (float(row["latency_us"]) * 1e-6)
            shown(f"{kind}, {path.stem}", found)


if __name__ == "__main__":
    main()
