"""What a log of steps is worth: held loads of servers whose corrections nobody knows.

Usage: python benchmarks/calibration.py [--cases 50] [--seed 0] [--only log] [--write FOLDER]

Each case is a server whose corrections are drawn from their priors, replayed for ten minutes under
a load that changes. What it leaves is what a user has: the iteration log of the ten minutes, whose
times scatter by 3%; 20 batches timed by `vllm bench forward`, which scatter by 1%; and what two
scrapes count, a minute apart, with latencies in vLLM's bins. A fit learns from them, or from what
--only names of them, and predicts a load of other requests than those of the log. Printed is the
error against a replay of that load with the hidden corrections, before and after; that of the fluid
with the hidden corrections, which no fit undercuts but by chance; and how often the replay is
within the interval of nine in ten: the one that physim states, which holds how far models that no
fit has seen are off, and one of what there is to err in here, the corrections and the fluid.

With --write nothing is fitted: the log of the first server's first minutes, its timed batches and
its corrections are written for the notebook that shows how one is calibrated.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from physim.corrections.fields import CORRECTIONS, Corrections, labels, unflat
from physim.corrections.files import NO_FIT, load_fit
from physim.fitting.fit import fit
from physim.fitting.next_runs import spread_of
from physim.inputs.case import Case
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.measured.histogram import Histogram
from physim.prediction.arrays import step_model_of
from physim.prediction.checked import checked
from physim.prediction.intervals import predict_with_interval
from physim.prediction.many import predict_cases
from physim.prediction.replayed import replay_load
from physim.replay.outcome import Replayed, completed_of
from physim.step.batch import Batch
from physim.step.lowering import PART_NAMES
from physim.step.many_batches import part_seconds

_SERVERS = (
    ("Qwen/Qwen3-8B", "h100_sxm", 1),
    ("meta-llama/Llama-3.1-70B-Instruct", "h100_sxm", 4),
    ("Qwen/Qwen3-30B-A3B", "h200_sxm", 1),
    ("Qwen/Qwen3-14B", "a100_sxm", 2),
)
# Shares of the highest rate in each of ten minutes.
_PROMPTS, _ANSWER = Lengths.parse("lognormal:900:700"), 200
_SHARES = (0.2, 0.4, 0.3, 0.6, 0.75, 0.5, 0.7, 0.35, 0.55, 0.25)
_HELD = 0.6
_MINUTE_S, _SHORT_S, _NOISE, _NOISE_OF_BATCHES = 60.0, 8.0, 0.03, 0.01
_BATCHES = [(n, 1, c) for n in (1, 8, 32, 64, 128) for c in (256, 2048)]
_BATCHES += [(1, q, c) for q in (128, 512, 1024, 2048, 4096) for c in (0, 2048)]
_SHOWN = ("ttft", "itl", "e2e")
_EVIDENCE = ("log", "batches", "scrapes")
# The minute between the scrapes, and the upper ends of vLLM's bins.
_MINUTE = 3
_ENDS = {
    "ttft": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
        *(10, 20, 40, 80, 160, 640, 2560),
    ),
    "e2e": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
}
_NOT_IN_FORWARD = ("lm_head", "sampling", "step_overhead", "host")
_LINE = (
    "(APIServer pid=1) INFO 11-25 11:17:17 [loggers.py:199] Engine 000: Iteration({}): {:.0f} "
    "context requests, {:.0f} context tokens, {:.0f} generation requests, {:.0f} generation "
    "tokens, iteration elapsed time: {:.2f} ms, GPU KV cache usage: {:.1f}%\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=_EVIDENCE)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    if asked.write is not None:
        _write(asked.write, np.random.default_rng([asked.seed, 0]))
        return
    kinds = [asked.only] if asked.only else list(_EVIDENCE)
    errors: list[list[list[float]]] = []
    within: list[list[list[bool]]] = []
    inside: list[float] = []
    for number in range(asked.cases):
        rng = np.random.default_rng([asked.seed, number])
        found = _case(rng, _SERVERS[number % len(_SERVERS)], kinds)
        errors.append(found[0])
        within.append(found[1])
        inside.append(found[2])
        print(number, np.round(100 * np.array(found[0]), 1).tolist(), flush=True)
    print("\n| median error (nine in ten), % | TTFT | ITL | E2E |\n| --- | --- | --- | --- |")
    middle, worst = np.median(errors, axis=0), np.quantile(errors, 0.9, axis=0)
    names = ("nothing fitted", "calibrated", "the fluid with the hidden corrections")
    for name, *rows in zip(names, middle, worst, strict=True):
        cells = (f"{100 * m:.1f} ({100 * w:.1f})" for m, w in zip(*rows, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")
    whole = ("", " of the corrections and the fluid")
    for name, inside_it in zip(whole, np.mean(within, axis=0), strict=True):
        shares = " | ".join(f"{100 * share:.0f}" for share in inside_it)
        print(f"| within the interval{name}, % of cases | {shares} |")
    print(f"corrections within their intervals: {100 * np.mean(inside):.0f}%")


def _case(
    rng: np.random.Generator, server: tuple[str, str, int], kinds: list[str]
) -> tuple[list[list[float]], list[list[bool]], float]:
    model, gpu, tp = server
    case = Case.from_options(model, gpu=gpu, tp=tp)
    truth = _hidden(rng, case)
    load, result = _replayed(case, truth, _MINUTE_S)
    other = replace(load, input_tokens=2500, output_tokens=150)
    held = case.under(replace(other, rate=_HELD * _most(case.under(other), truth)))
    with tempfile.TemporaryDirectory() as folder:
        texts = {
            "log": ("server.log", _log(rng, result, case)),
            "batches": ("forward.json", json.dumps(_timed(rng, case, truth))),
            "scrapes": ("counted.csv", _counted(case, load, result).to_csv(index=False)),
        }
        files = {}
        for kind in kinds:
            name, text = texts[kind]
            files[kind] = Path(folder) / name
            files[kind].write_text(text)
        steps = [files[kind] for kind in ("log", "batches") if kind in files]
        outcome = fit(
            [files["scrapes"]] if "scrapes" in files else [],
            steps=steps or None,
            server=case if steps else None,
            base=NO_FIT,
        )
    (exact,) = predict_cases([held], [truth])
    check = checked(exact, held, truth, seed=1)
    seen = {row.quantity: row.replay for row in check.rows if row.statistic == "mean"}
    start = predict_with_interval(held, load_fit(NO_FIT).on(held))
    calibration = outcome.fit.on(held)
    found = predict_with_interval(held, calibration)
    # A simulated server has no kernels that physim does not know: of nothing but what is fitted.
    fitted = predict_with_interval(held, replace(calibration, scatter=dict.fromkeys(_SHOWN, 0.0)))
    errors = [
        [abs(getattr(one, f"{name}_s") / seen[name] - 1) for name in _SHOWN]
        for one in (start, found, exact)
    ]
    within = []
    for one in (found, fitted):
        bounds = {name: one.intervals[f"{name}_s"] for name in _SHOWN}
        within.append([low <= seen[name] <= high for name, (low, high) in bounds.items()])
    inside = [one.low <= getattr(truth, one.name) <= one.high for one in outcome.estimates]
    return errors, within, float(np.mean(inside))


def _write(folder: Path, rng: np.random.Generator) -> None:
    """What the first server leaves, for the notebook."""
    model, gpu, tp = _SERVERS[0]
    case = Case.from_options(model, gpu=gpu, tp=tp)
    truth = _hidden(rng, case)
    _, result = _replayed(case, truth, _SHORT_S)
    with gzip.GzipFile(folder / "replayed_server.log.gz", "wb", mtime=0) as file:
        file.write(_log(rng, result, case).encode())
    timed = json.dumps(_timed(rng, case, truth), indent=1)
    (folder / "replayed_forward.json").write_text(timed + "\n")
    named = {
        name: round(float(value), 4) for name, value in zip(CORRECTIONS, truth.logs(), strict=True)
    }
    (folder / "replayed_server.json").write_text(json.dumps(named, indent=1) + "\n")


def _replayed(case: Case, truth: Corrections, stage_s: float) -> tuple[Load, Replayed]:
    """A load that changes, of which each stage lasts so long, and its replay."""
    load = Load(_PROMPTS, _ANSWER, rate=1e-3, arrival="poisson")
    most = _most(case.under(load), truth)
    stages = tuple(Stage(share * most, stage_s) for share in _SHARES)
    logged = replace(load, rate=None, stages=stages)
    return load, replay_load(case.under(logged), truth, seed=0)


def _hidden(rng: np.random.Generator, case: Case) -> Corrections:
    """Corrections that nobody knows, drawn from the priors of all levels together."""
    found = np.zeros(len(labels()))
    widths = np.sqrt(np.diag(spread_of(load_fit(NO_FIT), case)))
    found[: len(widths)] = rng.normal(size=len(widths)) * widths
    return unflat(found)


def _most(case: Case, truth: Corrections) -> float:
    return predict_cases([case], [truth])[0].saturation_rps


def _log(rng: np.random.Generator, result: Replayed, case: Case) -> str:
    """The iteration log of a replay."""
    work, samples = result.work, result.samples
    blocks = np.interp(work.began_s, samples.time_s, samples.kv_blocks)
    usage = 100 * blocks / case.server.kv.blocks
    repeats = work.steps.astype(int)
    columns = [
        np.repeat(one, repeats)
        for one in (work.prompts, work.tokens, work.decoding, work.step_s, usage)
    ]
    noise = np.exp(_NOISE * rng.normal(size=len(columns[0])))
    return "".join(
        _LINE.format(step, prompts, tokens, decoding, decoding, 1e3 * seconds * off, used)
        for step, (prompts, tokens, decoding, seconds, used, off) in enumerate(
            zip(*columns, noise, strict=True)
        )
    )


def _counted(case: Case, load: Load, result: Replayed) -> pd.DataFrame:
    """What two scrapes count, as a measured run."""
    frame = completed_of(result.to_frame())
    begin = _MINUTE * _MINUTE_S
    own = frame[(frame["finished_s"] >= begin) & (frame["finished_s"] < begin + _MINUTE_S)]
    row = {
        "experiment": "scrapes",
        "stage": 0,
        "model": case.server.model.name,
        "hardware": case.server.gpu.key,
        "tp": case.server.parallelism.tp,
        **asdict(case.server.sizes),
        "gpu_memory_utilization": 0.9,
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": load.arrival,
        "rate_rps": len(own) / _MINUTE_S,
        "duration_s": _MINUTE_S,
        "input_len_mean": own["input_tokens"].mean(),
        "input_len_std": own["input_tokens"].std(),
        "output_len": own["output_tokens"].mean(),
        "n_success": len(own),
    }
    for metric, ends in _ENDS.items():
        values = own[f"{metric}_s"].to_numpy()
        counts, _ = np.histogram(values, [0.0, *ends, np.inf])
        bins = Histogram(np.array([*ends, np.inf]), counts.astype(float), float(values.sum()))
        row |= {f"{metric}_mean": bins.mean, f"{metric}_bins": bins.to_text()}
    return pd.DataFrame([row])


def _timed(rng: np.random.Generator, case: Case, truth: Corrections) -> list[dict[str, object]]:
    """What `vllm bench forward` gives for some batches."""
    model = step_model_of(case, truth)
    requests, tokens, cached = np.array(_BATCHES, float).T
    decodes = tokens == 1
    batch = Batch.summarised(
        decode_requests=np.where(decodes, requests, 0),
        context=np.where(decodes, cached + 1, 0),
        prefill_requests=np.where(decodes, 0, requests),
        chunk=np.where(decodes, 0, tokens),
        cached=np.where(decodes, 0, cached),
        windows=np.asarray(model.ops.windows),
    )
    parts = np.asarray(part_seconds(model, batch))
    seen = [name not in _NOT_IN_FORWARD for name in PART_NAMES]
    seconds = parts[:, seen].sum(axis=1) * np.exp(_NOISE_OF_BATCHES * rng.normal(size=len(parts)))
    return [
        {
            "case": f"case{place}",
            "requests": [{"query_len": q, "kv_len": q + c}] * n,
            "median_us": 1e6 * float(time),
            "ranks": [],
        }
        for place, ((n, q, c), time) in enumerate(zip(_BATCHES, seconds, strict=True))
    ]


if __name__ == "__main__":
    main()
