"""Components against hand-computed numbers, measured rows, and their rooflines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physim import roofline
from physim.grids.store import load_expert_grid, load_grid
from physim.inputs.deployment import Deployment
from physim.inputs.hardware import load_hardware
from physim.inputs.models import load_model
from physim.step import components
from physim.step.batch import Batch
from physim.step.lowering import (
    CHUNK,
    CONTEXT,
    GEMM_NAMES,
    MESSAGE_BYTES,
    REQUESTS,
    TOKENS,
    AttentionOps,
    CollectiveOps,
    ElementwiseOps,
    ExpertOps,
    GemmOps,
    assumptions,
    lower,
)

BANDWIDTH = 1e12


def lowered(model, gpu="h100_sxm", **deployment):
    arch, hardware = load_model(model), load_hardware(gpu)
    return lower(arch, hardware, Deployment(**deployment).resolved(arch, hardware))


LLAMA = lowered("meta-llama/Llama-3.1-8B-Instruct")
MIXTRAL = lowered("mistralai/Mixtral-8x7B-v0.1", tp=2)


# --- by hand, where every kernel was measured at twice its roofline ---


def twice(work, peak, bandwidth=BANDWIDTH):
    return np.log(2 * roofline.seconds(work, peak, bandwidth))


def test_gemm_by_hand():
    names = len(GEMM_NAMES)
    curve = twice(roofline.gemm(TOKENS, 100, 50, 2, 2), 1e12)
    ops = GemmOps(
        n=np.full(names, 100.0),
        k=np.full(names, 50.0),
        weight_bytes=np.full(names, 2.0),
        activation_bytes=np.full(names, 2.0),
        peak_flops=np.full(names, 1e12),
        count=np.arange(names, dtype=float),
        log_seconds=np.tile(curve, (names, 1)),
    )
    seconds, compute = components.gemm_seconds(ops, 4.0, 2.0, BANDWIDTH)
    # Four tokens: 40,000 FLOP, 11,200 bytes; at 1e12 of each a second, FLOP are the longer.
    np.testing.assert_allclose(seconds[:-1], np.arange(names - 1) * 2 * 4.0e-8, rtol=1e-12)
    # The roofline's two times are 40 and 11.2 ns.
    assert compute[1] == pytest.approx(40**3 / (40**3 + 11.2**3))
    # lm_head works on two tokens: 20,000 FLOP.
    assert seconds[-1] == pytest.approx((names - 1) * 2 * 2.0e-8)
    # With a tenth of the bandwidth the bytes take 112 ns, more than the 80 ns that were measured.
    slow_memory, less = components.gemm_seconds(ops, 4.0, 2.0, BANDWIDTH / 10)
    assert slow_memory[1] == pytest.approx(11_200 / 1e11)
    assert less[1] == pytest.approx(40**3 / (40**3 + 112**3))


def test_experts_by_hand():
    curve = twice(roofline.experts(TOKENS, 10, 20, 8, 2, 2), 1e15)
    ops = ExpertOps(10.0, 20.0, 8.0, 2.0, 2.0, 1e15, 3.0, curve)
    # One token visits two experts of 600 weights of two bytes, and moves 40 bytes itself.
    assert components.expert_seconds(ops, 1.0, BANDWIDTH) == pytest.approx(3 * 2 * 2440e-12)


def attention(peak=1e9, bandwidth=BANDWIDTH, **change):
    """Three layers of 4 query heads on 2 KV heads of width 8."""
    requests = REQUESTS[:, None]
    decode = roofline.decode_attention(requests, CONTEXT, 4, 2, 8, 2)
    prefill = roofline.prefill_attention(requests, CHUNK, 4, 2, 8)
    fields = {
        "heads": 4.0,
        "kv_heads": 2.0,
        "dim": 8.0,
        "kv_bytes": 2.0,
        "peak_flops": peak,
        "layers": 3.0,
        "log_decode_seconds": twice(decode, peak, bandwidth),
        "log_prefill_seconds": twice(prefill, peak, bandwidth),
    }
    return AttentionOps(**{**fields, **change})


def test_decode_attention_by_hand():
    batch = Batch.summarised(decode_requests=2.0, context=16.0)
    # 4,096 FLOP at 1e9 a second in each of three layers, twice over.
    seconds = components.decode_attention_seconds(attention(), batch, BANDWIDTH)
    assert seconds == pytest.approx(3 * 2 * 4096e-9)
    # 2 x 2 x 16 x 2 x 8 x 2 bytes of keys and values and 256 of queries and outputs.
    seconds = components.decode_attention_seconds(attention(1e18, 1e6), batch, 1e6)
    assert seconds == pytest.approx(3 * 2 * (2048 + 256) * 1e-6)


def test_prefill_attention_by_hand():
    own = 2 * 32 * 33 * 4 * 8
    alone = Batch.summarised(prefill_requests=1.0, chunk=32.0)
    fresh, cached = components.prefill_attention_seconds(attention(), alone, BANDWIDTH)
    assert fresh == pytest.approx(3 * 2 * own * 1e-9)
    assert cached == 0
    # With 32 tokens cached, 32 x 32 more pairs, as efficient as a chunk of 64.
    across = 4 * 32 * 32 * 4 * 8
    batch = Batch.summarised(prefill_requests=1.0, chunk=32.0, cached=32.0)
    fresh, cached = components.prefill_attention_seconds(attention(), batch, BANDWIDTH)
    assert fresh == pytest.approx(3 * 2 * own * 1e-9)
    assert cached == pytest.approx(3 * 2 * across * 1e-9)


def test_all_reduce_by_hand():
    curve = np.log(2 * roofline.all_reduce(MESSAGE_BYTES, 4) / 1e9)
    ops = CollectiveOps(4.0, 128.0, 5.0, 300.0, 1e9, curve)
    # Eight tokens: 1,024 bytes, of which each GPU sends 1,536; two sampled tokens: 600 bytes.
    assert components.all_reduce_seconds(ops, 8.0) == pytest.approx(5 * 2 * 1536e-9)
    assert components.gather_seconds(ops, 2.0) == pytest.approx(600e-9)


def test_between_knots_time_is_interpolated_in_logarithm():
    ops = CollectiveOps(2.0, 1.0, 1.0, 0.0, 1e12, np.log(MESSAGE_BYTES**2))
    # The square between its neighbouring powers of two is exact: a line in logarithms.
    assert components.all_reduce_seconds(ops, 700.0) == pytest.approx(490_000)


def test_elementwise_by_hand():
    ops = ElementwiseOps(850.0, kernels=10.0, sampling_bytes=1700.0, penalties=1.0)
    assert components.elementwise_seconds(ops, 4.0, 1e9) == pytest.approx(10 * 2e-6 + 4e-6)
    assert components.sampling_seconds(ops, 3.0, 1e9) == pytest.approx(6e-6)
    assert components.penalty_seconds(ops, 3.0) == pytest.approx(2e-4 + 3 * 30e-6)


# --- against rows that NVIDIA measured on the H100 (aiconfigurator-core 0.12.0), seconds ---


@pytest.mark.parametrize(
    ("table", "tokens", "n", "k", "measured"),
    [
        ("gemm_bfloat16", 1, 10240, 8192, 60.77e-6),
        ("gemm_bfloat16", 64, 4096, 4096, 14.77e-6),
        ("gemm_bfloat16", 2048, 8192, 8192, 366.3e-6),
        ("gemm_fp8", 256, 10240, 8192, 56.10e-6),
    ],
)
def test_gemm_agrees_with_measured_rows(table, tokens, n, k, measured):
    size, peak = (1, 1978.9e12) if "fp8" in table else (2, 989.4e12)
    bound = roofline.seconds(roofline.gemm(tokens, n, k, size, size), peak, 3.35e12)
    efficiency = load_grid("h100_sxm", table).efficiency(tokens=tokens, n=n, k=k)
    assert bound / efficiency == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "requests", "context", "measured"),
    [
        (32, 8, 32, 1024, 59.82e-6),
        (8, 1, 64, 2048, 37.76e-6),
        (8, 8, 128, 512, 121.5e-6),
    ],
)
def test_decode_attention_agrees_with_measured_rows(heads, kv_heads, requests, context, measured):
    grid = load_grid("h100_sxm", "decode_attention").at(group=heads / kv_heads, head_dim=128.0)
    work = roofline.decode_attention(REQUESTS[:, None], CONTEXT, heads, kv_heads, 128, 2)
    efficiency = grid.resampled(sequences=REQUESTS * kv_heads, context=CONTEXT)
    ops = attention(
        heads=float(heads),
        kv_heads=float(kv_heads),
        dim=128.0,
        peak_flops=989.4e12,
        layers=1.0,
        log_decode_seconds=np.log(roofline.seconds(work, 989.4e12, 3.35e12)) - efficiency,
    )
    batch = Batch.summarised(decode_requests=float(requests), context=float(context))
    seconds = components.decode_attention_seconds(ops, batch, 3.35e12)
    # Rows of equal requests times KV heads share a cell: a few percent between them.
    assert seconds == pytest.approx(measured, rel=0.04)


def test_decode_attention_agrees_with_what_others_measured(simulator_grids):
    """755 rows of 18 head shapes, most of them in no table that the grids were built from."""
    import pandas as pd

    grid = load_grid("h100_sxm", "decode_attention")
    ratios = []
    for path in sorted((simulator_grids / "mha" / "decode" / "h100").glob("*.csv")):
        shape, _, tp = path.stem.partition("-tp")
        heads, kv_heads, dim = (int(part) for part in shape.split("-"))
        heads, kv_heads = heads // int(tp), max(kv_heads // int(tp), 1)
        rows = pd.read_csv(path)
        requests, context = rows["batch_size"].to_numpy(float), rows["kv_len"].to_numpy(float)
        work = roofline.decode_attention(requests, context, heads, kv_heads, dim, 2)
        bound = roofline.seconds(work, 989.4e12, 3.35e12)
        surface = grid.at(group=heads / kv_heads, head_dim=float(dim))
        efficiency = [
            float(surface.efficiency(sequences=b * kv_heads, context=c))
            for b, c in zip(requests, context, strict=True)
        ]
        ratios.append(bound / np.array(efficiency) / (rows["latency_us"].to_numpy() * 1e-6))
    ratio = np.concatenate(ratios)
    assert len(ratio) == 755
    assert np.median(ratio) == pytest.approx(1.0, abs=0.03)
    assert np.mean(np.abs(ratio - 1) < 0.1) > 0.8


@pytest.mark.parametrize(
    ("heads", "kv_heads", "requests", "tokens", "measured"),
    [(32, 8, 1, 2048, 89.00e-6), (64, 8, 2, 4096, 968.9e-6), (32, 8, 1, 16, 12.37e-6)],
)
def test_prefill_attention_agrees_with_measured_rows(heads, kv_heads, requests, tokens, measured):
    grid = load_grid("h100_sxm", "prefill_attention").at(group=heads / kv_heads, head_dim=128.0)
    work = roofline.prefill_attention(REQUESTS[:, None], CHUNK, heads, kv_heads, 128)
    efficiency = grid.resampled(sequences=REQUESTS * heads, tokens=CHUNK)
    ops = attention(
        heads=float(heads),
        kv_heads=float(kv_heads),
        dim=128.0,
        peak_flops=989.4e12,
        layers=1.0,
        log_prefill_seconds=np.log(roofline.seconds(work, 989.4e12, 3.35e12)) - efficiency,
    )
    batch = Batch.summarised(prefill_requests=float(requests), chunk=float(tokens))
    seconds, _ = components.prefill_attention_seconds(ops, batch, 3.35e12)
    # Rows of equal requests times heads share a cell.
    assert seconds == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("table", "shape", "tokens", "size", "peak", "measured"),
    [
        ("moe_bfloat16_triton_power_law_1.01", (4096, 7168, 2, 8), 64, 2, 989.4e12, 560.9e-6),
        ("moe_fp8_triton_power_law_1.01", (5120, 4096, 1, 16), 32, 1, 1978.9e12, 341.6e-6),
    ],
)
def test_experts_agree_with_measured_rows(table, shape, tokens, size, peak, measured):
    hidden, width, per_token, count = shape
    work = roofline.experts(tokens, hidden, width, count, per_token, size)
    curve = load_expert_grid("h100_sxm", table).nearest(*shape)
    seconds = roofline.seconds(work, peak, 3.35e12) / curve.efficiency(tokens=tokens)
    assert seconds == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(
    ("gpus", "message", "measured"),
    [(2, 262144, 6.315e-6), (4, 1048576, 18.60e-6), (8, 16777216, 177.8e-6)],
)
def test_all_reduce_agrees_with_measured_rows(gpus, message, measured):
    bound = roofline.all_reduce(message, gpus) / 450e9
    efficiency = load_grid("h100_sxm", "all_reduce").efficiency(gpus=gpus, message_bytes=message)
    assert bound / efficiency == pytest.approx(measured, rel=0.002)


# --- properties of lowered models ---


@given(st.floats(1, 40_000), st.floats(1, 2000))
def test_gemms_are_never_faster_than_their_roofline(tokens, sampled):
    ops = LLAMA.gemms
    rows = np.append(np.full(len(GEMM_NAMES) - 1, tokens), sampled)
    work = roofline.gemm(rows, ops.n, ops.k, ops.weight_bytes, ops.activation_bytes)
    bound = ops.count * roofline.seconds(work, ops.peak_flops, LLAMA.bandwidth)
    seconds, _ = components.gemm_seconds(ops, tokens, sampled, LLAMA.bandwidth)
    assert np.all(seconds >= bound * (1 - 1e-9))


@given(st.floats(1, 20_000))
def test_experts_are_never_faster_than_their_roofline(tokens):
    ops = MIXTRAL.experts
    work = roofline.experts(
        tokens, ops.hidden, ops.width, ops.count, ops.per_token, ops.weight_bytes
    )
    bound = ops.layers * roofline.seconds(work, ops.peak_flops, MIXTRAL.bandwidth)
    assert components.expert_seconds(ops, tokens, MIXTRAL.bandwidth) >= bound * (1 - 1e-9)


@given(st.floats(1, 4000), st.floats(1, 200_000))
def test_decode_attention_is_never_faster_than_its_roofline(requests, context):
    ops = LLAMA.attention
    batch = Batch.summarised(decode_requests=requests, context=context)
    work = roofline.decode_attention(
        requests, context, ops.heads, ops.kv_heads, ops.dim, ops.kv_bytes
    )
    bound = ops.layers * roofline.seconds(work, ops.peak_flops, LLAMA.bandwidth)
    seconds = components.decode_attention_seconds(ops, batch, LLAMA.bandwidth)
    assert seconds >= bound * (1 - 1e-9)


@given(st.floats(1, 64), st.floats(1, 20_000), st.floats(0, 100_000))
def test_prefill_attention_is_never_faster_than_its_roofline(requests, chunk, cached):
    ops = LLAMA.attention
    batch = Batch.summarised(prefill_requests=requests, chunk=chunk, cached=cached)
    own = roofline.prefill_attention(requests, chunk, ops.heads, ops.kv_heads, ops.dim)
    bound = ops.layers * roofline.seconds(own, ops.peak_flops, LLAMA.bandwidth)
    seconds, _ = components.prefill_attention_seconds(ops, batch, LLAMA.bandwidth)
    assert seconds >= bound * (1 - 1e-9)


def test_nothing_to_do_takes_no_time():
    nothing = Batch.summarised()
    attention, bandwidth = LLAMA.attention, LLAMA.bandwidth
    assert components.decode_attention_seconds(attention, nothing, bandwidth) == 0
    assert components.prefill_attention_seconds(attention, nothing, bandwidth) == (0, 0)
    assert components.all_reduce_seconds(LLAMA.collectives, 100.0) == 0
    assert components.expert_seconds(LLAMA.experts, 100.0, LLAMA.bandwidth) == 0


def test_lowered_models_share_their_shapes():
    import jax

    def shapes(ops):
        return [np.shape(leaf) for leaf in jax.tree.leaves(ops)]

    scout = lowered("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", tp=2, max_num_seqs=128)
    small = lowered("Qwen/Qwen2.5-0.5B-Instruct", gpu="l40s", tp=2)
    assert shapes(LLAMA) == shapes(MIXTRAL) == shapes(scout) == shapes(small)


def test_weight_traffic_of_a_decode_step_is_the_model():
    # Every weight but the embedding and the norms is read once.
    arch, ops = load_model("meta-llama/Llama-3.1-8B-Instruct"), LLAMA.gemms
    weights = np.sum(ops.count * ops.n * ops.k)
    embedding = arch.vocab_size * arch.hidden_size
    assert weights == arch.parameters - arch.norm_parameters - embedding


def test_time_rises_with_work_where_the_measured_kernel_is_worse_for_less():
    # Mixtral's experts were measured at 571 us for 8 tokens and 489 us for 16.
    tokens = np.geomspace(1, 16384, 200)
    seconds = [components.expert_seconds(MIXTRAL.experts, t, MIXTRAL.bandwidth) for t in tokens]
    assert np.all(np.diff(seconds) >= -1e-12 * np.asarray(seconds[1:]))


@given(st.sampled_from(["gemm", "decode", "prefill"]), st.floats(1, 10_000), st.floats(1.001, 4))
def test_more_work_never_takes_less_time(component, size, factor):
    def seconds(x):
        if component == "gemm":
            return components.gemm_seconds(LLAMA.gemms, x, 1.0, LLAMA.bandwidth)[0]
        if component == "decode":
            batch = Batch.summarised(decode_requests=8.0, context=x)
            return components.decode_attention_seconds(LLAMA.attention, batch, LLAMA.bandwidth)
        batch = Batch.summarised(prefill_requests=1.0, chunk=x)
        return components.prefill_attention_seconds(LLAMA.attention, batch, LLAMA.bandwidth)[0]

    assert np.all(seconds(size * factor) >= seconds(size) * (1 - 1e-9))


def test_kv_heads_are_replicated():
    ops = lowered("meta-llama/Llama-2-70b-hf", tp=16).attention
    assert (ops.heads, ops.kv_heads) == (4.0, 1.0)


def test_gaps_in_the_measurements_are_said():
    def lines(model, gpu, **deployment):
        arch, hardware = load_model(model), load_hardware(gpu)
        resolved = Deployment(**deployment).resolved(arch, hardware)
        return " ".join(assumptions(arch, hardware, resolved))

    assert lines("Qwen/Qwen3-8B", "h100_sxm") == ""
    assert "no measured kernels for b200_sxm" in lines("Qwen/Qwen3-8B", "b200_sxm")
    scout = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"
    a100 = lines(scout, "a100_sxm", tp=4, max_num_seqs=128)
    assert "no fp8 tensor cores" in a100
    assert "no measured expert kernel" in a100


def test_the_moe_kernel_is_a_choice():
    scout = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"
    seconds = {
        kernel: components.expert_seconds(
            lowered(scout, tp=2, max_num_seqs=128, moe_kernel=kernel).experts, 32.0, 3.35e12
        )
        / 48
        for kernel in ("triton", "flashinfer")
    }
    # 0.34 and 1.46 ms a layer were measured.
    assert seconds["triton"] == pytest.approx(0.34e-3, rel=0.05)
    assert seconds["flashinfer"] == pytest.approx(1.46e-3, rel=0.05)
