"""What a minute of start-up costs: policies that scale servers, over a load that steps up and down.

    python benchmarks/scaling.py [--plot FILE]
    python benchmarks/scaling.py --derived

80 minutes of Qwen3-14B on H100 GPUs, 44,000 requests, replayed with each policy and each start-up
time. The picture is of the first policy with the longest. With --derived it is the target that
`requests=auto` finds for each start-up time (docs/lab/scaling.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import physim
from physim.inputs.lengths import Lengths
from physim.inputs.profile import LoadProfile, Window

# Requests per second, five minutes each.
RATES = (2, 2, 3, 3, 5, 12, 16, 16, 10, 18, 20, 20, 9, 6, 3, 3)
POLICIES = ("requests=24", "running=24", "kv=0.2", "waiting=2", "ttft=300ms", "schedule=60s")
START_UPS_S = (0.0, 60.0, 120.0, 300.0)
SLO, GOODPUT = ("ttft=1s", "tpot=30ms"), 0.95


def stepping_load() -> LoadProfile:
    """The load."""
    prompts, outputs = (
        Lengths.parse(text, "lengths") for text in ("lognormal:1800:1100", "lognormal:250:130")
    )
    windows = [
        Window(300.0 * place, 300.0, float(rate), prompts, outputs)
        for place, rate in enumerate(RATES)
    ]
    return LoadProfile(tuple(windows))


def scaled(policy: str, start_ups_s: Sequence[float]) -> physim.ScaledDay:
    """The load with an autoscaler."""
    return physim.scale(
        "Qwen/Qwen3-14B",
        stepping_load(),
        slo=SLO,
        policy=policy,
        goodput=GOODPUT,
        most=6,
        start_ups_s=start_ups_s,
        gpu="h100_sxm",
        router="least_requests",
    )


def derived() -> None:
    """Prints the targets that are derived."""
    print("| start-up | `requests=auto` | share of the rate | goodput | GPU-hours |")
    print("| --- " * 5 + "|")
    for start_up_s in START_UPS_S:
        day = scaled("requests=auto", [start_up_s])
        found, run = day.threshold, day.runs[0]
        assert found is not None
        cells = [f"{start_up_s:g} s", f"{found.policy.target:g}", f"{found.share:.0%}"]
        cells += [f"{run.goodput:.1%}", f"{run.gpu_hours:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="a PNG or SVG")
    parser.add_argument("--derived", action="store_true", help="targets that are derived")
    asked = parser.parse_args()
    if asked.derived:
        derived()
        return
    plot = asked.plot
    first, *more = (f"{one:g} s" for one in START_UPS_S)
    rest = " | ".join(more)
    print(f"| servers | goodput, start-up {first} | {rest} | GPU-hours, {first} | {rest} |")
    print("| --- " * (1 + 2 * len(START_UPS_S)) + "|")
    for policy in POLICIES:
        day = scaled(policy, START_UPS_S)
        if policy == POLICIES[0]:
            for run in (day.fixed, day.schedule):
                print(f"| {run.name} | {run.goodput:.2%} | | | | {run.gpu_hours:.2f} | | | |")
            if plot is not None:
                from physim.plot import draw_scaling, save

                save(draw_scaling(day), plot)
        shares = " | ".join(f"{run.goodput:.2%}" for run in day.runs)
        hours = " | ".join(f"{run.gpu_hours:.2f}" for run in day.runs)
        print(f"| `{policy}` | {shares} | {hours} |", flush=True)


if __name__ == "__main__":
    main()
