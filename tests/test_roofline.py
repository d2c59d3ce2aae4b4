"""Work by hand."""

import numpy as np
import pytest

from physim import roofline


def test_gemm():
    flops, moved = roofline.gemm(8, 100, 50, 2, 1)
    assert flops == 2 * 8 * 100 * 50
    assert moved == 2 * 100 * 50 + 8 * 50 + 2 * 8 * 100


def test_decode_attention():
    # Two requests of 10 tokens, 4 query heads on 2 KV heads of width 8: scores and their product
    # with the values take 2 x 2 x 8 operations for each query head and token.
    flops, moved = roofline.decode_attention(2, 10, 4, 2, 8, 2)
    assert flops == 2 * 10 * 4 * (2 * 8 + 2 * 8)
    assert moved == 2 * (2 * 10 * 2 * 8 * 2) + 2 * (2 * 4 * 8 * 2)


def test_prefill_attention_counts_the_causal_triangle():
    flops, moved = roofline.prefill_attention(1, 3, 1, 1, 8)
    assert flops == (1 + 2 + 3) * (2 * 8 + 2 * 8)
    assert moved == 4 * 3 * 8 * 2
    # Queries and outputs of two bytes, keys and values of one.
    _, on_fp8 = roofline.prefill_attention(1, 3, 1, 1, 8, kv_bytes=1)
    assert on_fp8 == 2 * 3 * 8 * 2 + 2 * 3 * 8


def test_prefill_attention_within_a_window():
    # Five tokens that attend to three at most: 1 + 2 + 3 + 3 + 3.
    assert roofline.causal_pairs(5, 3) == 12
    flops, _ = roofline.prefill_attention(1, 5, 1, 1, 8, window=3)
    assert flops == 12 * (2 * 8 + 2 * 8)
    assert roofline.prefill_attention(1, 5, 1, 1, 8, window=5) == roofline.prefill_attention(
        1, 5, 1, 1, 8
    )


def test_a_chunk_on_a_cached_prefix_is_the_rest_of_the_triangle():
    whole, _ = roofline.prefill_attention(1, 100, 4, 2, 8)
    first, _ = roofline.prefill_attention(1, 60, 4, 2, 8)
    second, _ = roofline.prefill_attention(1, 40, 4, 2, 8)
    across, moved = roofline.cached_attention(40 * 60, 60, 4, 2, 8, 2)
    assert whole == first + second + across
    assert moved == 2 * 60 * 2 * 8 * 2


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (1, 2), (2, 8 * (1 - 0.75**2)), (1000, 8)]
)
def test_active_experts(tokens, expected):
    assert roofline.active_experts(tokens, 8, 2) == pytest.approx(expected)


def test_active_experts_by_drawing():
    rng = np.random.default_rng(0)
    visited = [
        len({e for _ in range(12) for e in rng.choice(16, size=3, replace=False)})
        for _ in range(4000)
    ]
    assert roofline.active_experts(12, 16, 3) == pytest.approx(np.mean(visited), rel=0.01)


def test_experts():
    flops, moved = roofline.experts(1, 10, 20, 8, 2, 1)
    assert flops == 2 * 2 * 3 * 10 * 20
    assert moved == pytest.approx(2 * 3 * 10 * 20 + 2 * 2 * 10)


def test_in_an_all_reduce_each_gpu_sends_its_message():
    assert roofline.all_reduce(800, 4) == 800
    assert roofline.all_reduce(800, 1) == 0


def test_seconds_takes_the_slower_resource():
    assert roofline.seconds((100.0, 10.0), 10.0, 10.0) == 10.0
    assert roofline.seconds((10.0, 100.0), 10.0, 10.0) == 10.0
