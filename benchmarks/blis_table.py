"""BLIS on physim's tables against physim's replay of the same requests.

In a checkout of inference-sim/inference-sim at 53e3347bd5cb, with physim's in ``$PHYSIM``:

    mkdir -p steptable cmd/physimtable
    cp $PHYSIM/docs/simulators/steptable.go steptable/
    cp $PHYSIM/docs/simulators/blis/*.go cmd/physimtable/
    go build -tags blis -o physimtable ./cmd/physimtable
    python benchmarks/blis_table.py --blis ./physimtable

3,000 requests whose lengths differ, at 20, 60 and 90% of saturation, zero-shot. It prints errors of
ITL and TTFT. docs/lab/exports.md has them, and says which parts of BLIS ran.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from physim.exports.blis_trace import prefixes_of, trace_rows, write_trace
from physim.exports.subject import SHARES, Subject, case_at
from physim.inputs.lengths import Lengths
from physim.prediction.replayed import replay_load
from physim.tables.writer import write_table

SERVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("meta-llama/Llama-3.1-8B-Instruct", {"gpu": "h100_sxm"}),
    ("Qwen/Qwen3-14B", {"gpu": "h100_sxm", "tp": 2}),
    ("deepseek-ai/DeepSeek-V3", {"gpu": "h200_sxm", "tp": 8}),
    ("deepseek-ai/DeepSeek-V2-Lite", {"gpu": "h200_sxm"}),
)
LENGTHS: dict[str, Any] = {
    "input_tokens": Lengths.lognormal(575.0, 400.0),
    "output_tokens": Lengths.lognormal(248.0, 150.0),
}
REQUESTS = 3000


def errors(blis: str, subject: Subject, place: Path, share: int, seed: int) -> tuple[float, float]:
    """Errors of BLIS's mean ITL and TTFT, percent."""
    found = subject.loads[share]
    rate = SHARES[share] * found.saturation_rps
    case = case_at(subject.case, rate)
    case = case.under(dataclasses.replace(case.demanded, requests=REQUESTS))
    result = replay_load(case, subject.corrections, seed)
    rows = trace_rows(result.to_frame(), prefixes_of(result, 0), case.model.name)
    write_trace(place / "trace.csv", rows, case, ())
    server = case.server
    asked = {
        "table": place / "table",
        "trace": place / "trace.csv",
        "max-num-seqs": server.sizes.max_num_seqs,
        "max-num-batched-tokens": server.sizes.max_num_batched_tokens,
        "max-model-len": server.sizes.max_model_len,
        "kv-blocks": server.kv.blocks,
        "block-size": server.kv.block_size,
    }
    flags = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    run = subprocess.run([blis, *flags], capture_output=True, text=True, check=True)
    theirs, own = json.loads(run.stdout), result.summary()
    assert theirs["completed"] == REQUESTS
    itl, ttft = (100 * (theirs[f"{name}_s"] / own[name]["mean"] - 1) for name in ("itl", "ttft"))
    return itl, ttft


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blis", required=True, help="the program that is built")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--engine-version", help="of vLLM; the newest unless given")
    asked = parser.parse_args()
    print("| server | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
    print("| --- " * (1 + len(SHARES)) + "|")
    for model, gpus in SERVERS:
        server = gpus | {"engine_version": asked.engine_version}
        subject = Subject.from_options(model, "none", **server, **LENGTHS)
        with tempfile.TemporaryDirectory() as made:
            place = Path(made)
            write_table(model, place / "table", kind="json", fit="none", **server)
            cells = []
            for share in range(len(SHARES)):
                itl, ttft = errors(asked.blis, subject, place, share, asked.seed)
                cells.append(f"{itl:+.1f}%, {ttft:+.1f}%")
        print(f"| {model} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
