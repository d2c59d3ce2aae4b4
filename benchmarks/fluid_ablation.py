"""What each named number of the fluid buys against the replay: a Markdown table, sorted.

Run with ``python benchmarks/fluid_ablation.py``, or with the constants of some modules or names,
such as ``python benchmarks/fluid_ablation.py steady rounds._GAPLESS``. Each constant is doubled and
halved (one between 0 and 1 has its odds doubled and halved), and the same loads are predicted by a
fresh process from a copy of the source that has the other number, with nothing kept: nothing that
was compiled for another number is met. Loads that do not come to its module stay as they were. The
replays are made once, and so are the loads: their rates do not follow the constant.

An error is what a prediction differs by from the replay, percent, of a mean, a percentile or a
throughput of a load. The table says by how many points their median and the worst of them rise, how
many predictions move and by how much their own mean error rises: a constant of few loads moves no
median. One that moves nothing buys nothing here; one whose errors fall when it changes was chosen
on other loads; where a change fails, the number is part of the structure.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fluid_constants
import numpy as np
import real_traffic
from fluid_constants import Constant, Number

# Servers, lengths, arrivals and shares of what they serve at most.
ROWS = [
    real_traffic.Row(*row)
    for row in (
        ("dense", "azure-conversation-2023", "poisson", 0.6),
        ("dense", "log-normal, sd of 1.5 means", "gamma", 0.8),
        ("dense", "fixed", "poisson", 0.8),
        ("dense, tp 4", "azure-conversation-2023", "gamma", 0.6),
        ("dense, tp 4", "fixed", "poisson", 0.3),
        ("experts, tp 2", "azure-conversation-2023", "poisson", 0.8),
        ("experts, dp 4 ep 4", "log-normal, sd of 1.5 means", "poisson", 0.6),
        ("experts, dp 4 ep 4", "azure-conversation-2023", "gamma", 0.6),
        ("budget of 1,024", "azure-conversation-2023", "poisson", 0.6),
        ("budget of 1,024", "log-normal, sd of 1.5 means", "gamma", 0.3),
        ("SGLang", "azure-conversation-2023", "poisson", 0.6),
        ("SGLang", "fixed", "gamma", 0.8),
    )
]
# Of benchmarks/clients.py: which load, how much outputs vary, and requests of each client.
CLIENTS = (
    (2, 0.003, 100),
    (5, 0.003, 10),
    (6, 0.05, 10),
    (9, 0.2, 10),
    (10, 0.0, 10),
    (11, 0.01, 10),
)
# Loads that end, above what is served: in stages, with a full KV cache, and with clients who give
# up. As many stages of each, for which one function is compiled.
OVERLOADS: tuple[dict[str, Any], ...] = (
    {"max_num_seqs": 64, "stages": [(4, 300), (14, 300), (4, 300)]},
    {"kv_blocks": 3000, "max_num_seqs": 48, "max_model_len": 8192, "stages": [(12, 80)] * 3},
    {"max_num_seqs": 64, "stages": [(4, 300), (14, 300), (4, 300)], "timeout_s": 20.0},
)
OVERLOADED: dict[str, Any] = {"gpu": "h100_sxm", "input_tokens": 1024, "arrival": "poisson"}

# Modules that some loads alone come to; all loads come to the others.
FELT = {
    "benchmark": "clients",
    "busy_steps": "clients",
    "first_prompts": "clients",
    "rounds": "clients",
    "prompt_runs": "SGLang",
    "transient": "overloads",
    "request_latencies": "overloads",
}

NAMES = {f"{metric} {which}" for metric, which in real_traffic.LATENCIES} | {"requests/s"}
# Share by which a number has to move to count.
MOVED = 1e-3

Found = dict[str, float]
WORKER = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import physim
if not physim.__file__.startswith(sys.argv[2]):
    raise ImportError(f"ImportError: {physim.__file__} is not the copy in {sys.argv[2]}")
from fluid_ablation import predicted
print(predicted(sys.argv[3]))
"""


@dataclass(frozen=True)
class Effect:
    """What a change of a constant does.

    Attributes:
        values: The other numbers.
        median: Rise of the median error, points,
        worst: and of the worst.
        moved: Numbers that move by 0.1% or more,
        mean: and the rise of their mean error, points.
        most: Largest change of any number, percent.
        failed: Why nothing was predicted; None where it was.
    """

    values: tuple[Number, ...]
    median: float = 0.0
    worst: float = 0.0
    moved: int = 0
    mean: float = 0.0
    most: float = 0.0
    failed: str | None = None


def loads() -> list[Any]:
    """The cases that are predicted."""
    import clients

    import physim

    closed = []
    for number, spread, rounds in CLIENTS:
        case = clients.cases(spread)[number]
        requests = rounds * clients.LOADS[number][0]
        closed.append(case.under(replace(case.demanded, requests=requests)))
    output = physim.Lengths.normal(256, 64)
    above = [
        physim.Case.from_options("Qwen/Qwen3-14B", output_tokens=output, **OVERLOADED, **one)
        for one in OVERLOADS
    ]
    return [*map(real_traffic.case_of, ROWS), *closed, *above]


def feel(module: str) -> list[int]:
    """Places among the loads of those that come to a module of the fluid."""
    kinds = [row.server for row in ROWS]
    kinds += ["clients"] * len(CLIENTS) + ["overloads"] * len(OVERLOADS)
    return [place for place, kind in enumerate(kinds) if FELT.get(module, kind) == kind]


def numbers(prediction: Any) -> Found:
    """What is compared of a prediction: means and percentiles, and what ends, its throughput."""
    whole = prediction.whole.latencies
    found = {
        f"{metric} {which}": whole.get(metric, {}).get(which)
        for metric, which in real_traffic.LATENCIES
    }
    found["requests/s"] = prediction.requests_per_s
    return {name: float(value) for name, value in found.items() if value is not None}


def replayed(number: int, case: Any) -> Found:
    """The same of the replay."""
    if number < len(ROWS):
        return real_traffic.replayed(ROWS[number])
    import physim
    from physim.corrections.fields import Corrections

    return numbers(physim.predict_cases([case], Corrections(), method="replay")[0])


def predicted(path: str) -> str:
    """What the fluid says of the cases in a file, as JSON."""
    import physim
    from physim.corrections.fields import Corrections

    with Path(path).open("rb") as file:
        cases = pickle.load(file)
    return json.dumps([numbers(one) for one in physim.predict_cases(cases, Corrections())])


def predicted_with(
    constant: Constant | None, values: tuple[Number, ...], cases: Sequence[Any]
) -> list[Found] | str:
    """What the fluid says with other numbers for a constant; the last line of the error if none."""
    with tempfile.TemporaryDirectory() as folder:
        fluid_constants.copy_with(constant, values, Path(folder))
        path = Path(folder) / "cases.pickle"
        path.write_bytes(pickle.dumps(cases))
        # The copy comes before what is installed, and nothing that was compiled is kept.
        own = {"PYTHONPATH": folder, "JAX_ENABLE_COMPILATION_CACHE": "false"}
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(Path(__file__).parent), folder, str(path)],
            env=os.environ | own,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip(" -")]
        return next((line for line in reversed(lines) if "Error" in line), lines[-1])
    found: list[Found] = json.loads(done.stdout)
    return found


def compared(found: list[Found], exact: list[Found]) -> np.ndarray:
    """The numbers that the replay has too, in its order; not a number where one is missing."""
    return np.array(
        [
            own.get(name, np.nan)
            for own, of in zip(found, exact, strict=True)
            for name, value in of.items()
            if name in NAMES and value > 0
        ]
    )


def differences(found: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Absolute differences, percent: 100 where only one is finite, nought where neither is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        both = np.where(np.isfinite(found) == np.isfinite(of), 0.0, 100.0)
        return np.where(np.isfinite(found / of), 100 * np.abs(found / of - 1), both)


def effect(
    found: list[Found] | str,
    values: tuple[Number, ...],
    before: list[Found],
    exact: list[Found],
) -> Effect:
    """What a change does, of predictions with it and without."""
    if isinstance(found, str):
        return Effect(values, failed=found)
    true, now, then = (compared(one, exact) for one in (exact, found, before))
    rise = differences(now, true) - differences(then, true)
    changes = differences(now, then)
    moved = changes >= 100 * MOVED
    return Effect(
        values,
        median=float(np.median(differences(now, true)) - np.median(differences(then, true))),
        worst=float(np.max(differences(now, true)) - np.max(differences(then, true))),
        moved=int(moved.sum()),
        mean=float(rise[moved].mean()) if moved.any() else 0.0,
        most=float(np.max(changes)),
    )


def line(constant: Constant, effects: list[Effect]) -> str:
    """A row of the table."""

    def cell(one: Effect) -> str:
        to = ", ".join(f"{value:.4g}" for value in one.values)
        if one.failed is not None:
            return f"{to}: {one.failed[:60]}"
        of_moved = f"{one.moved} by {one.mean:+.2f}" if one.moved else "none"
        return f"{to}: {one.median:+.2f}, {one.worst:+.1f}; {of_moved}; {one.most:.2g}%"

    parts = [f"`{constant.full_name}`", f"{constant.text}", constant.meaning, *map(cell, effects)]
    return f"| {' | '.join(part.replace('|', '/') for part in parts)} |"


def buys(effects: list[Effect]) -> tuple[float, ...]:
    """What to sort by, of the change that matters more: the rise of all errors, median, worst."""
    return max((e.moved * e.mean, e.median, e.worst, e.most) for e in effects)


def asked_for(names: list[str]) -> list[Constant]:
    """The constants of the modules and with the names that are given, or all."""
    every = fluid_constants.constants()
    known = {name for one in every for name in (one.module, one.name, one.full_name)}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{unknown[0]}: no such constant or module of the fluid; leave names out")
    wanted = set(names)
    return [one for one in every if not names or wanted & {one.module, one.name, one.full_name}]


def main() -> None:
    """Prints the table."""
    chosen = asked_for(sys.argv[1:])
    cases = loads()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        exact = list(pool.map(replayed, range(len(cases)), cases))
    before = predicted_with(None, (), cases)
    if isinstance(before, str):
        sys.exit(before)
    changes = [(one, one.changed(up)) for one in chosen for up in (True, False)]

    def changed(constant: Constant, values: tuple[Number, ...]) -> list[Found] | str:
        felt = feel(constant.module)
        found = predicted_with(constant, values, [cases[place] for place in felt])
        if isinstance(found, str):
            return found
        own = dict(zip(felt, found, strict=True))
        return [own.get(place, as_before) for place, as_before in enumerate(before)]

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(lambda one: changed(*one), changes))
    effects: dict[Constant, list[Effect]] = {one: [] for one in chosen}
    for (constant, values), own in zip(changes, found, strict=True):
        effects[constant].append(effect(own, values, before, exact))
    now = differences(compared(before, exact), compared(exact, exact))
    print(f"Errors of {len(now)} numbers of {len(cases)} loads, percent: ", end="")
    print(f"median {np.median(now):.2f}, worst {np.max(now):.1f}")
    print("\nChanges: rise of the median and of the worst error, points; how many numbers move by ")
    print(f"{MOVED:.1%} or more and the rise of their mean error; the most that any moves\n")
    print("| constant | value | meaning | doubled | halved |\n| --- | --- | --- | --- | --- |")
    for constant in sorted(chosen, key=lambda one: buys(effects[one]), reverse=True):
        print(line(constant, effects[constant]))


if __name__ == "__main__":
    main()
