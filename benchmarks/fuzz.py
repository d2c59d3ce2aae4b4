"""Tries many thousand inputs that are wrong in some way, and lists fields of which nothing comes.

Run with ``python benchmarks/fuzz.py --malformed 20000 --fields``. It ends at the first input that
raises anything but one line of what to do, that takes too long, or that is read as something that
it is not; the seed that it names makes that input again. `benchmarks/check_laws.py` tries inputs
that are right.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

# Longer than any input should take, seconds of the processor; and of the clock, for what hangs.
LONGEST_S, GIVEN_UP_S = 5.0, 100.0


def malformed(count: int, start: int) -> None:
    """Prints how many of each kind were refused, and how many read."""
    from fuzzing import MALFORMED, refused_or_read  # type: ignore[import-not-found]

    seen: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(start, start + count):
            kind = list(MALFORMED)[seed % len(MALFORMED)]
            begun = time.process_time()
            faulthandler.dump_traceback_later(GIVEN_UP_S, exit=True)
            try:
                seen[kind, refused_or_read(kind, seed, Path(folder))] += 1
            except BaseException:
                print(f"{kind}, seed {seed}")
                raise
            faulthandler.cancel_dump_traceback_later()
            taken = time.process_time() - begun
            if taken > LONGEST_S:
                raise SystemExit(f"{kind}, seed {seed}: took {taken:.1f} s")
    print("| kind | refused | read |\n| --- | --- | --- |")
    for kind in MALFORMED:
        print(f"| {kind} | {seen[kind, True]} | {seen[kind, False]} |")


def fields() -> bool:
    """Prints the fields of which nothing comes, with the reasons; false where one has none."""
    from fuzzing import MODELS
    from fuzzing_fields import (  # type: ignore[import-not-found]
        unread_of_config,
        unread_of_gpu,
        unread_options,
        why_ignored,
    )
    from fuzzing_measured import FORMATS  # type: ignore[import-not-found]

    found: dict[str, set[str]] = {
        "config": {field for model in MODELS for field in unread_of_config(model)},
        "option": unread_options(),
    }
    with tempfile.TemporaryDirectory() as folder:
        found["gpu"] = unread_of_gpu("h100_sxm", Path(folder))
        found |= {kind: one.unread(Path(folder)) for kind, one in FORMATS.items()}
    print("\n| of | field | why nothing comes of it |\n| --- | --- | --- |")
    for kind, names in found.items():
        for field in sorted(names):
            print(f"| {kind} | {field} | {why_ignored(kind, field) or '?'} |")
    return all(why_ignored(kind, field) for kind, names in found.items() for field in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--malformed", type=int, default=20_000)
    parser.add_argument("--fields", action="store_true", help="List fields that change nothing.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    malformed(given.malformed, given.seed)
    if given.fields and not fields():
        raise SystemExit("of some fields nothing comes, and it is not known why")


if __name__ == "__main__":
    main()
