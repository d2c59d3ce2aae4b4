"""Options of a deployment, each declared once: light, since commands read them as they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from physim.engines.profile import DEFAULT_ENGINE
from physim.models.parallelism import Parallelism
from physim.options import option


@dataclass(frozen=True)
class EngineRequest:
    """What is asked for of an engine; `physim.Deployment` says what each is, and checks it."""

    parallelism: Parallelism = field(default_factory=Parallelism)
    engine: str = option(
        DEFAULT_ENGINE, "The engine: one of `physim show engines`.", column="optional"
    )
    engine_version: str | None = option(
        None, "Its version (default: the newest known).", column="optional"
    )
    max_num_seqs: int | None = option(None, "Requests that run at once.", column="optional")
    max_num_batched_tokens: int | None = option(None, "Tokens of a rank's step.", column="optional")
    max_model_len: int | None = option(None, "Longest context, tokens.", column="optional")
    gpu_memory_utilization: float | None = option(
        None, "Share of memory the engine may use.", column="optional"
    )
    block_size: int = option(16, "Tokens of a KV block.")
    kv_blocks: int | None = option(
        None, "Number of KV blocks (default: computed).", column="optional"
    )
    kv_cache_dtype: str = option(
        "auto", "KV cache: auto (as the checkpoint says), bfloat16 or fp8.", column="optional"
    )
    moe_kernel: str | None = option(
        None, "Expert kernel, such as triton or flashinfer.", column="optional"
    )
    moe_activations: str = option(
        "auto",
        "Activations of mxfp4 experts: auto (the engine's), bfloat16 or mxfp8.",
        column="optional",
    )
    expert_load: float | None = option(
        None,
        "Unevenness of experts: 0 (even) to 1.2, a power law's exponent (default: the model's).",
        column="optional",
    )
    # A flag and its opposite would leave the other options' names no room.
    async_scheduling: bool | None = option(
        None, "Schedule a step while another runs.", panel="Scheduling", column="optional"
    )
    all2all: str | None = option(
        None,
        "How tokens reach experts: allgather, deepep_{high_throughput,low_latency} or "
        "nvlink_one_sided (default: the engine's).",
        column="optional",
    )
    receive_every: int = option(1, "Steps between looks for new requests.", column="optional")
    stream_interval: int = option(
        1, "Tokens per message to a client, where one process sends all.", column="optional"
    )
    mixed_chunk: bool = option(
        False,
        "Mix prompts and decodes in a step, where the engine separates them.",
        column="optional",
    )
    draft: str | None = option(
        None,
        "What proposes tokens: mtp, eagle3, draft_model or ngram.",
        panel="Speculative decoding",
        column="optional",
    )
    draft_tokens: int | None = option(
        None,
        "Tokens that it proposes in each step.",
        panel="Speculative decoding",
        column="optional",
    )
    draft_acceptance: float | str | Sequence[float] | None = option(
        None,
        "Chance that a draft is accepted (0.7), mean length (2.4) or chances by position "
        "(0.8,0.6) (default: the model family's, if measured).",
        panel="Speculative decoding",
        kind=str | None,
        column="optional",
    )
    draft_model: str | None = option(
        None,
        "The draft's config.json or hub id (eagle3, draft_model).",
        panel="Speculative decoding",
        column="optional",
    )
    captured_tokens: int | None = option(
        None, "Largest step that a CUDA graph captures, tokens.", column="optional"
    )
    kv_host_bytes: float | None = option(
        None,
        "Host memory for KV blocks of the whole server, bytes.",
        panel="KV tiers",
        column="optional",
    )
    kv_host_bandwidth: float | None = option(
        None,
        "Bandwidth from host memory to a GPU, bytes/s (default: the GPU's, if known).",
        panel="KV tiers",
        column="optional",
    )
    kv_disk_bytes: float | None = option(
        None,
        "Disk for KV blocks of the whole server, bytes.",
        panel="KV tiers",
        column="optional",
    )
    kv_disk_bandwidth: float | None = option(
        None,
        "Read bandwidth of the server's disk, bytes/s.",
        panel="KV tiers",
        column="optional",
    )
    kv_disk_write_bandwidth: float | None = option(
        None,
        "Write bandwidth of the server's disk, bytes/s.",
        panel="KV tiers",
        column="optional",
    )
    kv_disk_latency_s: float | None = option(
        None,
        "Time until the first block is read, s.",
        panel="KV tiers",
        column="optional",
    )
    sampling: str = option(
        "model",
        "model (its generation_config.json), greedy, plain, truncated (top-k, top-p), penalised.",
        column="optional",
    )


class EngineOptions(TypedDict, total=False):
    """The options of `Deployment` by names, as keywords have them."""

    engine: str
    engine_version: str | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    gpu_memory_utilization: float | None
    block_size: int
    kv_blocks: int | None
    kv_cache_dtype: str
    moe_kernel: str | None
    moe_activations: str
    expert_load: float | None
    async_scheduling: bool | None
    all2all: str | None
    receive_every: int
    stream_interval: int
    mixed_chunk: bool
    draft: str | None
    draft_tokens: int | None
    draft_acceptance: float | str | Sequence[float] | None
    draft_model: str | None
    captured_tokens: int | None
    kv_host_bytes: float | None
    kv_host_bandwidth: float | None
    kv_disk_bytes: float | None
    kv_disk_bandwidth: float | None
    kv_disk_write_bandwidth: float | None
    kv_disk_latency_s: float | None
    sampling: str
