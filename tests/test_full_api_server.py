"""The process that hands tokens to clients, where it takes longer than the engine's steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.corrections.fields import Corrections
from physim.engines.profile import load_engine

EACH_S = 51e-6
OPTIONS: dict[str, Any] = {"gpu": "h200_sxm", "engine": "sglang", "engine_version": "0.5.6"}
SMALL = "Qwen/Qwen3-0.6B"


@pytest.fixture(scope="module")
def model():
    return physim.step_model(SMALL, **OPTIONS, fit="none")


def decoding(model, requests):
    return model.batch(decode_requests=float(requests), context=100.0)


def without(model):
    return eqx.tree_at(lambda one: one.ops.host.output_s, model, 0.0)


def test_versions_whose_server_was_seen_full():
    assert load_engine("sglang", "0.5.6.post2").output_request_s == EACH_S
    for engine, version in (("sglang", None), ("vllm", None), ("trtllm", None)):
        assert load_engine(engine, version).output_request_s == 0.0


@pytest.mark.slow
def test_tokens_come_as_fast_as_they_are_handed_out(model):
    # 512 requests at 51 us each, 26.1 ms, beside less on the GPU and of the engine's process.
    assert float(model(decoding(model, 512)).interval) == pytest.approx(26.1e-3, rel=1e-3)
    assert float(without(model)(decoding(model, 512)).interval) < 17e-3


def test_one_server_hands_out_the_tokens_of_all_ranks():
    ranks = physim.step_model("Qwen/Qwen3-30B-A3B", **OPTIONS, dp=4, fit="none")
    handed_out = ranks.ops.host.handing_out(Corrections(), 100.0)
    assert float(handed_out) == pytest.approx(4 * 100 * EACH_S)


@pytest.mark.slow
def test_it_hides_launches():
    """What is launched one by one is launched while tokens wait for the server."""
    model = physim.step_model(SMALL, **OPTIONS, mixed_chunk=True, fit="none")
    prompt = model.batch(decode_requests=511.0, context=1000.0, prefill_requests=1.0, chunk=16.0)
    assert float(without(model)(prompt).launches) > 1e-3
    assert float(model(prompt).launches) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(requests=st.integers(1, 2000))
def test_it_never_shortens_a_step(model, requests):
    batch = decoding(model, requests)
    engine, both = (float(one(batch).interval) for one in (without(model), model))
    assert max(engine, requests * EACH_S) <= both * (1 + 1e-6)
    assert both <= engine + requests * EACH_S


def test_a_fit_may_move_it(model):
    def interval(log):
        corrected = replace(model, corrections=Corrections(output_handling=log))
        return corrected(decoding(model, 512)).interval

    value, slope = jax.value_and_grad(interval)(0.0)
    assert float(slope / value) == pytest.approx(1.0, abs=0.01)
    assert float(jax.grad(interval)(-20.0)) == 0.0


@pytest.mark.slow
def test_clients_share_what_it_hands_out():
    """However many GPUs there are: 19,600 tokens a second less what prompts take."""
    load = {"concurrency": 256, "input_tokens": 64, "output_tokens": 128, "requests": 512}
    fluid, replay = (
        physim.predict(SMALL, **OPTIONS, **load, tp=2, method=method, fit="none")
        for method in ("fluid", "replay")
    )
    assert fluid.output_tokens_per_s == pytest.approx(replay.output_tokens_per_s, rel=0.03)
    assert 0.9 / EACH_S < fluid.output_tokens_per_s < 1 / EACH_S
    assert fluid.itl_s == pytest.approx(replay.itl_s, rel=0.03)
