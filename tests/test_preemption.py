"""What a full KV cache has computed again: closed forms, bounds, and replays that count tokens."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits_by_hand import config_of

import physim
from physim.batching.demand import Demand
from physim.batching.kv_capacity import kv_slots, private_blocks
from physim.batching.limits import Limits
from physim.batching.preemption import (
    displaced_tokens,
    full_cache,
    recomputed_tokens,
    started_too_soon,
    unmet_growth,
)
from physim.corrections.fields import Corrections
from physim.inputs.lengths import Lengths, lengths
from physim.inputs.load import Load
from physim.prediction.replayed import replay_of
from physim.replay.cluster import replay
from physim.replay.request import Request
from physim.replay.workload import Workload, drawn

MANY = 10**6


def limits_of(kv_blocks, max_num_seqs=MANY, **others):
    return Limits(max_num_seqs, 8192, MANY, kv_blocks, **others)


def demand_of(prompt, output, **others):
    return Demand.from_load(Load(prompt, output, rate=1.0, **others), 16)


def recomputed(limits, demand):
    return float(recomputed_tokens(limits, demand, kv_slots(limits, demand)))


def test_growth_that_no_request_makes_room_for():
    # One ends in a step, in the mean, and makes room for two steps: only steps without one grow.
    assert unmet_growth(500.0, 500.0, 500.0) == pytest.approx(math.exp(-1))
    # Four end, and each makes room for 5/16 of a step: none, one, two or three are too few.
    chances = 1 * 1 + 4 * 11 / 16 + 8 * 6 / 16 + 32 / 3 * 1 / 16
    assert unmet_growth(25.0, 100.0, 400.0) == pytest.approx(math.exp(-4) * chances)
    # Few requests: hardly a step in which one ends. Many: hardly one without.
    assert unmet_growth(100.0, 1000.0, 1.0) == pytest.approx(1.0, abs=2e-3)
    assert unmet_growth(100.0, 10.0, 1e6) < 1e-6


def test_tokens_displaced_by_hand():
    # Six of ten requests' 1,000 steps pass between two ends; 1,150 tokens do not fit into what is
    # left, and the step that makes room takes ten tokens of those preempted last.
    growing = 1 - 0.01 * 1 + 0.01**2 / 2
    room = (1 - math.exp(-1.15)) / 1.15
    expected = growing * room * (1000 + 10 - 100 / (2 * 1150))
    assert displaced_tokens(1000.0, 1000.0, 10.0, 0.0) == pytest.approx(expected, rel=1e-3)
    # All in step: of 1,000 tokens, 70% in waves of five requests, whose growth is 5,000.
    wave = 700 * (1 - math.exp(-0.2)) / 0.2
    assert displaced_tokens(1000.0, 1000.0, 10.0, 1.0) == pytest.approx(wave, rel=1e-6)


def test_requests_that_start_too_soon_by_hand():
    # Of 115 tokens a step takes 10: with a chance of 10/115 it overwrites 5 of who starts, again
    # and again by the same chance.
    size = 100 + 0.15 * 100
    expected = 10 / size * 5 / (1 - 10 / size)
    assert started_too_soon(100.0, 100.0, 10.0) == pytest.approx(expected)
    # A step as large as a request overwrites no more than that.
    assert started_too_soon(100.0, 100.0, 1e6) == pytest.approx(size)


@pytest.mark.slow
def test_sglang_computes_again_what_a_replay_does():
    lengths = {"input_tokens": 1000, "output_tokens": Lengths.normal(250, 60)}
    load = Load(**lengths, rate=30.0, arrival="poisson", requests=4000)
    again = {}
    for engine in ("vllm", "sglang"):
        case = physim.Case.from_options(
            "Qwen/Qwen3-14B", gpu="h100_sxm", engine=engine, max_model_len=8192, **lengths, rate=1.0
        )
        own = replay_of(drawn(load, case.server, 0), case.under(load), Corrections())
        ends = np.sort(own.to_frame().eval("arrival_s + e2e_s"))
        work = own.work.between(ends[1000], ends[3200])
        replayed = float(work.tokens @ work.steps) / 2200 - 1000
        again[engine] = replayed
        found = recomputed(Limits.from_server(case.server), Demand.from_load(load, 16))
        assert found == pytest.approx(replayed, abs=15)
    assert again["sglang"] > 1.5 * again["vllm"]


SIZES = {"held": st.floats(1, 1e5), "output": st.floats(1, 1e4)}


@given(**SIZES, requests=st.floats(0.5, 1e5), lockstep=st.floats(0, 1))
def test_no_more_is_computed_again_than_is_generated(held, output, requests, lockstep):
    found = float(displaced_tokens(held, output, requests, lockstep))
    assert 0 <= found <= output * (1 + 1e-6)


@given(
    prompt=st.integers(1, 4000),
    output=st.integers(2, 3000),
    blocks=st.integers(1000, 100_000),
    longer=st.floats(1.01, 3),
    kind=st.sampled_from([Lengths.fixed, Lengths.exponential]),
)
@pytest.mark.slow
def test_longer_outputs_have_more_computed_again(prompt, output, blocks, longer, kind):
    limits = limits_of(blocks)
    demands = [demand_of(prompt, kind(tokens)) for tokens in (output, longer * output)]
    short, long = (recomputed(limits, demand) for demand in demands)
    assert long >= short * (1 - 1e-3) - 1e-3


def test_what_is_never_computed_again():
    demand = demand_of(100, 800)
    full = limits_of(2000)
    assert recomputed(full, demand) > 500
    # Room is kept for whole answers; another limit is reached first; there is nobody else.
    assert recomputed(dataclasses.replace(full, whole_requests=True), demand) == 0
    assert recomputed(dataclasses.replace(full, max_num_seqs=16), demand) < 1e-3
    assert recomputed(limits_of(60, max_num_seqs=1), demand) == 0
    # Outputs so short that they hardly grow.
    assert recomputed(full, demand_of(2000, 20)) < 2


def test_the_cache_takes_over_from_the_slots():
    limits = limits_of(2000, max_num_seqs=100)
    assert full_cache(limits, 100.0) == pytest.approx(0.5)
    assert full_cache(limits, 50.0) > 0.99 > 0.01 > full_cache(limits, 150.0)


def test_a_cached_prefix_is_not_computed_again():
    shared, alone = demand_of(1500, 300, cached_tokens=1200), demand_of(300, 300)
    limits = limits_of(4000)
    slots = kv_slots(limits, alone)
    found, expected = (float(recomputed_tokens(limits, one, slots)) for one in (shared, alone))
    assert found == pytest.approx(expected, rel=1e-6)


def test_ranks_have_caches_of_their_own():
    demand = demand_of(100, 800)
    one = limits_of(2000, max_num_seqs=512)
    two = dataclasses.replace(one, kv_blocks=4000, max_num_seqs=1024, ranks=2)
    assert recomputed(two, demand) == pytest.approx(recomputed(one, demand), rel=1e-6)


def test_layers_with_a_window_hold_no_more_of_long_requests():
    # Prompts of 100 and 10,000 tokens with 50 generated, half of them on average: 125 and 10,025.
    lengths = physim.RequestLengths.from_columns([100.0, 10_000.0], [50.0, 50.0])
    demand = Demand.from_load(Load.of_requests(lengths, rate=1.0), 16)
    limits = limits_of(4000, window=1024.0, window_share=5.0)
    own = (125 + 10_025) / 2 / 16 + 0.5
    seen = 5 * (125 + 1024 + 16) / 2 / 16
    assert private_blocks(limits, demand, demand.age) == pytest.approx(own + seen, rel=1e-3)


def test_states_that_do_not_grow_are_held_but_hardly_computed():
    demand = demand_of(100, Lengths.exponential(800))
    plain = limits_of(4000)
    slots = kv_slots(plain, demand)
    # A state as large as nine prompts makes room for nine prompts' tokens.
    states = dataclasses.replace(plain, state_blocks=900 / 16)
    expected = float(displaced_tokens(1000.0, demand.output_tokens, slots, 0.0)) / 10
    assert float(recomputed_tokens(states, demand, slots)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("output", [800, Lengths.exponential(800)])
@pytest.mark.slow
def test_derivatives_are_differences(output):
    limits, demand = limits_of(2000), demand_of(100, output)

    def by(scale):
        longer = dataclasses.replace(
            demand,
            output_steps=demand.output_steps * scale[0],
            input_tokens=demand.input_tokens * scale[1],
        )
        return recomputed_tokens(limits, longer, kv_slots(limits, longer))

    one, move = jnp.ones(2), 1e-4 * jnp.eye(2)
    expected = [(by(one + up) - by(one - up)) / 2e-4 for up in move]
    np.testing.assert_allclose(jax.grad(by)(one), expected, rtol=1e-3)


class Counted:
    """Steps that all take a second, and the prompt tokens that they computed."""

    def __init__(self):
        self.tokens = 0

    def step(self, *, prefill_tokens, **_):
        self.tokens += prefill_tokens
        return 1.0

    def decode(self, requests, context, steps, until_s, elsewhere=0):  # noqa: ARG002
        steps = int(min(steps, max(math.ceil(min(until_s, MANY)), 1)))
        return steps, float(steps), 1.0


def replayed_again(limits, prompt, output, slots, requests):
    """Tokens that a replay computes again for each request, of more than it serves."""
    rng = np.random.default_rng(0)
    outputs = lengths(output).sample(rng, requests)
    gap = outputs.mean() / slots / 1.5
    arrivals = np.cumsum(rng.exponential(gap, requests))
    sent = [
        Request(number, float(arrivals[number]), prompt, int(outputs[number]))
        for number in range(requests)
    ]
    times = Counted()
    done = replay(Workload(sent, MANY), times, config_of(limits))
    assert done.counts()["completed"] == requests
    return times.tokens / requests - prompt


# None of these is among the replays that a constant was read off.
@pytest.mark.parametrize(
    ("prompt", "output", "slots"), [(35, 500, 25), (130, 35, 80), (400, 500, 80)]
)
@pytest.mark.parametrize("kind", [Lengths.fixed, Lengths.exponential])
def test_as_much_is_computed_again_as_in_a_replay(prompt, output, slots, kind):
    demand = demand_of(prompt, kind(output))
    blocks = round(slots * ((prompt + float(demand.age)) / 16 + 0.5))
    limits = limits_of(blocks)
    expected = replayed_again(limits, prompt, kind(output), slots, 50 * slots)
    assert recomputed(limits, demand) == pytest.approx(expected, abs=0.12 * (prompt + output))


def test_a_request_alone_starts_once():
    """Clients that take turns never fill a cache, however small it is."""
    case = physim.Case.from_options(
        "Qwen/Qwen3-14B",
        gpu="h100_sxm",
        input_tokens=100,
        output_tokens=800,
        concurrency=1,
        kv_blocks=57,
        max_model_len=912,
    )
    found, exact = (
        physim.predict_cases([case], physim.Corrections(), method=method)[0]
        for method in ("fluid", "replay")
    )
    assert found.requests_per_s == pytest.approx(exact.requests_per_s, rel=0.02)
