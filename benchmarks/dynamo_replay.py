"""Dynamo's own offline replay and planner on exported files, against physim's replay.

    python -m venv dynamo
    dynamo/bin/pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
    dynamo/bin/pip install --no-deps --pre --only-binary :all: aisimulate
    dynamo/bin/pip install 'pydantic<2.13.6' msgspec 'prometheus-client<1' 'kubernetes<33' pyzmq \
        aiohttp uvloop zstandard tqdm scipy pandas pyarrow pyyaml packaging scikit-learn
    python benchmarks/dynamo_replay.py --python dynamo/bin/python

Qwen3-14B on two H100, zero-shot: 2,000 requests with the same arrivals in both, at 20, 60 and 90%
of saturation. Dynamo has no front end, so physim's is left out too. Where the packages are missing
it says so in one line. It prints a Markdown table of ITL and TTFT, which docs/lab/exports.md has.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from physim.exports.subject import SHARES, Subject, case_at
from physim.exports.writer import export_dynamo
from physim.prediction.replayed import config_of
from physim.replay.cluster import replay
from physim.replay.step_times import ModelStepTimes
from physim.replay.workload import drawn

MODEL = "Qwen/Qwen3-14B"
OPTIONS: dict[str, Any] = {"gpu": "h100_sxm", "tp": 2, "input_tokens": 575, "output_tokens": 248}
REQUESTS, SEED = 2000, 0
# Tokens of a block of Mooncake's traces.
TRACE_BLOCK = 512

# What runs in Dynamo's Python: answers to a question in JSON on stdin, the last line of stdout.
THEIRS = """
import asyncio, json, sys
asked = json.load(sys.stdin)
import dynamo
from dynamo.replay import run_trace_replay
found = {"replays": [], "planner": {}}
for trace, engine in asked["replays"]:
    report = run_trace_replay([trace], extra_engine_args=engine, trace_block_size=asked["block"])
    found["replays"].append(report.summary)
from dynamo.planner.config.defaults import SubComponentType
from dynamo.planner.core.perf_model.decode import DecodeRegressionModel
from dynamo.planner.monitoring.perf_metrics import fetch_pre_deployment_metrics
from dynamo.planner.monitoring.worker_info import WorkerInfo
for kind in (SubComponentType.PREFILL, SubComponentType.DECODE):
    loaded = asyncio.run(
        fetch_pre_deployment_metrics(None, "physim", WorkerInfo(), asked["folder"], kind)
    )
    found["planner"][kind.value] = len(loaded)
model = DecodeRegressionModel(len(loaded))
model.load_benchmark_fpms(loaded)
model._ensure_fitted()
off = []
for one in loaded:
    step = one.scheduled_requests
    guess = model._predict_2d(step.num_decode_requests, step.sum_decode_kv_tokens)
    off.append(abs(guess / one.wall_time - 1))
found["planner"]["regression_median_pct"] = 100 * sorted(off)[len(off) // 2]
print(json.dumps(found))
"""


def trace_of(arrivals_s: Sequence[float], path: Path) -> Path:
    """Writes requests that share nothing as Mooncake's trace."""
    inputs, outputs = OPTIONS["input_tokens"], OPTIONS["output_tokens"]
    blocks = -(-int(inputs) // TRACE_BLOCK)
    rows = [
        {
            "timestamp": 1e3 * arrival,
            "input_length": inputs,
            "output_length": outputs,
            "hash_ids": list(range(number * blocks, (number + 1) * blocks)),
        }
        for number, arrival in enumerate(arrivals_s)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def engine_of(subject: Subject, profile: Path) -> dict[str, Any]:
    """The mocker's engine with the limits of a server and a profile."""
    server = subject.case.server
    return {
        "engine": {
            "backend": "vllm",
            "max_num_seqs": server.sizes.max_num_seqs,
            "max_num_batched_tokens": server.sizes.max_num_batched_tokens,
            "num_gpu_blocks": server.kv.blocks,
            "block_size": server.kv.block_size,
            "timing_model": {
                "type": "external",
                "provider": "dynamo_profile",
                "config": {"path": str(profile)},
            },
        }
    }


def replayed(subject: Subject, share: int) -> tuple[list[float], float, float]:
    """Arrivals, and the mean ITL and TTFT of physim's replay without a front end, seconds."""
    rate = SHARES[share] * subject.about()["saturation_rps"]
    case = case_at(subject.case, rate)
    load, sizes = dataclasses.replace(case.demanded, requests=REQUESTS), case.server.sizes
    workload = drawn(load, case.server, SEED)
    arrivals = [one.arrival_s for one in workload.requests]
    config = dataclasses.replace(
        config_of(case, subject.corrections),
        front_end_s=0.0,
        output_per_request_s=0.0,
        output_steps=0.0,
    )
    times = ModelStepTimes(
        subject.steps, sizes.max_num_seqs, sizes.max_num_batched_tokens, workload.longest
    )
    means = replay(workload, times, config).summary()
    return arrivals, means["itl"]["mean"], means["ttft"]["mean"]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="a Python that has ai-dynamo")
    python = parser.parse_args().python
    missing = subprocess.run([python, "-c", "import dynamo.replay"], capture_output=True)
    if missing.returncode:
        print(f"skipped: {python} has no ai-dynamo whose replay can be imported")
        return
    subject = Subject.from_options(MODEL, "none", **OPTIONS)
    own = [replayed(subject, share) for share in range(len(SHARES))]
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        traces = [
            trace_of(arrivals, place / f"{share}.jsonl")
            for share, (arrivals, _, _) in enumerate(own)
        ]
        kinds = ("increment", "apart")
        for kind in kinds:
            export_dynamo(MODEL, place / kind, apart=kind == "apart", fit="none", **OPTIONS)
        asked = {
            "block": TRACE_BLOCK,
            "folder": str(place / kinds[0]),
            "replays": [
                (str(trace), engine_of(subject, place / kind / "perf_data.npz"))
                for kind in kinds
                for trace in traces
            ],
        }
        answer = subprocess.run(
            [python, "-c", THEIRS], input=json.dumps(asked), capture_output=True, text=True
        )
    if answer.returncode:
        raise SystemExit(answer.stderr)
    found = json.loads(answer.stdout.splitlines()[-1])
    print("| profile | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
    print("| --- " * (1 + len(SHARES)) + "|")
    for number, kind in enumerate(kinds):
        cells = []
        for (_, itl, ttft), theirs in zip(own, found["replays"][number * len(own) :], strict=False):
            assert theirs["completed_requests"] == REQUESTS
            off = (theirs["mean_itl_ms"] / 1e3 / itl, theirs["mean_ttft_ms"] / 1e3 / ttft)
            cells.append(", ".join(f"{100 * (one - 1):+.1f}%" for one in off))
        print(f"| {kind} | " + " | ".join(cells) + " |")
    planner = found["planner"]
    points = f"{planner['prefill']} points of prefill and {planner['decode']} of decode"
    error = f"{planner['regression_median_pct']:.1f}% (median)"
    print(f"planner: {points} are loaded; its regression of the latter is off by {error}")


if __name__ == "__main__":
    main()
