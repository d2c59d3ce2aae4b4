"""How far a GPU's power limit slows GEMMs that last, and how soon.

Usage: python benchmarks/power_limit.py record FILE
       python benchmarks/power_limit.py constants tests/reports/power_limit/*.json

The first needs a GPU, PyTorch and pynvml, not physim. It times GEMMs of 28,672 x 4,096 with random
numbers in a burst after a pause, then for 4.5 s without one, then in blocks with GEMMs of decode
steps or nothing between them, and takes three minutes. The second prints the share of the peak that
GEMMs keep up (`sustained_share_of_peak` of hardware/*.json) and how soon the clock falls
(`physim.step.power_limit`).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_N, _K = 28_672, 4_096
_RUN_S, _COOLING_S = 4.5, 1.0
# Tokens of GEMMs that run alone, by format; and blocks: format, tokens, those of the decode GEMMs
# between them (0 for a pause), the share of the time that blocks have, and the period in seconds.
_ALONE = [("bfloat16", tokens) for tokens in (2048, 8192, 512, 16, 64, 128, 256)]
_ALONE += [("fp8", tokens) for tokens in (2048, 8192)]
_BLOCKS = [("bfloat16", 2048, 16, share, 0.05) for share in (0.1, 0.2, 0.35, 0.5, 0.75)]
_BLOCKS += [("bfloat16", 2048, 64, share, 0.05) for share in (0.2, 0.5)]
_BLOCKS += [("bfloat16", 2048, 0, share, 0.05) for share in (0.1, 0.25, 0.5, 0.75)]
_BLOCKS += [("fp8", 2048, 64, share, 0.05) for share in (0.25, 0.5)]
_BLOCKS += [("bfloat16", 2048, 16, share, 0.5) for share in (0.2, 0.5)]


def main(arguments: list[str]) -> None:
    match arguments:
        case ["record", file]:
            _record(Path(file))
        case ["constants", *files] if files:
            _constants([json.loads(Path(file).read_text()) for file in files])
        case _:
            sys.exit(__doc__)


def _record(file: Path) -> None:
    import pynvml as nvml
    import torch

    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    weights = [0.02 * torch.randn(_N, _K, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    in_fp8 = [weight.to(torch.float8_e4m3fn) for weight in weights]
    one = torch.ones((), device="cuda")

    def gemm(form: str, tokens: int) -> Callable[[int], Any]:
        x = torch.randn(tokens, _K, device="cuda", dtype=torch.bfloat16)
        if form == "bfloat16":
            return lambda i: torch.nn.functional.linear(x, weights[i % 8])
        cast = x.to(torch.float8_e4m3fn)
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
        return lambda i: torch._scaled_mm(cast, in_fp8[i % 8].t(), **options)

    def graph(work: Callable[[int], Any], count: int) -> Any:
        for i in range(3):
            work(i)
        torch.cuda.synchronize()
        found = torch.cuda.CUDAGraph()
        with torch.cuda.graph(found):
            for i in range(count):
                work(i)
        return found

    def seconds(*graphs: Any) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(graphs) + 1)]
        events[0].record()
        for one_graph, event in zip(graphs, events[1:], strict=True):
            one_graph.replay()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]

    def burst(work: Callable[[int], Any]) -> float:
        rough = graph(work, 3)
        rough.replay()
        count = max(4, int(5e-3 / (seconds(rough)[0] / 3)))
        timed, found = graph(work, count), []
        for _ in range(3):
            time.sleep(0.3)
            found.append(seconds(timed)[0] / count)
        return min(found)

    blocks = [(*alone, None, 1.0, 0.04) for alone in _ALONE] + _BLOCKS
    rows: list[dict[str, Any]] = []
    for form, tokens, between, share, period in blocks:
        work = gemm(form, tokens)
        burst_s = burst(work)
        count = max(1, round(period * share / burst_s))
        graphs, counts = [graph(work, count)], [count]
        between_burst = None
        if between:
            decode = gemm(form, between)
            between_burst = burst(decode)
            counts.append(max(1, round(period * (1 - share) / between_burst)))
            graphs.append(graph(decode, counts[1]))
        start, times, states = time.time(), [], []
        while time.time() - start < _RUN_S:
            took = seconds(*graphs)
            if between == 0:
                time.sleep(period * (1 - share))
            if time.time() - start > _RUN_S / 2:
                times.append([a / b for a, b in zip(took, counts, strict=True)])
                power = nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
                clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
                states.append((power, clock))
        mean = np.mean(times, axis=0)
        power, clock = np.mean(states, axis=0)
        rows.append(
            {
                "format": form,
                "tokens": tokens,
                "between": {None: None, 0: "idle"}.get(between, between),
                "share": share,
                "period_s": period,
                "burst_s": round(burst_s, 9),
                "sustained_s": round(float(mean[0]), 9),
                "between_burst_s": between_burst and round(between_burst, 9),
                "between_sustained_s": round(float(mean[1]), 9) if between else None,
                "power_w": round(power),
                "clock_mhz": round(clock),
                "celsius": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            }
        )
        print(rows[-1], flush=True)
        time.sleep(_COOLING_S)
    head = {
        "gpu": torch.cuda.get_device_name(),
        "limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
        "torch": torch.__version__,
        "columns": _K,
        "rows_of_weight": _N,
        "recorded": time.strftime("%Y-%m-%d"),
    }
    lines = ",\n  ".join(map(json.dumps, rows))
    first = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    file.write_text(f'{{\n{first} "blocks": [\n  {lines}\n ]\n}}\n')


def _constants(recorded: list[dict[str, Any]]) -> None:
    from scipy.optimize import minimize_scalar

    from physim import roofline
    from physim.grids.store import load_grid
    from physim.service.hardware import load_hardware
    from physim.step.power_limit import SETTLING_S, share_at_limit

    lengths, slowed = [], []
    print(
        "| GPU | format | tokens | burst, % of the peak | kept up | longer, % | the GPU's table |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for one in recorded:
        gpu = load_hardware(one["gpu"])
        alone = [row for row in one["blocks"] if row["share"] == 1]
        for row in alone:
            flops = 2 * row["tokens"] * one["columns"] * one["rows_of_weight"]
            peak_s = flops / gpu.peak(row["format"])
            more = row["sustained_s"] / row["burst_s"] - 1
            shares = [100 * peak_s / row[time] for time in ("burst_s", "sustained_s")]
            # The table's efficiency is against the roofline.
            width = 1 if row["format"] == "fp8" else 2
            shape = (row["tokens"], one["rows_of_weight"], one["columns"])
            bound = roofline.gemm(*shape, width, width)
            bound_s = roofline.seconds(bound, gpu.peak(row["format"]), gpu.memory_bandwidth)
            grid = load_grid(gpu.key, f"gemm_{row['format']}")
            tokens, n, k = map(float, shape)
            table = 100 * peak_s / float(bound_s) * float(grid.efficiency(tokens=tokens, n=n, k=k))
            print(f"| {gpu.key} | {row['format']} | {row['tokens']:,} | ", end="")
            print(f"{shares[0]:.1f} | {shares[1]:.1f} | {100 * more:.1f} | {table:.1f} |")
        full = next(row for row in alone if (row["format"], row["tokens"]) == ("bfloat16", 2048))
        for row in one["blocks"]:
            if row["between"] == 16:
                count = max(1, round(row["period_s"] * row["share"] / row["burst_s"]))
                lengths.append(count * row["sustained_s"])
                limited = full["sustained_s"] / full["burst_s"] - 1
                slowed.append((row["sustained_s"] / row["burst_s"] - 1) / limited)
    x, y = np.array(lengths), np.array(slowed)

    def share(settling: float) -> np.ndarray:
        return np.asarray(share_at_limit(x * SETTLING_S / settling))

    best = minimize_scalar(
        lambda settling: float(np.sum((share(settling) - y) ** 2)), bounds=(0.001, 0.5)
    ).x
    print(f"\nclock falls within {1e3 * best:.0f} ms; blocks, ms, and share of the slowdown:\n")
    print("| block | measured | share_at_limit |\n| --- | --- | --- |")
    for length, measured, modelled in zip(x, y, share(best), strict=True):
        print(f"| {1e3 * length:.0f} | {measured:.2f} | {modelled:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
