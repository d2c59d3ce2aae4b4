"""Experts whose rows DeepGEMM's kernel pads to blocks: by hand, and as published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import physim
from physim.inputs.deployment import Deployment
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware
from physim.step.component import Placement
from physim.step.curves import TOKENS
from physim.step.padded_experts import padded_seconds, padding_kernel

QWEN = "Qwen/Qwen3-235B-A22B-FP8"


def placed(model: str, gpu: str, version: str = "0.12", **options: Any) -> Placement:
    # Whatever a GPU's memory holds, its kernels take their time.
    hardware = replace(load_hardware(gpu), memory_bytes=1e13)
    kernel = options.pop("moe_kernel", None)
    deployment = Deployment(
        Parallelism(**options), engine_version=version, moe_kernel=kernel, max_model_len=4096
    )
    return Placement(deployment.resolved(load_model(model), hardware))


def seconds_of(placement: Placement) -> np.ndarray:
    experts = next(group.experts for group in placement.model.groups if group.experts)
    return padded_seconds(placement, experts)


def padded(*args: Any, **options: Any) -> bool:
    placement = placed(*args, **options)
    experts = next(group.experts for group in placement.model.groups if group.experts)
    return padding_kernel(placement, experts) is not None


def test_one_token_loads_a_block_for_every_expert():
    """128 experts of 4,096 x 768 on each of two H200: 16,264 rows, 8 of them a token's."""
    found = seconds_of(placed(QWEN, "h200_sxm", tp=2))
    block = 3 * 4096 * 768 * (1 + 4 / 128**2)
    loaded = block / 0.71 * (8 / 4.8e12 + (127 - 8) / 5.5e12)
    multiplied = 2 * 3 * 4096 * 768 * 8 / (0.56 * 1979e12)
    moved = (16_264 * (3 * 4096 + 10 * 768) + 8 * 4 * 4096) / 4.8e12
    assert found[0] == pytest.approx(loaded + multiplied + moved, rel=1e-3)
    assert found[0] == pytest.approx(378e-6, rel=0.005)
    # 64 tokens visit nearly all experts, whose weights come from memory then.
    assert found[0] < found[list(TOKENS).index(64)] < 1.15 * found[0]
    # Each of two GPUs with half of the experts has half of the blocks, twice as wide.
    shared = seconds_of(placed(QWEN, "h200_sxm", tp=2, ep=2))
    assert shared[0] == pytest.approx(found[0], rel=0.15)


@pytest.mark.parametrize(
    ("tokens", "published"), [(128, 4419), (256, 4548), (512, 4687), (1024, 4964), (2048, 5571)]
)
def test_wider_experts_take_longer_as_was_measured(tokens, published):
    """us from tp 8 to tp 1 on an H100, DeepSeek-V3 (vllm-project/vllm pull request 13932)."""
    wide, narrow = (
        seconds_of(placed("deepseek-ai/DeepSeek-V3", "h100_sxm", tp=tp))[list(TOKENS).index(tokens)]
        for tp in (1, 8)
    )
    assert 1e6 * (wide - narrow) == pytest.approx(published, rel=0.03)


def test_which_servers_pad():
    assert padded(QWEN, "h200_sxm", tp=2)
    assert padded(QWEN, "h100_sxm", "0.11.1", tp=4)
    assert padded(QWEN, "h100_sxm", "0.14.1", tp=4)
    for version in ("0.11.0", "0.15.0", "0.33"):
        assert not padded(QWEN, "h200_sxm", version, tp=2)
    # Other GPUs, formats and kernels; and eight GPUs that share each expert.
    assert not padded(QWEN, "b200_sxm", tp=2)
    assert not padded("Qwen/Qwen3-235B-A22B", "h200_sxm", tp=4)
    assert not padded(QWEN, "h200_sxm", tp=2, moe_kernel="triton")
    assert not padded(QWEN, "h200_sxm", tp=8)
    assert padded(QWEN, "h200_sxm", tp=8, ep=8)
    assert padded(QWEN, "h200_sxm", tp=8, moe_kernel="deepgemm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "measured_s", "within"), [(None, 0.03221, 0.05), ("triton", 0.01639, 0.2)]
)
def test_a_server_with_and_without_padded_experts(kernel, measured_s, within):
    """MiniMax-M2 on four H100, ten clients (vllm-project/recipes pull request 112)."""
    found = physim.predict(
        "MiniMaxAI/MiniMax-M2.5",
        gpu="h100_sxm",
        tp=4,
        engine_version="0.11.1",
        concurrency=10,
        requests=100,
        input_tokens=2047,
        output_tokens=953,
        max_model_len=32_768,
        moe_kernel=kernel,
        fit="none",
    )
    assert found.itl_s == pytest.approx(measured_s, rel=within)
    told = [line for line in found.assumptions if "blocks of 128 rows" in line]
    assert len(told) == (kernel is None)


def test_steps_take_nearly_as_long_however_few_tokens_there_are():
    """Qwen3-235B-A22B on two H200, 20 clients: 52 ms (a row of the fit, NVIDIA's vLLM 0.12)."""
    options: dict[str, Any] = {"gpu": "h200_sxm", "tp": 2, "engine_version": "0.12", "fit": "none"}
    options |= {"input_tokens": 1000, "output_tokens": 1000, "max_model_len": 4000}

    def itl_s(clients: int, kernel: str | None = None) -> float:
        found = physim.predict(QWEN, **options, concurrency=clients, moe_kernel=kernel)
        return found.itl_s or 0.0

    assert itl_s(20) == pytest.approx(0.052, rel=0.1)
    assert 0.9 * itl_s(20) < itl_s(4) < itl_s(20)
    assert itl_s(4, "triton") < 0.6 * itl_s(4)


def test_padded_experts_are_no_faster_than_the_roofline():
    placement = placed("deepseek-ai/DeepSeek-V3", "h100_sxm", tp=8, ep=8)
    experts = next(group.experts for group in placement.model.groups if group.experts)
    found = seconds_of(placement)
    assert np.all(np.diff(found) > 0)
    # All that is multiplied, at peak.
    work = 6 * TOKENS * experts.per_token / 8 * experts.intermediate_size * 7168
    assert np.all(found > work / 1979e12)
