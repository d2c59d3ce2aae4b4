"""Drawing tokens from their logits, once a step.

What it costs depends on what is asked for and on the kernel that does it. Greedy and plain draws
pass over the logits a few times. To draw from the likeliest alone, PyTorch's sort orders them all,
a Triton kernel searches the threshold, and FlashInfer's rejects what is below it; their times are
laws through measurements of vLLM's pull requests (``bench_data/sampling.json``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.service.hardware import Hardware
from physim.step.component import Component, Part, Placement
from physim.step.components.elementwise import KERNEL_S, STREAM_EFFICIENCY
from physim.step.curves import TOKENS
from physim.step.rows import Row, SizeRow

# Bytes that pass for each logit. All are cast from 16 to 32 bit and read for the largest; plain
# draws are scaled, normalised and raced against exponential numbers besides.
GREEDY_BYTES = 2.0 + 4.0 + 4.0
PLAIN_BYTES = GREEDY_BYTES + 4 * (4.0 + 4.0)
_PASSES = {"greedy": 3, "plain": 7}

# How times go with the bandwidth of GPUs where they were not measured: by its fourth root, as a
# choice. A sort waits for its passes more than for memory: on a GB200, of 2.4 times the H100's
# bandwidth and 1.1 to 1.2 times its multiprocessors' cycles, that of 128 requests takes 0.88 of the
# time (vllm-project/vllm pull request 54502). So on a GPU of fewer cycles than the H100 it takes
# longer in proportion: on the A100, which has 0.63 of its cycles and 0.61 of its bandwidth, 1.59.
BANDWIDTH_EXPONENT = 0.25


def _lower(placement: Placement) -> Iterator[Row]:
    server, gpu, vocabulary = placement.server, placement.gpu, placement.model.vocab_size
    drawn = "greedy" if server.sampling == "greedy" else "plain"
    passes = GREEDY_BYTES if drawn == "greedy" else PLAIN_BYTES
    bandwidth = STREAM_EFFICIENCY * gpu.memory_bandwidth
    log_seconds = None
    if server.sampling in ("truncated", "penalised"):
        slower = slower_than_measured(gpu)
        masked, whole = _masked_s(placement, vocabulary)
        passed = (GREEDY_BYTES if whole else PLAIN_BYTES) * vocabulary * TOKENS / bandwidth
        log_seconds = np.log(np.maximum.accumulate(masked * slower + passed))
        passes = GREEDY_BYTES
    yield SizeRow(
        name="sampling",
        part="sampling",
        size="sampled",
        count=1.0,
        bytes=passes * vocabulary,
        fixed_seconds=_PASSES[drawn] * KERNEL_S,
        bandwidth=bandwidth,
        log_seconds=log_seconds,
        correction="sampling",
    )
    if server.sampling == "penalised":
        yield SizeRow(
            name="penalties",
            part="sampling",
            size="sampled",
            count=1.0,
            seconds=server.profile.penalty_request_s,
            fixed_seconds=server.profile.penalty_step_s,
            correction="penalties",
        )


def _masked_s(placement: Placement, vocabulary: int) -> tuple[Float[np.ndarray, " knots"], bool]:
    """Time of the kernel at `TOKENS`, seconds, and whether the draw is in it."""
    profile, mask = placement.server.profile, placement.model.truncation or "top_k_top_p"
    seconds = mask_seconds(profile.sampler, mask, TOKENS, vocabulary)
    few = profile.sampler_from > TOKENS
    seconds = np.where(few, mask_seconds("sort", mask, TOKENS, vocabulary), seconds)
    return seconds, bool(laws()["kernels"][profile.sampler]["whole"])


def mask_seconds(
    kernel: str, mask: str, requests: Float[np.ndarray, " n"], vocabulary: float
) -> Float[np.ndarray, " n"]:
    """Time of a sampling kernel on a Hopper GPU, seconds.

    Args:
        kernel: ``sort``, ``triton`` or ``flashinfer``.
        mask: What is kept: ``top_k``, ``top_p`` or ``top_k_top_p``.
        requests: Rows of logits.
        vocabulary: Logits of a row.
    """
    kernels = laws()["kernels"][kernel]
    law, width = kernels[mask], kernels["wave_requests"]
    waves = np.ceil(requests / width) if width else np.ones_like(requests)
    each = law["wave_s"] + law["wave_vocabulary_s"] * vocabulary
    seconds: np.ndarray = waves * each + law["logit_s"] * requests * vocabulary
    return seconds


def slower_than_measured(gpu: Hardware) -> float:
    """How many times as long a sampling kernel takes as on the GPU that it was measured on.

    Args:
        gpu: The GPU.
    """
    by_bandwidth = (laws()["memory_bandwidth_bytes_per_s"] / gpu.memory_bandwidth) ** (
        BANDWIDTH_EXPONENT
    )
    fewer = laws()["multiprocessor_cycles_per_s"] / (gpu.multiprocessor_cycles or np.inf)
    return max(by_bandwidth, fewer) if fewer > 1 else by_bandwidth


def greedy_seconds(placement: Placement, requests: float) -> float:
    """Time in which greedy requests have their tokens, seconds.

    Args:
        placement: The model on its GPU.
        requests: Requests of the step.
    """
    moved = GREEDY_BYTES * placement.model.vocab_size * requests
    passed = moved / (STREAM_EFFICIENCY * placement.gpu.memory_bandwidth)
    return _PASSES["greedy"] * KERNEL_S + passed


@functools.lru_cache
def laws() -> dict[str, Any]:
    """The measured laws, with their sources."""
    return data.read_json(data.folder("bench_data") / "sampling.json")


def _assumptions(placement: Placement) -> list[str]:
    if placement.server.sampling not in ("truncated", "penalised"):
        return []
    if placement.gpu.key in ("h100_sxm", "h200_sxm"):
        return []
    return [f"sampling was not measured on {placement.gpu.key}: taken from Hopper's, by its rates"]


COMPONENT = Component(
    name="sampling",
    parts=(Part("sampling", "sampling"),),
    lower=_lower,
    source="sampling kernels, as pull requests measured them (bench_data/sampling.json)",
    assumptions=_assumptions,
)
