"""Reports of load generators as measured runs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from physim.data import paths_of
from physim.errors import InputError
from physim.inputs.case import check_types
from physim.inputs.deployment import Deployment
from physim.inputs.lengths import lengths as distribution
from physim.inputs.request_lengths import RequestLengths
from physim.measured import blis_trace, llm_d, metrics, mlperf
from physim.measured import server_log as server_logs
from physim.measured.formats import AUTO, FORMATS
from physim.measured.recognised import format_of
from physim.measured.schema import DEGREES, ENGINE_COLUMNS
from physim.measured.stage_report import StageReport, rows
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.options import named_options
from physim.service.hardware import load_hardware
from physim.service.phases import DECODE, PREFILL

if TYPE_CHECKING:
    import pandas as pd


# Limits that an engine has by default, which are said where nobody gave them.
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization")
# Bytes of a weight whose checkpoint is not quantised.
_UNQUANTISED_BYTES = 2
# Options that rows may record, but for those that reports and logs leave open.
_LEFT_OPEN = ("sampling", "async_scheduling", "receive_every", "captured_tokens")
_OPTIONS = tuple(name for name in ENGINE_COLUMNS if name not in _LEFT_OPEN)
# What a report may say besides, that is no option of a server.
_OF_A_REPORT = ("model", "gpu", "prompt_groups", "prompts_per_group", PREFILL, DECODE)


class ReportedServer(TypedDict, total=False):
    """How a server of a report was started, by names."""

    tp: int
    pp: int
    dp: int
    ep: int
    prefix_caching: bool | None
    engine: str
    engine_version: str | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    gpu_memory_utilization: float | None
    kv_blocks: int | None
    kv_cache_dtype: str
    moe_kernel: str | None
    moe_activations: str
    expert_load: float | None
    all2all: str | None
    stream_interval: int
    mixed_chunk: bool
    draft: str | None
    draft_tokens: int | None
    draft_acceptance: float | str | Sequence[float] | None
    draft_model: str | None
    kv_host_bytes: float | None
    kv_host_bandwidth: float | None
    kv_disk_bytes: float | None
    kv_disk_bandwidth: float | None
    kv_disk_write_bandwidth: float | None
    kv_disk_latency_s: float | None


@named_options
def read_report(
    kind: str,
    path: str | Path | Sequence[str | Path],
    *,
    model: str | None = None,
    gpu: str | None = None,
    output_tokens: float | None = None,
    input_tokens: float | None = None,
    experiment: str | None = None,
    server_log: str | Path | None = None,
    prompt_groups: int = 0,
    prompts_per_group: int = 1,
    lengths: str | Path | None = None,
    interval_s: float | None = None,
    **server: Unpack[ReportedServer],
) -> pd.DataFrame:
    """Reads a load generator's report into rows that `physim.fit` and `physim.evaluate` take.

    Such a report does not say how the server was started, but for llm-d's. What neither its log
    nor an option says is what the engine takes by default on the GPU, and the rows' ``note`` says
    so.

    Args:
        kind: One of `physim.measured.formats.FORMATS`, or ``auto`` for what the file looks like.
        path: The report's file, or inference-perf's folder; of ``metrics`` two scrapes of an
            engine's ``/metrics`` or one range query, as `physim.read_metrics` takes them.
        model: Name or hub id of the model; what the report says if None, as llm-d's do
            and BLIS's may.
        gpu: Key of the GPU, likewise.
        output_tokens: Tokens generated, if all requests had as many: clients that tokenise the
            text again count too few.
        input_tokens: Mean prompt, tokens, of MLPerf's summaries, which do not say it.
        experiment: Name of the run; the report's if None.
        server_log: What the engine wrote when it started, for its version, limits and KV blocks.
        prompt_groups: Groups of prompts that were sent again and again; 0 if all differed.
        prompts_per_group: Different prompts of a group.
        lengths: A preset of `physim.RequestLengths`, or the trace or table of requests that were
            sent, whose means must be the report's within a twentieth.
        interval_s: Seconds between two scrapes, where they do not say it.
        **server: How the server was started, which counts before its log, and that before what
            metrics say: degrees of
            `physim.Parallelism`, ``prefix_caching``, and of the fields of `physim.Deployment` the
            engine, its version, its limits, ``kv_blocks`` and ``kv_cache_dtype``.

    Returns:
        A row for each load stage, times in seconds and lengths in tokens; ``note`` says what was
        odd in the report, and what was made of it. Write it with ``to_csv(path, index=False)``.

    Raises:
        InputError: The kind, model or GPU is unknown, the report is none of this kind or
            contradicts the lengths, or the server could not have been started so.
    """
    import pandas as pd

    for name, tokens in (("output", output_tokens), ("input", input_tokens)):
        if tokens is not None and not 1 <= tokens < math.inf:
            raise InputError(name, f"{tokens} is below 1 or no number", "correct it")
    files = paths_of(path, "reports")
    kind = format_of(files) if kind == AUTO else kind
    if kind not in FORMATS:
        known = ", ".join((AUTO, *FORMATS))
        raise InputError("format", f"{kind!r} is unknown", f"use one of {known}")
    asked = {} if server_log is None else dict(server_logs.read(Path(server_log)))
    notes, quantization = asked.pop("notes", []), asked.pop("quantization", None)
    asked |= {name: value for name, value in server.items() if value is not None}
    if input_tokens is not None and kind != "mlperf":
        raise InputError("input", f"is given by {kind} already", "leave it out")
    if input_tokens is None and kind == "mlperf" and lengths is not None:
        input_tokens = distribution(RequestLengths.read(lengths).inputs).mean
    stages, shown = _stages(kind, files, output_tokens, input_tokens, interval_s)
    of_report = {name: shown.pop(name) for name in _OF_A_REPORT if name in shown}
    called = of_report.get("model") or stages[0].model
    model = _known("model", model or called)
    gpu = _known("gpu", gpu or of_report.get("gpu"))
    if called and not _same_name(model, called):
        notes = [*notes, f"the report is of the model {called}"]
    if not prompt_groups and "prompt_groups" in of_report:
        prompt_groups = of_report["prompt_groups"]
        prompts_per_group = of_report["prompts_per_group"]
    asked = {**shown, **asked}
    accepted = next((one.draft_acceptance for one in stages if one.draft_acceptance), None)
    if accepted is not None and "draft" in asked:
        asked.setdefault("draft_acceptance", accepted)
    elif accepted is not None:
        notes.append(f"drafts were accepted ({accepted}): say what proposed them (--draft)")
    check_types(asked)
    prefix_caching = asked.pop("prefix_caching", True)
    degrees = {name: asked.pop(name) for name in DEGREES if name in asked}
    for name in asked:
        if name not in _OPTIONS:
            known = ", ".join([*DEGREES, "prefix_caching", *_OPTIONS])
            raise InputError(f"option {name!r}", "is unknown", f"use one of {known}")
    deployment = Deployment(Parallelism(**degrees), **asked)
    hardware, arch = load_hardware(gpu), load_model(model)
    if quantization and arch.weight_format.bytes_per_weight >= _UNQUANTISED_BYTES:
        notes.append(f"the server had weights in {quantization}, which {arch.name} has not")
    resolved = deployment.resolved(arch, hardware)
    default = vars(resolved.sizes) | {
        "gpu_memory_utilization": resolved.memory.share,
        "engine_version": resolved.profile.version,
    }
    options = {name: getattr(deployment, name) for name in _OPTIONS}
    for name in ("engine_version", *_LIMITS):
        options[name] = default[name] if options[name] is None else options[name]
    about = {
        "experiment": experiment or files[-1].stem,
        "model": model,
        "hardware": hardware.key,
        **asdict(deployment.parallelism),
        **options,
        "prefix_caching": prefix_caching,
        "prompt_groups": prompt_groups,
        "prompts_per_group": prompts_per_group,
        "lengths": None if lengths is None else _wherever_written(lengths),
        **{name: of_report[name] for name in (PREFILL, DECODE) if name in of_report},
    }
    found = pd.DataFrame(rows(about, stages, ", ".join(map(str, files))))
    assumed = [f"{name} {options[name]}" for name in _LIMITS if name not in asked]
    # What is not in a log was not given to the server either.
    if assumed and server_log is None:
        takes = f"as {options['engine']} {options['engine_version']} takes by default"
        notes.append(f"{', '.join(assumed)} {takes}")
    found["note"] = ["; ".join(filter(None, [one.failures, one.note, *notes])) for one in stages]
    return found


def _stages(
    kind: str,
    files: Sequence[Path],
    output_tokens: float | None,
    input_tokens: float | None,
    interval_s: float | None,
) -> tuple[Sequence[StageReport], dict[str, Any]]:
    """The stages of a report, and how the server was started as far as the report shows it."""
    if kind == "metrics":
        counted = metrics.read_metrics(files, interval_s)
        return [metrics.stage_of(counted, output_tokens)], dict(counted.settings)
    if interval_s is not None:
        raise InputError("interval", f"has no meaning for {kind}", "leave it out")
    if len(files) != 1:
        raise InputError("files", f"are {len(files)}, of {kind}", "pass one")
    if kind == "llm-d":
        stages, about = llm_d.read_run(files[0], output_tokens)
        return stages, dict(about)
    if kind == "mlperf":
        return mlperf.read(files[0], output_tokens, input_tokens), {}
    if kind == "blis-trace":
        stages, about = blis_trace.read_run(files[0], output_tokens)
        return stages, dict(about)
    reader = importlib.import_module(f"physim.measured.{kind.replace('-', '_')}")
    return reader.read(files[0], output_tokens), {}


def _known(name: str, value: str | None) -> str:
    if value is None:
        raise InputError(name, "is missing, and the report does not say it", "give it")
    return value


def _same_name(model: str, called: str) -> bool:
    """Whether a model may be what a report calls it: a file's name says nothing."""
    if Path(model).suffix == ".json":
        return True
    ours, theirs = (Path(name).name.lower() for name in (model, called))
    return ours in theirs or theirs in ours


def _wherever_written(lengths: str | Path) -> str:
    """What a row in any folder calls some lengths: a preset as it is, a file by its whole path."""
    return str(Path(lengths).resolve() if Path(lengths).suffix else lengths)
