"""What differs between serving engines and their versions, read from ``engines/*.json``."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from physim import data
from physim.errors import InputError

_SUFFIX = ".json"
DEFAULT_ENGINE = "vllm"
SAMPLERS = ("sort", "triton", "flashinfer")
ADMISSIONS = ("chunk", "prompt", "request")
# Steps in which data-parallel ranks compute as many tokens as the fullest: all, CUDA graphs, none.
EVERY_STEP, GRAPHS = "steps", "graphs"
PADDED = (EVERY_STEP, GRAPHS, "")
# What the tokeniser alone takes for a token, seconds: tokenizers 0.23 took 1.5 to 2.3 us on one
# core of an EPYC (vocabularies of DeepSeek-V3 and o200k_base, text as benchmarks draw it).
PROMPT_TOKEN_S = 2e-6


@dataclass(frozen=True)
class DefaultLimits:
    """Limits that an engine takes by default on a kind of GPU.

    Attributes:
        gpu_memory_gib: The least memory, GiB, of a GPU that they are for.
        but_not: Beginnings of the keys of GPUs that they are not for.
        max_num_batched_tokens: Tokens of one step.
        max_num_seqs: Requests that run at once.
    """

    gpu_memory_gib: float
    but_not: tuple[str, ...]
    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True)
class KVReserve:
    """Memory of a GPU that an engine keeps from the KV cache beside the weights, bytes.

    Attributes:
        fixed_bytes: Whatever is served.
        tensor_parallel_bytes: More of it under tensor parallelism.
        bytes_per_logit: For each logit of ``max_num_seqs`` requests while they are sampled.
        bytes_per_logit_of_few: Likewise of fewer than 128 requests.
        bytes_per_activation: For each number that a step of ``max_num_batched_tokens`` holds.
        keeps_expert_buffers: Whether the buffers of experts are held while requests are sampled.
        vision_bytes: For models with a vision encoder.
        graph_bytes: For CUDA graphs, however many layers there are.
        graph_bytes_per_layer: For CUDA graphs, for each layer.
    """

    fixed_bytes: float
    tensor_parallel_bytes: float
    bytes_per_logit: float
    bytes_per_logit_of_few: float
    bytes_per_activation: float
    keeps_expert_buffers: bool
    vision_bytes: float
    graph_bytes: float
    graph_bytes_per_layer: float


@dataclass(frozen=True)
class Launches:
    """CPU time to launch a layer's kernels one by one, in a step that is no CUDA graph, seconds.

    Attributes:
        layer_s: Of any layer.
        experts_s: More of it for routed experts.
        latent_s: More of it for latent attention.
        state_space_s: More of it for a Mamba layer, in any step with a prompt: no graph holds what
            its prompts launch.
    """

    layer_s: float
    experts_s: float
    latent_s: float
    state_space_s: float


@dataclass(frozen=True)
class PaddedExperts:
    """A kernel of experts that pads their rows (`physim.step.padded_experts`), and where it runs.

    Attributes:
        kernel: Its name, by which it can be asked for.
        formats: Formats of weights that it multiplies.
        compute_capability: Of GPUs on which the engine takes it unless it is told.
        below_tp: It takes it where experts are split over fewer GPUs than this.
        instead: What it is told to take another.
    """

    kernel: str
    formats: tuple[str, ...]
    compute_capability: float
    below_tp: int
    instead: str


@dataclass(frozen=True)
class EngineProfile:
    """A version of a serving engine.

    Attributes:
        engine: Its name.
        version: The version.
        gpu_memory_utilization: Share of the GPU's memory that it uses by default.
        limits: Limits by default, of which the first that fits the GPU holds.
        kv_reserve: Memory that is kept from the KV cache.
        async_scheduling: Whether it schedules a step while the one before it runs.
        async_exposed_share: Share of the CPU's work for each request that the GPU waits for even
            so.
        async_drafts: Methods of speculative decoding beside which it schedules so by default.
        draft_request_s: CPU time for each request of a step that verifies drafts, seconds, beside
            that of any step.
        output_request_s: CPU time for each request of a step in the one process that hands tokens
            to clients, seconds; 0 where nothing is known of it.
        admission: What must have KV blocks for a prompt to start, of `ADMISSIONS`: its first
            chunk, all of it, or its answer too.
        prompts_apart: Whether prompts have steps of their own, in which nothing decodes.
        expert_kernels: Kernels of expert layers, those first that it prefers.
        padded_experts: The kernel that it takes before these where it can; None for none.
        sampler: Kernel of top-k and top-p sampling, of `SAMPLERS`.
        sampler_from: Requests from which on that kernel runs; fewer are sorted.
        penalty_step_s: Time of penalties in a step, seconds.
        penalty_request_s: Time of penalties for each request of a step, seconds.
        captured_tokens: Tokens of the largest step that only decodes and is a CUDA graph; others
            launch their kernels one by one.
        captured_prompt_tokens: The same of steps with a prompt; 0 where none of them is.
        padded_ranks: Steps in which all data-parallel ranks of a model with experts compute as many
            tokens as the fullest, of `PADDED`.
        launches: CPU time to launch kernels one by one.
        prompt_token_s: CPU time of the API server for each token of a prompt, seconds; that of the
            tokeniser where nothing else is known.
        kernel_tables: The version that measured kernels were run with.
        memory_left: Whether the share of memory is of what weights and activations leave, all of
            which is for the KV cache, rather than of all memory.
        casts_mxfp4: Whether activations beside mxfp4 weights are cast to mxfp8 where a GPU
            multiplies them.
        float32_routers: Whether routers that a model keeps in float32 are multiplied in it, rather
            than by kernels that tensor cores run.
        counts_requests: Whether the KV tokens that it reports are those of as many requests of
            ``max_model_len`` as fit, rather than of all layers as if none had a window.
        counts_steps_under_way: Whether a window then takes the tokens of all steps under way, which
            are freed when those are done, rather than of one step.
        is_older: Whether the version that was asked for is older than any that has a profile.
        caveat: What is not known of it.
        note: What stands for what, if the version that was asked for has no profile of its own.
    """

    engine: str
    version: str
    gpu_memory_utilization: float
    limits: tuple[DefaultLimits, ...]
    kv_reserve: KVReserve
    async_scheduling: bool
    async_exposed_share: float
    async_drafts: tuple[str, ...]
    draft_request_s: float
    admission: str
    prompts_apart: bool
    expert_kernels: tuple[str, ...]
    sampler: str
    sampler_from: int
    penalty_step_s: float
    penalty_request_s: float
    captured_tokens: int
    captured_prompt_tokens: int
    launches: Launches
    prompt_token_s: float
    kernel_tables: str
    padded_experts: PaddedExperts | None = None
    padded_ranks: str = ""
    output_request_s: float = 0.0
    memory_left: bool = False
    casts_mxfp4: bool = False
    float32_routers: bool = False
    counts_requests: bool = False
    counts_steps_under_way: bool = False
    is_older: bool = False
    caveat: str = ""
    note: str = ""

    def limits_on(self, key: str, memory_gib: float) -> DefaultLimits:
        """The limits by default on a GPU.

        Args:
            key: The GPU's key.
            memory_gib: Its memory, GiB.
        """
        return next(
            limits
            for limits in self.limits
            if memory_gib >= limits.gpu_memory_gib and not key.startswith(limits.but_not)
        )


@functools.lru_cache
def shipped_engines() -> dict[str, tuple[str, ...]]:
    """Versions with a profile by engine, from old to new."""
    versions: dict[str, list[str]] = {}
    for name in data.names("engines", _SUFFIX):
        engine, _, version = name.partition("-")
        versions.setdefault(engine, []).append(version)
    return {engine: tuple(sorted(some, key=_numbers)) for engine, some in versions.items()}


@functools.lru_cache
def load_engine(engine: str = DEFAULT_ENGINE, version: str | None = None) -> EngineProfile:
    """The profile of an engine's version.

    A version between two profiles takes the one before, one older than all the oldest; ``note``
    says so.

    Args:
        engine: Its name.
        version: Such as ``0.15.1``; None for the newest.

    Raises:
        InputError: The engine is unknown, or the version is none.
    """
    known, engine = shipped_engines(), engine.lower()
    if engine not in known:
        raise InputError(
            f"engine {repr(engine)[:80]}", "is unknown", f"use one of {', '.join(known)}"
        )
    versions = known[engine]
    if version is None:
        return _read(engine, versions[-1])
    if not re.fullmatch(r"v?\d{1,9}(\.\d{1,9})*([.+\-a-z].*)?", version):
        raise InputError(
            f"engine_version {repr(version)[:80]}",
            "is no version",
            f"write one such as {versions[-1]}",
        )
    asked = _numbers(version)
    # Patch releases of one minor version are alike up to one that has a profile.
    same = [one for one in versions if _numbers(one)[:2] == asked[:2]]
    before = [one for one in versions if _numbers(one) <= asked]
    what, so, is_older = "has no profile of its own", "", not (same or before)
    if same:
        taken = next((one for one in same if _numbers(one) >= asked), same[-1])
        # A profile of a minor version is that of its patches.
        if _numbers(taken) == asked or taken.count(".") == 1:
            return _read(engine, taken)
    elif is_older:
        taken = versions[0]
        what, so = "is older than any that physim knows", ", and intervals are wider"
    else:
        taken = before[-1]
        if taken == versions[-1]:
            what = "is newer than any that physim knows"
    note = f"{engine} {version.removeprefix('v')} {what}: {taken}'s is taken{so}"
    return replace(_read(engine, taken), note=note, is_older=is_older)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", version)
    assert found is not None  # names of files, and what was matched before
    # 0.11 is 0.11.0, the release before 0.11.1.
    parts = [int(part) for part in found.group(1).split(".")]
    return (*parts, *(0,) * (3 - len(parts)))


def _read(engine: str, version: str) -> EngineProfile:
    path = data.folder("engines") / f"{engine}-{version}{_SUFFIX}"
    fields = data.read_json(path)

    def value(field: str) -> Any:
        figure = fields.get(field)
        if not isinstance(figure, Mapping) or "value" not in figure or not figure.get("source"):
            raise InputError(
                f"{path}: {field}",
                "has no value with a source",
                'write {"value": ..., "source": "..."}',
            )
        return figure["value"]

    def flag(field: str) -> bool:
        told = value(field)
        if not isinstance(told, bool):
            raise InputError(f"{path}: {field}", "is neither true nor false", "correct it")
        return told

    def number(field: str, otherwise: float) -> float:
        return float(value(field)) if field in fields else otherwise

    try:
        sampler, penalties = value("sampler"), value("penalties")
        padded = None
        if "padded_experts" in fields:
            told = value("padded_experts")
            padded = PaddedExperts(**{**told, "formats": tuple(told["formats"])})
        profile = EngineProfile(
            engine=engine,
            version=version,
            gpu_memory_utilization=float(value("gpu_memory_utilization")),
            limits=tuple(
                DefaultLimits(**{**one, "but_not": tuple(one["but_not"])})
                for one in value("limits")
            ),
            kv_reserve=KVReserve(**value("kv_reserve")),
            async_scheduling=flag("async_scheduling"),
            async_exposed_share=float(value("async_exposed_share")),
            async_drafts=tuple(value("async_drafts")),
            draft_request_s=float(value("draft_request_s")),
            admission=str(value("admission")),
            prompts_apart=flag("prompts_apart"),
            expert_kernels=tuple(value("expert_kernels")),
            padded_experts=padded,
            padded_ranks=str(value("padded_ranks")) if "padded_ranks" in fields else "",
            sampler=str(sampler["kernel"]),
            sampler_from=int(sampler["from_batch"]),
            penalty_step_s=float(penalties["step_s"]),
            penalty_request_s=float(penalties["request_s"]),
            captured_tokens=int(value("captured_tokens")),
            captured_prompt_tokens=int(value("captured_prompt_tokens")),
            launches=Launches(**value("launches")),
            kernel_tables=str(value("kernel_tables")),
            prompt_token_s=number("prompt_token_s", PROMPT_TOKEN_S),
            output_request_s=number("output_request_s", 0.0),
            memory_left="memory_left" in fields and flag("memory_left"),
            casts_mxfp4="casts_mxfp4" in fields and flag("casts_mxfp4"),
            float32_routers="float32_routers" in fields and flag("float32_routers"),
            counts_requests="counts_requests" in fields and flag("counts_requests"),
            counts_steps_under_way="counts_steps_under_way" in fields
            and flag("counts_steps_under_way"),
            caveat=str(fields.get("caveat", "")),
        )
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), f"is damaged ({error})", "reinstall physim") from error
    for field, named, known in (
        ("sampler", profile.sampler, SAMPLERS),
        ("admission", profile.admission, ADMISSIONS),
        ("padded_ranks", profile.padded_ranks, PADDED),
    ):
        if named not in known:
            raise InputError(
                f"{path}: {field}", f"{named!r} is unknown", f"use one of {', '.join(known)}"
            )
    if not math.isfinite(profile.gpu_memory_utilization):
        raise InputError(f"{path}: gpu_memory_utilization", "is not a number", "correct it")
    return profile
