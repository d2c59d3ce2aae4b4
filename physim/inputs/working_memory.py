"""Memory that an engine takes at its start, when it runs the largest step and samples."""

from __future__ import annotations

from physim.engines.profile import KVReserve
from physim.models.architecture import ModelArch
from physim.models.layers import LayerGroup
from physim.models.parallelism import Parallelism
from physim.service.sizes import Sizes

# Rows from which on PyTorch sorts each by itself; fewer are sorted as one
# (aten/src/ATen/native/cuda/SortStable.cu).
_MANY_ROWS = 128


def working_bytes(kept: KVReserve, model: ModelArch, layout: Parallelism, sizes: Sizes) -> float:
    """Bytes of a GPU that are neither weights, nor CUDA graphs, nor KV cache.

    The engine runs a step of ``max_num_batched_tokens`` and then samples for ``max_num_seqs``
    requests (vLLM, ``profile_run`` in ``v1/worker/gpu_model_runner.py``): the larger of both peaks
    is taken, not their sum.

    Args:
        kept: What the engine's profile says of it.
        model: The model.
        layout: How GPUs share it.
        sizes: The engine's limits.
    """
    fixed = (
        kept.fixed_bytes
        + (kept.tensor_parallel_bytes if layout.stage_gpus > 1 else 0.0)
        + (kept.vision_bytes if model.vision_parameters else 0.0)
    )
    numbers = sizes.max_num_batched_tokens * kept.bytes_per_activation
    # The residual stream, and beside it what a sublayer takes in or gives out: while the sampler
    # runs, the last of both.
    stream = 2 * model.hidden_size * numbers
    experts = numbers * max(_in_experts(group, model, layout) for group in model.groups)
    dense = numbers * (
        model.hidden_size + max(_in_dense_layers(group, layout.tp) for group in model.groups)
    )
    sampling = stream + _sampler_bytes(kept, sizes.max_num_seqs, model.vocab_size)
    if kept.keeps_expert_buffers:
        sampling += experts
    return fixed + max(dense, stream + experts, sampling)


def _in_dense_layers(group: LayerGroup, tp: int) -> float:
    """Most numbers of a token that a layer holds at once beside the residual stream, experts apart.

    A linear layer has its input and output; between the two of an MLP there are the gate, what it
    multiplies, and their product.
    """
    linears = (sum(linear.on_gpu(tp)) for linear in group.linears)
    return max(3 * group.intermediate_size / tp, *linears, 0.0)


def _in_experts(group: LayerGroup, model: ModelArch, layout: Parallelism) -> float:
    """Numbers of a token in the buffers of routed experts.

    One is for what enters the activation and then for what leaves the experts, one for what lies
    between (vLLM, ``workspace_shapes`` of ``TritonExperts`` in ``fused_moe.py``), each with a row
    for each expert that the token visits.
    """
    experts = group.experts
    if experts is None:
        return 0.0
    width = experts.intermediate_size / layout.expert_tp
    entering = (experts.matrices - 1) * width
    return experts.per_token * (max(entering, experts.hidden_size or model.hidden_size) + width)


def _sampler_bytes(kept: KVReserve, requests: int, vocabulary: int) -> float:
    """Bytes that sampling takes for a number of requests.

    Fewer rows may take more than many do, since they are sorted in another way; the larger is
    taken, so that more requests never take less.
    """
    few = kept.bytes_per_logit_of_few * min(requests, _MANY_ROWS)
    return vocabulary * max(few, kept.bytes_per_logit * requests)
