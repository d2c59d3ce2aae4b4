"""Rows that cannot be what they say: more FLOP, or bytes, in less time than a GPU has for them."""

from __future__ import annotations

from physim.models.architecture import ModelArch
from physim.models.parallelism import Parallelism
from physim.service.hardware import Hardware
from physim.service.phases import decode_steps

# No kernel of NVIDIA's own tables reaches more than this share of the datasheet's FLOP/s.
_MOST_OF_PEAK = 0.85
# Keys and values of one byte are the least that the engines of public rows keep.
_LEAST_KV_BYTES = 1.0


def excess_flops(
    arch: ModelArch, gpu: Hardware, layout: Parallelism, rate: float, tokens: float
) -> str:
    """Why an engine cannot compute so many tokens; empty if it can.

    Args:
        arch: The model.
        gpu: The GPU.
        layout: How the engine's GPUs share the model.
        rate: Requests per second of one engine.
        tokens: Tokens that it computes of each.
    """
    form = arch.weight_format
    peak = gpu.peak(form.compute) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has bfloat16: load_hardware
    flops = rate * 2 * (arch.active_parameters - arch.embedding_parameters) * tokens
    flops /= layout.stage_gpus
    return f"needs {flops / peak:.0%} of the peak FLOP/s" if flops > _MOST_OF_PEAK * peak else ""


def excess_speed(
    arch: ModelArch,
    gpu: Hardware,
    layout: Parallelism,
    rate: float,
    prompt: float,
    output: float,
    tpot: float,
) -> str:
    """Why an engine cannot generate tokens so fast; empty if it can.

    Args:
        arch: The model.
        gpu: The GPU.
        layout: How the engine's GPUs share the model.
        rate: Requests per second of one engine.
        prompt: Mean prompt, tokens.
        output: Mean answer, tokens.
        tpot: Time for each token of an answer but the first, seconds.
    """
    # By Little's law so many requests decode, each with its prompt and half of its answer.
    decoding = rate * tpot * decode_steps(output) / layout.dp
    context = prompt + output / 2
    cache = decoding * sum(
        layers
        * mixer.token_bytes(layout.tp, _LEAST_KV_BYTES)
        * min(context, mixer.window or context)
        for mixer, layers in arch.attention_layers.items()
    )
    # Of routed experts a step reads those of one token at least.
    weights = sum(form.bytes_per_weight * own for form, own in arch.visited_weights.items())
    weights /= layout.stage_gpus
    read_s = (weights + cache) / gpu.memory_bandwidth
    if tpot < read_s:
        return f"its tokens come in {tpot / read_s:.0%} of the time that reading memory takes"
    return ""
