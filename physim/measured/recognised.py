"""Which format a report is of, by what it holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from physim import data
from physim.engines.engine import engines
from physim.errors import InputError
from physim.inputs.load_file import describes_a_load
from physim.measured.formats import FORMATS
from physim.measured.mlperf import TITLE

# Lines in which something of a file shows, and characters of a line that are looked at.
_LOOKED_AT = 200
_WIDEST = 100_000
_COLUMN = "first_chunk_time_us"


def _is_aiperf(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("request_throughput"), dict) and "request_latency" in content


def _is_llm_d(content: Mapping[str, Any]) -> bool:
    return {"version", "scenario", "results"} <= set(content)


def _is_prometheus(content: Mapping[str, Any]) -> bool:
    told = content.get("data")
    return isinstance(told, dict) and "resultType" in told


_OBJECTS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "llm-d": _is_llm_d,
    "guidellm": lambda content: isinstance(content.get("benchmarks"), list),
    "aiperf": _is_aiperf,
    "vllm-bench": lambda content: {"request_throughput", "mean_ttft_ms"} <= set(content),
    "metrics": _is_prometheus,
    "blis-trace": lambda content: "trace_version" in content,
}


def format_of(paths: Sequence[Path]) -> str:
    """The format of a report, of `physim.measured.formats`.

    Args:
        paths: Its files; several are scrapes of an engine's metrics.

    Raises:
        InputError: A file cannot be read, is of none of the formats, or is of another than the
            first.
    """
    if not paths:
        raise InputError("files", "are none", "pass a report")
    found = [_format(path) for path in paths]
    for path, kind in zip(paths, found, strict=True):
        if kind != found[0]:
            problem = f"looks like {kind}, and {paths[0]} like {found[0]}"
            raise InputError(str(path), problem, "pass files of one report")
    return found[0]


def _format(path: Path) -> str:
    if path.is_dir():
        if any(path.glob("stage_*_lifecycle_metrics.json")):
            return "inference-perf"
        raise _unknown(path)
    if path.suffix == ".jsonl":
        first = next(data.read_json_lines(path), ("", {}))[1]
        about = first.get("metadata")
        if isinstance(about, dict) and "benchmark_phase" in about:
            return "aiperf"
        raise _unknown(path)
    if path.suffix in (".json", ".yaml", ".yml"):
        # Only a sweep of vLLM is a list.
        is_json = path.suffix == ".json"
        content = data.read_json_objects(path)[0] if is_json else data.read_yaml(path)
        kinds = [kind for kind, is_so in _OBJECTS.items() if is_so(content)]
        if not kinds and describes_a_load(content):
            problem = "describes a load, which nobody measured"
            raise InputError(str(path), problem, "pass it to `physim predict`, with --workload")
        if not kinds:
            raise _unknown(path)
        return kinds[0]
    with data.opened(path, errors="replace") as file:
        lines = [file.readline(_WIDEST) for _ in itertools.repeat(None, _LOOKED_AT)]
    if _COLUMN in [name.strip() for name in lines[0].split(",")]:
        return "blis-trace"
    if any(TITLE in line for line in lines):
        return "mlperf"
    # What an engine shows to Prometheus begins with its name.
    starts = ("# TYPE ", *(f"{engine.name}:" for engine in engines()))
    if any(line.startswith(starts) for line in lines):
        return "metrics"
    raise _unknown(path)


def _unknown(path: Path) -> InputError:
    known = ", ".join(FORMATS)
    return InputError(str(path), "looks like no report that physim reads", f"name one of {known}")
