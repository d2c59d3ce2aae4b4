"""Predictions beside what was recorded on one H100 with vLLM 0.33: passes, and served loads.

Usage: python benchmarks/recorded_h100.py

The recordings are in tests/reports/vllm_0_33_h100, with their commands. The tables are those of
docs/lab/fits.md: errors of timed forward passes, and of three loads of Llama-3.1-8B and one of
Qwen3-30B-A3B, without a fit, with the default one, and with a fit to the forward passes alone.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

from physim.corrections.files import DEFAULT_FIT, NO_FIT, Fit, load_fit
from physim.fitting.fit import fit
from physim.fitting.observations import METRICS
from physim.inputs.case import Case
from physim.measured.reports import read_report
from physim.measured.run_cases import case_of, measured
from physim.measured.runs_csv import read_tables
from physim.measured.step_files import read_step_files
from physim.measured.steps import MeasuredSteps
from physim.prediction.many import predict_cases
from physim.validation.step_errors import compare_steps

_RECORDED = Path(__file__).parents[1] / "tests" / "reports" / "vllm_0_33_h100"
_LLAMA, _QWEN = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"
_LOADS = {"load30": _LLAMA, "load60": _LLAMA, "load80": _LLAMA, "moe": _QWEN}
_PASSES = ("forward_decode", "forward_prefill", "forward_verify")


def main() -> None:
    server = Case.from_options(model=_LLAMA, gpu="h100_sxm")
    with tempfile.TemporaryDirectory() as folder:
        files = {name: _unpacked(f"{name}.json", Path(folder)) for name in (*_PASSES, *_LOADS)}
        log = {name: _unpacked(f"{name}.log", Path(folder)) for name in ("serve", "serve_moe")}
        taught = fit(steps=[files[one] for one in _PASSES[:2]], server=server, base=NO_FIT).fit
        path = Path(folder) / "fit.json"
        taught.write(path)
        print("| passes | steps | no fit, % (bias) | default fit | fit to the first two |")
        print("| --- | --- | --- | --- | --- |")
        for name in _PASSES:
            steps = read_step_files([files[name]]).completed(server.server.kv.tokens, None)
            cells = [_of_steps(steps, server, one) for one in (NO_FIT, DEFAULT_FIT, str(path))]
            print(f"| {name} | {len(steps)} | {' | '.join(cells)} |")
        print("\n| load | TTFT, ITL, E2E, ms | no fit, % | default fit | fit to the passes |")
        print("| --- | --- | --- | --- | --- |")
        for name, model in _LOADS.items():
            written = log["serve" if model == _LLAMA else "serve_moe"]
            _served(files[name], model, written, [load_fit(NO_FIT), load_fit(DEFAULT_FIT), taught])


def _unpacked(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(gzip.decompress((_RECORDED / f"{name}.gz").read_bytes()))
    return path


def _of_steps(steps: MeasuredSteps, case: Case, name: str) -> str:
    whole = compare_steps(steps, case, fit=name).errors[-1]
    return f"{whole.mean_pct:.1f} ({whole.bias_pct:+.1f})"


def _served(path: Path, model: str, log: Path, fits: Sequence[Fit]) -> None:
    read = read_report("vllm-bench", [path], model=model, gpu="h100_sxm", server_log=log)
    table = path.with_suffix(".csv")
    read.to_csv(table, index=False)
    rows = read_tables([table]).rows
    case, seen = case_of(rows, None), measured(rows[0].row)
    cells = []
    for known in fits:
        (found,) = predict_cases([case], [known.on(case).corrections])
        off = [100 * (getattr(found, f"{one}_s") / seen[one] - 1) for one in METRICS]
        cells.append(", ".join(f"{error:+.1f}" for error in off))
    values = ", ".join(f"{1e3 * seen[one]:.1f}" for one in METRICS)
    print(f"| {path.stem} | {values} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
