"""What of InferenceX's TTFT no prompt explains: an intercept beside the prediction, by model.

    python benchmarks/warm_up.py

TTFT of each model on a GPU with an engine is taken as an intercept and a multiple of what is
predicted without any warm-up, by least absolute logarithms; rows of the part test are left out. Ten
times the intercept is how long the first of ten requests of each client would have waited. What
``bench_data/public_runs.json`` takes are medians of these.
"""

from __future__ import annotations

import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

import physim
from physim.measured import silicon

# Before that day clients sent no requests to warm up.
_WARMED_UP_FROM = date(2026, 1, 21)
_CELL = ["engine", "period", "model", "hardware", "engine_version"]
# Cells of fewer rows say little; clients of more than so many wait for one another above all.
_ROWS, _CLIENTS = 8, 128
_REQUESTS_PER_CLIENT = 10


def cells() -> pd.DataFrame:
    """Intercept, seconds, and multiple of each cell, with the median error before and after."""
    frame = silicon.read()
    varied = (frame["left_out"] == "") & (frame["part"] != "test") & (frame["input_len_std"] > 0)
    frame = frame[varied & (frame["concurrency"] <= _CLIENTS)].assign(warm_up_s=0.0)
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "silicon.csv"
        frame.to_csv(path, index=False)
        found = physim.evaluate([path], fit="none").to_frame()
    measured = frame.set_index("experiment")["measured"].reindex(found["experiment"])
    found["period"] = np.where(measured.to_numpy() < _WARMED_UP_FROM, "before", "since")
    rows = []
    for cell, some in found.groupby(_CELL):
        if len(some) < _ROWS:
            continue
        seen, bare = (some[f"ttft_mean_{kind}"].to_numpy() for kind in ("observed", "predicted"))
        solved = least_squares(
            lambda at, bare=bare, seen=seen: np.log((at[0] + np.exp(at[1]) * bare) / seen),
            [0.02, 0.0],
            loss="soft_l1",
            f_scale=0.1,
            bounds=([0.0, -2.0], [20.0, 2.0]),
        )
        intercept, multiple = float(solved.x[0]), float(np.exp(solved.x[1]))
        after = (intercept + multiple * bare) / seen - 1
        rows.append(
            dict(zip(_CELL, cell, strict=True))
            | {
                "rows": len(some),
                "intercept_ms": 1e3 * intercept,
                "multiple": multiple,
                "median_before": 100 * float(np.median(np.abs(bare / seen - 1))),
                "median_after": 100 * float(np.median(np.abs(after))),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Prints the cells, and the warm-up of each engine."""
    found = cells()
    print(found.round(2).to_string(index=False))
    waits = _REQUESTS_PER_CLIENT * found.groupby(["engine", "period"])["intercept_ms"].median()
    print("\nwarm-up, s\n" + (1e-3 * waits).round(2).to_string())


if __name__ == "__main__":
    main()
