"""vLLM."""

from __future__ import annotations

import json

from physim.engines.engine import (
    Counters,
    Engine,
    ExpertPadding,
    ExpertTable,
    KernelTables,
    Launch,
    LaunchCommand,
    words_of,
)
from physim.engines.host_memory import HostMemory
from physim.errors import InputError
from physim.models.formats import BFLOAT16, FP8, MXFP4, MXFP4_MXFP8, NVFP4, int4
from physim.models.parallelism import (
    ALLGATHER,
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    NVLINK_ONE_SIDED,
    Parallelism,
)

# A value up to what ends it in a dictionary, a list of arguments or a sentence.
_VALUE = r"([^\s)}\]]+?)(?=[.;]?(?:[\s)}\]]|,(?!\d)|$))"

# vllm/config/parallel.py: All2AllBackend.
_ALL2ALL = {
    ALLGATHER: None,
    HIGH_THROUGHPUT: "deepep_high_throughput",
    LOW_LATENCY: "deepep_low_latency",
    NVLINK_ONE_SIDED: "flashinfer_nvlink_one_sided",
}
_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
# Where blocks are kept on a disk, which each machine has elsewhere (the documentation's example).
_DISK = "/mnt/kv_cache"


def _launch(server: Launch) -> LaunchCommand:
    layout = server.parallelism
    words = ["vllm", "serve", server.model, "--tensor-parallel-size", str(layout.tp)]
    for flag, degree in (("pipeline", layout.pp), ("data", layout.dp)):
        if degree > 1:
            words += [f"--{flag}-parallel-size", str(degree)]
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
    words += words_of({"--all2all-backend": _ALL2ALL[server.all2all]})
    words += words_of(
        {
            "--max-num-seqs": server.max_num_seqs,
            "--max-num-batched-tokens": server.max_num_batched_tokens,
            "--max-model-len": server.max_model_len,
            "--gpu-memory-utilization": f"{server.gpu_memory_utilization:g}",
            "--block-size": server.block_size,
            "--max-cudagraph-capture-size": server.captured_tokens,
            "--stream-interval": server.stream_interval if server.stream_interval > 1 else None,
        }
    )
    words += words_of({"--quantization": server.quantization})
    if server.kv_cache_dtype is not None:
        words += ["--kv-cache-dtype", server.kv_cache_dtype]
    connectors = _connectors(server)
    if connectors:
        words += ["--kv-transfer-config", json.dumps(connectors)]
    if server.draft is not None:
        words += ["--speculative-config", json.dumps(_speculative(server))]
    if server.kv_host_bytes is not None and server.kv_disk_bytes is None:
        # Of each engine process, which a data-parallel rank is (vllm/config/cache.py).
        size = server.kv_host_bytes / layout.dp / 2**30
        words += ["--kv-offloading-backend", "native", "--kv-offloading-size", f"{size:g}"]
    words.append("--async-scheduling" if server.async_scheduling else "--no-async-scheduling")
    return LaunchCommand(words)


def _connectors(server: Launch) -> dict[str, object]:
    """``--kv-transfer-config``: what passes KV blocks on, and what keeps them on a disk."""
    found: list[dict[str, object]] = []
    if server.phase is not None:
        # docs/features/nixl_connector_usage.md: of either kind of server.
        found.append(dict(_TRANSFER))
    if server.kv_disk_bytes is not None and server.kv_host_bytes is not None:
        # docs/features/kv_offloading_usage.md; the file system alone bounds what is on the disk.
        tiers: dict[str, object] = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": round(server.kv_host_bytes / server.parallelism.dp),
            "secondary_tiers": [{"type": "fs", "root_dir": _DISK}],
        }
        own = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": tiers}
        found.append({**own, "kv_role": "kv_both"})
    if len(found) < 2:
        return found[0] if found else {}
    # docs/features/disagg_prefill.md
    several = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}
    return {**several, "kv_connector_extra_config": {"connectors": found}}


def _speculative(server: Launch) -> dict[str, object]:
    """``--speculative-config`` (docs/features/speculative_decoding)."""
    found: dict[str, object] = {
        "method": server.draft,
        "num_speculative_tokens": server.draft_tokens,
    }
    if server.draft == "ngram":
        found["prompt_lookup_max"] = server.draft_tokens
    return found | ({} if server.draft_model is None else {"model": server.draft_model})


def _check_layout(layout: Parallelism) -> None:
    if layout.ep not in (1, layout.stage_gpus):
        raise InputError(
            "ep",
            f"{layout.ep} of {layout.stage_gpus} GPUs cannot be served by vllm",
            f"use 1 or {layout.stage_gpus} (tp x dp)",
        )


ENGINE = Engine(
    name="vllm",
    launch=_launch,
    image="vllm/vllm-openai:v{}",
    rocm_image="vllm/vllm-openai-rocm:v{}",
    port=8000,
    quantizes=True,
    check_layout=_check_layout,
    # Prompts are sent on with max_tokens 1, whose token is dropped (docs/features/disagg_prefill).
    hands_first_token=False,
    # What is left of llm-d's pulls of 2,048 to 49,152 tokens of gpt-oss-120b on H200 (49 to 551 ms)
    # at none.
    handover_s=0.025,
    # vllm/v1/kv_offload and its connector: blocks of prompts are stored as they are computed
    # (`offload_prompt_only` unless it is told), and loaded whenever they are found.
    # docs/features/kv_offloading_usage.md: what is offloaded is written to the tiers below, too,
    # and comes up through the host's memory when it is looked for.
    host_memory=HostMemory(copies=True, outputs=False, disk=True),
    # vllm/benchmarks/forward
    times_batches=True,
    # docs/design/metrics.md
    # vllm/config/scheduler.py and, by default, vllm/engine/arg_utils.py.
    slots_within_budget=True,
    counters=Counters(
        requests="vllm:request_success_total",
        prompt="vllm:prompt_tokens_total",
        output="vllm:generation_tokens_total",
        cached="vllm:prefix_cache_hits_total",
        prompt_lengths="vllm:request_prompt_tokens_bucket",
        output_lengths="vllm:request_generation_tokens_bucket",
        # vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py of 0.33.
        failed_reasons=("abort", "error"),
        looked_up="vllm:prefix_cache_queries_total",
        preempted="vllm:num_preemptions_total",
        sources="vllm:prompt_tokens_by_source_total",
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        drafts="vllm:spec_decode_num_drafts_total",
        accepted="vllm:spec_decode_num_accepted_tokens_total",
        accepted_by_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
        times={
            "ttft": ("vllm:time_to_first_token_seconds",),
            "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            "e2e": ("vllm:e2e_request_latency_seconds",),
            "queue": ("vllm:request_queue_time_seconds",),
            "prefill": ("vllm:request_prefill_time_seconds",),
            "decode": ("vllm:request_decode_time_seconds",),
        },
        # vllm/config/cache.py: every field of the KV cache's configuration.
        settings="vllm:cache_config_info",
        setting_labels={
            "block_size": "block_size",
            "kv_cache_dtype": "cache_dtype",
            "gpu_memory_utilization": "gpu_memory_utilization",
            "kv_blocks": "num_gpu_blocks",
            "prefix_caching": "enable_prefix_caching",
            "kv_host_gib": "kv_offloading_size",
        },
    ),
    # Versions 0.8 to 0.15.
    log={
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
        "draft": r"\bspeculative_config=SpeculativeConfig\(method='(\w+)'",
        "draft_tokens": r"\bspeculative_config=SpeculativeConfig\(.*?num_spec_tokens=(\d+)",
        "kv_host_gib": rf"'kv_offloading_size': {_VALUE}",
        "kv_tokens": r"KV cache size: (\S+) tokens",
    },
    # vllm/v1/metrics/loggers.py of 0.33 (--enable-logging-iteration-details); before, core.py
    # wrote the line, which said nothing of the KV cache.
    step_line=(
        r"(?:Engine (?P<rank>\d+): )?Iteration\((?P<index>\d{1,18})\): "
        r"(?P<prefill_requests>\d+) context requests, (?P<prefill_tokens>\d+) context tokens, "
        r"(?P<decode_requests>\d+) generation requests, (?P<decode_tokens>\d+) generation tokens, "
        r"iteration elapsed time: (?P<milliseconds>\d+(?:\.\d+)?) ms(?P<dummy> \(dummy\))?"
        r"(?:, \w+ KV cache usage: (?P<kv_percent>\d+(?:\.\d+)?)%)?"
    ),
    # vllm/model_executor/layers/fused_moe/oracle/mxfp4.py: which kernel is taken on which GPUs, and
    # `mxfp4_round_up_hidden_size_and_intermediate_size`. AMD's pad to 256, too.
    mxfp4_paddings=(
        ExpertPadding("marlin", 11.0, (256, 128)),
        ExpertPadding("flashinfer", 10.0, (256, 256)),
        ExpertPadding("triton", 9.0, (1, 64)),
        ExpertPadding("marlin", 0.0, (256, 128)),
    ),
    kernels=KernelTables(
        experts={
            "moe_bfloat16_triton": ExpertTable(
                BFLOAT16, ("bfloat16",), "unquantizedfusedmoe_triton|vllm_fused_moe"
            ),
            "moe_bfloat16_flashinfer": ExpertTable(BFLOAT16, ("bfloat16",), "flashinfer"),
            # Per-channel and block fp8 experts run through one Triton kernel.
            "moe_fp8_triton": ExpertTable(FP8, ("fp8", "fp8_block"), "tritonexperts"),
            "moe_fp8_flashinfer": ExpertTable(FP8, ("fp8",), "flashinfer"),
            "moe_fp8_block_flashinfer": ExpertTable(FP8, ("fp8_block",), "flashinfer"),
            "moe_int4_marlin": ExpertTable(int4(-1), ("int4_wo",), "marlin"),
            "moe_nvfp4_flashinfer": ExpertTable(NVFP4, ("nvfp4",), "flashinfer"),
            "moe_mxfp4_triton": ExpertTable(MXFP4, ("w4a16_mxfp4",), "_triton_"),
            "moe_mxfp4_flashinfer": ExpertTable(MXFP4, ("w4a16_mxfp4",), "flashinfer"),
            "moe_mxfp4_marlin": ExpertTable(MXFP4, ("w4a16_mxfp4",), "marlin"),
            "moe_mxfp4_mxfp8_flashinfer": ExpertTable(
                MXFP4_MXFP8, ("w4a8_mxfp4_mxfp8",), "flashinfer"
            ),
        },
        # Block-scaled fp8 was timed with the launch of its kernels (55 to 280 us at any size),
        # which CUDA graphs hide, so it is left out.
        gemms=(("bfloat16", BFLOAT16), ("fp8", FP8), ("nvfp4", NVFP4)),
        # On Blackwell fp8 is multiplied by FlashInfer's kernel, of cuBLAS as those of 16 bit
        # (vllm/model_executor/layers/quantization/utils/w8a8_utils.py), where it is installed.
        # Cutlass's was measured, which takes longer at 16 rows than at 64.
        cublas_fp8_from=10.0,
        # The chip was measured with compiling on another board, which stands for them
        # (`physim.grids.store.with_table`): GB300 with 0.27, 92 us a layer of one token for the 131
        # us that it and the B300 took with 0.24, and B200 in the place of GB200, 94 us for 133.
        uncompiled_mixers=("b300_sxm", "gb200"),
    ),
)
