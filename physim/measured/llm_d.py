"""Benchmark Reports of llm-d: servers, load and latencies in one file, YAML or JSON.

The form is that of versions 0.2 and 0.2.1 (llm-d-benchmark, ``benchmark_report/schema_v0_2.py``
and ``schema_v0_2_1.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from physim import data
from physim.engines.engine import engines
from physim.errors import InputError
from physim.inputs.fleet import REPLICAS, pool_text
from physim.measured.stage_report import StageReport, cut_short
from physim.records import (
    Count,
    Document,
    Length,
    Positive,
    Record,
    Share,
    Spread,
    Text,
    Whole,
    checked,
)
from physim.service.phases import DECODE, PREFILL, decode_steps

_SOURCE = "a Benchmark Report of llm-d"
_ENGINE = "inference_engine"
# Of load generators: the one that repeats whole prompts where they share prefixes, and the one
# whose arrivals are Poisson's unless it is told otherwise.
_REPEATS = "inference-perf"
_OURS = "physim"
_POISSON = ("vllm-benchmark", "vllm-bench")
# A version, alone or as the tag of an image.
_VERSION = re.compile(r"(?:^|:)v?(\d+\.\d+[\w.+-]*)$")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def _unlimited(clients: Any) -> Any:
    """None for clients without limit."""
    return None if clients == math.inf else clients


class _Parallel(Document):
    tp: Whole = 1
    pp: Whole = 1
    dp: Whole = 1
    ep: Whole = 1


class _Accelerator(Document):
    model: Text
    parallelism: _Parallel = _Parallel()


class _Name(Document):
    name: Text


class _Args(Record):
    """Arguments of an engine that physim's options are named after."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, populate_by_name=False)

    max_num_seqs: Whole | None = Field(None, alias="--max-num-seqs")
    max_num_batched_tokens: Whole | None = Field(None, alias="--max-num-batched-tokens")
    max_model_len: Whole | None = Field(None, alias="--max-model-len")
    gpu_memory_utilization: Share | None = Field(None, alias="--gpu-memory-utilization")


class _Kind(Document):
    kind: str


class _Standardized(Document):
    tool: Text
    tool_version: Text | None = None
    role: Literal["replica", "aggregate", "prefill", "decode"] = "replica"
    replicas: Whole = 1
    model: _Name
    accelerator: _Accelerator


class _Native(Document):
    args: dict[str, Any] | None = None


class _Component(Document):
    standardized: dict[str, Any]
    native: _Native = _Native()


class _Lengths(Document):
    value: Length
    std_dev: Spread | None = None


class _Prefix(Document):
    num_groups: Whole


class _LoadOptions(Document):
    tool: Text
    stage: Count = 0
    input_seq_len: _Lengths
    output_seq_len: _Lengths | None = None
    prefix: _Prefix | None = None
    rate_qps: Positive | None = None
    concurrency: Annotated[Whole | None, BeforeValidator(_unlimited)] = None


class _SharedPrefix(Document):
    num_groups: Whole
    num_prompts_per_group: Whole


class _PromptData(Document):
    shared_prefix: _SharedPrefix | None = None


class _Pattern(Document):
    type: str | None = None


class _LoadConfig(Document):
    data: _PromptData = _PromptData()
    load: _Pattern = _Pattern()


class _Load(Document):
    standardized: _LoadOptions
    native: dict[str, Any] = Field(default_factory=dict)


class _Scenario(Document):
    stack: Annotated[list[_Component], Field(min_length=1)]
    load: _Load


class _Time(Document):
    units: Literal["s", "ms", "us"]
    mean: Positive

    @property
    def mean_s(self) -> float:
        return self.mean * _SECONDS[self.units]


class _Gap(Document):
    units: Literal["s/token", "ms/token", "us/token"]
    mean: Spread

    @property
    def mean_s(self) -> float:
        return self.mean * _SECONDS[self.units.removesuffix("/token")]


class _Tokens(Document):
    mean: Length
    stddev: Spread | None = None


class _Requests(Document):
    total: Whole
    failures: Count | None = None
    incomplete: Count | None = None
    input_length: _Tokens | None = None
    output_length: _Tokens


class _Latency(Document):
    time_to_first_token: _Time
    request_latency: _Time | None = None
    time_per_output_token: _Gap | None = None


class _Rate(Document):
    mean: Positive


class _Throughput(Document):
    request_rate: _Rate | None = None


class _Aggregate(Document):
    requests: _Requests
    latency: _Latency
    throughput: _Throughput = _Throughput()


class _Performance(Document):
    aggregate: _Aggregate


class _Results(Document):
    request_performance: _Performance


class _Report(Document):
    version: Annotated[Literal["0.2", "0.2.1"], BeforeValidator(str)]
    scenario: _Scenario
    results: _Results


def read_run(
    path: Path, output_len: float | None = None
) -> tuple[list[StageReport], Mapping[str, Any]]:
    """The one stage of a report, and the servers that it ran on.

    Of several servers that do the same, the stage is what one of them got: their share of the rate
    or of the clients, as from a router that spreads requests evenly.

    Args:
        path: The file.
        output_len: Tokens that were generated, if known better than from the report.

    Returns:
        The stage; and the model, the GPU, degrees and limits of a server, groups of prompts, and
        ``prefill`` and ``decode`` as rows have them, by name.

    Raises:
        InputError: The file is no such report, a field is missing, or its servers are none that
            physim predicts together.
    """
    report = checked(_Report, data.read_yaml(path), str(path), _SOURCE)
    servers = _engines(report.scenario.stack, f"{path}: scenario.stack")
    about, replicas, notes = _servers(servers, f"{path}: scenario.stack")
    prompts = _prompts(report.scenario.load, str(path), notes)
    stage = _stage(report, path, output_len, replicas, notes)
    return [stage], {**about, **prompts}


def _engines(
    stack: Sequence[_Component], where: str
) -> list[tuple[_Standardized, Mapping[str, Any]]]:
    """The components that serve the model, each with its options."""
    found: list[tuple[_Standardized, Mapping[str, Any]]] = []
    for place, one in enumerate(stack):
        here = f"{where}[{place}]"
        if checked(_Kind, one.standardized, f"{here}.standardized", _SOURCE).kind == _ENGINE:
            told = checked(_Standardized, one.standardized, f"{here}.standardized", _SOURCE)
            args = one.native.args or {}
            options = checked(_Args, args, f"{here}.native.args").model_dump(exclude_none=True)
            if "--no-enable-prefix-caching" in args:
                options["prefix_caching"] = False
            found.append((told, options))
    if not found:
        raise InputError(where, f"has no {_ENGINE}", f"pass {_SOURCE}")
    return found


def _servers(
    servers: Sequence[tuple[_Standardized, Mapping[str, Any]]], where: str
) -> tuple[dict[str, Any], int, list[str]]:
    """Options of the servers by name, how many share a stage, and what is to be said."""
    for what, values in (
        ("models", {one.model.name for one, _ in servers}),
        ("GPUs", {one.accelerator.model for one, _ in servers}),
    ):
        if len(values) > 1:
            raise InputError(where, f"is of {len(values)} {what}", "pass a report of one")
    phases = {one.role for one, _ in servers}
    if len(servers) > 2 or (len(servers) == 2 and phases != {PREFILL, DECODE}):
        problem = f"has {len(servers)} engines that are not one for prefill and one for decode"
        raise InputError(where, problem, "pass a report of one, or of both")
    last, options = next((one for one in servers if one[0].role == DECODE), servers[-1])
    found = {
        "model": last.model.name,
        "gpu": last.accelerator.model,
        **last.accelerator.parallelism.model_dump(),
        **options,
    }
    notes: list[str] = []
    if last.tool in {engine.name for engine in engines()}:
        found["engine"] = last.tool
        version = _VERSION.search(last.tool_version or "")
        if version is not None:
            found["engine_version"] = version[1]
    if len(servers) == 2:
        for one, own in servers:
            degrees = one.accelerator.parallelism.model_dump()
            sizes = {name: value for name, value in own.items() if name != "prefix_caching"}
            found[one.role] = pool_text({**degrees, REPLICAS: one.replicas, **sizes})
        return found, 1, notes
    if last.role == PREFILL:
        raise InputError(where, "has servers that compute prompts alone", "add those that decode")
    if last.role == DECODE:
        notes.append("servers that decode are alone, and are taken to compute prompts too")
    if last.replicas > 1:
        notes.append(f"the row is what one of {last.replicas} replicas gets of the load")
    return found, last.replicas, notes


def _prompts(load: _Load, where: str, notes: list[str]) -> dict[str, int]:
    """Groups of prompts that are sent again and again, where the load generator says so."""
    if load.standardized.prefix is None:
        return {}
    shared = None
    if load.standardized.tool == _REPEATS:
        shared = _load_config(load, where).data.shared_prefix
    if shared is None:
        groups = load.standardized.prefix.num_groups
        notes.append(f"prompts of {groups} groups share prefixes; give --prompt-groups")
        return {}
    return {
        "prompt_groups": shared.num_groups,
        "prompts_per_group": shared.num_prompts_per_group,
    }


def _load_config(load: _Load, where: str) -> _LoadConfig:
    config = load.native.get("config")
    place = f"{where}: scenario.load.native.config"
    return checked(_LoadConfig, config if isinstance(config, dict) else {}, place)


def _arrival(load: _Load, where: str) -> str:
    tool = load.standardized.tool
    if tool in (_REPEATS, _OURS) and _load_config(load, where).load.type == "poisson":
        return "poisson"
    return "poisson" if tool in _POISSON else "constant"


def _stage(
    report: _Report, path: Path, output_len: float | None, replicas: int, notes: list[str]
) -> StageReport:
    asked = report.scenario.load.standardized
    told = report.results.request_performance.aggregate
    requests, latency = told.requests, told.latency
    failed = (requests.failures or 0) + (requests.incomplete or 0)
    if failed > requests.total:
        where = f"{path}: results.request_performance.aggregate.requests.total"
        raise InputError(where, f"{requests.total} are fewer than failed, {failed}", "correct it")
    prompts, outputs = requests.input_length, requests.output_length
    generated, clients = output_len or outputs.mean, asked.concurrency
    answered = told.throughput.request_rate
    achieved = None if answered is None else answered.mean
    paced = asked.rate_qps is not None and clients is None
    rate = asked.rate_qps if paced else achieved
    if rate is None:
        where = f"{path}: results.request_performance.aggregate.throughput.request_rate"
        raise InputError(where, "is missing", f"pass {_SOURCE}")
    is_closed = clients is not None and asked.rate_qps is None
    if not paced and not is_closed:
        notes.append(f"no open rate: it enters with the {rate:.3g}/s achieved")
    if asked.output_seq_len is not None:
        notes.append(cut_short(outputs.mean, asked.output_seq_len.value))
    return StageReport(
        stage=asked.stage,
        rate_rps=rate / replicas,
        duration_s=requests.total / rate,
        arrival=_arrival(report.scenario.load, str(path)) if paced else "constant",
        input_len_mean=asked.input_seq_len.value if prompts is None else prompts.mean,
        input_len_std=asked.input_seq_len.std_dev if prompts is None else prompts.stddev,
        output_len=generated,
        output_len_std=outputs.stddev,
        ttft_mean=latency.time_to_first_token.mean_s,
        e2e_mean=_e2e_s(latency, path, generated),
        n_success=requests.total - failed,
        n_failed=failed,
        note="; ".join(filter(None, notes)),
        concurrency=clients / replicas if is_closed and clients is not None else None,
    )


def _e2e_s(latency: _Latency, path: Path, generated: float) -> float:
    if latency.request_latency is not None:
        return latency.request_latency.mean_s
    if latency.time_per_output_token is None:
        where = f"{path}: results.request_performance.aggregate.latency.request_latency"
        raise InputError(where, "is missing", f"pass {_SOURCE}")
    gaps = max(decode_steps(generated), 0.0)
    return latency.time_to_first_token.mean_s + gaps * latency.time_per_output_token.mean_s
