"""NVIDIA's measured serving points in ``aiconfigurator-core``, as measured runs.

Most come of InferenceX: clients that all start at once send ten requests each, of random prompts
whose lengths, like those of the answers, are spread evenly between 0.8 and 1 of what is stated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.errors import InputError
from physim.inputs.hardware import load_hardware
from physim.models.kv_layout import token_bytes
from physim.models.lookup import load_model

if TYPE_CHECKING:
    import pandas as pd

    from physim.inputs.hardware import Hardware
    from physim.models.architecture import ModelArch

PACKAGE = "aiconfigurator_core"
# The checkpoints that rows of a number format were measured with.
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
}
_REQUESTS_PER_CLIENT = 10
# Lengths of InferenceX: even between these shares of what is stated.
_SHORTEST, _LONGEST = 0.8, 1.0
# InferenceX sets 2,068 tokens for 1,024 in and out, and 9,416 where one side is 8,192.
_MAX_MODEL_LEN = {2048: 2068, 9216: 9416}
# Tokens that AIConfigurator's generator of benchmarks adds to a request's for the longest, and to a
# prompt and all clients for a step's budget (its `rule_plugin/benchmark/vllm.rule`).
_GENERATED_ROOM = 1500
# Keys and values of one byte are the least that the engines of these rows keep.
_LEAST_KV_BYTES = 1.0
# No kernel of NVIDIA's own tables reaches more than this share of the datasheet's FLOP/s.
_MOST_OF_PEAK = 0.85


def read() -> pd.DataFrame:
    """The rows of vLLM, neither disaggregated nor data or expert parallel, in the common form.

    Rows of models that physim does not know are left out.

    ``note`` says why a row contradicts physics, and is empty where it does not: its requests need
    more FLOP/s than GEMMs reach, or its tokens come faster than weights and KV cache are read.

    Raises:
        InputError: The package ``aiconfigurator-core`` is not installed.
    """
    import pandas as pd

    try:
        package = Path(str(resources.files(PACKAGE)))
    except ModuleNotFoundError as error:
        raise InputError(
            "silicon rows", "need aiconfigurator-core", "pip install aiconfigurator-core pyarrow"
        ) from error
    frame = pd.read_csv(package / "systems" / "silicon_sample.csv")
    frame = frame[(frame["backend"] == "vllm") & (frame["mode"] == "agg")]
    rows = [_row(record) for record in frame.to_dict("records")]
    return pd.DataFrame([row for row in rows if row is not None])


def _row(record: Mapping[Any, Any]) -> dict[str, Any] | None:
    """A row in the common form; None where the model is none that is known here."""
    form = "" if not isinstance(record["precision"], str) else record["precision"]
    model = _CHECKPOINTS.get((record["model_path"], form))
    if model is None or _is_spread(record):
        return None
    source = str(record["silicon_data_source"])
    varied = source.startswith(("source_file=2026", "db-dump"))
    clients = _clients(source, float(record["batch_size"]))
    ttft, tpot = record["silicon_ttft_ms"] * 1e-3, record["silicon_tpot_ms"] * 1e-3
    stated_in, stated_out = float(record["isl"]), float(record["osl"])
    mean, spread = (1.0, 0.0)
    if varied:
        mean = (_SHORTEST + _LONGEST) / 2
        spread = (_LONGEST - _SHORTEST) / math.sqrt(12)
    prompt, output = mean * stated_in, mean * stated_out
    e2e = ttft + tpot * (output - 1)
    rate = clients / e2e
    arch, gpu, tp = load_model(model), load_hardware(record["system"]), int(record["tp_size"])
    version = record["backend_version"]
    odd = _contradiction(arch, gpu, tp, rate, prompt, output, tpot)
    return {
        "experiment": record["id"],
        "stage": 0,
        "model": model,
        "hardware": record["system"],
        "tp": tp,
        "weight_dtype": form or "bf16",
        "engine": "vllm",
        "engine_version": _version(version),
        "kv_cache_dtype": _kv_cache_dtype(varied, record["system"], model),
        # InferenceX's requests are greedy. What NVIDIA's are is not stated: at tp 8 steps of
        # Qwen3-32B are longer by just the sort that the model's own default asks for, at 8 to 128
        # clients.
        "sampling": "greedy" if varied else "unknown",
        **_limits(varied, int(clients), int(stated_in), int(stated_out)),
        "gpu_memory_utilization": 0.9,
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "constant",
        "concurrency": clients,
        "requests": int(clients) * _REQUESTS_PER_CLIENT,
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


def _is_spread(record: Mapping[Any, Any]) -> bool:
    """Whether attention is data parallel, or experts are spread whole over GPUs.

    Where a mixture's rows do not say how often attention is repeated, it is so often that the GPUs
    of attention are those of the experts.
    """

    def degree(field: str) -> float:
        value = record[field]
        return 1.0 if value is None or math.isnan(value) else max(value, 1.0)

    spread, shared = degree("moe_ep_size"), degree("moe_tp_size") / degree("tp_size")
    return max(degree("attention_dp_size"), spread, spread * shared) > 1


def _clients(source: str, batch: float) -> float:
    """Clients of a row: what its source says, or the requests of the only rank."""
    said = re.search(r"silicon_concurrency=(\d+)", source)
    return float(said[1]) if said else batch


def _version(said: Any) -> str:
    """The version of vLLM of a row.

    Rows of InferenceX that state none were measured late in October 2025; nightly builds among them
    are of April 2026.
    """
    if not isinstance(said, str):
        return "0.11.0"
    return "0.19.0" if said.startswith("nightly") else said


def _kv_cache_dtype(varied: bool, system: str, model: str) -> str:
    """The KV cache that a row's engine kept.

    InferenceX's scripts ask for fp8. Its H100 rows agree with 16 bit all the same; its H200 rows,
    and those of MiniMax-M2.5, serve more tokens at once than a 16-bit cache would hold.
    """
    if varied and system == "h100_sxm":
        return "bfloat16"
    return "fp8" if varied and "MiniMax" in model else "auto"


def _limits(varied: bool, clients: int, prompt: int, output: int) -> dict[str, int | bool]:
    """The engine's limits: as InferenceX sets them, or as NVIDIA's own benchmarks are generated."""
    if varied:
        longest = _MAX_MODEL_LEN.get(prompt + output, 16384)
        budget = 8192
    else:
        longest = prompt + output + _GENERATED_ROOM
        budget = clients + prompt + _GENERATED_ROOM
    return {
        "max_model_len": longest,
        "max_num_seqs": clients,
        "max_num_batched_tokens": budget,
        # InferenceX asks for it; by default it came with vLLM 0.14, after those of NVIDIA.
        "async_scheduling": varied,
    }


def _contradiction(
    arch: ModelArch, gpu: Hardware, tp: int, rate: float, prompt: float, output: float, tpot: float
) -> str:
    """Why a row cannot be what it says; empty if it can."""
    form = arch.weight_format
    peak = gpu.peak(form.compute) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has bfloat16: load_hardware
    flops = rate * 2 * (arch.active_parameters - arch.embedding_parameters) * (prompt + output) / tp
    if flops > _MOST_OF_PEAK * peak:
        return f"needs {flops / peak:.0%} of the peak FLOP/s"
    # By Little's law so many requests decode, each with its prompt and half of its answer.
    decoding = rate * tpot * (output - 1)
    context = prompt + output / 2
    cache = decoding * sum(
        layers * token_bytes(mixer, tp, _LEAST_KV_BYTES) * min(context, mixer.window or context)
        for mixer, layers in arch.attention_layers.items()
    )
    # Of routed experts a step reads those of one token at least.
    weights = sum(form.bytes_per_weight * own for form, own in arch.visited_weights.items()) / tp
    read_s = (weights + cache) / gpu.memory_bandwidth
    if tpot < read_s:
        return f"its tokens come in {tpot / read_s:.0%} of the time that reading memory takes"
    return ""
