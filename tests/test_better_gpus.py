"""Kernels that a GPU was not measured with are no faster than on the next better GPU that was."""

import functools
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from physim import roofline
from physim.grids.store import better_gpus, load_grid, measured_gpus, peers, tables
from physim.inputs.deployment import Deployment
from physim.models.formats import (
    BFLOAT16,
    FP8,
    FP8_BLOCK,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    NVFP4_WEIGHTS,
    int4,
)
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware, shipped_gpus
from physim.step.component import Placement
from physim.step.components.experts import COMPONENT
from physim.step.curves import CHUNK, CONTEXT, REQUESTS, TOKENS, rising_log_seconds
from physim.step.gemms import gemm_row
from physim.step.lowering import PART_NAMES, assumptions, rows_of

FORMATS = (BFLOAT16, FP8, FP8_BLOCK, MXFP8, NVFP4, NVFP4_WEIGHTS, MXFP4, INT8, int4(128))
LLAMA, MIXTRAL = "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mixtral-8x7B-v0.1"
# Columns and rows of a projection, of half an MLP and of a small one.
SHAPES = ((6144, 4096), (14336, 4096), (1024, 2048))
MOST_MEMORY = 1e12


@functools.cache
def placement(gpu, model=LLAMA, tp=1, **deployment):
    arch = load_model(model) if isinstance(model, str) else model
    # Whatever a GPU's memory holds, its kernels take their time.
    hardware = replace(load_hardware(gpu), memory_bytes=MOST_MEMORY)
    engine = Deployment(Parallelism(tp), max_model_len=8192, max_num_seqs=64, **deployment)
    return Placement(engine.resolved(arch, hardware))


def rows(gpu, model=LLAMA, tp=1, **deployment):
    one = placement(gpu, model, tp, **deployment)
    return rows_of(one.server)


def notes(gpu, model=LLAMA, tp=1, **deployment):
    one = placement(gpu, model, tp, **deployment)
    return assumptions(one.server)


def next_better(gpu, is_measured):
    """The next better GPU that has a measurement which a GPU lacks."""
    if gpu in measured_gpus() and is_measured(gpu):
        return None
    return next((one.key for one in better_gpus(load_hardware(gpu)) if is_measured(one.key)), None)


def mixtral_in(form):
    model = load_model(MIXTRAL)
    (group,) = model.groups
    return replace(model, groups=(replace(group, experts=replace(group.experts, form=form)),))


def test_a_better_gpu_is_slower_in_nothing():
    def keys(gpu):
        return [one.key for one in better_gpus(gpu)]

    a100 = load_hardware("a100_pcie")
    assert keys(a100)[:3] == ["a100_sxm", "h100_sxm", "h200_sxm"]
    assert keys(load_hardware("l4"))[0] == "l40s"
    # The L40S has more FLOP/s than the A100, and the A100 a faster link.
    assert "a100_sxm" not in keys(load_hardware("l40s"))
    assert "l40s" not in keys(load_hardware("a100_pcie"))
    # Rates of datasheets are round: what moves one a little finds the same GPUs.
    assert keys(replace(a100, memory_bandwidth=1.005 * a100.memory_bandwidth)) == keys(a100)
    assert keys(load_hardware("mi355x")) == ["gb200", "gb300"]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_an_unmeasured_gemm_is_no_faster_than_on_the_next_better_gpu(form):
    limited = 0
    for gpu in shipped_gpus():
        better = next_better(gpu, lambda key: f"gemm_{form.gemm_tables[0]}" in tables(key))
        for n, k in SHAPES if better else ():
            own, other = (
                gemm_row(placement(key), "one", "mlp", 1.0, n, k, form).log_seconds
                for key in (gpu, better)
            )
            assert np.all(own >= other), (gpu, better, n, k)
            limited += 1
    # Block fp8 was measured with launches alone, and int8 not at all.
    assert limited or form in (FP8_BLOCK, INT8)


def test_a_measured_gemm_takes_what_was_measured():
    for gpu in measured_gpus():
        hardware = load_hardware(gpu)
        for form in (BFLOAT16, FP8, NVFP4):
            if f"gemm_{form.name}" not in tables(gpu):
                continue
            n, k = SHAPES[0]
            work = roofline.gemm(TOKENS, n, k, form.bytes_per_weight, form.activation_bytes)
            bound = roofline.seconds(work, hardware.peak(form.compute), hardware.memory_bandwidth)
            measured = load_grid(gpu, f"gemm_{form.name}").sliced(n=n, k=k).resampled(tokens=TOKENS)
            found = gemm_row(placement(gpu), "one", "mlp", 1.0, n, k, form).log_seconds
            np.testing.assert_array_equal(found, rising_log_seconds(measured, np.asarray(bound)))


# Those of the others are one of these.
@pytest.mark.parametrize(
    "form", [BFLOAT16, FP8, NVFP4, MXFP4, int4(128)], ids=lambda form: form.name
)
@pytest.mark.slow
def test_unmeasured_experts_are_no_faster_than_on_the_next_better_gpu(form):
    model, first = mixtral_in(form), form.expert_tables[0]
    # Per-channel and block fp8 experts run through one kernel.
    alike = ("fp8", "fp8_block") if first.startswith("fp8") else (first,)

    def is_measured(gpu):
        return any(name.startswith(f"moe_{one}_") for one in alike for name in tables(gpu))

    def log_seconds(gpu):
        _, row = COMPONENT.lower(placement(gpu, model, tp=4))
        return row.by_spread

    limited = 0
    for gpu in shipped_gpus():
        better = next_better(gpu, is_measured)
        if better:
            assert np.all(log_seconds(gpu) >= log_seconds(better)), (gpu, better)
            limited += 1
    assert limited


@pytest.mark.parametrize(
    ("gpu", "better", "deployment"),
    [
        ("a100_sxm", "h100_sxm", {"kv_cache_dtype": "fp8"}),
        ("a100_pcie", "a100_sxm", {}),
        ("l4", "l40s", {"tp": 4}),
        ("mi300x", "b200_sxm", {"tp": 2}),
    ],
)
def test_unmeasured_attention_and_all_reduces_are_no_faster(gpu, better, deployment):
    found = 0
    for own, other in zip(rows(gpu, **deployment), rows(better, **deployment), strict=True):
        assert own.name == other.name
        if own.name in ("decode_attention", "prefill_attention", "all_reduce"):
            assert np.all(own.log_seconds >= other.log_seconds), own.name
            found += 1
    assert found == (3 if "tp" in deployment else 2)


def test_experts_in_fp4_on_the_a100_are_no_faster_than_on_the_h100():
    # They ran at the efficiency of experts in 16 bit: 1.7 ms a step of one token, of 6.6 on H100.
    model = "nvidia/Qwen3.5-397B-A17B-NVFP4"
    seconds = {}
    for gpu in ("a100_sxm", "h100_sxm"):
        (row,) = (row for row in rows(gpu, model, tp=4) if row.name == "experts")
        seconds[gpu] = row.count * np.exp(row.by_spread[0, 0])
    assert seconds["a100_sxm"] == pytest.approx(seconds["h100_sxm"])


def test_peers_are_no_slower_than_one_another():
    found = {gpu: [one.key for one in peers(load_hardware(gpu))] for gpu in shipped_gpus()}
    assert {gpu: keys for gpu, keys in found.items() if keys} == {
        "b200_sxm": ["b300_sxm"],
        "b300_sxm": ["b200_sxm"],
        "gb200": ["gb300"],
        "gb300": ["gb200"],
    }


def test_a_kernel_that_a_peer_was_measured_with_is_no_other_kernel():
    # TensorRT-LLM's experts of low latency were measured on B200; on B300, where they were not,
    # those of Cutlass took 2.7 times as long.
    model = "nvidia/Qwen3.5-397B-A17B-NVFP4"
    assert "moe_nvfp4_min_latency_balanced" not in tables("b300_sxm/trtllm")
    one, other = (
        next(row for row in rows(gpu, model, 4, engine="trtllm") if row.name == "experts")
        for gpu in ("b300_sxm", "b200_sxm")
    )
    np.testing.assert_allclose(one.by_spread, other.by_spread, atol=0.01)
    said = "no measured min_latency kernel of such experts in nvfp4 on b300_sxm: efficiencies of "
    assert any(
        line.startswith(said + "b200_sxm") for line in notes("b300_sxm", model, 4, engine="trtllm")
    )


def test_latent_attention_that_ran_without_compiling_is_that_of_a_board_of_the_same_chip():
    model, said = "deepseek-ai/DeepSeek-V3", "no measured latent attention on b300_sxm: "
    attention = ("decode_attention", "prefill_attention")
    own, other = (
        {row.part: np.exp(row.log_seconds) for row in rows(gpu, model, 8) if row.part in attention}
        for gpu in ("b300_sxm", "b200_sxm")
    )
    # 64 requests of 512 tokens took 1.6 times as long as on B200, a prompt of 1,024 1.7 times.
    requests, context, chunk = (
        list(knots).index(size) for knots, size in ((REQUESTS, 64), (CONTEXT, 512), (CHUNK, 1024))
    )
    for part, place in zip(attention, ((requests, context), (0, chunk)), strict=True):
        assert 0.8 < own[part][place] / other[part][place] < 1.1
    assert f"{said}efficiencies of gb300 are used" in notes("b300_sxm", model, 8)


def test_what_an_unmeasured_kernel_is_held_to_is_said():
    gemm = notes("a100_sxm", "Qwen/Qwen3-32B-FP8")[-1]
    assert gemm.endswith("fp8_block weights, 16-bit compute, no faster than on h100_sxm")
    experts = " ".join(notes("a100_sxm", mixtral_in(NVFP4)))
    assert (
        "no measured expert kernel for nvfp4: that of bfloat16 is used, no faster than on h100_"
        in (experts)
    )
    attention = " ".join(notes("a100_sxm", kv_cache_dtype="fp8"))
    assert attention.count("efficiencies of bfloat16 are used, no faster than on h100_sxm") == 2
    kernels = notes("a100_pcie")[0]
    assert kernels.endswith("efficiencies of h100_sxm are used, no faster than on a100_sxm")
    # Nothing is better in memory, link and FLOP/s; and what was measured needs no note.
    assert "no faster" not in " ".join(notes("gb300", "nvidia/Llama-3.1-8B-Instruct-FP8"))
    assert notes("h100_sxm", "nvidia/Llama-3.1-8B-Instruct-FP8") == []


def test_steps_that_are_slower_on_the_better_gpu_are_counted_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    script = importlib.import_module("gpu_order")
    mlp, experts = (PART_NAMES.index(name) for name in ("mlp", "experts"))
    # Two servers with two steps each, of 10 ms on the lesser GPU.
    lesser = np.zeros((2, 2, len(PART_NAMES)))
    lesser[..., mlp], lesser[..., experts] = 4e-3, 6e-3
    better = lesser.copy()
    better[0, 0, mlp] = 4.3e-3
    better[1, :, experts] = [9e-3, 5e-3]
    assert script.table(["one", "other"], better, lesser) == [
        "50.0% of steps are slower, 25.0% by 5% and more",
        " 25.0%  mlp                 1.07 times; 1.03 of a step of one",
        " 25.0%  experts             1.50 times; 1.30 of a step of other",
    ]
