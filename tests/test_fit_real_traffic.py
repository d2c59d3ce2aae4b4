"""A fit through replayed conversations of Azure, whose corrections are known."""

import importlib
from pathlib import Path

import pandas as pd
import pytest


@pytest.mark.slow
def test_corrections_come_back_through_real_traffic(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    script = importlib.import_module("fit_real_traffic")

    true = {"gemm_memory": 0.15, "all_reduce": 0.3}
    rows = [
        script.run(tmp_path, "Qwen/Qwen3-14B", tp, share, true)
        for tp in (1, 4)
        for share in (0.2, 0.4, 0.6)
    ]
    path = tmp_path / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    # Half-widths of what 5,600 requests of a run can tell, and far from nothing found.
    widest = {"gemm_memory": 0.05, "all_reduce": 0.1}
    for name, value, middle, low, high in script.found(path, true):
        assert low < value < high
        assert high - middle < widest[name]
    off = script.errors(path, true)
    assert abs(off["itl"]).max() < 2
    assert abs(off["ttft"]).max() < 5
