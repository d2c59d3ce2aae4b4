"""Experts that GPUs share: by hand, and what holds of every layout."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim import roofline
from physim.grids.store import load_expert_grid
from physim.inputs.deployment import Deployment
from physim.models.formats import BFLOAT16, FP8, FP8_BLOCK, MXFP4, NVFP4, int4
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware
from physim.step.component import Placement
from physim.step.components.experts import COMPONENT
from physim.step.curves import TOKENS

SCOUT = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"
MODELS = (
    *(SCOUT, "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b"),
    *("deepseek-ai/DeepSeek-V3", "MiniMaxAI/MiniMax-M2.5", "nvidia/Qwen3.5-397B-A17B-NVFP4"),
)
FORMATS = (BFLOAT16, FP8, FP8_BLOCK, NVFP4, MXFP4, int4(128))
GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "l40s", "rtx_4090")


def with_experts(name, **changed):
    """A model whose experts are changed."""
    model = load_model(name)
    groups = tuple(
        replace(group, experts=replace(group.experts, **changed)) if group.experts else group
        for group in model.groups
    )
    return replace(model, groups=groups)


def seconds(model, gpu, engine="vllm", moe_kernel=None, **layout):
    """Time of each kind of expert layer, under each spread, at `TOKENS`."""
    # Whatever a GPU's memory holds, its kernels take their time.
    hardware = replace(load_hardware(gpu), memory_bytes=1e13)
    server = Deployment(
        Parallelism(**layout), engine=engine, max_model_len=4096, moe_kernel=moe_kernel
    ).resolved(model, hardware)
    rows = [row for row in COMPONENT.lower(Placement(server)) if row.name == "experts"]
    return np.array([np.exp(row.by_spread) for row in rows])


def test_a_kernel_that_was_not_measured_of_a_share_is_that_of_as_many_experts_by_hand():
    # Llama-4-Maverick: 128 experts, of which eight GPUs hold 16 each. Triton's experts in fp8 were
    # measured of whole layers alone. FlashInfer's of shares, which took 3.7 ms for 128 tokens, five
    # times what the weights take, were taken for them.
    maverick = with_experts(SCOUT, count=128)
    (curves,) = seconds(maverick, "h100_sxm", tp=8, ep=8)
    # A layer of 16 experts has as many tokens an expert with 16 tokens as this GPU's share of 128.
    grid = load_expert_grid("h100_sxm", "moe_fp8_triton_balanced").nearest(5120, 8192, 1, 16)
    (place,) = np.flatnonzero(TOKENS == 2048)
    work = roofline.experts(2048, 5120, 8192, 16, 1 / 8, 1.0)
    by_hand = roofline.seconds(work, 1978.9e12, 3.35e12) / grid.efficiency(tokens=256)
    np.testing.assert_allclose(curves[0, place], by_hand, rtol=0.01)
    # However few tokens there are, one of the GPUs has one of them.
    assert np.ptp(curves[0, TOKENS < 8]) < 0.15 * curves[0, 0]
    # So eight GPUs take about as long for whole experts as for an eighth of each.
    (shared,) = seconds(maverick, "h100_sxm", tp=8)
    np.testing.assert_allclose(curves[0, TOKENS > 32], shared[0, TOKENS > 32], rtol=0.35)


def test_marlin_takes_more_than_its_two_gemms():
    """Tables of a larger layer have 10 us of a token at tp 8: there are seven more kernels."""
    (found,) = seconds(load_model("openai/gpt-oss-120b"), "h100_sxm", tp=8, moe_kernel="marlin")
    assert 27e-6 < found[0, 0] < 30e-6
    # NVIDIA measured the layer itself on the L40S, with all its kernels: 28 us.
    (itself,) = seconds(load_model("openai/gpt-oss-120b"), "l40s", tp=8)
    np.testing.assert_allclose(itself[0, 0], 28e-6, rtol=0.05)


@pytest.mark.parametrize(
    ("tp", "more"),
    [
        (1, 3072 * 2944 / 2880**2),
        (2, 3072 * 1536 / (2880 * 1440)),
        (8, 3072 * 384 / (2880 * 360)),
    ],
)
def test_marlin_pads_the_hidden_size_to_256_and_the_width_to_128(tp, more):
    name = "openai/gpt-oss-120b"
    plain = with_experts(name, form=replace(MXFP4, is_padded=False))
    (found,) = seconds(load_model(name), "h200_sxm", tp=tp, moe_kernel="marlin")
    (bare,) = seconds(plain, "h200_sxm", tp=tp, moe_kernel="marlin")
    # The other kernels' 18 us are in both.
    np.testing.assert_allclose(found[:, 0] - 18e-6, more * (bare[:, 0] - 18e-6), rtol=0.01)
    np.testing.assert_allclose(found[:, TOKENS > 8192], more * bare[:, TOKENS > 8192], rtol=2e-3)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(FORMATS),
    st.sampled_from(GPUS),
    st.sampled_from(["vllm", "sglang", "trtllm"]),
    st.sampled_from([2, 4, 8]),
    st.booleans(),
)
def test_a_share_of_experts_rises_with_tokens_and_takes_no_longer_than_all(
    name, form, gpu, engine, tp, spreads
):
    model = with_experts(name, form=form)
    share = seconds(model, gpu, engine, tp=tp, ep=tp if spreads else 1)
    assert np.all(np.diff(share) >= -1e-12)
    assert np.all(share <= seconds(model, gpu, engine) * (1 + 1e-9))


def test_options_of_experts_are_said_to_change_nothing_of_a_dense_model():
    asked = {"gpu": "h100_sxm", "input_tokens": 500, "output_tokens": 50, "rate": 1.0}
    asked |= {"moe_kernel": "triton", "expert_load": 0.5, "fit": "none"}
    said = "changes nothing: the model has no experts"
    notes = physim.predict("Qwen/Qwen3-8B", **asked).assumptions
    assert [f"{name} {said}" for name in ("moe_kernel", "expert_load")] == [*notes]
    assert not any(
        said in note for note in physim.predict("Qwen/Qwen3-30B-A3B", **asked).assumptions
    )


@pytest.mark.parametrize(
    ("name", "load"),
    [
        (SCOUT, 1.0),
        ("moonshotai/Kimi-K2.5", 1.0),
        ("nvidia/Kimi-K2.5-NVFP4", 1.0),
        ("deepseek-ai/DeepSeek-V3", 0.0),
        ("Qwen/Qwen3-235B-A22B", 0.0),
    ],
)
def test_how_evenly_experts_are_chosen_goes_by_family(name, load):
    assert load_model(name).experts.load == load
