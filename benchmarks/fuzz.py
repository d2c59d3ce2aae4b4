"""Tries many thousand inputs that are wrong in some way, and many that are right.

Run with ``python benchmarks/fuzz.py --malformed 20000 --valid 3000``. It ends at the first that
raises anything but one line of what to do, that is read as something that it is not, or whose
prediction breaks a law; the seed that it names makes that input again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

TOGETHER = 256
# Longer than any input should take, seconds.
LONGEST_S = 5.0


def malformed(count: int, start: int) -> None:
    """Prints how many of each kind were refused, and how many read."""
    from fuzzing import MALFORMED, refused_or_read  # type: ignore[import-not-found]

    seen: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(start, start + count):
            kind = list(MALFORMED)[seed % len(MALFORMED)]
            begun = time.perf_counter()
            try:
                seen[kind, refused_or_read(kind, seed, Path(folder))] += 1
            except BaseException:
                print(f"{kind}, seed {seed}")
                raise
            taken = time.perf_counter() - begun
            if taken > LONGEST_S:
                raise SystemExit(f"{kind}, seed {seed}: took {taken:.1f} s")
    print("| kind | refused | read |\n| --- | --- | --- |")
    for kind in MALFORMED:
        print(f"| {kind} | {seen[kind, True]} | {seen[kind, False]} |")


def valid(count: int, start: int) -> None:
    """Checks predictions of cases that can be predicted."""
    from fuzzing import check_monotone, check_predictions, valid_case

    rng = np.random.default_rng(start)
    for done in range(0, count, TOGETHER):
        cases = [valid_case(rng) for _ in range(min(TOGETHER, count - done))]
        check_predictions(cases)
        check_monotone(cases)
    print(f"\n{count} cases predicted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--malformed", type=int, default=20_000)
    parser.add_argument("--valid", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    malformed(given.malformed, given.seed)
    if given.valid:
        valid(given.valid, given.seed)


if __name__ == "__main__":
    main()
