"""Measured step cycles: fitted to the first 60% of each run's time, held against the last 20%.

Usage: python benchmarks/cycles.py STEPS.parquet RUNS.csv [RUNS.csv ...]
"""

from __future__ import annotations

import sys

import jax
import numpy as np

from physim.corrections import Corrections
from physim.fitting.objective import Problem
from physim.fitting.observations import observe
from physim.fitting.optimise import minimise
from physim.fitting.steps import log_cycles, observe_steps


def main() -> None:
    steps, *tables = sys.argv[1:]
    training, _ = observe_steps(steps, tables, (0.0, 0.6))
    problem = Problem.of(observe(tables).stages, training)
    parameters, _ = minimise(problem)
    predicted = jax.jit(lambda corrections, cycles: log_cycles(corrections, cycles, "additive"))
    print("| run | part | steps | zero-shot | fitted | r, decode-only | r of a line | r, 99% |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, share in (("validation", (0.6, 0.8)), ("test", (0.8, 1.0))):
        cycles, frame = observe_steps(steps, tables, share)
        seen = np.exp(np.asarray(cycles.observed))
        bare, fitted = (
            np.exp(np.asarray(predicted(corrections, cycles)))
            for corrections in (Corrections(), problem.corrections(parameters))
        )
        for run in dict.fromkeys(frame["experiment"]):
            own = (frame["experiment"] == run).to_numpy()
            decode = own & (frame["prefill_requests"] == 0).to_numpy()
            batch = frame["decode_requests"].to_numpy(float)[decode]
            usual = seen[decode] <= np.quantile(seen[decode], 0.99)
            cells = [
                f"{100 * np.median(np.abs(values[own] / seen[own] - 1)):.1f}%"
                for values in (bare, fitted)
            ]
            cells += [
                f"{np.corrcoef(one, other)[0, 1]:.2f}"
                for one, other in (
                    (fitted[decode], seen[decode]),
                    (batch, seen[decode]),
                    (fitted[decode][usual], seen[decode][usual]),
                )
            ]
            print(f"| {run} | {name} | {np.sum(own)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
