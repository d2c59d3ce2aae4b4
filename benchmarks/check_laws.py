"""Holds predictions of many random cases against the laws of `tests/laws.py`.

Run with ``python benchmarks/check_laws.py --cases 2000``. Of every batch it prints the first
prediction that breaks a law; then saturation throughputs that fall with slots, beside what a replay
says of them, and derivatives that are no differences.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

# Most of the time would go to compiling, so little is optimised.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
)

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

# Cases of one call, all of one engine, so that few shapes are compiled.
TOGETHER = 64
# Saturation throughputs that fall by less with twice the slots are not replayed, and a replay's
# may fall by so much less.
LEAST, BESIDE = 0.03, 0.05
# A replay is of so many times the slots, in clients and in requests.
CLIENTS, REQUESTS = 2, 8
# Slots of an engine whose replay is not too long.
MOST_SLOTS = 1024


def main() -> None:
    """Tries cases, and prints what was found."""
    import laws  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--derivatives", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    batches, falls, broken = [], [], 0
    begun = time.perf_counter()
    for number in range(0, given.cases, TOGETHER):
        engine = laws.ENGINES[number // TOGETHER % len(laws.ENGINES)]
        cases = [laws.valid_case(rng, engine=engine) for _ in range(TOGETHER)]
        batches.append(cases)
        for law in (laws.check_predictions, laws.check_monotone, laws.check_alone):
            try:
                law(cases)
            except AssertionError as error:
                broken += 1
                print(f"{law.__name__}: {error}", flush=True)
        falls += laws.falls_with_slots(cases, LEAST)
        print(f"{number + TOGETHER} cases, {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"\n{broken} laws broken\n")
    _print_falls(laws, falls)
    _print_derivatives(laws, batches, given.derivatives)
    sys.exit(broken > 0)


def _print_falls(laws: Any, falls: list[Any]) -> None:
    """Prints saturation throughputs that fall with slots, beside those of replays."""
    print(f"{len(falls)} saturation throughputs fall by {LEAST:.0%} or more with twice the slots")
    for fall in falls:
        few, many = (case.server.sizes.max_num_seqs for case in (fall.few, fall.many))
        line = f"{laws.described(fall.few)}, {few} to {many} slots: {fall.ratio - 1:+.0%}"
        ranks = fall.few.server.parallelism.dp
        if many * ranks <= MOST_SLOTS:
            before, after = (
                laws.replayed_saturation(case, CLIENTS * ranks * many, REQUESTS * ranks * many)
                for case in (fall.few, fall.many)
            )
            more = fall.ratio < after / before - BESIDE
            line += f", the replay {after / before - 1:+.0%}{': MORE' if more else ''}"
        print(line, flush=True)


def _print_derivatives(laws: Any, batches: list[Any], count: int) -> None:
    """Prints derivatives that are no differences, of as many as are asked for."""
    compared, wrong = 0, []
    for cases in batches:
        if compared >= count:
            break
        some = cases[:16]
        slopes = laws.slopes(some)
        compared += int(slopes.notable().sum())
        wrong += [
            f"{laws.described(some[case])}: {laws.METRICS[metric]} by {slopes.by[by]}: "
            f"{slopes.derivatives[case, metric, by]:.4f}, by differences "
            f"{slopes.differences[case, metric, by]:.4f}"
            for case, metric, by in zip(*np.nonzero(slopes.off(0.05)), strict=True)
        ]
    print(f"\n{compared} derivatives compared, {len(wrong)} off by 5%")
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
