"""What vLLM wrote to its log when it started: version, limits and KV blocks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from physim import data
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.records import Record, Share, Text, Whole, checked

# A value up to what ends it in a dictionary, a list of arguments or a sentence.
_VALUE = r"([^\s)}\]]+?)(?=[.;]?(?:[\s)}\]]|,(?!\d)|$))"
# Where each option stands (vLLM 0.8 to 0.15). Of several, the one that was logged last counts.
_PLACES = {
    "engine_version": rf"(?:API server version|V1 LLM engine \()\s*v?{_VALUE}",
    "tp": rf"\btensor_parallel_size={_VALUE}",
    "pp": rf"\bpipeline_parallel_size={_VALUE}",
    "dp": rf"\bdata_parallel_size={_VALUE}",
    "expert_parallel": rf"enable_expert_parallel['=: ]+{_VALUE}",
    "max_model_len": rf"\bmax_seq_len={_VALUE}",
    "max_num_seqs": rf"'max_num_seqs': {_VALUE}",
    "max_num_batched_tokens": rf"max_num_batched_tokens(?:'?: |=){_VALUE}",
    "gpu_memory_utilization": rf"'gpu_memory_utilization': {_VALUE}",
    "block_size": rf"'block_size': {_VALUE}",
    "kv_cache_dtype": rf"\bkv_cache_dtype={_VALUE}",
    "prefix_caching": rf"\benable_prefix_caching={_VALUE}",
    "kv_blocks": rf"num_gpu_blocks is: {_VALUE}",
    "dtype": rf"\bdtype=(?:torch\.)?{_VALUE}",
    "quantization": rf"\bquantization={_VALUE}",
    "enforce_eager": rf"\benforce_eager={_VALUE}",
    "speculative_config": rf"\bspeculative_config={_VALUE}",
    "kv_tokens": r"KV cache size: (\S+) tokens",
}


def _format(name: Any) -> Any:
    """A KV cache's format as physim names it: of fp8 there are several."""
    name = name.strip("'\"") if isinstance(name, str) else name
    return "fp8" if str(name).startswith("fp8") else name


def _without_commas(number: Any) -> Any:
    """A number whose thousands are set apart."""
    grouped = isinstance(number, str) and re.fullmatch(r"\d{1,3}(,\d{3})*", number)
    return number.replace(",", "") if grouped else number


class _Started(Record):
    engine_version: Annotated[Text, Field(pattern=r"^\d[\w.+-]*$")]
    tp: Whole | None = None
    pp: Whole | None = None
    dp: Whole | None = None
    expert_parallel: bool | None = None
    max_model_len: Whole | None = None
    max_num_seqs: Whole | None = None
    max_num_batched_tokens: Whole | None = None
    gpu_memory_utilization: Share | None = None
    block_size: Whole | None = None
    kv_cache_dtype: Annotated[Text | None, BeforeValidator(_format)] = None
    prefix_caching: bool | None = None
    kv_blocks: Whole | None = None
    dtype: Text | None = None
    quantization: Text | None = None
    enforce_eager: bool | None = None
    speculative_config: Text | None = None
    kv_tokens: Annotated[Whole | None, BeforeValidator(_without_commas)] = None


_STARTED = "Application startup complete"
# What a server writes before it has started is some hundred lines.
_MOST_LINES = 20_000
# Of a server that was given none, and of a row of measured runs.
_BLOCK_SIZE = Deployment.block_size


def read(path: Path) -> Mapping[str, Any]:
    """The options of a vLLM server, as far as its log says them.

    Args:
        path: The log, from the server's start on.

    Returns:
        Degrees of `physim.Parallelism`, fields of `physim.Deployment`, and ``prefix_caching``;
        KV blocks are of 16 tokens, whatever the server's. ``quantization`` is that of the weights,
        and ``notes`` are what physim does not predict of such a server, one line each.

    Raises:
        InputError: The file cannot be read, or holds no start of vLLM.
    """
    told: dict[str, str] = {}
    with data.reading(path), path.open(encoding="utf-8", errors="replace") as lines:
        for line in itertools.islice(lines, _MOST_LINES):
            for name, pattern in _PLACES.items():
                match = re.search(pattern, line)
                if match and match[1] != "None":
                    told[name] = match[1]
            if _STARTED in line:
                break
    if "engine_version" not in told:
        raise InputError(
            str(path), "says no version of vLLM", "pass the log of `vllm serve` from its start on"
        )
    started = checked(_Started, told, str(path))
    found = started.model_dump(exclude_none=True)
    dtype, is_eager = found.pop("dtype", ""), found.pop("enforce_eager", False)
    unusual = {
        f"dtype {dtype}": dtype == "float32",
        "enforce_eager, steps without CUDA graphs": is_eager,
        "speculative decoding": "speculative_config" in found,
    }
    found.pop("speculative_config", None)
    found["notes"] = [
        f"the server had {what}, which physim does not predict"
        for what, on in unusual.items()
        if on
    ]
    block_size = found.pop("block_size", _BLOCK_SIZE)
    tokens = found.pop("kv_tokens", found.pop("kv_blocks", 0) * block_size)
    if tokens:
        found["kv_blocks"] = tokens // _BLOCK_SIZE
    if found.pop("expert_parallel", False):
        found["ep"] = found.get("tp", 1) * found.get("dp", 1)
    return found
