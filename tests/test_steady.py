"""The serving balance: identities, limits, order and gradients."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.batching.root_finding import bracketed_root
from physim.corrections.fields import Corrections
from physim.corrections.residual import Residual
from physim.errors import InputError
from physim.fluid.steady import steady_state
from physim.inputs.deployment import Deployment
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.inputs.load_on_server import load_on
from physim.kept import kept
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware
from physim.step.front_end import FRONT_END_S
from physim.step.lowering import lower
from physim.step.model import StepModel

H100 = load_hardware("h100_sxm")


@kept
def solved(ops, corrections, demand, limits):
    return steady_state(StepModel(ops, corrections), demand, limits)


def system(model, load, tp=1, **engine):
    arch = load_model(model)
    resolved = Deployment(Parallelism(tp), **engine).resolved(arch, H100)
    demand = Demand.from_load(load, resolved.kv.block_size)
    return lower(resolved), demand, jax.tree.map(float, Limits.from_server(resolved))


def solve(model, load, **deployment):
    ops, demand, limits = system(model, load, **deployment)
    return solved(ops, Corrections(), demand, limits)


QWEN = "Qwen/Qwen3-14B"
LOAD = Load(786, 251, rate=6, arrival="constant", cached_tokens=770)


def test_root_of_a_line_and_its_gradient():
    def root(slope):
        bounds = jnp.asarray(-100.0), jnp.asarray(100.0), jnp.asarray(0.0)
        return bracketed_root(lambda x, p: (p * x - 6.0, p * x**2), slope, *bounds)[0]

    assert root(jnp.asarray(2.0)) == pytest.approx(3.0)
    # x = 6/p, so dx/dp = -6/p^2.
    assert jax.grad(root)(jnp.asarray(2.0)) == pytest.approx(-1.5)
    assert jax.jvp(root, (jnp.asarray(2.0),), (jnp.asarray(1.0),))[1] == pytest.approx(-1.5)


@pytest.mark.parametrize("start", [-99.0, -1.0, 2.9, 50.0])
def test_a_root_is_found_from_any_start(start):
    bounds = jnp.asarray(-100.0), jnp.asarray(100.0), jnp.asarray(start)
    root, _ = bracketed_root(lambda x, p: (x - p + jnp.tanh(x - p) / 2, ()), 3.0, *bounds)
    assert root == pytest.approx(3.0)


def test_what_is_found_at_the_root_and_its_gradient():
    def found(slope):
        bounds = jnp.asarray(-100.0), jnp.asarray(100.0), jnp.asarray(0.0)
        return bracketed_root(lambda x, p: (p * x - 6.0, p * x**2), slope, *bounds)[1]

    # p x^2 at x = 6/p is 36/p.
    assert found(jnp.asarray(2.0)) == pytest.approx(18.0)
    assert jax.grad(found)(jnp.asarray(2.0)) == pytest.approx(-9.0)


@pytest.mark.slow
@given(st.floats(0.01, 0.999), st.floats(-8, 4))
def test_root_with_a_kink(slope, offset):
    def function(x, p):
        return x - (p + slope * jnp.minimum(jnp.maximum(x - p, 0.0) + 0.5, 3.0)), ()

    bounds = jnp.asarray(-20.0), jnp.asarray(20.0), jnp.asarray(0.0)
    root, _ = bracketed_root(function, jnp.asarray(offset), *bounds)
    assert abs(function(root, offset)[0]) < 1e-9


def test_littles_law():
    state = solve(QWEN, LOAD)
    # A mean step is not quite a step as a decoding request meets it.
    assert state.batch == pytest.approx(float(6 * 250 * state.itl), rel=1e-3)
    assert state.throughput == pytest.approx(6.0)
    assert state.e2e == pytest.approx(float(state.ttft + 250 * state.itl))
    assert state.itl == pytest.approx(float(state.step.latency), rel=1e-3)


def test_a_lone_request_by_hand():
    # One request a thousand seconds: it meets an empty engine and runs alone.
    state = solve(QWEN, Load(100, 10, rate=1e-3))
    ops, _, _ = system(QWEN, LOAD)
    model = StepModel(ops, Corrections())
    decode = model(model.batch(decode_requests=1.0, context=105.0)).latency
    assert state.itl == pytest.approx(float(decode), rel=1e-3)
    prefill = model(model.batch(prefill_requests=1.0, chunk=100.0)).latency
    front_end = FRONT_END_S + 100 * 2e-6
    assert state.ttft == pytest.approx(float(front_end + prefill), rel=2e-3)
    assert state.running < 1e-3


def test_closed_loop_and_open_loop_agree():
    # Requests of one length would stay in step.
    outputs = Lengths.normal(251, 10)
    closed = solve(QWEN, Load(786, outputs, concurrency=20, cached_tokens=770), tp=2)
    rate = float(closed.throughput)
    # But for a few steps' worth, since a prefill step is longer than the mean one.
    assert rate * closed.e2e == pytest.approx(20.0, rel=2e-3)
    opened = solve(QWEN, replace(LOAD, rate=rate, output_tokens=outputs), tp=2)
    # In an open loop more of them than clients may decode at once.
    assert opened.e2e == pytest.approx(float(closed.e2e), rel=3e-3)


def test_a_lone_client_never_waits_and_meets_no_prefill():
    alone = solve(QWEN, Load(2000, 100, concurrency=1))
    opened = solve(QWEN, Load(2000, 100, rate=1e-3))
    assert alone.itl == pytest.approx(float(opened.itl), rel=1e-3)
    # But for the one token more that is drawn in the open loop's first step.
    assert alone.ttft == pytest.approx(float(opened.ttft), rel=0.01)
    assert alone.throughput * alone.e2e == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
@pytest.mark.parametrize("outputs", [1, 3, 100])
def test_no_more_requests_are_under_way_than_there_are_clients(concurrency, outputs):
    state = solve(QWEN, Load(2000, outputs, concurrency=concurrency))
    assert state.throughput * state.e2e == pytest.approx(concurrency, rel=1e-9)


def test_clients_of_equal_requests_stay_in_step():
    equal = Load(4000, 100, concurrency=8)
    assert solve(QWEN, equal).in_step > 0.99
    assert solve(QWEN, replace(equal, output_tokens=Lengths.normal(100, 10))).in_step < 0.1
    assert solve(QWEN, Load(4000, 100, rate=1)).in_step == 0


@pytest.mark.parametrize(("clients", "said"), [(1, False), (8, True)])
def test_only_several_clients_are_said_to_stay_in_step(clients, said):
    found = physim.predict(
        QWEN, gpu="h100_sxm", concurrency=clients, input_tokens=4000, output_tokens=100
    )
    assert any("stay in step" in line for line in found.assumptions) == said


def test_clients_without_a_slot_wait_for_one():
    sync = {"max_num_seqs": 16, "async_scheduling": False}
    outputs = Lengths.normal(251, 10)
    state = solve(QWEN, Load(786, outputs, concurrency=64), **sync)
    assert state.running == pytest.approx(16.0, rel=1e-3)
    assert state.throughput * state.e2e == pytest.approx(64.0, rel=1e-6)
    enough = solve(QWEN, Load(786, outputs, concurrency=16), **sync)
    assert state.itl == pytest.approx(float(enough.itl), rel=0.02)
    assert state.ttft > 40 * enough.ttft


def test_above_capacity_the_capacity_is_served():
    state = solve(QWEN, replace(LOAD, rate=1e4))
    assert state.saturated
    assert math.isinf(state.ttft)
    assert math.isinf(state.e2e)
    below = solve(QWEN, replace(LOAD, rate=float(state.throughput) * 0.99))
    assert not below.saturated
    assert below.throughput == pytest.approx(0.99 * float(state.throughput))


def test_each_limit_binds():
    # The slots: sixteen requests run and the seventeenth waits.
    slots = solve(QWEN, replace(LOAD, rate=1e4), max_num_seqs=16, async_scheduling=False)
    assert slots.running == pytest.approx(16.0)
    # When steps are formed ahead, a slot is empty for one of the 252 steps of its turn.
    ahead = solve(QWEN, replace(LOAD, rate=1e4), max_num_seqs=16)
    assert ahead.running == pytest.approx(16.0 * 251 / 252, rel=3e-4)
    # The cache: a request of 786 + 251/2 tokens takes 57.5 blocks, and half of the 49 that the next
    # prompt needs are left over.
    sync = {"kv_blocks": 575, "async_scheduling": False}
    cache = solve(QWEN, replace(LOAD, rate=1e4, cached_tokens=0.0), **sync)
    assert cache.running == pytest.approx((575 - 24.6) / 57.47, rel=1e-3)
    assert cache.kv_use == pytest.approx(1 - 24.6 / 575, rel=1e-3)
    # A prefix of 48 blocks is held once; the rest of a request takes 9.47.
    shared = solve(QWEN, replace(LOAD, rate=1e4), **sync)
    assert shared.running == pytest.approx((575 - 0.6 - 48) / 9.469, rel=1e-3)
    assert shared.kv_use == pytest.approx(1 - 0.6 / 575, rel=1e-3)
    # Or each request has a prefix of its own.
    own = solve(QWEN, replace(LOAD, rate=1e4, prefixes=10**6), **sync)
    assert own.running == pytest.approx((575 - 0.6) / 57.47, rel=1e-3)
    # The token budget: each request takes 2,000 tokens of prefill and one of decode.
    budget = solve(QWEN, Load(2000, 2, rate=1e4), max_num_seqs=64, max_num_batched_tokens=1024)
    assert budget.throughput * 2001 * budget.step.interval == pytest.approx(1024, rel=1e-6)
    # As many slots as the budget has tokens: with a prompt in each step some stay empty.
    load = Load(100, 100, rate=1e4, arrival="constant")
    few = solve(QWEN, load, max_num_seqs=128, max_num_batched_tokens=128)
    assert few.batch == pytest.approx(128 * 99 / 199, rel=2e-3)


def test_prefill_in_chunks_takes_more_steps():
    load, slots = Load(4000, 100, rate=0.5), {"max_num_seqs": 64, "tp": 2}
    one = solve(QWEN, load, max_num_batched_tokens=4064, **slots)
    four = solve(QWEN, load, max_num_batched_tokens=1064, **slots)
    assert four.mixed_share > 2 * one.mixed_share
    assert four.ttft > one.ttft


def test_async_scheduling_costs_a_step_before_the_first_token():
    ahead = solve(QWEN, LOAD)
    direct = solve(QWEN, LOAD, async_scheduling=False)
    # The step that is waited for has no prompt in it: arrivals are far apart. Otherwise the GPU
    # waits for the CPU in every step, of which a request meets its own and half of the one before.
    waited = direct.itl - ahead.itl
    assert waited > 1e-3
    cost = float(ahead.itl - 1.5 * waited)
    assert ahead.ttft - direct.ttft == pytest.approx(cost, rel=0.02)


def test_cached_prompts_save_prefill_but_not_context():
    cached = solve(QWEN, LOAD)
    fresh = solve(QWEN, replace(LOAD, cached_tokens=0.0))
    assert cached.ttft < fresh.ttft
    assert cached.kv_use < fresh.kv_use
    decode = "decode_attention"
    # The fresh prompts lengthen steps, so more requests decode in each; per request the
    # attention is the same.
    ratio = fresh.step.parts[decode] / cached.step.parts[decode]
    assert 1 <= ratio <= 1.2 * fresh.batch / cached.batch


def test_one_output_token():
    state = solve(QWEN, Load(500, 1, rate=2))
    assert state.e2e == state.ttft
    assert state.batch == 0


CASES = [
    (QWEN, LOAD, {"tp": 2}),
    (QWEN, replace(LOAD, cached_tokens=0.0, arrival="poisson"), {}),
    (QWEN, Load(786, 251, concurrency=40), {}),
    (QWEN, Load(786, Lengths.normal(251, 1), concurrency=40, requests=400), {}),
    (QWEN, Load(4000, 300, rate=1.0), {"max_num_batched_tokens": 2048, "max_num_seqs": 100}),
    ("mistralai/Mixtral-8x7B-v0.1", Load(575, 248, rate=5, cached_tokens=560), {"tp": 2}),
    ("Qwen/Qwen2.5-0.5B-Instruct", Load(575, 248, rate=5), {}),
    (
        "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
        Load(575, 248, rate=5),
        {"tp": 2, "max_num_seqs": 128},
    ),
]


CLIENTS = Demand.from_load(Load(786, 251, concurrency=40), 16)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "load", "deployment"), CASES)
def test_gradient_of_every_correction_agrees_with_differences(model, load, deployment):
    ops, demand, limits = system(model, load, **deployment)
    # An open loop among loads of clients, so that one compiled function serves all.
    demand = jax.tree.map(lambda row: row[0], Demand.stacked([demand, CLIENTS]))

    def latencies(corrections):
        state = jax.jit(solved)(ops, corrections, demand, limits)
        return jnp.stack([state.ttft, state.itl, state.e2e])

    # Beside zero, where the spread over experts is at the end of what was measured.
    zero = jax.tree.map(jnp.asarray, Corrections(expert_spread=0.1))
    forward, backward = jax.jacfwd(latencies)(zero), jax.jacrev(latencies)(zero)
    step = 1e-4
    outputs = (
        lambda c: c.residual.output,
        lambda c, x: replace(c, residual=Residual(c.residual.hidden, c.residual.bias, x)),
    )
    ways = {"residual.output": outputs} | {
        name: (
            lambda c, name=name: getattr(c, name),
            lambda c, x, name=name: replace(c, **{name: x}),
        )
        for name in zero.__dataclass_fields__
        if name != "residual"
    }
    for name, (get, put) in ways.items():
        moved = jnp.ravel(jnp.zeros_like(get(zero))).at[0].set(step).reshape(jnp.shape(get(zero)))
        up, down = (latencies(put(zero, get(zero) + sign * moved)) for sign in (1, -1))
        differences = (up - down) / (2 * step)
        # Relative to the gradient, beside the root-finder's own tolerance on both latencies: in a
        # closed loop TTFT is what is left of a round trip, and has the rounding of that.
        rounding = 32 * np.finfo(float).eps * np.max(up) / step
        tolerance = 1e-3 * np.abs(differences) + rounding
        for found in (forward, backward):
            slope = np.asarray(get(found)).reshape(len(up), -1)[:, 0]
            assert np.all(np.abs(slope - differences) <= tolerance), name


@pytest.mark.slow
def test_gradient_is_finite_above_capacity():
    ops, demand, limits = system(QWEN, replace(LOAD, rate=1e4))

    def itl(corrections):
        return jax.jit(solved)(ops, corrections, demand, limits).itl

    gradient = jax.grad(itl)(jax.tree.map(jnp.asarray, Corrections()))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@given(
    st.sampled_from([QWEN, "mistralai/Mixtral-8x7B-v0.1", "meta-llama/Llama-3.1-8B-Instruct"]),
    st.floats(0.01, 40),
    st.floats(1.001, 3),
    st.integers(1, 3000),
    st.integers(2, 1500),
    st.sampled_from(["constant", "poisson"]),
)
@settings(max_examples=100)
def test_more_load_never_shortens_a_mean(model, rate, factor, inputs, outputs, arrival):
    deployment = {"tp": 2, "max_model_len": 8192, "max_num_seqs": 256}
    low = solve(model, Load(inputs, outputs, rate=rate, arrival=arrival), **deployment)
    high = solve(model, Load(inputs, outputs, rate=rate * factor, arrival=arrival), **deployment)
    for name in ("ttft", "itl", "e2e", "running", "throughput"):
        # With the KV cache full, requests are computed again, and a little less is served.
        assert getattr(high, name) >= getattr(low, name) * (1 - 0.03), name
    if low.saturated:
        assert high.saturated


@pytest.mark.parametrize(
    "fields",
    [
        {"rate": -1.0},
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"rate": None},
        {"rate": 1.0, "concurrency": 2.0},
        {"rate": None, "concurrency": 0.5},
        {"input_tokens": 0},
        {"input_tokens": math.nan},
        {"output_tokens": -3},
        {"cached_tokens": 101},
        {"cached_tokens": -1},
        {"arrival": "bursty"},
    ],
)
def test_bad_loads(fields):
    with pytest.raises(InputError):
        Load(**{"input_tokens": 100, "output_tokens": 10, "rate": 1.0, **fields})


def test_requests_that_never_fit():
    resolved = Deployment(kv_blocks=10).resolved(load_model(QWEN), H100)
    with pytest.raises(InputError, match="exceed the KV cache of 160 tokens"):
        load_on(resolved, Load(100, 100, rate=1))
    with pytest.raises(InputError, match="exceed max_model_len 40960"):
        load_on(resolved, Load(40900, 100, rate=1))


def _ranks(dp: int, rate: float, **options: Any) -> physim.Prediction:
    case = physim.Case.from_options(
        "Qwen/Qwen3-30B-A3B",
        gpu="h100_sxm",
        dp=dp,
        ep=dp,
        rate=rate,
        arrival="poisson",
        **options,
    )
    return physim.predict_cases([case], Corrections())[0]


# In a process of its own, in single precision, as outside of tests.
_HARDLY_COME = """
import physim
from physim.corrections.fields import Corrections
options = {"gpu": "h100_sxm", "dp": 8, "ep": 8, "max_num_batched_tokens": 2048, "output_tokens": 1}
options |= {"arrival": "poisson", "input_tokens": physim.Lengths.normal(1843, 118)}
rates = 1e-6, 1e-5, 1e-4, 3e-4
cases = [physim.Case.from_options("Qwen/Qwen3-30B-A3B", rate=rate, **options) for rate in rates]
print(*(one.ttft_s for one in physim.predict_cases(cases, Corrections())))
"""


@pytest.mark.slow
def test_requests_that_hardly_come_are_computed_alone_on_ranks():
    """Chances that are too small for a difference from one in single precision."""
    run = [sys.executable, "-c", _HARDLY_COME]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    alone, *few = map(float, found.split())
    assert few == pytest.approx([alone] * 3, rel=1e-4)


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_many_ranks_that_long_prompts_fill_serve_no_more_than_few_for_each(engine):
    load = {"input_tokens": Lengths.gamma(4000, 1700), "output_tokens": 10, "engine": engine}
    eight, sixteen = (
        _ranks(dp, 400.0, max_num_batched_tokens=512, **load).saturation_rps for dp in (8, 16)
    )
    assert sixteen == pytest.approx(2 * eight, rel=0.1)
