"""Holds the fluid against the replay under real traffic, and prints Markdown tables.

Run with ``python benchmarks/real_traffic.py`` (a quarter of an hour on two cores), or with some
kinds of arrivals, such as ``python benchmarks/real_traffic.py poisson``; ``--older CHECKOUT`` adds
the fluid of an older commit, on one server. Lengths are those of two
public traces and of five families, arrivals come by chance, in bursts and as a trace has them, and
six servers take 30, 60 and 80% of what the fluid says they serve at most. The traces are read from
``../shared/traces``; without them the presets of the same names stand in, whose arrivals are not
known.

So that a replay of a day's fewest requests says what one of many days would, requests are drawn in
blocks, each of which has the load's own lengths and rate: within a block they come by chance.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TRACES = Path(__file__).parents[2] / "shared" / "traces"
FILES = {
    "azure-conversation-2023": TRACES / "azure_conversation_2023.csv.gz",
    "mooncake-conversation": TRACES / "mooncake_conversation.jsonl.gz",
}
LONGEST_PROMPT, LONGEST_OUTPUT = 30_000, 2_500
# Means and standard deviations of prompts and outputs, tokens.
FAMILIES = {
    "log-normal, sd of the mean": ("lognormal:1200:1200", "lognormal:250:250"),
    "log-normal, sd of 1.5 means": ("lognormal:1200:1800", "lognormal:250:375"),
    "exponential": ("exponential:2000", "exponential:200"),
    "normal": ("normal:1024:256", "normal:256:64"),
    "fixed": ("1024", "256"),
}
SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Qwen/Qwen3-14B", {}),
    "dense, tp 4": ("meta-llama/Llama-3.1-70B-Instruct", {"tp": 4}),
    "experts, tp 2": ("Qwen/Qwen3-30B-A3B", {"tp": 2}),
    "experts, dp 4 ep 4": ("Qwen/Qwen3-30B-A3B", {"dp": 4, "ep": 4}),
    "budget of 1,024": (
        "meta-llama/Llama-3.1-8B-Instruct",
        {"max_num_batched_tokens": 1024, "max_num_seqs": 256, "async_scheduling": False},
    ),
    "SGLang": ("Qwen/Qwen3-14B", {"engine": "sglang"}),
}
# The server whose errors are printed with their signs, and with those of an older commit.
ONE = "dense"
ARRIVALS = ("poisson", "gamma", "trace")
SHARES = (0.3, 0.6, 0.8)
REQUESTS, BLOCK = 12_000, 1_000
LATENCIES = (
    ("itl", "mean"),
    ("e2e", "mean"),
    ("ttft", "mean"),
    ("ttft", "p50"),
    ("ttft", "p90"),
    ("ttft", "p99"),
    ("itl", "p90"),
    ("itl", "p99"),
)
STEPS = ("step_s", "mixed_share")


@dataclass(frozen=True)
class Row:
    """One load on one server.

    Attributes:
        server: A key of `SERVERS`.
        lengths: A key of `FILES` or of `FAMILIES`.
        arrival: One of `ARRIVALS`.
        share: Of what the server serves at most.
    """

    server: str
    lengths: str
    arrival: str
    share: float


def rows(arrivals: Iterable[str]) -> list[Row]:
    """Every load on every server."""
    every = itertools.product(SERVERS, (*FILES, *FAMILIES), arrivals, SHARES)
    return [Row(*one) for one in every]


@functools.cache
def recorded(name: str) -> Any:
    """Requests as a trace has them, cut to what a server takes; None where it is not there."""
    from physim.inputs.request_traces import read_requests

    if not FILES[name].exists():
        return None
    own = read_requests(FILES[name], arrivals=True)
    inputs, outputs = cut(own.input_tokens, own.output_tokens)
    return own._replace(input_tokens=inputs, output_tokens=outputs)


def cut(inputs: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and outputs that a server of 32,768 tokens takes."""
    return np.minimum(inputs, LONGEST_PROMPT), np.minimum(outputs, LONGEST_OUTPUT)


@functools.cache
def lengths(name: str) -> Any:
    """A joint distribution of lengths, which a server of 32,768 tokens takes."""
    import physim

    if name in FAMILIES:
        prompt, output = (physim.Lengths.parse(text) for text in FAMILIES[name])
        both = physim.RequestLengths.independent(prompt, output)
    else:
        both = physim.RequestLengths.read(FILES[name] if FILES[name].exists() else name)
    # Of prompts as a whole: what is found in a cache is another matter.
    inputs, outputs = (tuple(own.tolist()) for own in cut(*both.arrays[::2]))
    return replace(both.uncached(), input_tokens=inputs, output_tokens=outputs, exact=None)


@functools.cache
def dispersion(name: str) -> Any:
    """Recorded arrivals: a trace's own, or those of the first trace for lengths without any."""
    from physim.inputs.arrivals import ArrivalDispersion

    own = recorded(name if name in FILES else next(iter(FILES)))
    return None if own is None else ArrivalDispersion.from_arrivals(own.arrival_s)


@functools.cache
def server(name: str, of: str) -> tuple[Any, float]:
    """A server under some lengths at one request a second, and what it serves at most."""
    import physim
    from physim.corrections.fields import Corrections

    model, options = SERVERS[name]
    load = physim.Load.of_requests(lengths(of), rate=1.0, arrival="poisson")
    case = physim.Case.from_options(model, gpu="h100_sxm", max_model_len=32_768, **options).under(
        load
    )
    (alone,) = physim.predict_cases([case], Corrections())
    return case, alone.saturation_rps


def case_of(row: Row) -> Any:
    """The case of a row."""
    import physim

    case, most = server(row.server, row.lengths)
    about: dict[str, Any] = {"arrival": row.arrival}
    if row.arrival == "gamma":
        about["burstiness"] = 0.5
    if row.arrival == "trace":
        about["dispersion"] = dispersion(row.lengths)
    load = physim.Load.of_requests(lengths(row.lengths), rate=row.share * most, **about)
    return case.under(load)


def workload(row: Row, rate: float, seed: int = 1) -> Any:
    """The requests of a row; see the top of this file."""
    from physim.replay.request import Request
    from physim.replay.workload import Workload

    rng = np.random.default_rng(seed)
    inputs, _, outputs = lengths(row.lengths).arrays
    ranked = np.lexsort((outputs, inputs))
    own = recorded(row.lengths) if row.arrival == "trace" and row.lengths in FILES else None

    def block() -> np.ndarray:
        places = (np.arange(BLOCK) + rng.random(BLOCK)) / BLOCK * len(ranked)
        return ranked[rng.permutation(places.astype(int))]

    if row.arrival == "trace":
        times = np.array(dispersion(row.lengths).at_rate(rate).arrival_s)
        blocks = math.ceil(len(times) / BLOCK)
    else:
        shape = {"poisson": 1.0, "gamma": 0.5}[row.arrival]
        gaps = rng.gamma(shape, 1.0, (REQUESTS // BLOCK, BLOCK))
        gaps *= BLOCK / rate / gaps.sum(axis=1, keepdims=True)
        times = np.cumsum(gaps)
        blocks = REQUESTS // BLOCK
    picked = np.concatenate([block() for _ in range(blocks)])[: len(times)]
    inputs, outputs = inputs[picked], outputs[picked]
    if own is not None:
        # A trace's requests come in its own order.
        inputs, outputs = own.input_tokens, own.output_tokens
    columns = zip(times.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
    requests = [Request(n, at, int(i), int(o)) for n, (at, i, o) in enumerate(columns)]
    return Workload(requests, int((inputs + outputs).max()))


def replayed(row: Row) -> dict[str, float]:
    """Latencies and statistics of steps by the replay: of a load that stays in its middle."""
    from physim.corrections.fields import Corrections
    from physim.prediction.replayed import replay_of

    case = case_of(row)
    result = replay_of(workload(row, case.demanded.rate), case, Corrections())
    frame, within = result.to_frame(), (0.0, np.inf)
    if row.arrival != "trace":
        frame, within = middle(frame)
    found = latencies(result, frame, within)
    own = {f"{metric} {which}": found[metric][which] for metric, which in LATENCIES}
    return own | result.work.between(*within).means()


def middle(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[float, float]]:
    """Requests of a replay while it stays as it is, and when the first and the last arrived."""
    frame = frame.iloc[len(frame) // 5 : int(0.9 * len(frame))]
    first, last = frame["arrival_s"].iloc[[0, -1]]
    return frame, (first, last)


def latencies(
    result: Any, frame: pd.DataFrame, within: tuple[float, float]
) -> dict[str, dict[str, float]]:
    """Latencies of some requests of a replay, with the mean ITL over all of their gaps."""
    found: dict[str, dict[str, float]] = result.latencies(frame, *within)
    gaps = (frame["output_tokens"] - 1).sum()
    found["itl"]["mean"] = (frame["e2e_s"] - frame["ttft_s"]).sum() / gaps
    return found


def errors(row: Row, fluid: Any, found: dict[str, float]) -> dict[str, float]:
    """Errors of the fluid, percent; of steps where a step is the same thing to both."""
    own = {f"{metric} {which}": fluid.whole.latencies[metric][which] for metric, which in LATENCIES}
    if row.arrival != "trace" and row.server != "SGLang":
        own |= {"step_s": fluid.pool.step_s, "mixed_share": fluid.pool.mixed_share}
    return {name: 100 * (value / found[name] - 1) for name, value in own.items()}


def table(found: dict[Row, dict[str, float]], by: str, kinds: Sequence[Any]) -> None:
    """Prints median and 95th percentile of absolute errors, for each kind of row and for all."""
    names = [f"{metric} {which}" for metric, which in LATENCIES] + list(STEPS)
    print(f"\n| {by} | {' | '.join(names)} |")
    print(f"| --- |{' --- |' * len(names)}")
    for kind in (*kinds, None):
        rows = [e for row, e in found.items() if kind is None or getattr(row, by) == kind]
        cells = []
        for name in names:
            values = [abs(e[name]) for e in rows if name in e]
            low, high = np.percentile(values, [50, 95]) if values else (np.nan, np.nan)
            cells.append(f"{low:.1f}, {high:.1f}" if values else "")
        print(f"| {'all' if kind is None else kind} | {' | '.join(cells)} |")


def signed(found: dict[Row, dict[str, float]]) -> None:
    """Prints the errors of `ONE` server under arrivals by chance, with their signs."""
    names = [f"{metric} {which}" for metric, which in LATENCIES]
    print(f"\n| {ONE}: lengths | share | {' | '.join(names)} |")
    print(f"| --- | --- |{' --- |' * len(names)}")
    for row, error in found.items():
        if (row.server, row.arrival) == (ONE, "poisson"):
            cells = " | ".join(f"{error[name]:+.0f}" for name in names)
            print(f"| {row.lengths} | {row.share} | {cells} |")


def older(measured: dict[Row, dict[str, float]], checkout: Path) -> None:
    """Prints what `signed` does of the fluid of an older commit, which has lengths apart.

    Args:
        measured: The replays.
        checkout: A checkout of the commit.
    """
    model, _ = SERVERS[ONE]
    words = [sys.executable, "-c", "from physim.cli import app; app()", "predict", model]
    words += ["--gpu", "h100_sxm", "--max-model-len", "32768", "--arrival", "poisson"]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    found: dict[Row, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for row, own in measured.items():
            # It knows no log-normal lengths.
            if (row.server, row.arrival) != (ONE, "poisson") or row.lengths.startswith("log"):
                continue
            texts = FAMILIES.get(row.lengths) or _files(row.lengths, Path(folder))
            load = ["--rate", str(case_of(row).demanded.rate)]
            load += ["--input", texts[0], "--output", texts[1], "--fit", "none", "--json"]
            # In another folder, or the commit's modules would not be the first that are found.
            done = subprocess.run(
                words + load,
                env=environment,
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            said = json.loads(done.stdout)["whole"]["latencies"]
            found[row] = {}
            for metric, which in LATENCIES:
                name = f"{metric} {which}"
                # Above capacity there is none.
                value = said.get(metric, {}).get(which, math.inf)
                found[row][name] = 100 * (value / own[name] - 1)
    signed(found)


def _files(name: str, folder: Path) -> tuple[str, str]:
    """Prompts and outputs of requests as files of lengths that say nothing of each other."""
    texts = []
    for which, tokens in zip(("input", "output"), lengths(name).arrays[::2], strict=True):
        path = folder / f"{name}-{which}"
        path.write_text("\n".join(f"{one:g}" for one in tokens))
        texts.append(f"file:{path}")
    return texts[0], texts[1]


def regimes(found: dict[Row, dict[str, float]]) -> None:
    """Prints the fluid's error by regime: what `physim.prediction.approximation` holds."""
    from physim.prediction.approximation import ERRORS, SHARES, SPREADS, in_bursts, spread_of

    print("\nRoot mean square of the logarithm of the fluid over the replay, by load and spread\n")
    places: dict[tuple[bool, int, int], list[Row]] = {}
    for row in found:
        case = case_of(row)
        load, spread = np.searchsorted(SHARES, row.share), np.searchsorted(SPREADS, spread_of(case))
        places.setdefault((in_bursts(case.demanded), int(load), int(spread)), []).append(row)
    for metric, bursts in itertools.product(ERRORS, sorted({place[0] for place in places})):
        table = tuple(
            tuple(
                _rms([found[row][f"{metric} mean"] for row in places.get((bursts, i, j), [])])
                for j in range(len(SPREADS) + 1)
            )
            for i in range(len(SHARES) + 1)
        )
        print(f"{metric}, {'in bursts' if bursts else 'by chance'}: {table}")


def _rms(errors: list[float]) -> float:
    """Root mean square of the logarithms of errors in percent; NaN of none."""
    squares = np.square(np.log1p(np.array(errors) / 100))
    return round(float(np.sqrt(np.mean(squares))), 3) if errors else math.nan


def main() -> None:
    """Prints the tables."""
    import physim
    from physim.corrections.fields import Corrections

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arrivals", nargs="*", help=f"of {', '.join(ARRIVALS)}; all if none")
    parser.add_argument("--older", type=Path, help="a checkout of a commit to compare with")
    options = parser.parse_args()
    arrivals = options.arrivals or [
        one for one in ARRIVALS if one != "trace" or all(path.exists() for path in FILES.values())
    ]
    every = rows(arrivals)
    fluid = physim.predict_cases([case_of(row) for row in every], Corrections())
    # Threads of JAX do not outlive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        measured = list(pool.map(replayed, every, chunksize=3))
    found = {
        row: errors(row, one, own) for row, one, own in zip(every, fluid, measured, strict=True)
    }
    print(f"Absolute errors, percent: median, 95th percentile; {len(every)} loads")
    table(found, "arrival", arrivals)
    table(found, "lengths", (*FILES, *FAMILIES))
    table(found, "server", tuple(SERVERS))
    table(found, "share", SHARES)
    signed(found)
    if options.older:
        print(f"\nThe same of {options.older}:")
        older(dict(zip(every, measured, strict=True)), options.older)
    regimes(found)


if __name__ == "__main__":
    main()
