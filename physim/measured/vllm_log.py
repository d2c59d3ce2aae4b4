"""What vLLM wrote to its log when it started: version, limits and KV blocks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError
from physim.inputs.deployment import Deployment

# Where each option stands (vLLM 0.8 to 0.15). Of several, the one that was logged last counts.
_PLACES: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("engine_version", str, r"(?:API server version|V1 LLM engine \()\s*v?(\d[\w.+]*)"),
    ("tp", int, r"\btensor_parallel_size=(\d+)"),
    ("pp", int, r"\bpipeline_parallel_size=(\d+)"),
    ("dp", int, r"\bdata_parallel_size=(\d+)"),
    ("expert_parallel", lambda on: on == "True", r"enable_expert_parallel['=: ]+(True|False)"),
    ("max_model_len", int, r"\bmax_seq_len=(\d+)"),
    ("max_num_seqs", int, r"'max_num_seqs': (\d+)"),
    ("max_num_batched_tokens", int, r"max_num_batched_tokens(?:'?: |=)(\d+)"),
    ("gpu_memory_utilization", float, r"'gpu_memory_utilization': (\d*\.?\d+)"),
    ("block_size", int, r"'block_size': (\d+)"),
    ("kv_cache_dtype", lambda kind: "fp8" if "fp8" in kind else kind, r"kv_cache_dtype=([\w.]+)"),
    ("prefix_caching", lambda on: on == "True", r"\benable_prefix_caching=(True|False)"),
    ("kv_blocks", int, r"num_gpu_blocks is: (\d+)"),
    ("kv_tokens", lambda number: int(number.replace(",", "")), r"KV cache size: ([\d,]+) tokens"),
)
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
        KV blocks are of 16 tokens, whatever the server's.

    Raises:
        InputError: The file cannot be read, or holds no start of vLLM.
    """
    found: dict[str, Any] = {}
    with data.reading(path), path.open(encoding="utf-8", errors="replace") as lines:
        for line in itertools.islice(lines, _MOST_LINES):
            for name, read_value, pattern in _PLACES:
                match = re.search(pattern, line)
                if match:
                    found[name] = read_value(match.group(1))
            if _STARTED in line:
                break
    if "engine_version" not in found:
        raise InputError(
            str(path), "says no version of vLLM", "pass the log of `vllm serve` from its start on"
        )
    block_size = found.pop("block_size", _BLOCK_SIZE)
    tokens = found.pop("kv_tokens", found.pop("kv_blocks", 0) * block_size)
    if tokens:
        found["kv_blocks"] = tokens // _BLOCK_SIZE
    if found.pop("expert_parallel", False):
        found["ep"] = found.get("tp", 1) * found.get("dp", 1)
    return found
