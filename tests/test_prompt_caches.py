"""Turns of conversations where prompts are computed apart: what is left of the prompts before."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversations import blocks_of, contexts_of

import physim
from physim.batching.contexts import contexts_found
from physim.batching.prompt_caches import PromptCaches
from physim.corrections.fields import Corrections
from physim.inputs.pool_load import pool_load
from physim.inputs.turns import sample_turns
from physim.prediction.apart_arrays import ApartArrays
from physim.prediction.replayed import replay_load
from physim.replay.outcome import completed_of

MODEL = "Qwen/Qwen3-8B"
LENGTHS = physim.Lengths
TALK: dict[str, Any] = {
    "gpu": "h100_sxm",
    "input_tokens": 700,
    "cached_tokens": 512,
    "output_tokens": 150,
    "turns": 5,
    "think_s": 10.0,
    "decode": "tp=1,replicas=2",
}
RATE = TALK | {"rate": 8.0, "arrival": "poisson"}
VARIED = TALK | {
    "input_tokens": LENGTHS.gamma(1500, 400),
    "output_tokens": LENGTHS.exponential(200),
    "turns": LENGTHS.normal(4, 1.5),
    "think_s": 5.0,
}


def test_contexts_that_are_answered_elsewhere_first():
    """Ten thousand blocks a second, for 50 s and then 100 s in the mean: at first all are kept."""
    contexts, rate, none = contexts_of(100.0, 1.0), jnp.asarray(1e4), jnp.zeros(())

    def found(cache, waited_s=none, away_s=50.0):
        return contexts_found(contexts, blocks_of(cache), rate, waited_s, jnp.asarray(away_s))

    assert found(4e5) == pytest.approx(0.0, abs=1e-6)
    assert found(5e5 + 5e5) == pytest.approx(0.5, abs=1e-3)
    assert found(5e5 + 2e6) == pytest.approx(1.0)
    # Half of the blocks are younger than 69 s of thought; who waits for 30 s more finds less.
    waited = found(1e6, jnp.asarray(30.0))
    assert waited == pytest.approx(1 - np.exp(0.3) / 2, abs=2e-3)
    # Nobody is away for no time.
    here = contexts_found(contexts, blocks_of(5e5), rate, none)
    assert found(5e5, away_s=0.0) == pytest.approx(float(here), rel=1e-12)


def test_turns_without_answers_by_hand():
    turns = sample_turns(2.0, 100.0, 11.0, 40.0).without_answers
    assert turns.known_tokens.tolist() == [40, 100]
    assert turns.context.tolist() == turns.input_tokens.tolist() == [100, 171]
    assert turns.found_tokens(16).tolist() == [32, 96]
    assert turns.known_on(2) == (40 + 70) / 2


def test_some_turns_find_no_prompt_before():
    load = physim.Load(100, 11, rate=2.0, arrival="poisson", cached_tokens=40, turns=2)
    every, some, none = (pool_load(load, ["prefill"], True, share) for share in (1.0, 0.75, 0.0))
    # The second of two turns finds 100 tokens, or the 40 that all begin with.
    assert [one.moments().cached for one in (every, none)] == [70, 40]
    assert some.moments().cached == pytest.approx(40 + 0.75 * 30, abs=0.02)
    assert some.mean_input == every.mean_input == 135.5


def caches_of(**options: Any) -> PromptCaches:
    case = physim.Case.from_options(MODEL, **(RATE | options))
    return PromptCaches.of_pool(case.service.pools[0], case.demanded, case.service.router)


def test_a_router_that_sends_turns_anywhere_makes_as_many_caches():
    pool = {"prefill": "replicas=3"}
    found = {router: caches_of(**pool, router=router) for router in ("random", "cache_aware")}
    assert [found[name].ranks for name in ("random", "cache_aware")] == [3.0, 1.0]
    ample = {name: float(one.found(8.0, 0.05, 0.0, 3.0)) for name, one in found.items()}
    assert ample["cache_aware"] == pytest.approx(1.0, abs=1e-3)
    # By chance: what was computed there, of turns further back.
    assert 1 / 3 < ample["random"] < 0.6


CACHES = caches_of(prefill="kv_blocks=3000")


def _found(blocks: Any, rate: Any, waited_s: Any, away_s: Any) -> Any:
    limits = dataclasses.replace(CACHES.limits, kv_blocks=blocks)
    return dataclasses.replace(CACHES, limits=limits).found(rate, 0.1, waited_s, away_s)


FOUND = jax.jit(jax.value_and_grad(_found, (0, 1, 2, 3)))


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.floats(100, 1e6),
    more=st.floats(1.01, 3),
    rate=st.floats(1e-4, 1e3),
    waited_s=st.floats(0, 1e6),
    away_s=st.floats(0, 1e3),
)
def test_more_room_finds_more(blocks, more, rate, waited_s, away_s):
    value, slopes = FOUND(blocks, rate, waited_s, away_s)
    assert 0 <= value <= 1
    assert np.isfinite(slopes).all()
    assert FOUND(more * blocks, rate, waited_s, away_s)[0] >= value - 1e-6
    assert FOUND(blocks, rate, 2 * waited_s + 1, away_s)[0] <= value + 1e-6


def compared(requests: int = 2500, **options: Any) -> tuple[float, float, float]:
    """What the fluid has more than a replay: hit rate, and shares of TTFT and ITL."""
    case = physim.Case.from_options(MODEL, **options)
    (fluid,) = physim.predict_cases([case], Corrections())
    whole = case.under(dataclasses.replace(case.demanded, requests=requests))
    result = replay_load(whole, Corrections(), 0)
    some = result.requests[requests // 5 : 4 * requests // 5]
    hits = sum(r.cached_tokens for r in some) / sum(r.input_tokens for r in some)
    frame = completed_of(result.to_frame().iloc[requests // 5 : 4 * requests // 5])
    decoding_s = (frame["e2e_s"] - frame["ttft_s"]).sum()
    return (
        fluid.pools[0].hit_rate - hits,
        fluid.ttft_s / frame["ttft_s"].mean() - 1,
        fluid.itl_s / (decoding_s / (frame["output_tokens"] - 1).sum()) - 1,
    )


@pytest.mark.slow
def test_prompts_are_evicted_as_in_the_replay():
    """Where all were kept, 77% of prompt tokens would be found and not 58%."""
    hits, ttft, itl = compared(**RATE, prefill="tp=1,kv_blocks=3000")
    assert abs(hits) < 0.03
    assert abs(ttft) < 0.02
    assert abs(itl) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "prefill", "router"),
    [
        ({"rate": 4.0, "arrival": "poisson"}, "kv_blocks=4000", "round_robin"),
        ({"concurrency": 60}, "kv_blocks=4000", "round_robin"),
        ({"rate": 6.0, "arrival": "poisson"}, "replicas=2,kv_blocks=6000", "cache_aware"),
        ({"rate": 6.0, "arrival": "poisson"}, "replicas=2,kv_blocks=6000", "random"),
    ],
)
def test_so_they_are_over_loads_caches_and_routers(load, prefill, router):
    hits, ttft, itl = compared(4000, **VARIED, **load, prefill=prefill, router=router)
    assert abs(hits) < 0.06
    assert abs(ttft) < 0.07
    assert abs(itl) < 0.03


def test_what_is_evicted_is_said():
    case = {**RATE, "fit": "none"}
    found = physim.predict(MODEL, **case, prefill="kv_blocks=3000").assumptions
    assert "turns find the prompts before where these were computed, without answers" in found
    evicted = [one for one in found if "is evicted" in one]
    rest = "% of the prompts before turns is evicted until the next one comes, in a cache of 3,000"
    assert len(evicted) == 1
    assert f"{rest} KV blocks" in evicted[0]
    found = physim.predict(MODEL, **case, prefill="kv_blocks=40000").assumptions
    assert not any("is evicted" in one for one in found)


@pytest.mark.slow
def test_evictions_have_slopes():
    case = physim.Case.from_options(MODEL, **RATE, prefill="kv_blocks=4000")
    (found,) = physim.predict_cases([case], Corrections())
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), ApartArrays.from_case(case))

    def ttft_s(log_blocks: Any) -> Any:
        limits = arrays.missed.caches.limits
        limits = dataclasses.replace(limits, kv_blocks=limits.kv_blocks * jnp.exp(log_blocks))
        caches = dataclasses.replace(arrays.missed.caches, limits=limits)
        missed = dataclasses.replace(arrays.missed, caches=caches)
        return dataclasses.replace(arrays, missed=missed).state(Corrections()).ttft

    value = jax.jit(ttft_s)
    assert value(0.0) == pytest.approx(found.ttft_s, rel=1e-3)
    slope = jax.jit(jax.grad(ttft_s))(0.0)
    # More room, fewer tokens to compute.
    assert slope < 0
    assert slope == pytest.approx(float(value(1e-3) - value(-1e-3)) / 2e-3, rel=2e-2)
