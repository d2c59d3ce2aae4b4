"""Clients who think and send a number of requests: until the last of them is answered."""

from __future__ import annotations

import heapq
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.corrections.fields import Corrections
from physim.fluid.ending import ends_later, of_requests, of_turns
from physim.prediction.apart_arrays import ApartArrays
from physim.prediction.replayed import replay_load
from physim.replay.outcome import completed_of

MODEL = "Qwen/Qwen3-8B"


def simulated(clients, requests, turns, think_s, runs=100):
    """Time that requests take which are answered in a second, over that at the steady rate."""
    rng, took = np.random.default_rng(0), []
    for _ in range(runs):
        free, ended, first = [(0.0, n) for n in range(clients)], 0.0, set(range(clients))
        for _ in range(requests // turns):
            begins, client = heapq.heappop(free)
            thinks = turns - 1 if client in first else turns
            first.discard(client)
            ends = begins + turns + rng.exponential(think_s, thinks).sum()
            ended = max(ended, ends)
            heapq.heappush(free, (ends, client))
        took.append(ended)
    return np.mean(took) / (requests * (1.0 + think_s) / clients)


@pytest.mark.parametrize(
    ("clients", "requests", "turns", "think_s"),
    [
        (60, 300, 1, 10.0),
        (60, 600, 5, 10.0),
        (60, 1500, 5, 10.0),
        (30, 300, 5, 3.0),
        (60, 3000, 5, 3.0),
        (100, 999, 3, 20.0),
        (20, 400, 8, 3.0),
        (200, 1500, 5, 2.0),
        (60, 300, 5, 10.0),
        (60, 200, 5, 10.0),
    ],
)
def test_the_end_against_a_simulation(clients, requests, turns, think_s):
    found = ends_later(clients, min(clients / requests, 1.0), think_s / (1 + think_s), turns)
    assert found == pytest.approx(simulated(clients, requests, turns, think_s), rel=0.07)


def test_the_end_by_hand():
    # A request of each client, before which none thinks for ten of the eleven seconds of a cycle.
    assert of_requests(60.0, 1.0, 10 / 11) == pytest.approx(1 / 11)
    # A conversation of four turns by itself: four answers and three thoughts of one.
    assert of_turns(1.0, 4.0, 0.5, 4.0) == pytest.approx(7 / 8, rel=0.1)
    # Without end there is none.
    assert of_turns(60.0, jnp.inf, 0.9, 5.0) == pytest.approx(1.0)
    assert ends_later(60.0, 0.0, 0.9, 5.0) == 1.0


SLOPES = jax.jit(jax.value_and_grad(ends_later, (0, 1, 2, 3)))


@settings(max_examples=50, deadline=None)
@given(
    clients=st.floats(1, 1e3),
    begun=st.floats(1e-6, 1),
    share=st.floats(1e-6, 1 - 1e-6),
    turns=st.floats(1, 30),
)
def test_an_end_has_slopes(clients, begun, share, turns):
    value, slopes = SLOPES(clients, begun, share, turns)
    assert value > 0
    assert np.isfinite(slopes).all()


@pytest.mark.slow
@pytest.mark.parametrize("pools", [{}, {"prefill": "tp=1", "decode": "tp=1"}])
def test_conversations_of_a_benchmark_end_as_in_the_replay(pools):
    """At their steady rate they would be answered at 1.4 times the rate, and more."""
    options: dict[str, Any] = {"input_tokens": 700, "cached_tokens": 512, "output_tokens": 150}
    options |= {"gpu": "h100_sxm", "turns": 5, "think_s": 10.0, **pools}
    options |= {"concurrency": 60, "requests": 600}
    case = physim.Case.from_options(MODEL, **options)
    (found,) = physim.predict_cases([case], Corrections())
    rates = []
    for seed in range(4):
        frame = completed_of(replay_load(case, Corrections(), seed).to_frame())
        rates.append(len(frame) / frame["finished_s"].max())
    assert found.requests_per_s == pytest.approx(np.mean(rates), rel=0.07)
    if pools:
        state = jax.jit(lambda arrays: arrays.state(Corrections()))(ApartArrays.from_case(case))
        assert state.throughput == pytest.approx(found.requests_per_s, rel=1e-3)
        assert state.ttft == pytest.approx(found.ttft_s, rel=1e-3)
