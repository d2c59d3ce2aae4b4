"""SGLang."""

from __future__ import annotations

import json

from physim.engines.engine import (
    Counters,
    Engine,
    ExpertTable,
    KernelTables,
    Launch,
    LaunchCommand,
    words_of,
)
from physim.engines.host_memory import LAYERED, HostMemory
from physim.engines.profile import DEFAULT_ENGINE
from physim.models.formats import BFLOAT16, FP8, MXFP4, MXFP4_MXFP8, NVFP4, int4
from physim.models.parallelism import ALLGATHER, HIGH_THROUGHPUT, LOW_LATENCY, NVLINK_ONE_SIDED

# docs/advanced_features/speculative_decoding.md: the layers of MTP are run by EAGLE's worker.
_DRAFTS = {"mtp": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE", "ngram": "NGRAM"}
# docs/advanced_features/expert_parallelism.md.
_ALL2ALL: dict[str, list[str]] = {
    ALLGATHER: [],
    HIGH_THROUGHPUT: ["--moe-a2a-backend", "deepep", "--deepep-mode", "normal"],
    LOW_LATENCY: ["--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"],
    NVLINK_ONE_SIDED: ["--moe-a2a-backend", "flashinfer"],
}
_KV_CACHES = {"fp8": "fp8_e4m3", "bfloat16": "bfloat16", None: None}


def _launch(server: Launch) -> LaunchCommand:
    layout = server.parallelism
    words = ["python", "-m", "sglang.launch_server", "--model-path", server.model]
    # Here attention's ranks share the GPUs that tp counts.
    words += ["--tp-size", str(layout.stage_gpus)]
    if layout.dp > 1:
        words += ["--dp-size", str(layout.dp), "--enable-dp-attention"]
    words += words_of(
        {
            "--ep-size": layout.ep if layout.ep > 1 else None,
            "--pp-size": layout.pp if layout.pp > 1 else None,
            "--max-running-requests": server.max_num_seqs * layout.dp,
            "--chunked-prefill-size": server.max_num_batched_tokens * layout.dp,
            "--context-length": server.max_model_len,
            "--mem-fraction-static": f"{server.gpu_memory_utilization:g}",
            "--kv-cache-dtype": _KV_CACHES[server.kv_cache_dtype],
            "--cuda-graph-max-bs": server.captured_tokens,
            "--stream-interval": server.stream_interval if server.stream_interval > 1 else None,
        }
    )
    words += _ALL2ALL[server.all2all]
    # docs/advanced_features/pd_disaggregation.md
    words += words_of({"--disaggregation-mode": server.phase})
    words += words_of({"--quantization": server.quantization})
    if server.kv_host_bytes is not None:
        size = server.kv_host_bytes / layout.gpus / 1e9
        words += ["--enable-hierarchical-cache", "--hicache-size", f"{size:g}"]
        words += ["--hicache-write-policy", "write_through"]
    if server.kv_disk_bytes is not None:
        # docs/advanced_features/hicache_best_practices.md; mem_cache/storage/file takes the size of
        # each rank, beyond which the least recently used files go.
        most = {"max_size": round(server.kv_disk_bytes / layout.gpus)}
        words += ["--hicache-storage-backend", "file"]
        words += ["--hicache-storage-prefetch-policy", "wait_complete"]
        words += ["--hicache-storage-backend-extra-config", json.dumps(most)]
    if server.receive_every > 1:
        words += ["--scheduler-recv-interval", str(server.receive_every)]
    if server.mixed_chunk:
        words.append("--enable-mixed-chunk")
    if server.draft is not None:
        words += words_of(
            {
                "--speculative-algorithm": _DRAFTS[server.draft],
                "--speculative-draft-model-path": server.draft_model,
                # One chain of tokens: no tree.
                "--speculative-num-steps": server.draft_tokens,
                "--speculative-eagle-topk": None if server.draft == "ngram" else 1,
                "--speculative-num-draft-tokens": server.draft_tokens + 1,
            }
        )
    elif not server.async_scheduling:
        words.append("--disable-overlap-schedule")
    return LaunchCommand(words)


ENGINE = Engine(
    name="sglang",
    launch=_launch,
    image="lmsysorg/sglang:v{}",
    # docs/hardware-platforms/amd_gpu.md: images by the series of the GPU.
    rocm_image="lmsysorg/sglang:v{}-rocm700-{}",
    port=30000,
    quantizes=True,
    # disaggregation/decode.py of 0.5: DecodePreallocQueue, and --num-reserved-decode-tokens.
    reserved_tokens=512,
    # Of rows of the fit with 64 clients or fewer (docs/accuracy.md).
    handover_s=0.2,
    has_receive_interval=True,
    # server_args.py: with --enable-dp-attention, chunked_prefill_size is divided by dp_size.
    splits_budget=True,
    # docs/advanced_features/hicache_design.md; mem_cache/memory_pool_host.py refuses less than the
    # GPU has. A layer's blocks come up while the one before is computed. Those in files come up to
    # the host's memory from when a request comes.
    host_memory=HostMemory(
        copies=True,
        outputs=True,
        above_gpu=True,
        loads=LAYERED,
        disk=True,
        fetches_early=True,
    ),
    # docs/references/production_metrics.md
    counters=Counters(
        requests="sglang:num_requests_total",
        prompt="sglang:prompt_tokens_total",
        output="sglang:generation_tokens_total",
        cached="sglang:cached_tokens_total",
        # python/sglang/srt/observability/metrics_collector.py of 0.5.23.
        failed="sglang:num_aborted_requests_total",
        preempted="sglang:num_retracted_requests_total",
        kv_usage=("sglang:token_usage",),
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        accepted_length="sglang:spec_accept_length",
        times={
            "ttft": ("sglang:time_to_first_token_seconds",),
            "itl": (
                "sglang:inter_token_latency_seconds",
                "sglang:time_per_output_token_seconds",
            ),
            "e2e": ("sglang:e2e_request_latency_seconds",),
            "queue": ("sglang:queue_time_seconds",),
        },
        kv_tokens="sglang:max_total_num_tokens",
    ),
    kernels=KernelTables(
        # FlashInfer's kernel runs on Blackwell, Triton's before.
        experts={
            "moe_bfloat16_triton": ExpertTable(BFLOAT16, ("bfloat16",), "fused_moe_triton"),
            "moe_bfloat16_flashinfer": ExpertTable(BFLOAT16, ("bfloat16",), "flashinfer_trtllm"),
            "moe_fp8_block_triton": ExpertTable(FP8, ("fp8_block",), "fused_moe_triton"),
            "moe_fp8_block_flashinfer": ExpertTable(FP8, ("fp8_block",), "flashinfer_trtllm"),
            "moe_int4_marlin": ExpertTable(int4(-1), ("int4_wo",), "marlin"),
            "moe_nvfp4_flashinfer": ExpertTable(NVFP4, ("nvfp4",), "flashinfer_trtllm"),
            # OpenAI's kernels, as under vLLM (server_args.py: moe_runner_backend "triton_kernel").
            # What was measured with SGLang multiplies weights cast to 16 bit.
            "moe_mxfp4_triton": ExpertTable(MXFP4, ("w4a16_mxfp4",), "_triton_", DEFAULT_ENGINE),
            "moe_mxfp4_flashinfer": ExpertTable(MXFP4, ("w4a16_mxfp4",), "flashinfer_trtllm"),
            "moe_mxfp4_mxfp8_flashinfer": ExpertTable(
                MXFP4_MXFP8, ("w4a8_mxfp4_mxfp8",), "mxfp4_flashinfer_trtllm"
            ),
        },
        # Those of 16 bit are cuBLAS's.
        gemms=(("fp8", FP8), ("fp8_block", FP8), ("nvfp4", NVFP4)),
        mixers=(),
    ),
)
