"""TensorRT-LLM."""

from __future__ import annotations

from physim.engines.engine import Engine, ExpertTable, KernelTables, Launch, LaunchCommand, words_of
from physim.engines.host_memory import SERIAL, HostMemory
from physim.errors import InputError
from physim.models.formats import BFLOAT16, FP8, MXFP4, MXFP4_MXFP8, NVFP4
from physim.models.parallelism import ALLGATHER, NVLINK_ONE_SIDED, Parallelism

_DRAFTS = {"mtp": "MTP", "eagle3": "Eagle", "draft_model": "DraftTarget", "ngram": "NGram"}
_KV_CACHES = {"fp8": "fp8", "bfloat16": "auto", None: None}


def _launch(server: Launch) -> LaunchCommand:
    layout = server.parallelism
    cache = {
        "free_gpu_memory_fraction": f"{server.gpu_memory_utilization:g}",
        "dtype": _KV_CACHES[server.kv_cache_dtype],
    }
    hosted = server.kv_host_bytes is not None
    words = ["trtllm-serve", server.model, "--tp_size", str(layout.stage_gpus)]
    words += words_of(
        {
            "--ep_size": layout.ep if layout.ep > 1 else None,
            "--pp_size": layout.pp if layout.pp > 1 else None,
            "--max_batch_size": server.max_num_seqs,
            "--max_num_tokens": server.max_num_batched_tokens,
            "--max_seq_len": server.max_model_len,
            **({} if hosted else {f"--kv_cache_{name}": told for name, told in cache.items()}),
        }
    )
    # What has no option of its own is read from a file.
    captured = server.captured_tokens or server.max_num_seqs
    graphs = f"{{enable_padding: true, max_batch_size: {captured}}}"
    lines = [f"cuda_graph_config: {graphs}"]
    lines += ["enable_attention_dp: true"] if layout.dp > 1 else []
    lines += [] if server.async_scheduling else ["disable_overlap_scheduler: true"]
    if server.stream_interval > 1:
        lines.append(f"stream_interval: {server.stream_interval}")
    if server.phase is not None:
        # docs/source/features/disagg-serving.md
        lines.append("cache_transceiver_config: {backend: DEFAULT}")
    if server.kv_host_bytes is not None:
        # The file's settings of the cache take the place of all that options say of it.
        cache["host_cache_size"] = f"{server.kv_host_bytes / layout.gpus:.0f}"
        told = (f"{name}: {value}" for name, value in cache.items() if value is not None)
        lines.append(f"kv_cache_config: {{{', '.join(told)}}}")
    if server.draft is not None:
        lines.append(f"speculative_config: {{{_speculative(server)}}}")
    if server.receive_every > 1:
        # Prompts wait so many steps for others to join them.
        waits = f"timeout_iters: {server.receive_every}"
        apart = f"attention_dp_config: {{enable_balance: true, {waits}}}"
        lines.append(apart if layout.dp > 1 else f"batch_wait_{waits}")
    return LaunchCommand(words, "--extra_llm_api_options", lines)


def _speculative(server: Launch) -> str:
    """The drafts, as the file of settings has them (docs/source/features/speculative-decoding)."""
    settings = {"decoding_type": _DRAFTS[server.draft or ""]}
    tokens = "num_nextn_predict_layers" if server.draft == "mtp" else "max_draft_len"
    settings[tokens] = str(server.draft_tokens)
    if server.draft_model is not None:
        settings["speculative_model_dir"] = server.draft_model
    return ", ".join(f"{name}: {value}" for name, value in settings.items())


def _check_layout(layout: Parallelism) -> None:
    if layout.tp > 1 and layout.dp > 1:
        raise InputError(
            "dp", f"{layout.dp} with tp {layout.tp} cannot be served by trtllm", "use tp 1"
        )


ENGINE = Engine(
    name="trtllm",
    launch=_launch,
    image="nvcr.io/nvidia/tensorrt-llm/release:{}",
    port=8000,
    has_receive_interval=True,
    # tensorrt_llm/_torch/modules/fused_moe/communication/communication_factory.py, _mnnvl_utils.py.
    exchanges=(NVLINK_ONE_SIDED, ALLGATHER),
    # docs/source/features/kvcache.md: what is evicted moves to the host, and back for reuse;
    # batch_manager/kvCacheTransferManager.cpp has the stream of the steps wait for it.
    host_memory=HostMemory(copies=False, outputs=True, loads=SERIAL),
    check_layout=_check_layout,
    # tensorrt_llm/_torch/models: modeling_llama.py (enable_fusion, from a hidden size above 4,096),
    # modeling_deepseekv3.py, modeling_qwen3_moe.py and modeling_gpt_oss.py.
    norms_in_sums={
        "LlamaForCausalLM": 4097,
        "DeepseekV3ForCausalLM": 0,
        "Qwen3MoeForCausalLM": 0,
        "GptOssForCausalLM": 0,
    },
    kernels=KernelTables(
        # The kernel of low latency is what it calls its TRTLLM backend.
        experts={
            "moe_bfloat16_cutlass": ExpertTable(BFLOAT16, ("bfloat16",), "cutlass"),
            "moe_fp8_cutlass": ExpertTable(FP8, ("fp8",), "cutlass"),
            "moe_fp8_block_cutlass": ExpertTable(FP8, ("fp8_block",), "cutlass"),
            "moe_fp8_block_deepgemm": ExpertTable(FP8, ("fp8_block",), "deepgemm"),
            "moe_nvfp4_cutlass": ExpertTable(NVFP4, ("nvfp4",), "cutlass"),
            "moe_nvfp4_min_latency": ExpertTable(NVFP4, ("nvfp4",), "min_latency"),
            "moe_mxfp4_cutlass": ExpertTable(MXFP4, ("w4a16_mxfp4",), "torch_flow$"),
            "moe_mxfp4_mxfp8_cutlass": ExpertTable(
                MXFP4_MXFP8, ("w4a8_mxfp4_mxfp8",), "torch_flow$"
            ),
        },
        # Those of 16 bit are cuBLAS's. Nvfp4 was timed with the kernel that casts activations, by
        # itself not measured, which is fused with what is before; so it is left out.
        gemms=(("fp8_block", FP8),),
        cublas_fp8_from=0.0,
        # tensorrt_llm/_torch/models/modeling_llama.py: norms, all-reduces with them
        # (RESIDUAL_RMS_NORM_QUANT_FP8 and its like), the MLP's activation and attention write it.
        fuses_casts=True,
        mixers=("mla",),
        complete_version="1.3.0rc20",
    ),
)
