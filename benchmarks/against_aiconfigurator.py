"""AIConfigurator's estimates of NVIDIA's measured serving points, beside physim's.

The rows are those of ``physim data convert silicon``: of three engines, not disaggregated. The
estimates come of the package ``aiconfigurator`` 0.12.0, which pins other
packages than physim and is installed apart; physim's of ``physim evaluate``.

    python -m venv peer && peer/bin/pip install aiconfigurator==0.12.0
    peer/bin/python benchmarks/against_aiconfigurator.py estimate silicon.csv estimates.csv
    physim evaluate --data silicon.csv --fit none --out evaluation.json
    python benchmarks/against_aiconfigurator.py compare silicon.csv evaluation.json estimates.csv

An estimate takes a second or two; docs/accuracy.md has every fifth row of silicon.csv
(``awk 'NR == 1 || NR % 5 == 2'``).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

# Absolute errors of a row, percent: ITL of physim and of its peer, TTFT likewise.
Errors = Sequence[float]
# Models by the names that it has configurations of.
_NAMES = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
    "nvidia/DeepSeek-R1-NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
# Models without experts.
_DENSE = ("Llama", "Qwen3-32B")
# Its rows of gpt-oss name nvfp4, and the model has formats of its own, which it finds.
_FORMATS_OF_ITS_OWN = ("openai/gpt-oss-120b",)


def estimate(data: Path, out: Path, processes: int) -> None:
    """Writes TTFT and TPOT of each row, seconds, and why there are none where there are none."""
    package = Path(str(resources.files("aiconfigurator_core")))
    with (package / "systems" / "silicon_sample.csv").open(encoding="utf-8") as file:
        points = {row["id"]: row for row in csv.DictReader(file)}
    with data.open(encoding="utf-8") as file:
        wanted = [(row, points[row["experiment"]]) for row in csv.DictReader(file)]
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["experiment", "ttft_s", "tpot_s", "problem"])
        writer.writeheader()
        with multiprocessing.Pool(processes) as pool:
            for answer in pool.imap(_estimate, wanted, chunksize=8):
                writer.writerow(answer)
                file.flush()


def _estimate(row: tuple[dict[str, str], dict[str, str]]) -> dict[str, Any]:
    from aiconfigurator.cli.api import cli_estimate

    ours, point = row
    tp, dp, ep = (int(ours[degree]) for degree in ("tp", "dp", "ep"))
    is_mixture = not any(dense in point["model_path"] for dense in _DENSE)
    layout: dict[str, Any] = {"tp_size": tp}
    if is_mixture:
        layout |= {"attention_dp_size": dp, "moe_tp_size": tp * dp // ep, "moe_ep_size": ep}
    fields = ("gemm_quant_mode", "moe_quant_mode") if is_mixture else ("gemm_quant_mode",)
    formats = {field: point[field] for field in fields if point[field]}
    if point["model_path"] in _FORMATS_OF_ITS_OWN:
        formats = {}
    found: dict[str, Any] = {"experiment": ours["experiment"]}
    # A row's own formats; where it has no tables of them, those that it takes by itself.
    for options in (layout | formats, layout):
        try:
            result = cli_estimate(
                model_path=_NAMES.get(point["model_path"], point["model_path"]),
                system_name=point["system"],
                backend_name=ours["engine"],
                isl=round(float(ours["input_len_mean"])),
                osl=round(float(ours["output_len"])),
                batch_size=max(int(float(ours["concurrency"])) // dp, 1),
                **options,
            )
        except (Exception, SystemExit) as error:  # whatever it refuses a row with
            found["problem"] = f"{type(error).__name__}: {error}"[:200]
        else:
            return found | {
                "ttft_s": result.ttft * 1e-3,
                "tpot_s": result.tpot * 1e-3,
                "problem": "",
            }
    return found


def compare(data: Path, evaluation: Path, estimates: Path) -> None:
    """Prints mean errors by engine, GPU and layout, in the form of a table in Markdown."""
    with data.open(encoding="utf-8") as file:
        rows = {row["experiment"]: row for row in csv.DictReader(file)}
    with estimates.open(encoding="utf-8") as file:
        theirs = {row["experiment"]: row for row in csv.DictReader(file)}
    ours = {row["experiment"]: row["metrics"] for row in json.loads(evaluation.read_text())["rows"]}
    groups: dict[tuple[str, str, str], list[Errors]] = {}
    for name, row in rows.items():
        errors: list[float] = []
        for metric, key in (("itl_mean", "tpot_s"), ("ttft_mean", "ttft_s")):
            found = ours.get(name, {}).get(metric)
            observed = found["observed"] if found else math.nan
            peer = theirs.get(name, {}).get(key)
            errors.append(abs(found["error_pct"]) if found else math.nan)
            errors.append(abs(float(peer) / observed - 1) * 100 if peer else math.nan)
        for group in (_group(row), (row["engine"], "all", "")):
            groups.setdefault(group, []).append(errors)
    print("| engine | GPU | layout | rows | ITL physim | AIConfigurator | TTFT physim | theirs |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (engine, gpu, layout), some in sorted(groups.items()):
        print(f"| {engine} | {gpu} | {layout} | {len(some)} | {' | '.join(_columns(some))} |")


def _group(row: dict[str, str]) -> tuple[str, str, str]:
    """The engine, the GPU and the kind of layout of a row."""
    dp, ep = int(row["dp"]), int(row["ep"])
    kind = "data parallel" if dp > 1 else "experts spread" if ep > 1 else "tensor parallel"
    return row["engine"], row["hardware"], kind


def _columns(errors: Sequence[Errors]) -> list[str]:
    """Mean absolute error of each column, and its rows where some have none."""
    columns = []
    for column in zip(*errors, strict=True):
        known = [error for error in column if not math.isnan(error)]
        said = f"{sum(known) / len(known):.1f}" if known else "-"
        columns.append(said if len(known) == len(column) else f"{said} ({len(known)} rows)")
    return columns


def main() -> None:
    """Estimates or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    estimating = verbs.add_parser("estimate")
    comparing = verbs.add_parser("compare")
    estimating.add_argument("data", type=Path)
    estimating.add_argument("out", type=Path)
    estimating.add_argument("--processes", type=int, default=2)
    comparing.add_argument("data", type=Path)
    comparing.add_argument("evaluation", type=Path)
    comparing.add_argument("estimates", type=Path)
    asked = parser.parse_args()
    if asked.verb == "estimate":
        estimate(asked.data, asked.out, asked.processes)
    else:
        compare(asked.data, asked.evaluation, asked.estimates)


if __name__ == "__main__":
    main()
