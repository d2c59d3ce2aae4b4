"""Input that is wrong in some random way: what becomes of it.

`MALFORMED` has a fuzzer for whatever a user can pass; `READERS` says which modules each of them
tries. `benchmarks/fuzz.py` tries many thousands, `test_fuzz.py` some hundreds.
"""

from __future__ import annotations

import ast
import functools
import gzip
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fuzzing_measured import MEASURED
from odd_files import ODD, Rng, changed, csv_file, json_file, odd_text, spoilt
from test_evaluation import ROW

import physim
from physim import data
from physim.cli.comma_lists import degrees_in, ends_in, names_in, numbers_in
from physim.cli.prices import prices_in
from physim.cli.table import models_in
from physim.corrections.files import load_fit
from physim.engines.profile import load_engine
from physim.errors import InputError
from physim.grids.slices import surface_of
from physim.inputs.acceptance import by_position
from physim.inputs.attempts import attempts
from physim.inputs.fleet import pool_options
from physim.inputs.lengths import Lengths
from physim.inputs.popularity import Popularity
from physim.inputs.stages import Stage
from physim.measured.condition import filtered
from physim.models.architecture import ModelArch
from physim.models.lookup import load_model
from physim.questions.objectives import Objective
from physim.questions.prices import hourly_prices
from physim.questions.sweep import CaseGrid, _frame, _typed
from physim.service.hardware import load_hardware
from physim.service.scaling import Autoscaling, read_policy
from physim.tables.files import FORMATS as TABLES
from physim.tables.files import METADATA, load, write
from physim.tables.table import Table

MODELS = [name.replace("--", "/") for name in data.names("model_configs", ".json")]
QUANTIZED = [name for name in MODELS if any(one in name.lower() for one in ("fp8", "fp4", "awq"))]
WORDS = (
    *("tp", "model", "hardware", "stage", "nothing", "and", "or", "not", "in", "(", ")", "[", "]"),
    *("==", "!=", "<", ">=", "&", "|", "~", "2", "-1.5", "'a'", '"h100_sxm"', "True", "None", ","),
    *("@", ".str", ".contains", "(", "__class__", "lambda", ":", "`tp`", "eval", "1e9", "**", "%"),
)
CONDITION = (
    *("tp", "==", "2", "and", "(", "model", "!=", "'a'"),
    *("or", "stage", "in", "[", "0", ",", "1", "]", ")"),
)
# Words of it, and others that may stand in their place.
LIKE = {"2": ("4", "1", "-2.5"), "==": ("!=", "<=", ">"), "and": ("or",), "tp": ("stage",)}


@functools.cache
def config_of(name: str) -> dict[str, Any]:
    """The configuration of a shipped model."""
    return data.read_json(data.folder("model_configs") / f"{name.replace('/', '--')}.json")


def sane_model(place: Path) -> None:
    """Reads a model and puts it onto a GPU."""
    model = load_model(place)
    assert isinstance(model, ModelArch)
    assert 0 < model.parameters < 1e14
    case = physim.Case.from_options(
        place, gpu="b200_sxm", tp=8, input_tokens=9, output_tokens=9, rate=1
    )
    assert case.server.kv.blocks > 0


def config(rng: Rng, folder: Path) -> None:
    place = empty(folder / "model")
    json_file(rng, place / "config.json", config_of(MODELS[rng.integers(len(MODELS))]))
    sane_model(place)


def quantization(rng: Rng, folder: Path) -> None:
    """What a configuration, or a file beside it, says of number formats."""
    place = empty(folder / "model")
    content = dict(config_of(QUANTIZED[rng.integers(len(QUANTIZED))]))
    section = content.pop("quantization_config", {})
    if rng.random() < 0.3:
        beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
        json_file(rng, place / "hf_quant_config.json", beside)
    else:
        content["quantization_config"] = changed(rng, section)
    (place / "config.json").write_text(json.dumps(content))
    sane_model(place)


def generation(rng: Rng, folder: Path) -> None:
    """A model's `generation_config.json`."""
    place = empty(folder / "model")
    (place / "config.json").write_text(json.dumps(config_of("Qwen/Qwen3-8B")))
    content = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
    json_file(rng, place / "generation_config.json", content)
    sane_model(place)


def empty(place: Path) -> Path:
    """A folder with nothing in it."""
    place.mkdir(exist_ok=True)
    for file in place.iterdir():
        file.unlink()
    return place


def gpu(rng: Rng, folder: Path) -> None:
    content = data.read_json(data.folder("hardware") / "h100_sxm.json")
    content["peer_access"] = {"value": False, "source": "none"}
    content["multiprocessor_cycles_per_s"] = {"value": 2e11, "source": "none"}
    found = load_hardware(str(json_file(rng, folder / "gpu.json", content)))
    for value in (found.memory_bytes, found.memory_bandwidth, *dict(found.peak_flops).values()):
        assert math.isfinite(value)
        assert value > 0


@functools.cache
def small_fit() -> dict[str, Any]:
    """A fit of a few corrections, as its file holds it."""
    content = load_fit("default").to_dict()
    few = ["gemm_memory", "experts", "host_step"]
    triangle = [9.0, 1.0, 5.0, 0.5, 0.1, 7.0]
    content["evidence"] = [
        {"branch": one["branch"], "corrections": few, "curvature": triangle}
        for one in content["evidence"][:2]
    ]
    for level in ("levels", "widths"):
        content[level] = {name: content[level][name] for name in list(content[level])[-2:]}
    return content


def fit(rng: Rng, folder: Path) -> None:
    content = small_fit()
    if rng.random() < 0.1:
        content = {**content, "schema_version": int(rng.integers(5))}
    path = json_file(rng, folder / "fit.json", content)
    found = load_fit(path)
    known = found.at_branch(found.common)
    for name in ("gemm_memory", "experts_compute"):
        assert 0 < math.exp(float(getattr(known.corrections, name))) < 1e9
    if known.covariance is not None:
        assert np.isfinite(known.covariance).all()
    assert all(0 <= value <= 10 for own in found.scatter.values() for value in own.values())
    assert all(low <= high for low, high in found.ranges.values())
    json.dumps(found.to_dict())


def step_table(rng: Rng, folder: Path) -> None:
    """A table of step times in one of its formats, or its metadata."""
    knots = [np.array([0.0, 4.0])] * 4
    gemm = 1e-3 * (1 + np.arange(16.0).reshape(2, 2, 2, 2))
    known = Table(knots, gemm + 1e-4, {"gemm": gemm, "gaps": np.full_like(gemm, 1e-4)}, {})
    kind = ("json", "csv", "parquet")[rng.integers(3)]
    place = empty(folder / "table")
    write(known, place, kind)
    path = place / TABLES[kind]
    how = rng.random()
    if how < 0.2:
        json_file(rng, place / METADATA, json.loads((place / METADATA).read_text()))
    elif kind == "json":
        json_file(rng, path, json.loads(path.read_text()))
    elif kind == "csv" and how < 0.7:
        rows = pd.read_csv(path).to_dict("records")
        path.write_bytes(gzip.compress(csv_file(rng, place / "odd.csv", rows).read_bytes()))
    elif how < 0.9:
        frame = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
        frame = frame.astype(float).sample(frac=1, random_state=int(rng.integers(99)))
        frame.iloc[0, rng.integers(frame.shape[1])] = rng.choice([0.0, -1.0, 4.0, math.nan, 1e30])
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    else:
        raw = bytearray(path.read_bytes())
        raw[rng.integers(len(raw))] = rng.integers(256)
        path.write_bytes(bytes(raw[: rng.integers(1, len(raw))] if how > 0.95 else raw))
    found = load(place)
    seconds = found(2, 3, 1, 0)
    assert 0 < seconds < 1e6
    if found.parts:
        assert math.isclose(sum(found.breakdown(2, 3, 1, 0).values()), seconds, rel_tol=0.01)
    assert found.more_prompts_s(3, 10.0) < math.inf


def grid(rng: Rng, folder: Path) -> None:
    """The grid of a sweep."""
    import yaml

    content: Any = {
        "model": ["Qwen/Qwen3-8B"],
        "gpu": "h100_sxm",
        "tp": [1, 2],
        "rate": {"from": 1, "to": 9, "steps": 3, "scale": "log"},
        "input_tokens": "exponential:128",
        "output_tokens": 99,
    }
    for _ in range(rng.integers(1, 4)):
        content = changed(rng, content)
    path = folder / "grid.yaml"
    text = yaml.safe_dump(content, allow_unicode=True)
    if rng.random() < 0.2:
        text = odd_text(rng, text)
    raw = spoilt(rng, text) if rng.random() < 0.15 else text.encode("utf-8", "surrogatepass")
    path.write_bytes(raw)
    found = CaseGrid.read(path)
    assert 0 < len(found) <= 1e9
    rows = []
    for place in {0, len(found) - 1}:
        row = found.options(place)
        (attempt,) = attempts([row], {}, _typed)
        rows.append({"case": place, **row, "problem": str(attempt.refusal or "")})
    assert len(_frame(found, rows)) == len(rows)
    _frame(found, rows).to_parquet(folder / "part.parquet")


def lengths(rng: Rng, folder: Path) -> None:
    path = folder / "lengths.txt"
    path.write_bytes(odd_text(rng, "3\n5\n10\n").encode("utf-8", "surrogatepass"))
    texts = ("248", "normal:248:50", "exponential:128", f"file:{path}")
    texts += ("lognormal:248:300", "gamma:248:200")
    text = texts[rng.integers(len(texts))]
    found = Lengths.parse(text if text.startswith("file") else odd_text(rng, text), "input_tokens")
    mean = found.mean if isinstance(found, Lengths) else found
    assert 1 <= mean < math.inf
    if isinstance(found, Lengths) and mean < 1e100:
        assert (found.strata() >= 1).all()
        assert np.isfinite(found.strata()).all()


def words(rng: Rng, folder: Path) -> None:
    """Small texts that options take: stages, bounds, prices, rates, lists, versions, names."""
    kind = rng.integers(13)
    if kind == 0:
        stage = Stage.parse(odd_text(rng, "8:600"))
        assert 0 < stage.rate * stage.duration_s < math.inf
    elif kind == 1:
        text = ("ttft_p99=500ms", "tpot=30 ms", "e2e_mean=2s")[rng.integers(3)]
        assert 0 < Objective.parse(odd_text(rng, text)).seconds < math.inf
    elif kind == 2:
        prices = hourly_prices(prices_in([odd_text(rng, "h100_sxm=2.5")]))
        assert all(0 < price < math.inf for price in prices.values())
    elif kind == 3:
        assert all(one >= 1 for one in degrees_in({"tps": odd_text(rng, "1,2,8")})["tps"])
    elif kind == 4:
        assert all(names_in(odd_text(rng, "h100_sxm, b200_sxm")))
    elif kind == 5:
        assert load_engine("vllm", odd_text(rng, "0.15.1")).engine == "vllm"
    elif kind == 6:
        assert load_hardware(odd_text(rng, "H100-SXM")).memory_bytes > 0
    elif kind == 7:
        assert all(map(math.isfinite, ends_in("--input", odd_text(rng, "128:8192"), "1:2")))
    elif kind == 8:
        chances = by_position(odd_text(rng, "0.8,0.6,0.3"), 3)
        assert len(chances) == 3
        assert all(0 <= chance <= 1 for chance in chances)
    elif kind == 9:
        counts, share = Popularity.parse(odd_text(rng, "zipf:1.2")).classes(50)
        assert np.isfinite(counts).all()
        assert np.isfinite(share).all()
    elif kind == 10:
        policy = read_policy(odd_text(rng, ("ttft=500ms", "running=32")[rng.integers(2)]))
        starts = numbers_in("--start-up", odd_text(rng, "0,60"))
        assert all(Autoscaling(policy, start_up_s=one).start_up_s >= 0 for one in starts)
    elif kind == 11:
        assert pool_options("pool", odd_text(rng, "tp=8,dp=2,replicas=3")).get("tp", 1) >= 1
    else:
        path = folder / "models.txt"
        path.write_bytes(odd_text(rng, "Qwen/Qwen3-8B\n# a\n").encode("utf-8", "surrogatepass"))
        assert all(models_in(path))


def surface(rng: Rng, _: Path) -> None:
    """A table of measured efficiency, cut by `--at`."""
    name = str(rng.choice(["gemm_bfloat16", "moe_bfloat16", odd_text(rng, "gemm_fp8")]))
    found, fixed = surface_of("h100_sxm", name, [odd_text(rng, "k=4096")])
    assert np.isfinite(found.log_efficiency).all()
    assert all(0 < value < math.inf for value in fixed.values())


def condition(rng: Rng, _: Path) -> None:
    frame = pd.DataFrame([ROW, {**ROW, "tp": 4}])
    some = [*CONDITION]
    for _ in range(rng.integers(1, 4)):
        place = rng.integers(len(some))
        others = LIKE.get(some[place], ()) if rng.random() < 0.6 else WORDS
        some[place] = str(rng.choice(others or [some[place]]))
    if rng.random() < 0.3:
        some = [WORDS[rng.integers(len(WORDS))] for _ in range(rng.integers(1, 12))]
    kept = filtered(frame, " ".join(some))
    assert len(kept) <= len(frame)


def options(rng: Rng, _: Path) -> None:
    given: dict[str, Any] = {"gpu": "h100_sxm", "input_tokens": 99, "output_tokens": 9, "rate": 1.0}
    names = ("rate", "concurrency", "requests", "input_tokens", "output_tokens", "cached_tokens")
    names += ("tp", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks")
    names += ("gpu_memory_utilization", "arrival", "burstiness", "engine_version", "sampling")
    names += ("pp", "dp", "ep", "block_size", "expert_load", "moe_kernel", "kv_cache_dtype")
    names += (
        "moe_activations",
        "captured_tokens",
        "draft",
        "draft_tokens",
        "draft_acceptance",
        "draft_model",
    )
    names += (
        "all2all",
        "receive_every",
        "stream_interval",
        "mixed_chunk",
        "kv_host_bytes",
        "kv_host_bandwidth",
        "kv_disk_bytes",
        "kv_disk_bandwidth",
        "kv_disk_write_bandwidth",
        "kv_disk_latency_s",
        "prefixes",
        "popularity",
        "timeout_s",
        "warm_up_s",
        "turns",
        "think_s",
        "mixed",
        "read_as",
        "quantization",
    )
    names += (
        "replicas",
        "router",
        "router_age_s",
        "prefill",
        "decode",
        "transfer_bandwidth",
        "transfer_latency_s",
        "transfer_by_layer",
    )
    for _ in range(rng.integers(1, 4)):
        value = ODD[rng.integers(len(ODD))]
        if isinstance(value, bool | str | int | float):
            name = names[rng.integers(len(names))]
            # Of other types a type checker tells.
            given[name] = str(value) if name in ("prefill", "decode") else value
    case = physim.Case.from_options("Qwen/Qwen3-8B", **given)
    load = case.demanded
    assert 0 < load.mean_input <= case.server_of("decode").sizes.max_model_len


Fuzzer = Callable[[Rng, Path], None]
_FUZZERS: tuple[Fuzzer, ...] = (
    *(config, quantization, generation, gpu, fit, step_table, grid, lengths, words, surface),
    *(condition, options),
)
MALFORMED: dict[str, Fuzzer] = {one.__name__: one for one in _FUZZERS} | MEASURED

_OURS = "reads what comes with physim, or what physim wrote"
_THEIRS = "reads NVIDIA's package, whose version is pinned"
_BELOW = "is what other readers read by"
# For each module that reads a file or text from outside, the fuzzers that try it, or why none does.
READERS: dict[str, tuple[str, ...] | str] = {
    "physim.cli": "opens what swallows output",
    "physim.cli.comma_lists": ("words",),
    "physim.cli.doctor": "reads what the kernel says of the processor",
    "physim.cli.fleet_options": "numbers of `comma_lists`",
    "physim.cli.prices": ("words",),
    "physim.cli.sweep": _OURS,
    "physim.cli.table": ("words",),
    "physim.kept_files": "is tried bit by bit in tests/test_kept.py",
    "physim.programs.program": "reads what physim.kept_files has found whole",
    "physim.corrections.files": ("fit",),
    "physim.data": _BELOW,
    "physim.exports.dynamo": _OURS,
    "physim.exports.llmservingsim": _OURS,
    "physim.exports.sglang_simulator": _OURS,
    "physim.fitting.fit": "hashes files that others read",
    "physim.grids.aiconfigurator": _THEIRS,
    "physim.grids.mixer_tables": _THEIRS,
    "physim.grids.slices": ("surface",),
    "physim.grids.store": _OURS,
    "physim.engines.profile": ("words",),
    "physim.service.hardware": ("gpu", "words"),
    "physim.service.scaling": ("words",),
    "physim.http.case_options": "is tried with bodies in tests/test_serve.py",
    "physim.http.verbs": _OURS,
    "physim.inputs.acceptance": ("words",),
    "physim.inputs.lengths": ("lengths",),
    "physim.inputs.load_file": ("workload", "blis-workload"),
    "physim.inputs.popularity": ("words",),
    "physim.inputs.stages": ("words",),
    "physim.inputs.request_lengths": ("requests", "mooncake"),
    "physim.inputs.request_traces": ("requests", "mooncake"),
    "physim.kept": _OURS,
    "physim.measured.aiperf": ("aiperf", "aiperf-requests"),
    "physim.measured.blis_trace": ("blis-trace",),
    "physim.measured.condition": ("condition",),
    "physim.measured.exposition": ("scrapes",),
    "physim.measured.forward_pass": ("steps-forward-pass",),
    "physim.measured.forward_table": ("steps-forward-table",),
    "physim.measured.guidellm": ("guidellm",),
    "physim.measured.histogram": ("table",),
    "physim.measured.inference_perf": ("inference-perf",),
    "physim.measured.iteration_log": ("steps-log",),
    "physim.measured.llm_d": ("llm-d", "llm-d-yaml"),
    "physim.measured.ml_energy": ("ml-energy",),
    "physim.measured.mlperf": ("mlperf",),
    "physim.measured.profiles": ("profile-of-trace",),
    "physim.measured.prometheus": ("prometheus-vllm", "prometheus-sglang"),
    "physim.measured.recognised": (
        *("aiperf", "aiperf-requests", "llm-d", "llm-d-yaml", "guidellm", "vllm-bench"),
        *("inference-perf", "blis-trace", "mlperf"),
    ),
    "physim.measured.row_rules": _OURS,
    "physim.measured.runs_csv": ("table",),
    "physim.measured.scrapes": ("scrapes",),
    "physim.measured.silicon": ("silicon",),
    "physim.measured.silicon_pools": ("silicon-disagg",),
    "physim.measured.stage_report": _OURS,
    "physim.measured.step_files": ("steps-log", "steps-forward-pass"),
    "physim.measured.step_trace": ("steps-csv", "steps-parquet"),
    "physim.measured.table_files": ("steps-table", "steps-forward-table"),
    "physim.measured.vllm_bench_forward": ("steps-bench-forward",),
    "physim.measured.vllm_bench": ("vllm-bench", "report"),
    "physim.measured.server_log": ("vllm-log",),
    "physim.models.aliases": _OURS,
    "physim.models.lookup": ("config", "quantization", "generation"),
    "physim.page.document": _OURS,
    "physim.questions.objectives": ("words",),
    "physim.questions.sweep": ("grid",),
    "physim.records": _BELOW,
    "physim.replay.workload": ("trace", "profile-of-trace"),
    "physim.sources": _OURS,
    "physim.step.components.sampling": _OURS,
    "physim.tables.files": ("step_table",),
    "physim.tables.writer": _OURS,
    "physim.workshop": "is tried with others' folders in tests/test_data.py",
}
_READING = {
    *("read_json", "read_text", "read_bytes", "read_csv", "read_parquet", "safe_load", "loads"),
    *(
        "open",
        "opened",
        "read_json_list",
        "read_json_lines",
        "read_json_objects",
        "read_yaml",
        "reading",
        "literal_eval",
        "read_document",
        "read_rows",
        "read_cells",
    ),
}


def modules_that_read() -> Iterator[str]:
    """Modules of the package that open a file, or have a function that takes text apart."""
    for module in pkgutil.walk_packages(physim.__path__, "physim."):
        path = Path(physim.__path__[0], *module.name.split(".")[1:])
        path = path / "__init__.py" if module.ispkg else path.with_suffix(".py")
        source = path.read_text()
        if not any(word in source for word in (*_READING, "parse", "s_in(")):
            continue
        for node in ast.walk(ast.parse(source)):
            called = getattr(node, "func", None)
            name = getattr(called, "attr", getattr(called, "id", ""))
            is_parser = isinstance(node, ast.FunctionDef) and (
                node.name.strip("_") in ("parse", "parsed") or node.name.endswith("s_in")
            )
            if name in _READING or is_parser:
                yield module.name
                break


def refused_or_read(kind: str, seed: int, folder: Path) -> bool:
    """Whether an input of a kind is refused, in one line; else it was read as something sane."""
    try:
        MALFORMED[kind](np.random.default_rng(seed), folder)
        said = ""
    except InputError as error:
        said = str(error)
    assert "\n" not in said, (kind, seed, said)
    # Memory beyond reason is an option's or a field's fault, which is then named.
    assert not re.search(r"needs \d{6}", said), (kind, seed, said)
    return bool(said)
