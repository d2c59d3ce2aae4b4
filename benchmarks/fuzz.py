"""Tries many thousand inputs that are wrong in some way.

Run with ``python benchmarks/fuzz.py --malformed 20000``. It ends at the first that raises anything
but one line of what to do, or that is read as something that it is not; the seed that it names
makes that input again. `benchmarks/laws.py` tries inputs that are right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--malformed", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    malformed(given.malformed, given.seed)


if __name__ == "__main__":
    main()
