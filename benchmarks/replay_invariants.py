"""Replays random services under random loads, and holds them against what must hold of all replays.

    python benchmarks/replay_invariants.py [--cases 2000] [--start 0]

Drafts, pools apart, replicas behind every router, host memory, shared prefixes, conversations,
changing and draining loads and clients who give up, in every mixture that there is
(`tests/invariants.py`): each request ends once, with the tokens that it asked for and none before
its prompt is computed and there; KV blocks of every pool and tier stay within bounds and add up;
nothing is lost at routers and links; a replay again is the same to the last bit. It ends at the
first case of which that does not hold; its number makes it again. In the end it prints how many
cases had what, and what happened in them.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    asked = parser.parse_args()
    from invariants import check_replay  # type: ignore[import-not-found]

    features: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    begun = time.process_time()
    for seed in range(asked.start, asked.start + asked.cases):
        try:
            found = check_replay(seed)
        except BaseException:
            print(f"case {seed}")
            raise
        features.update(found.drawn.features)
        counts.update(found.counts)
    taken = time.process_time() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{asked.cases:,} cases in {taken:.0f} CPU s, {memory:.0f} MiB: all holds")
    print("| cases with | |\n| --- | --- |")
    for name, count in features.most_common():
        print(f"| {name} | {count:,} |")
    print("\n| what happened | |\n| --- | --- |")
    for name, count in counts.most_common():
        print(f"| {name} | {count:,} |")


if __name__ == "__main__":
    main()
