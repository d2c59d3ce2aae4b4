"""Data-parallel ranks of vLLM that compute as many tokens as the fullest: errors of rows.

Usage: python benchmarks/padded_ranks.py silicon.csv

Rows of fit and validation (`physim data convert silicon`) under vLLM with more than one rank,
replayed with no fit, as physim does and with padding: of all steps up to 0.15, and of those that
are CUDA graphs from then on. Prints means of absolute errors by version and layout, percent.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd

import physim
from physim.replay.server import ReplayServer

# By version, the largest step to which ranks are padded; rows of 0.19 say how large graphs are.
_LARGEST = {"0.12.0": math.inf, "0.19.0": 2048}
_RUNNING = ReplayServer._running
_WHERE = "part != 'test' and engine == 'vllm' and dp > 1 and engine_version == '{}'"


def _padded(largest: float) -> Any:
    """`ReplayServer._running`, in which each rank has others that are as full as the fullest."""

    def running(server: ReplayServer, lane: Any) -> list[tuple[Any, dict[str, int]]]:
        tokens = [batch.tokens for batch in lane.batches]
        most = max(tokens)
        short = len(tokens) * most - sum(tokens) if most <= largest else 0
        return [
            (batch, {name: count + short for name, count in others.items()})
            for batch, others in _RUNNING(server, lane)
        ]

    return running


def _errors(path: Path, version: str) -> pd.DataFrame:
    """Absolute errors of a version's rows, by the rows' names and layouts, percent."""
    found = physim.evaluate([path], fit="none", where=_WHERE.format(version), method="replay")
    rows = [
        {
            "row": row["experiment"],
            "layout": row["layout"],
            **{name: abs(row["metrics"][f"{name}_mean"]["error_pct"]) for name in ("itl", "ttft")},
        }
        for row in found.rows
    ]
    return pd.DataFrame(rows).set_index(["row", "layout"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    for version, largest in _LARGEST.items():
        before = _errors(path, version)
        with mock.patch.object(ReplayServer, "_running", _padded(largest)):
            after = _errors(path, version)
        both = before.join(after.add_suffix(", padded"))
        print(version)
        print(both.groupby("layout").mean().round(1).to_string())


if __name__ == "__main__":
    main()
