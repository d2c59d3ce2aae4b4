"""What an engine wrote to its log when it started: version, limits and KV blocks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from physim import data
from physim.engines.engine import engines
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.models.drafts import METHODS, MTP
from physim.records import Positive, Record, Share, Text, Whole, checked
from physim.service.server import GIB


def _format(name: Any) -> Any:
    """A KV cache's format as physim names it: of fp8 there are several."""
    name = name.strip("'\"") if isinstance(name, str) else name
    return "fp8" if str(name).startswith("fp8") else name


def _without_commas(number: Any) -> Any:
    """A number whose thousands are set apart."""
    grouped = isinstance(number, str) and re.fullmatch(r"\d{1,3}(,\d{3})*", number)
    return number.replace(",", "") if grouped else number


def _method(name: Any) -> Any:
    """A method of drafting as physim names it: engines name MTP by model."""
    return MTP if str(name).endswith(MTP) else name


class _Started(Record):
    engine_version: Annotated[Text | None, Field(pattern=r"^\d[\w.+-]*$")] = None
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
    draft: Annotated[Text | None, BeforeValidator(_method)] = None
    draft_tokens: Whole | None = None
    kv_host_gib: Positive | None = None
    kv_tokens: Annotated[Whole | None, BeforeValidator(_without_commas)] = None


_STARTED = "Application startup complete"
# What a server writes before it has started is some hundred lines.
_MOST_LINES = 20_000
# Of a server that was given none, and of a row of measured runs.
_BLOCK_SIZE = Deployment.block_size


def read(path: Path) -> Mapping[str, Any]:
    """The options of a server, as far as its engine's log says them.

    Args:
        path: The log, from the server's start on.

    Returns:
        The engine, degrees of `physim.Parallelism`, fields of `physim.Deployment`, and
        ``prefix_caching``; KV blocks are of 16 tokens, whatever the server's. ``quantization`` is
        that of the weights, and ``notes`` are what physim does not predict of such a server, one
        line each.

    Raises:
        InputError: The file cannot be read, or holds no start of an engine that physim knows.
    """
    readable = [engine for engine in engines() if engine.log]
    told: dict[str, dict[str, str]] = {engine.name: {} for engine in readable}
    with data.reading(path), path.open(encoding="utf-8", errors="replace") as lines:
        for line in itertools.islice(lines, _MOST_LINES):
            for engine in readable:
                for name, pattern in engine.log.items():
                    match = re.search(pattern, line)
                    # Of several, the one that was logged last counts.
                    if match and match[1] != "None":
                        told[engine.name][name] = match[1]
            if _STARTED in line:
                break
    logged = next((name for name, own in told.items() if "engine_version" in own), None)
    if logged is None:
        raise InputError(
            str(path),
            f"says no version of {' or '.join(told)}",
            "pass the log of the server from its start on",
        )
    return options_of(logged, told[logged], str(path))


def options_of(engine: str, told: Mapping[str, str], where: str) -> Mapping[str, Any]:
    """The options of a server, of what an engine says of itself.

    Args:
        engine: The engine.
        told: Text by the names that `physim.engines.engine.Engine.log` has for it.
        where: What says it, for messages.

    Returns:
        As `read` has it.

    Raises:
        InputError: A value is none that the option takes.
    """
    started = checked(_Started, told, where)
    found = {"engine": engine, **started.model_dump(exclude_none=True)}
    dtype, is_eager = found.pop("dtype", ""), found.pop("enforce_eager", False)
    unusual = {
        f"dtype {dtype}": dtype == "float32",
        "enforce_eager, steps without CUDA graphs": is_eager,
        f"drafts by {found.get('draft')}": found.get("draft", MTP) not in METHODS,
    }
    if found.get("draft") not in METHODS:
        for name in ("draft", "draft_tokens"):
            found.pop(name, None)
    found["notes"] = [
        f"the server had {what}, which physim does not predict"
        for what, on in unusual.items()
        if on
    ]
    block_size = found.pop("block_size", _BLOCK_SIZE)
    tokens = found.pop("kv_tokens", found.pop("kv_blocks", 0) * block_size)
    if tokens:
        found["kv_blocks"] = tokens // _BLOCK_SIZE
    if "kv_host_gib" in found:
        # Of each engine process, which a data-parallel rank is.
        found["kv_host_bytes"] = found.pop("kv_host_gib") * GIB * found.get("dp", 1)
    if found.pop("expert_parallel", False):
        found["ep"] = found.get("tp", 1) * found.get("dp", 1)
    return found
