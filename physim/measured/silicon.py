"""NVIDIA's measured serving points in ``aiconfigurator-core``, as measured runs.

Most come of InferenceX: clients that all start at once send ten requests each, of random prompts
whose lengths, like those of the answers, are spread evenly between 0.8 and 1 of what is stated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from physim import records
from physim.errors import InputError
from physim.inputs.hardware import load_hardware
from physim.inputs.parallelism import Parallelism
from physim.measured.schema import checked
from physim.measured.split import PARTS, part_of
from physim.models.lookup import load_model
from physim.records import Count, Length, Positive, Record, Text, Whole, read_cells

if TYPE_CHECKING:
    import pandas as pd

    from physim.inputs.hardware import Hardware
    from physim.models.architecture import ModelArch

PACKAGE = "aiconfigurator_core"
# The mode of rows whose prompts are computed on other GPUs than their answers.
_DISAGGREGATED = "disagg"
# The checkpoints that rows of a number format were measured with.
_DEEPSEEK = ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")
_CHECKPOINTS = {
    ("meta-llama/Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): "nvidia/Llama-3.1-8B-Instruct-FP8",
    ("Qwen/Qwen3-32B", ""): "Qwen/Qwen3-32B",
    ("Qwen/Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8",
    ("meta-llama/Llama-3.1-70B", "fp4"): "nvidia/Llama-3.3-70B-Instruct-FP4",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "int4"): "moonshotai/Kimi-K2.5",
    ("moonshotai/Kimi-K2.5", "fp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("openai/gpt-oss-120b", "fp4"): "openai/gpt-oss-120b",
    ("openai/gpt-oss-120b", "fp8"): "openai/gpt-oss-120b",
    ("meta-llama/Llama-3.1-8B-Instruct", ""): "meta-llama/Llama-3.1-8B-Instruct",
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8"): "nvidia/Llama-3.1-8B-Instruct-FP8",
    ("Qwen/Qwen3.5-397B-A17B", "bf16"): "Qwen/Qwen3.5-397B-A17B",
    ("Qwen/Qwen3.5-397B-A17B", "fp8"): "Qwen/Qwen3.5-397B-A17B-FP8",
    ("Qwen/Qwen3.5-397B-A17B", "fp4"): "nvidia/Qwen3.5-397B-A17B-NVFP4",
    ("zhipuai/GLM-5", "fp8"): "zai-org/GLM-5-FP8",
    ("zhipuai/GLM-5", "fp4"): "nvidia/GLM-5-NVFP4",
    ("nvidia/DeepSeek-V3.1-NVFP4", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("nvidia/DeepSeek-R1-NVFP4", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    **{(model, "fp8"): model for model in _DEEPSEEK},
    **{(model, "fp4"): "nvidia/DeepSeek-V3.1-NVFP4" for model in _DEEPSEEK},
}
# What each engine was started with where rows do not say: its share of memory, and the version of
# rows without one (those of InferenceX, late in October 2025).
_MEMORY = {"vllm": 0.9, "sglang": 0.85, "trtllm": 0.9}
_UNSTATED = {"vllm": "0.11.0", "sglang": "0.5.4", "trtllm": "1.1.0"}
_NIGHTLY = {"vllm": "0.19.0", "sglang": "0.5.9", "trtllm": "1.1.0"}
_REQUESTS_PER_CLIENT = 10
# How long the first requests of InferenceX wait: most of its rows of SGLang and TensorRT-LLM have
# TTFTs that are longer than their prompts take by 20 to 200 ms, whatever the prompt and however
# many clients, which is what a tenth of the requests makes that waits for a second or two. Medians
# over models, of rows that are not of the test (benchmarks/warm_up.py).
_WARM_UP_S = {"vllm": 0.0, "sglang": 0.7, "trtllm": 0.6}
# Lengths of InferenceX: even between these shares of what is stated.
_SHORTEST, _LONGEST = 0.8, 1.0
# InferenceX sets 2,068 tokens for 1,024 in and out, and 9,416 where one side is 8,192.
_MAX_MODEL_LEN = {2048: 2068, 9216: 9416}
_MANY_CLIENTS = 16
# Tokens of a step that it sets.
_BUDGETS = {"vllm": 8192, "sglang": 16384}
_DEGREES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
# Rows of GB200 that count more GPUs in an engine are of several, of different layouts.
_MOST_GPUS = 8
# Tokens that AIConfigurator's generator of benchmarks adds to a request's for the longest, and to a
# prompt and all clients for a step's budget (its `rule_plugin/benchmark/vllm.rule`).
_GENERATED_ROOM = 1500
# Keys and values of one byte are the least that the engines of these rows keep.
_LEAST_KV_BYTES = 1.0
# No kernel of NVIDIA's own tables reaches more than this share of the datasheet's FLOP/s.
_MOST_OF_PEAK = 0.85


class _Point(Record):
    id: Text
    mode: Literal["agg"]
    silicon_data_source: Text
    backend: Literal["vllm", "sglang", "trtllm"]
    backend_version: Text | None
    model_path: Text
    precision: Text | None
    system: Text
    isl: Whole
    osl: Whole
    batch_size: Length
    tp_size: Count | None
    pp_size: Count | None
    attention_dp_size: Count | None
    moe_tp_size: Count | None
    moe_ep_size: Count | None
    silicon_ttft_ms: Positive
    silicon_tpot_ms: Positive


def read(path: Path | None = None) -> pd.DataFrame:
    """The rows that are not disaggregated, in the common form.

    Rows of models that physim does not know are left out, and those whose layout cannot be told. A
    measurement that comes several times is one row.

    ``note`` says why a row contradicts physics, and is empty where it does not: its requests need
    more FLOP/s than GEMMs reach, or its tokens come faster than weights and KV cache are read; or
    it is of a series with such a row.
    ``part`` says what it is for: see `physim.measured.split`.

    Args:
        path: The CSV; that of the installed package if None.

    Raises:
        InputError: The package ``aiconfigurator-core`` is not installed, or the CSV cannot be read,
            lacks a column, or holds a value that is missing, out of range or in contradiction with
            another.
    """
    import pandas as pd

    if path is None:
        try:
            path = Path(str(resources.files(PACKAGE))) / "systems" / "silicon_sample.csv"
        except ModuleNotFoundError as error:
            remedy = "pip install aiconfigurator-core pyarrow"
            raise InputError("silicon rows", "need aiconfigurator-core", remedy) from error
    rows, places = [], []
    for place, cells in read_cells(path):
        if cells.get("mode") != _DISAGGREGATED:
            point = records.checked(_Point, cells, place)
            try:
                row = _row(point)
            except InputError as error:
                raise InputError(f"{place}: {error.where}", error.what, error.remedy) from None
            if row is not None:
                rows.append(row)
                places.append(place)
    if not rows:
        raise InputError(str(path), "has no row of a model that physim knows", "pass another")
    checked(rows, places.__getitem__)
    return _distinct(pd.DataFrame(_with_series(rows)))


def _with_series(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with a note for those of a series of which one contradicts physics.

    A series is what one version of an engine was measured at with a model on a GPU. Where a row of
    it cannot be, the others were measured in the same way.
    """

    def series(row: Mapping[str, Any]) -> tuple[str, ...]:
        columns = ("model", "weight_dtype", "hardware", "engine", "engine_version")
        return (*(row[column] for column in columns), str(bool(row["output_len_std"])))

    odd = {series(row) for row in rows if row["note"]}
    of_odd = "is of a series with a row that contradicts physics"
    return [row | {"note": row["note"] or of_odd * (series(row) in odd)} for row in rows]


def _row(point: _Point) -> dict[str, Any] | None:
    """A row in the common form; None where the model is none that is known here."""
    form = point.precision or ""
    model, layout = _CHECKPOINTS.get((point.model_path, form)), _layout(point)
    if model is None or layout is None:
        return None
    engine = point.backend
    varied = point.silicon_data_source.startswith(("source_file=2026", "db-dump"))
    clients = _clients(point)
    ttft, tpot = point.silicon_ttft_ms * 1e-3, point.silicon_tpot_ms * 1e-3
    stated_in, stated_out = float(point.isl), float(point.osl)
    mean, spread = (1.0, 0.0)
    if varied:
        mean = (_SHORTEST + _LONGEST) / 2
        spread = (_LONGEST - _SHORTEST) / math.sqrt(12)
    prompt, output = mean * stated_in, mean * stated_out
    e2e = ttft + tpot * (output - 1)
    rate = clients / e2e
    arch, gpu = load_model(model), load_hardware(point.system)
    odd = _contradiction(arch, gpu, layout, rate, prompt, output, tpot)
    row = {
        "experiment": point.id,
        "stage": 0,
        "model": model,
        "hardware": point.system,
        **asdict(layout),
        "weight_dtype": form or "bf16",
        "engine": engine,
        "engine_version": _version(engine, point.backend_version),
        "kv_cache_dtype": _kv_cache_dtype(engine, varied, gpu, model, form),
        # InferenceX's requests are greedy. What NVIDIA's are is not stated: at tp 8 steps of
        # Qwen3-32B are longer by just the sort that the model's own default asks for, at 8 to 128
        # clients.
        "sampling": "greedy" if varied else "unknown",
        "receive_every": _receive_every(engine, varied, gpu, int(clients)),
        **_limits(engine, varied, int(clients), int(stated_in), int(stated_out)),
        "gpu_memory_utilization": _MEMORY[engine],
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "constant",
        "concurrency": clients,
        "requests": int(clients) * _REQUESTS_PER_CLIENT,
        "warm_up_s": _WARM_UP_S[engine] if varied else 0.0,
        "rate_rps": rate,
        "duration_s": _REQUESTS_PER_CLIENT * e2e,
        "input_len_mean": prompt,
        "input_len_std": spread * stated_in,
        "output_len": output,
        "output_len_std": spread * stated_out,
        "ttft_mean": ttft,
        "e2e_mean": e2e,
        "note": odd,
    }
    return row | {"part": part_of(row)}


def _distinct(found: pd.DataFrame) -> pd.DataFrame:
    """Each measurement once: under several names, or as of DeepSeek-R1 and of V3, which are alike.

    Of those that are in several parts, the one that a fit may see stays: no other part has it then.
    """
    seen = found.sort_values("part", key=lambda part: part.map(PARTS.index), kind="stable")
    # Copies differ in the last digits. No two measurements agree to a microsecond.
    times = seen[["hardware", "engine", "concurrency", "ttft_mean", "e2e_mean"]].round(6)
    return found.drop(index=seen.index[times.duplicated()]).reset_index(drop=True)


def _layout(point: _Point) -> Parallelism | None:
    """How GPUs share a row's model; None where that cannot be told.

    InferenceX's rows give some degrees as products. Its rows of SGLang and TensorRT-LLM on ``n``
    GPUs whose experts are spread say ``n x n`` for those of attention, and ``n`` for both of the
    experts'; those of vLLM with attention that is data parallel say ``n`` for tensor and data
    parallelism, and their product for experts.
    """
    tp, dp, moe_tp, moe_ep = (getattr(point, name) or 1 for name in _DEGREES)
    if point.pp_size not in (None, 1):
        return None
    if moe_tp == moe_ep > 1 and max(tp, dp) == moe_tp**2:
        layout = (moe_tp, 1) if tp > dp else (1, moe_tp)
        return Parallelism(tp=layout[0], dp=layout[1], ep=moe_ep)
    if tp == dp > 1 and moe_ep == tp * dp:
        return Parallelism(dp=dp, ep=dp)
    # Where a row does not say how often attention is repeated, as often as it takes.
    dp = max(dp, moe_tp * moe_ep // tp)
    is_whole = tp & (tp - 1) == 0 and tp <= _MOST_GPUS
    return Parallelism(tp=tp, dp=dp, ep=moe_ep) if is_whole else None


def _clients(point: _Point) -> float:
    """Clients of a row: what its source says, or the requests of all ranks."""
    said = re.search(r"silicon_concurrency=([^;]*)", point.silicon_data_source)
    if said is None:
        return point.batch_size * (point.attention_dp_size or 1)
    if not re.fullmatch(r"[1-9]\d{0,8}", said[1]):
        raise InputError("silicon_data_source", "says no number of clients", "correct it")
    return float(said[1])


def _version(engine: str, said: str | None) -> str:
    """The version of a row's engine; nightly and other builds are of early in 2026."""
    if said is None:
        return _UNSTATED[engine]
    return said if said[0].isdigit() else _NIGHTLY[engine]


def _kv_cache_dtype(engine: str, varied: bool, gpu: Hardware, model: str, form: str) -> str:
    """The KV cache that a row's engine kept.

    Of NVIDIA's own rows, TensorRT-LLM's of Qwen3-32B in fp8 serve 64 clients of 4,224 tokens on an
    H100 at once: a 16-bit cache has room for half of them.

    InferenceX's scripts ask for fp8. Its H100 rows of vLLM agree with 16 bit all the same; its H200
    rows, and those of MiniMax-M2.5, serve more tokens at once than a 16-bit cache would hold. Those
    of SGLang ask for it on Blackwell.
    """
    if not varied:
        return "fp8" if engine == "trtllm" and form in ("fp8", "nvfp4") else "auto"
    if engine == "trtllm" or (engine == "sglang" and gpu.peak("fp4")):
        return "fp8"
    if engine == "vllm" and gpu.key == "h100_sxm":
        return "bfloat16"
    return "fp8" if "MiniMax" in model else "auto"


def _receive_every(engine: str, varied: bool, gpu: Hardware, clients: int) -> int:
    """What InferenceX's scripts for SGLang on Blackwell set for ``--scheduler-recv-interval``."""
    if engine != "sglang" or not varied or not gpu.peak("fp4"):
        return 1
    return 10 if clients < _MANY_CLIENTS else 30


def _limits(
    engine: str, varied: bool, clients: int, prompt: int, output: int
) -> dict[str, int | bool]:
    """The engine's limits: as InferenceX sets them, or as NVIDIA's own benchmarks are generated."""
    if varied:
        longest = _MAX_MODEL_LEN.get(prompt + output, 16384)
        # TensorRT-LLM is given room for a prompt and a token of each client, in steps of 64.
        budget = _BUDGETS.get(engine, (clients + prompt + 127) // 64 * 64)
    else:
        longest = prompt + output + _GENERATED_ROOM
        budget = clients + prompt + _GENERATED_ROOM
    return {
        "max_model_len": longest,
        "max_num_seqs": clients,
        "max_num_batched_tokens": budget,
        # InferenceX asks for it; by default it came with vLLM 0.14, after those of NVIDIA.
        "async_scheduling": varied or engine != "vllm",
    }


def _contradiction(
    arch: ModelArch,
    gpu: Hardware,
    layout: Parallelism,
    rate: float,
    prompt: float,
    output: float,
    tpot: float,
) -> str:
    """Why a row cannot be what it says; empty if it can."""
    form = arch.weight_format
    peak = gpu.peak(form.compute) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has bfloat16: load_hardware
    flops = rate * 2 * (arch.active_parameters - arch.embedding_parameters) * (prompt + output)
    flops /= layout.stage_gpus
    if flops > _MOST_OF_PEAK * peak:
        return f"needs {flops / peak:.0%} of the peak FLOP/s"
    # By Little's law so many requests decode, each with its prompt and half of its answer.
    decoding = rate * tpot * (output - 1) / layout.dp
    context = prompt + output / 2
    cache = decoding * sum(
        layers
        * mixer.token_bytes(layout.tp, _LEAST_KV_BYTES)
        * min(context, mixer.window or context)
        for mixer, layers in arch.attention_layers.items()
    )
    # Of routed experts a step reads those of one token at least.
    weights = sum(form.bytes_per_weight * own for form, own in arch.visited_weights.items())
    weights /= layout.stage_gpus
    read_s = (weights + cache) / gpu.memory_bandwidth
    if tpot < read_s:
        return f"its tokens come in {tpot / read_s:.0%} of the time that reading memory takes"
    return ""
