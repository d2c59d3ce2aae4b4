"""Input that is wrong in some random way: what becomes of it.

`benchmarks/fuzz.py` tries many thousands; `test_fuzz.py` some hundreds.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from test_evaluation import ROW
from test_measured import REPORTS, RESULT, benchmark

import physim
from physim import data
from physim.corrections.files import load_fit
from physim.errors import InputError
from physim.inputs.hardware import load_hardware
from physim.measured import guidellm, inference_perf, vllm_bench
from physim.measured.condition import filtered
from physim.measured.runs_csv import case_of, read_table
from physim.models.architecture import ModelArch
from physim.models.lookup import load_model
from physim.replay.workload import read_trace

Rng = np.random.Generator

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2.5, -0.5, 1e-300, 1e308, math.nan, math.inf, 2**31, 2**70),
    *("", " ", "no", "off", "False", "true", "nan", "inf", "1e400", "-3", "0x10", "1,5", "∞", "\0"),
    *("10" * 2500, "a" * 5000, [], {}, [[]], [1, "2"], {"a": 1}, "../../etc/passwd"),
)
MODELS = [name.replace("--", "/") for name in data.names("model_configs", ".json")]
WORDS = (
    *("tp", "model", "hardware", "stage", "nothing", "and", "or", "not", "in", "(", ")", "[", "]"),
    *("==", "!=", "<", ">=", "&", "|", "~", "2", "-1.5", "'a'", '"h100_sxm"', "True", "None", ","),
    *("@", ".str", ".contains", "(", "__class__", "lambda", ":", "`tp`", "eval", "1e9", "**", "%"),
)


def changed(rng: Rng, content: Any) -> Any:
    """A JSON value with one thing in it changed at random."""
    content = copy.deepcopy(content)
    spots = []

    def walk(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            spots.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    if isinstance(content, dict | list):
        walk(content)
    if not spots:
        return ODD[rng.integers(len(ODD))]
    holder, key = spots[rng.integers(len(spots))]
    if rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
    return content


def spoilt(rng: Rng, text: str) -> bytes:
    """A file's content, cut short or with bytes that do not belong there."""
    content = bytearray(text.encode())
    how = rng.integers(4)
    if how == 0:
        del content[rng.integers(len(content) + 1) :]
    elif how == 1:
        for _ in range(rng.integers(1, 9)):
            content[rng.integers(len(content))] = rng.integers(256)
    elif how == 2:
        content = bytearray(b"\xff\xfe" + bytes(content))
    else:
        content = bytearray(b"[" * int(rng.integers(1, 20_000)))
    return bytes(content)


def json_file(rng: Rng, path: Path, content: Any) -> Path:
    """A file of JSON that is wrong in one or several ways."""
    for _ in range(rng.integers(1, 4)):
        content = changed(rng, content)
    text = json.dumps(content)
    path.write_bytes(spoilt(rng, text) if rng.random() < 0.15 else text.encode())
    return path


def csv_file(rng: Rng, path: Path, rows: list[dict[str, Any]]) -> Path:
    """A CSV that is wrong in one or several ways."""
    columns = list(rows[0])
    rows = [dict(row) for row in rows]
    for _ in range(rng.integers(1, 4)):
        how, column = rng.random(), columns[rng.integers(len(columns))]
        row = rows[rng.integers(len(rows))]
        if how < 0.7:
            row[column] = ODD[rng.integers(len(ODD))]
        elif how < 0.8 and len(columns) > 1:
            columns.remove(column)
        elif how < 0.9:
            rows.append(dict(row))
        else:
            columns[columns.index(column)] = str(ODD[rng.integers(len(ODD))])
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", restval="")
    table.writeheader()
    table.writerows(rows)
    text_ = text.getvalue()
    path.write_bytes(spoilt(rng, text_) if rng.random() < 0.15 else text_.encode())
    return path


def config(rng: Rng, folder: Path) -> None:
    name = MODELS[rng.integers(len(MODELS))]
    content = data.read_json(data.folder("model_configs") / f"{name.replace('/', '--')}.json")
    place = folder / "model"
    place.mkdir(exist_ok=True)
    json_file(rng, place / "config.json", content)
    model = load_model(place)
    assert isinstance(model, ModelArch)
    assert model.parameters > 0
    case = physim.Case.of(place, gpu="h100_sxm", tp=8, input_tokens=9, output_tokens=9, rate=1)
    assert case.deployment.limits.kv_blocks > 0


def gpu(rng: Rng, folder: Path) -> None:
    content = data.read_json(data.folder("hardware") / "h100_sxm.json")
    found = load_hardware(str(json_file(rng, folder / "gpu.json", content)))
    for value in (found.memory_bytes, found.memory_bandwidth, *dict(found.peak_flops).values()):
        assert math.isfinite(value)
        assert value > 0


def table(rng: Rng, folder: Path) -> None:
    rows = [{**ROW, "stage": stage, "rate_rps": 1 + stage} for stage in range(2)]
    frame = read_table(csv_file(rng, folder / "runs.csv", rows))
    for run in frame.to_dict("records"):
        load = case_of([run], None).demanded
        assert 0 < load.mean_input < 1e7
        assert 0 < load.mean_output < 1e7


def trace(rng: Rng, folder: Path) -> None:
    rows = [
        {"arrival_s": i / 3, "input_tokens": 100, "output_tokens": 9, "prefix_group": i % 2}
        for i in range(4)
    ]
    for request in read_trace(csv_file(rng, folder / "trace.csv", rows), 16).requests:
        assert request.input_tokens >= 1
        assert request.output_tokens >= 1
        assert request.arrival_s >= 0


def report(rng: Rng, folder: Path) -> None:
    kind = rng.integers(3)
    if kind == 0:
        stages = vllm_bench.read(json_file(rng, folder / "result.json", RESULT))
    elif kind == 1:
        content = {"benchmarks": [benchmark({"type_": "poisson", "rate": 2.0})]}
        stages = guidellm.read(json_file(rng, folder / "guide.json", content))
    else:
        place = folder / "perf"
        place.mkdir(exist_ok=True)
        name = "stage_0_lifecycle_metrics.json"
        content = json.loads((REPORTS / "inference-perf" / name).read_text())
        json_file(rng, place / name, content)
        stages = inference_perf.read(place)
    for stage in stages:
        for value in (stage.rate_rps, stage.input_len_mean, stage.output_len, stage.ttft_mean):
            assert math.isfinite(value)
            assert value > 0


def fit(rng: Rng, folder: Path) -> None:
    content = load_fit("default").to_dict()
    content["evidence"] = content["evidence"][:3]
    found = load_fit(json_file(rng, folder / "fit.json", content))
    assert all(math.isfinite(value) for own in found.scatter.values() for value in own.values())


def condition(rng: Rng, _: Path) -> None:
    frame = pd.DataFrame([ROW, {**ROW, "tp": 4}])
    words = [WORDS[rng.integers(len(WORDS))] for _ in range(rng.integers(1, 12))]
    kept = filtered(frame, " ".join(words))
    assert len(kept) <= len(frame)


def options(rng: Rng, _: Path) -> None:
    given: dict[str, Any] = {"gpu": "h100_sxm", "input_tokens": 99, "output_tokens": 9, "rate": 1.0}
    names = ("rate", "concurrency", "requests", "input_tokens", "output_tokens", "cached_tokens")
    names += ("tp", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks")
    names += ("gpu_memory_utilization", "arrival", "burstiness", "engine_version", "sampling")
    for _ in range(rng.integers(1, 4)):
        value = ODD[rng.integers(len(ODD))]
        if isinstance(value, bool | str | int | float):
            given[names[rng.integers(len(names))]] = value
    case = physim.Case.of("Qwen/Qwen3-8B", **given)
    load = case.demanded
    assert 0 < load.mean_input <= case.deployment.limits.max_model_len


MALFORMED: dict[str, Callable[[Rng, Path], None]] = {
    one.__name__: one for one in (config, gpu, table, trace, report, fit, condition, options)
}


def refused_or_read(kind: str, seed: int, folder: Path) -> bool:
    """Whether an input of a kind is refused, in one line; else it was read as something sane."""
    try:
        MALFORMED[kind](np.random.default_rng(seed), folder)
        said = ""
    except InputError as error:
        said = str(error)
    assert "\n" not in said[:1000], (kind, seed, said)
    return bool(said)
