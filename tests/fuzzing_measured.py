"""What others measured, wrong in some random way; and which fields of it are not read at all.

A format is its valid examples, in `tests/reports`, and what is made of them. Each is a fuzzer in
`MEASURED`.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from odd_files import (
    ODD,
    Rng,
    changed,
    csv_file,
    exchanged,
    field_of,
    json_file,
    leaves,
    spoilt,
)

import physim
from physim.errors import InputError
from physim.inputs.lengths import lengths
from physim.inputs.load import ARRIVALS, Load
from physim.inputs.load_file import read_load, staying
from physim.inputs.request_traces import read_requests, read_turns
from physim.measured import formats, ml_energy, server_log, silicon, silicon_pools
from physim.measured.metrics import read_metrics
from physim.measured.recognised import format_of
from physim.measured.run_cases import case_of, measured
from physim.measured.runs_csv import TableRow, read_tables
from physim.measured.schema import RunRow
from physim.measured.step_files import read_step_files
from physim.measured.step_trace import read_steps
from physim.replay.workload import read_trace

REPORTS = Path(__file__).parent / "reports"


def _of_report(kind: str) -> Callable[[Path], Any]:
    """Reads a report, and makes a case of each of its stages."""

    def read(path: Path) -> Any:
        # llm-d's say of what they are.
        about = {} if kind == "llm-d" else {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm"}
        if kind == "mlperf":
            about["input_tokens"] = 294.0
        frame = physim.read_report(kind, path, **about)
        # Whoever can read it also tells what it is, if it is called as such files are.
        if path.suffix in (".json", ".jsonl", ".yaml", ".csv") or path.is_dir():
            assert format_of([path]) == kind
        rows = frame.to_dict("records")
        for row in rows:
            assert 0 < row["ttft_mean"] <= row["e2e_mean"] <= 1e9
            assert row["rate_rps"] > 0
            assert row["duration_s"] > 0
            assert row["n_success"] >= 0 <= row["n_failed"]
            case_of([TableRow(RunRow.model_validate(row))], None)
        return rows

    return read


def _workload(path: Path) -> Any:
    """The options of a load, and the load."""
    options = read_load(path)
    load = Load(**{**options, "stages": tuple(options.get("stages", ()))})
    assert 1 <= load.mean_input <= 2e9
    assert 1 <= load.mean_output <= 1e9
    assert load.concurrency is not None or load.stages
    assert staying(options).keys() >= {"input_tokens", "output_tokens"}
    return load


def _runs(path: Path) -> Any:
    """The rows of a table of runs: cases, and what was measured."""
    table = read_tables([path])
    frame, rows = table.frame, table.rows
    load = case_of(rows, None).demanded
    assert load.arrival in ARRIVALS
    assert 1 <= load.mean_input <= 1e9
    assert 1 <= load.mean_output <= 1e9
    assert load.concurrency is not None or len(load.stages) == max((frame["stage"] >= 0).sum(), 1)
    for one in rows:
        assert all(0 < value <= 1e9 for value in measured(one.row).values())
    # Of which run they are, and whether too many requests failed for a fit.
    told = (
        frame[["experiment", "n_success", "n_failed"]]
        if {"n_success", "n_failed"} <= set(frame)
        else None
    )
    return case_of(rows, None), [measured(one.row) for one in rows], told


def _requests(path: Path) -> Any:
    """The requests of a trace."""
    requests = read_trace(path, 16).requests
    for request in requests:
        assert request.input_tokens >= 1
        assert request.output_tokens >= 1
        assert request.arrival_s >= 0
        assert all(0 <= one.end * 16 <= request.input_tokens for one in request.path)
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals)
    shared: dict[int, int] = {}
    return [
        (
            *(one.arrival_s, one.input_tokens, one.output_tokens),
            [(shared.setdefault(id(part), len(shared)), part.end) for part in one.path],
        )
        for one in requests
    ]


def _blis_workload(path: Path) -> Any:
    """The load that a workload describes, which is told by what it holds."""
    load = read_load(path)
    assert staying(load).keys() >= {"rate", "lengths"}
    lengths = load["lengths"]
    assert lengths is not None
    assert (lengths.arrays[0] - lengths.arrays[1] >= 1).all()
    assert load["burstiness"] > 0
    rates = [load["rate"]] if "rate" in load else [stage.rate for stage in load["stages"]]
    assert all(0 < rate <= 1e9 for rate in rates)
    return [column.tolist() for column in lengths.arrays], {**load, "lengths": None}


def _turns(path: Path) -> Any:
    """The same of requests of which some may come after an answer, and after which."""
    turns = read_turns(path).turns
    followed = [] if turns is None else [turns.after.tolist(), np.nan_to_num(turns.delay_s, nan=-1)]
    return _lengths(path), [list(column) for column in followed]


def _lengths(path: Path) -> Any:
    """The lengths of requests, and when they came if the file says."""
    found = read_requests(path)
    own = physim.RequestLengths.read(path)
    for values in own.arrays:
        assert np.isfinite(values).all()
    assert own.moments.new >= 1
    assert (own.points.cached_tokens <= own.points.input_tokens).all()
    if found.arrival_s is not None:
        assert found.arrival_s[0] == 0
        assert (np.diff(found.arrival_s) >= 0).all()
    columns = (found.arrival_s, found.input_tokens, found.cached_tokens, found.output_tokens)
    return [None if column is None else column.tolist() for column in columns], found.blocks


def _profile(path: Path) -> Any:
    """The windows of a load profile."""
    profile = physim.read_profile(path, window_s=60.0)
    for window in profile.windows:
        assert window.duration_s > 0
        assert 0 < window.rate < math.inf
        assert 0 <= window.cached_tokens <= lengths(window.input_tokens).mean
    if path.suffix == ".csv":
        counted = sum(window.rate * window.duration_s for window in profile.windows)
        assert counted == len(read_trace(path, 16).requests)
    return profile


def _steps(path: Path) -> Any:
    frame = read_steps(path)
    assert (frame["cycle_s"] > 0).all()
    assert np.isfinite(frame["cycle_s"]).all()
    assert (frame[["decode_requests", "prefill_requests", "prefill_tokens"]] >= 0).all(axis=None)
    return frame.to_dict("records")


def _any_steps(path: Path) -> Any:
    """Steps of any format, with what the step model takes of them."""
    steps = read_step_files([path])
    if np.isnan(steps.kv_usage).any():
        steps = steps.with_mean_context(500.0)
    batches = steps.with_contexts(1e5).batches(np.array([np.inf, 1024.0]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(batches))
    assert np.asarray(batches.tokens > 0).all()
    about = (steps.clock, steps.engine, steps.engine_version, steps.notes)
    return {name: values.tolist() for name, values in steps.columns.items()}, about


def _public(read: Callable[[Path], pd.DataFrame]) -> Callable[[Path], Any]:
    """Rows of public measurements: finite, and of a load that physim knows."""

    def rows(path: Path) -> Any:
        frame = read(path)
        for column in ("concurrency", "rate_rps", "duration_s", "input_len_mean", "output_len"):
            assert np.isfinite(frame[column].to_numpy(float)).all()
            assert (frame[column] > 0).all()
        return frame.to_dict("records")

    return rows


def _log(path: Path) -> Any:
    found = dict(server_log.read(path))
    notes = found.pop("notes"), found.pop("quantization", None)
    for name, value in found.items():
        wanted = {
            "engine": str,
            "engine_version": str,
            "draft": str,
            "kv_cache_dtype": str,
            "prefix_caching": bool,
        }
        assert type(value) is wanted.get(name, float if name.endswith("utilization") else int)
    return found, notes


def whole(value: Any) -> str:
    """A value as text that differs where any part of it does: sessions show less of records."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: getattr(value, one.name) for one in fields(value)}
        return f"{type(value).__name__}({whole(parts)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {whole(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(whole, value))}]"
    return repr(value)


@dataclass(frozen=True)
class Format:
    """A form in which measurements come.

    Attributes:
        examples: Names of valid files in `tests/reports`, of all fields that the tool writes.
        read: What physim makes of a file; asserts that it is sane.
        beside: The suffix of a file that goes with each: values by key.
        suffix: That of the file to write, if not the example's.
    """

    examples: tuple[str, ...]
    read: Callable[[Path], Any]
    beside: str = ""
    suffix: str = ""

    def fuzz(self, rng: Rng, folder: Path) -> None:
        """Writes an example that is wrong in some way, and reads it."""
        name = self.examples[rng.integers(len(self.examples))]
        content, beside = self._content(name), self._beside(name)
        path = self._path(folder, name)
        if beside and rng.random() < 0.4:
            self._write(folder, name, content, changed(rng, beside))
        elif isinstance(content, str):
            path.write_bytes(_odd_log(rng, content))
        elif name.endswith(".json"):
            json_file(rng, path, content)
        else:
            self._write(folder, name, content, beside)
            table = csv_file(rng, path.with_suffix(".csv"), content)
            if path.suffix == ".parquet":
                _as_parquet(table, path)
        self.read(self._argument(path))

    def unread(self, folder: Path) -> set[str]:
        """Fields that another valid value in their place changes nothing of."""
        seen: dict[str, bool] = {}
        for name in self.examples:
            content, beside = self._content(name), self._beside(name)
            base = self.made(folder, name, content, beside)
            assert not base.startswith("refused"), (name, base)
            for field, other in _variants(content):
                found = self.made(folder, name, other, beside)
                seen[field] = seen.get(field, False) or found != base
            for field, other in _variants(beside):
                found = self.made(folder, name, content, other)
                seen[field] = seen.get(field, False) or found != base
        return {field for field, is_read in seen.items() if not is_read}

    def made(self, folder: Path, name: str, content: Any, beside: Mapping[str, Any]) -> str:
        """What is made of an example's content, as text."""
        self._write(folder, name, content, beside)
        try:
            return whole(self.read(self._argument(self._path(folder, name))))
        except InputError as error:
            return f"refused: {error}"

    def _content(self, name: str) -> Any:
        path = REPORTS / name
        if path.suffix == ".json":
            return json.loads(path.read_text())
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                return list(csv.DictReader(file))
        return path.read_text()

    def _beside(self, name: str) -> dict[str, str]:
        if not self.beside:
            return {}
        lines = (REPORTS / name).with_suffix(self.beside).read_text().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def _write(
        self, folder: Path, name: str, content: Any, beside: Mapping[str, Any] | None
    ) -> None:
        path = self._path(folder, name)
        if self.beside and beside is not None:
            lines = [f"{key}: {value}" for key, value in beside.items()]
            path.with_suffix(self.beside).write_text("\n".join(lines), "utf-8", "replace")
        if isinstance(content, str):
            path.write_text(content)
        elif name.endswith(".json"):
            path.write_text(json.dumps(content))
        else:
            table = path.with_suffix(".csv")
            with table.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(content[0]))
                writer.writeheader()
                writer.writerows(content)
            if path.suffix == ".parquet":
                _as_parquet(table, path)

    def _path(self, folder: Path, name: str) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_suffix(self.suffix) if self.suffix else path

    def _argument(self, path: Path) -> Path:
        """What is read: inference-perf's reports are a folder."""
        return path.parent if path.name.startswith("stage_") else path


def _odd_log(rng: Rng, text: str) -> bytes:
    """A log in which some values are others, or that is cut short."""
    for _ in range(rng.integers(1, 4)):
        values = list(re.finditer(r"(?<=[=:(] )\S+|(?<==)\S+|\d+", text))
        if not values:
            break
        value = values[rng.integers(len(values))]
        text = text[: value.start()] + str(ODD[rng.integers(len(ODD))]) + text[value.end() :]
    if rng.random() < 0.15:
        return spoilt(rng, text)
    return text.encode("utf-8", "replace")


def _as_parquet(table: Path, path: Path) -> None:
    """The cells of a CSV as Parquet, with types where a column has them; else the bytes as such."""
    try:
        pd.read_csv(table).to_parquet(path)
    except (ValueError, OverflowError):  # of numbers too large for either
        path.write_bytes(table.read_bytes())


def _variants(content: Any) -> Iterator[tuple[str, Any]]:
    """Contents with one value exchanged for another of its kind, and the name of its field."""
    if isinstance(content, str):
        for value in re.finditer(r"(\w+)(?:=|'?: )'?([\w.,/]*\w)", content):
            for other in _others(value[2]):
                yield value[1], content[: value.start(2)] + str(other) + content[value.end(2) :]
        return
    for way, value in leaves(content):
        # Columns of a table have no brackets before them.
        field = field_of(way).removeprefix("[]").lstrip(".")
        for other in _others(value):
            yield field, exchanged(content, way, other)


def _others(value: Any) -> list[Any]:
    """Other values of its kind; what is empty may be a number or a name."""
    if value in ("", None):
        return [1, "x"]
    if isinstance(value, bool):
        return [not value]
    if value in ("true", "True", "False"):
        return [str(value == "False")]
    if isinstance(value, str):
        # Text stays text, as a table's cells and Prometheus's samples are.
        if re.fullmatch(r"-?\d+", value):
            return [str(int(value) + 1)]
        if re.fullmatch(r"-?\d*\.\d+", value):
            return [str(float(value) * 1.07)]
        return [f"x{value}", f"{value}1"]
    return [value + 1 if isinstance(value, int) else value * 1.07 or 0.5]


_STAGE = "stage_0_lifecycle_metrics.json"
FORMATS: dict[str, Format] = {
    "table": Format(("runs.csv", "runs_of_clients.csv", "runs_of_traffic.csv"), _runs),
    "trace": Format(("trace.csv",), _requests),
    "profile-of-trace": Format(("trace.csv",), _profile),
    "requests": Format(("requests.csv", "trace.csv", "azure.csv"), _lengths),
    "mooncake": Format(("mooncake.jsonl", "sessions.jsonl"), _turns),
    "prometheus-vllm": Format(("prometheus_vllm.json",), _profile),
    "prometheus-sglang": Format(("prometheus_sglang.json",), _profile),
    "inference-perf": Format(
        (f"inference-perf/{_STAGE}", f"inference-perf-behind/{_STAGE}"),
        _of_report("inference-perf"),
    ),
    "guidellm": Format(("guidellm.json", "guidellm_strategies.json"), _of_report("guidellm")),
    "vllm-bench": Format(
        ("vllm_bench.json", "vllm_bench_older.json", "vllm_bench_detailed.json"),
        _of_report("vllm-bench"),
    ),
    "blis-trace": Format(("blis.csv",), _of_report("blis-trace"), beside=".yaml"),
    "blis-workload": Format(("blis_workload.yaml", "blis_workload_gamma.yaml"), _blis_workload),
    "aiperf": Format(
        ("aiperf.json", "aiperf_clients.json", "aiperf_gamma.json"), _of_report("aiperf")
    ),
    "aiperf-requests": Format(("aiperf.jsonl",), _of_report("aiperf")),
    "llm-d": Format(("llm_d.json", "llm_d_apart.json"), _of_report("llm-d")),
    "llm-d-yaml": Format(("llm_d.yaml",), _of_report("llm-d")),
    "mlperf": Format(("mlperf.txt",), _of_report("mlperf")),
    "workload": Format(("workload.yaml", "workload_prefix.yaml"), _workload),
    "vllm-log": Format(("vllm.log", "vllm_newer.log"), _log),
    "ml-energy": Format(("ml_energy.csv",), _public(ml_energy.read)),
    "silicon": Format(("silicon.csv",), _public(silicon.read)),
    "silicon-disagg": Format(
        ("silicon_disagg.csv",), _public(lambda path: silicon_pools.read(path).frame)
    ),
    "steps-csv": Format(("steps.csv",), _steps),
    "steps-parquet": Format(("steps.csv",), _steps, suffix=".parquet"),
    "steps-log": Format(("iterations.log", "iterations_older.log"), _any_steps),
    "steps-forward-pass": Format(("forward_pass.jsonl", "forward_pass_timed.jsonl"), _any_steps),
    "steps-bench-forward": Format(("vllm_bench_forward.json",), _any_steps),
    "steps-forward-table": Format(("forward_table.csv",), _any_steps, suffix=".parquet"),
    "steps-table": Format(("step_table.csv",), _any_steps),
}
assert set(formats.FORMATS) <= {*FORMATS, "metrics"}

_MEANS = "physim compares means"
_FOLLOWS = "follows from others that are read"
_NAMED = "whoever reads it names the model"
_OF_A_RUN = "the table of runs says it"
_TEXT_ALONE = "physim predicts text; a server counts the tokens of images and sounds in its prompts"
_ABOUT = "says where the measurement came from"
_STEPS = {
    "step.duration_us": "often the time of a launch alone; the next step's start counts",
    "step.ts_end_ns": "often the end of a launch alone; the next step's start counts",
    "batch.scheduled_tokens": _FOLLOWS,
    "batch.decode_tokens": _FOLLOWS,
    "batch.num_finished": "a request that ends costs no step time",
    "batch.num_preempted": "its prompt comes again, among those of a later step",
    "queue.*": "a request that waits costs no step time",
    "kv.blocks*": "the engine's own log says how many there are",
    **dict.fromkeys(("model", "workload", "tp"), _OF_A_RUN),
}
_PROMETHEUS = {"data.result*.metric.pod": "series of several servers are added up"}
# Fields whose value changes nothing, and why. Names may have wild cards.
IGNORED: dict[str, dict[str, str]] = {
    "prometheus-vllm": _PROMETHEUS,
    "prometheus-sglang": _PROMETHEUS,
    "inference-perf": {
        **dict.fromkeys(("*.p[0-9]*", "*.min", "*.max", "*.median"), _MEANS),
        "benchmark_time_seconds": "the stage lasts as long as requests were sent",
        "load_summary.schedule_delay.mean": "achieved_rate says whether the client kept up",
        "load_summary.send_duration": "achieved_rate says whether the client kept up",
        "failures.request_latency": "requests that failed are counted alone",
        "failures.prompt_tokens.*": "requests that failed are counted alone",
        "successes.latency.*time_per_output_token.mean": "E2E without TTFT says it",
        "successes.output_tokens.total": _FOLLOWS,
        "successes.prompt_tokens.uncached": _FOLLOWS,
        "successes.throughput.*": _FOLLOWS,
        "successes.request_size_bytes.*": "prompts are counted in tokens",
        "successes.token_count_mismatches": "the server's count is taken where it gave one",
        "successes.client_fallback_requests.*": "the server's count is taken where it gave one",
        **dict.fromkeys(("*.audio.*", "*.image.*", "*.video.*"), _TEXT_ALONE),
    },
    "guidellm": {
        "metadata.*": "the fields are checked, whatever wrote them",
        "benchmarks*.type_": "the fields are checked, whatever wrote them",
        **dict.fromkeys(("*.count", "*.max", "*.median", "*.min"), _MEANS),
        **dict.fromkeys(("*.request_latency.successful.std_dev",), _MEANS),
        **dict.fromkeys(("*.requests_per_second.successful.std_dev",), _MEANS),
        **dict.fromkeys(("*.time_to_first_token_ms.successful.std_dev",), _MEANS),
        "*.inter_token_latency_ms.*": "E2E without TTFT says it",
        "*.request_totals.total": _FOLLOWS,
        "*.request_totals.incomplete": "the end of the benchmark cut them off, not the server",
        "*.strategy.worker_count": "the rate and the requests under way say what was sent",
        "*.strategy.rampup_duration": "means are over the whole benchmark, its start included",
    },
    "vllm-bench": {
        **dict.fromkeys(("median_*", "std_*", "p99_*"), _MEANS),
        **dict.fromkeys(("model_id", "tokenizer_id"), _NAMED),
        **dict.fromkeys(("date", "label"), _ABOUT),
        **dict.fromkeys(("backend", "endpoint_type"), "how the client asks, not what serves"),
        **dict.fromkeys(("output_throughput", "total_token_throughput"), _FOLLOWS),
        **dict.fromkeys(("ttfts*", "itls*"), "their means are read"),
        "mean_itl_ms": "of chunks, which may hold several tokens; TPOT is read",
        "request_goodput": "of objectives that the result does not state",
        "errors*": "they are counted in `failed`",
    },
    "blis-trace": {
        **dict.fromkeys(("created_at", "workload_*"), _ABOUT),
        **dict.fromkeys(("request_id", "client_id", "tenant_id", "session_id"), "names alone"),
        **dict.fromkeys(("round_index", "slo_class"), "the times say when it was served"),
        **dict.fromkeys(("error_message", "finish_reason", "deadline_us"), "`status` says it"),
        **dict.fromkeys(("image_tokens", "audio_tokens", "video_tokens"), _TEXT_ALONE),
        **dict.fromkeys(("text_tokens", "reason_ratio"), "parts of the tokens that are read"),
        "mode": "a simulated trace is compared as a measured one",
        "model": _NAMED,
        "num_chunks": "chunks may hold several tokens",
        "prefix_group": "--prompt-groups says what is sent again",
    },
    "blis-workload": {
        **dict.fromkeys(("seed", "category"), _ABOUT),
        **dict.fromkeys(("id", "tenant_id", "slo_class", "prefix_group"), "names alone"),
        "model": _NAMED,
        "streaming": "TTFT is of streamed answers",
        **dict.fromkeys(("rtt_ms", "bandwidth_mbps"), "physim predicts what the server does"),
    },
    "aiperf": {
        **dict.fromkeys(("*.p50", "*.min", "*.max"), _MEANS),
        **dict.fromkeys(("request_latency.std", "*_token*.std"), _MEANS),
        **dict.fromkeys(("*_version", "benchmark_id", "start_time", "end_time"), _ABOUT),
        **dict.fromkeys(("*.name", "*.type"), "names alone"),
        "input_config.phases*.kind": "the last phase that warms nothing up is the one measured",
        "input_config.models*": _NAMED,
        "input_config.phases*.requests": "the report counts those that were answered",
        "input_config.phases*.duration": "the report says how long it took",
        "input_config.datasets*.isl.*": "the report has the prompts that were sent",
        "inter_token_latency.*": "E2E without TTFT says it",
        "time_to_second_token.*": "E2E without TTFT says it",
        "output_token_throughput.*": _FOLLOWS,
        "*.unit": "lengths and counts have one unit",
    },
    "aiperf-requests": {},
    "llm-d": {
        **dict.fromkeys(("*.p50", "*.p99"), _MEANS),
        **dict.fromkeys(("run.*", "*.metadata.*"), _ABOUT),
        **dict.fromkeys(("*.tool_version", "*.source"), "of the load generator"),
        **dict.fromkeys(("*.normalized_time_per_output_token.*",), _FOLLOWS),
        "*.inter_token_latency.*": "of chunks, which may hold several tokens; TPOT is read",
        "*.throughput.*_token_rate.*": _FOLLOWS,
        "*.request_rate.units": "rates have one unit",
        "*_length.units": "lengths are in tokens",
        "*.distribution": "physim takes a mean and a spread",
        "*.output_seq_len.std_dev": "the spread of what was generated is read",
        **dict.fromkeys(("*.prefix.num_*", "*.prefix.prefix_len.*"), "the native load says it"),
        "*.load.standardized.parallelism": "how the client asks, not what serves",
        "*.native.config.data.type": "its name alone",
        "*.native.config.load.stages*": "a report is of one stage, which is read",
        "*.native.config.kind": "of the router",
        "*.native.args.rate": "the standardised load says it",
        "*.native.args.--tensor-parallel-size": "the standardised server says it",
        "*.native.envars.*": "physim has no option of them",
        "*.accelerator.count": _FOLLOWS,
        "*.parallelism.dp_local": "ranks on one machine or several work alike",
        "*.parallelism.workers": _FOLLOWS,
    },
    "llm-d-yaml": {"*": "the same report in JSON says why"},
    "mlperf": {
        "satisfied": "the result says it",
    },
    "workload": {
        "streaming": "how the client asks, not what serves",
        "interval": "seconds between batches of a client's work",
        "total_count": "lengths are drawn from the distribution",
        "model_name": _NAMED,
        "base_url": _NAMED,
        "ignore_eos": "lengths are those that are asked for",
    },
    "vllm-log": {
        "model": _NAMED,
        "seed": "no times depend on it",
        "config": "the name of another field",
        "chunked_prefill_enabled": "engines of these versions always do",
    },
    "ml-energy": {
        "itl_p*": _MEANS,
        "output_tok_per_s": _FOLLOWS,
        "precision": "the name of the checkpoint says it",
    },
    "silicon": {
        **dict.fromkeys(("decode_*", "prefill_*"), "of servers that are disaggregated"),
        **dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), "`precision` says the checkpoint"),
    },
    "silicon-disagg": {
        "prefill_batch_size": "1 in all rows, however many prompts come at once",
        **dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), "`precision` says the checkpoint"),
    },
    "steps-csv": _STEPS,
    "steps-log": {"pid": "names alone"},
    "steps-bench-forward": {
        "requests*.chunked": "attention reads the same, whoever wrote what is cached",
        "ranks*.num_tokens": _FOLLOWS,
        "ranks*.kv_blocks": _FOLLOWS,
        "ranks*.routing": "the fit says how tokens spread over experts",
        **{
            f"ranks*.latency_us.{name}": "the slowest rank's median is read"
            for name in ("median", "mean", "min", "p90", "std", "count")
        },
    },
    "steps-forward-table": {
        "cell_id": _ABOUT,
        "weight_quantization": "the name of the checkpoint says it",
    },
    "steps-parquet": _STEPS,
}


def report(rng: Rng, folder: Path) -> None:
    """Odd options beside a report."""
    path = folder / "bench.json"
    path.write_text((REPORTS / "vllm_bench.json").read_text())
    names = ("tp", "pp", "dp", "ep", "prefix_caching", "engine", "engine_version", "max_num_seqs")
    names += ("max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "kv_blocks")
    names += ("kv_cache_dtype",)
    given: dict[str, Any] = {}
    for _ in range(rng.integers(1, 4)):
        given[names[rng.integers(len(names))]] = ODD[rng.integers(len(ODD))]
    whole = [value for value in ODD if type(value) is int]
    for name in ("prompt_groups", "prompts_per_group"):
        if rng.random() < 0.3:
            given[name] = whole[rng.integers(len(whole))]
    if rng.random() < 0.3:
        given["output_tokens"] = float(rng.choice([0.0, -1.0, 0.5, 3.0, 1e300, math.nan, math.inf]))
    frame = physim.read_report("vllm-bench", path, model="Qwen/Qwen3-8B", gpu="h100_sxm", **given)
    (row,) = frame.to_dict("records")
    assert isinstance(row["prefix_caching"], bool)
    assert 1 <= row["output_len"] <= 1e9
    case_of([TableRow(RunRow.model_validate(row))], None)


def scrapes(rng: Rng, folder: Path) -> None:
    """Two scrapes of an engine, of which one is odd, or both."""
    engine = ("", "sglang_")[rng.integers(2)]
    paths = []
    for when in ("before", "after"):
        text = (REPORTS / f"metrics_{engine}{when}.txt").read_text()
        path = folder / f"{when}.txt"
        path.write_bytes(_odd_scrape(rng, text) if rng.random() < 0.6 else text.encode())
        paths.append(path)
    if rng.random() < 0.1:
        paths.reverse()
    counted = read_metrics(paths, 60.0)
    json.dumps(counted.to_dict(), allow_nan=False)
    frame = physim.read_report(
        "metrics", paths, model="Qwen/Qwen3-8B", gpu="h100_sxm", interval_s=60.0
    )
    (row,) = frame.to_dict("records")
    assert 0 < row["ttft_mean"] <= row["e2e_mean"]
    case_of([TableRow(RunRow.model_validate(row))], None)


def _odd_scrape(rng: Rng, text: str) -> bytes:
    """A scrape in which a value, a label or a line is another."""
    lines = text.splitlines(keepends=True)
    for _ in range(rng.integers(1, 4)):
        place = rng.integers(len(lines))
        how, odd = rng.random(), str(ODD[rng.integers(len(ODD))])
        if how < 0.5:
            lines[place] = f"{lines[place].rsplit(' ', 1)[0]} {odd}\n"
        elif how < 0.8:
            lines[place] = re.sub(r'"[^"]*"', f'"{odd}"', lines[place], count=1)
        elif how < 0.9:
            lines.append(lines[place])
        else:
            del lines[place]
    return spoilt(rng, text) if rng.random() < 0.1 else "".join(lines).encode("utf-8", "replace")


def without_reason(kind: str, unread: Set[str]) -> tuple[set[str], set[str]]:
    """Unread fields of a format that are not in `IGNORED`, and names there that are of none."""
    patterns = IGNORED.get(kind, {})
    of_each = {pattern: set(fnmatch.filter(unread, pattern)) for pattern in patterns}
    return set(unread).difference(*of_each.values()), {own for own in patterns if not of_each[own]}


MEASURED: dict[str, Callable[[Rng, Path], None]] = {
    **{name: one.fuzz for name, one in FORMATS.items()},
    "report": report,
    "scrapes": scrapes,
}
