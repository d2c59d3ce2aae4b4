"""Clients that all begin at once: the first prompts by hand, limits, and the replay."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import physim
from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections, flat
from physim.fitting.observations import log_predicted
from physim.fluid.benchmark import benchmark
from physim.fluid.busy_steps import busy_times, crowd_of
from physim.fluid.first_prompts import (
    FirstPrompts,
    first_prompts,
    prefill_s,
    prompts_after,
    prompts_before,
    prompts_together,
)
from physim.fluid.rounds import density_of, engine_of, interference, steps_in_line, waits_of
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.prediction.arrays import CaseArrays, row_of, step_model_of
from physim.step.front_end import FRONT_END_S, output_s
from physim.step.model import StepModel, StepTime

slow = pytest.mark.slow

MODEL = "Qwen/Qwen3-14B"
SERVER = {"gpu": "h100_sxm", "tp": 2, "fit": "none"}
LIMITS = Limits(
    kv_blocks=100_000,
    block_size=16,
    max_num_seqs=64,
    max_num_batched_tokens=2000,
    max_model_len=4096,
    async_scheduling=False,
)


class Constant(StepModel):
    """Steps of 10 ms, and 10 us for each token of a prompt."""

    def __call__(self, batch):
        latency = 0.01 + 1e-5 * batch.prefill_tokens + 0.0 * batch.decode_requests
        return StepTime(latency, latency, jnp.zeros(1))


CASE = physim.Case.from_options(MODEL, gpu="h100_sxm")
CONSTANT = Constant(step_model_of(CASE, Corrections()).ops, Corrections())


def by_hand(load):
    demand = Demand.from_load(load, 16)
    return engine_of(CONSTANT, demand, LIMITS, jnp.asarray(float(load.concurrency))), demand


def test_steps_in_which_the_first_prompts_end():
    found = first_prompts(*map(jnp.asarray, (8.0, 1000.0, 2000.0, 8.0)))
    # Of 256 places each 32 are one prompt. The steps hold 2, 1.999, 1.998 and so on.
    assert found.step[::32].tolist() == [1, 1, 2, 3, 3, 4, 4, 5]
    assert found.steps == 5
    # All but the two of a step decode when the last is computed.
    assert found.decoding == 6
    # Outputs so short that one request decodes at most take hardly a token of a step.
    assert first_prompts(*map(jnp.asarray, (8.0, 900.0, 2000.0, 1.0))).step[-1] == 4


PROMPTS = FirstPrompts(jnp.asarray([1.0, 1.0, 2.0, 3.0]), jnp.asarray(3.0), jnp.asarray(2.0))


def test_steps_grow_evenly_until_the_rest():
    # Two full steps from 10 ms on, of which the second is half of the growth longer; then the rest.
    found = prefill_s(PROMPTS, jnp.asarray(0.01), jnp.asarray(0.014), jnp.asarray(0.005))
    assert found == pytest.approx([0.01, 0.01, 0.022, 0.027])


def test_prompts_before_after_and_beside_ones_own():
    two = jnp.asarray(2.0)
    # None, none, one and two steps of two prompts, of which one step is waited for at most.
    assert prompts_before(PROMPTS, jnp.ones(()), two, jnp.inf).tolist() == [0, 0, 2, 4]
    assert prompts_before(PROMPTS, jnp.ones(()), two, jnp.ones(())).tolist() == [0, 0, 2, 2]
    # Of five, three come after those of the first step, one after the second, none after the last.
    assert prompts_after(PROMPTS, jnp.asarray(5.0), two).tolist() == [3, 3, 1, 0]
    assert prompts_together(PROMPTS, two, jnp.ones(())).tolist() == [2, 2, 2, 1]


def test_who_is_in_the_steps_of_a_busy_engine():
    demand = Demand.from_load(Load(1000, 101, concurrency=8), 16)
    crowd = crowd_of(demand, LIMITS, jnp.asarray(8.0))
    # The groups of two that end and are computed do not decode, so four take a token.
    assert (crowd.decoding, crowd.absent, crowd.chunks) == (8, 4, 1)
    assert crowd.room == pytest.approx(1.996)
    assert crowd_of(demand, replace(LIMITS, async_scheduling=True), jnp.asarray(8.0)).absent == 6
    # A budget of half a prompt, of which one that decodes takes a token.
    half = crowd_of(demand, replace(LIMITS, max_num_batched_tokens=500), jnp.asarray(2.0))
    assert half.chunks == pytest.approx(1000 / 499)


class Decoding(StepModel):
    """Steps of 10 ms, 1 ms for each request that decodes, 5 ms for prefill and 10 us a token."""

    def __call__(self, batch):
        prefill = 5e-3 * jnp.sign(batch.prefill_tokens) + 1e-5 * batch.prefill_tokens
        latency = 0.01 + 1e-3 * batch.decode_requests + prefill
        return StepTime(latency, latency + 2e-3, jnp.zeros(1))


def test_times_of_a_busy_engines_steps():
    model = Decoding(CONSTANT.ops, CONSTANT.corrections)
    demand = Demand.from_load(Load(1000, 101, concurrency=9), 16)
    crowd = crowd_of(demand, LIMITS, jnp.asarray(9.0))._replace(room=jnp.asarray(2.0))
    rest, before_last = jnp.ones(()), jnp.asarray(6.5)
    found = busy_times(model, demand, LIMITS, crowd, before_last=before_last, rest=rest)
    assert found.decode == pytest.approx(0.012 + 0.009)
    assert found.partly_full == pytest.approx(0.012 + 0.003)
    assert found.each_decode == pytest.approx(0.009)
    # A request that is prefilled does not decode, so prefill adds 5 ms less 1 ms, and 10 ms each.
    assert found.prefill.longer(jnp.ones(())) == pytest.approx(0.004 + 0.01)
    # Two are more than the eight that decode leave tokens for: 1,992.
    assert found.prefill.longer(jnp.asarray(2.0)) == pytest.approx(0.004 + 0.01992)
    assert found.sooner == pytest.approx(0.002)
    assert found.begin == pytest.approx(0.015 + 0.02)
    assert found.end == pytest.approx(0.015 + 0.019935 + 0.0065)
    assert found.last == pytest.approx(0.015 + 0.01 + 0.0065)


def test_steps_of_a_turn():
    demand = Demand.from_load(Load(1000, 101, concurrency=8), 16)
    crowd = crowd_of(demand, LIMITS, jnp.asarray(8.0))
    # Half of the step under way is less than one step, and two steps outside are more.
    assert waits_of(demand, LIMITS, crowd, jnp.asarray(0.1)).waited == 1
    assert waits_of(demand, LIMITS, crowd, jnp.asarray(2.0)).waited == 2.5
    seldom = waits_of(
        demand, replace(LIMITS, async_scheduling=True, receive_every=5), crowd, jnp.asarray(0.1)
    )
    # One more step with asynchronous scheduling; two of the four between looks, in the mean, where
    # no look follows at once. Of 0.078 prompts a step: 1.081 steps with, 5 / 0.322 without.
    assert (seldom.waited, seldom.comes) == (2, 1)
    without = 15.51 / (15.51 + 1.081)
    assert seldom.round_steps == pytest.approx(100 + 1 + 2 + 2 * without, rel=1e-4)
    # A whole group waits in line.
    more = replace(demand, concurrency=10.0)
    assert waits_of(more, LIMITS, crowd, jnp.asarray(0.1)).waited == 0


def test_chance_that_two_clients_are_in_one_step():
    engine, _ = by_hand(Load(1000, 1001, concurrency=8))
    # The next prompt comes 80 us for the last step's tokens and 5 ms after that step, and waits for
    # half of one.
    begun, turn = 8 / 1.996, 1000 + 1 + 1.008
    assert density_of(engine, jnp.zeros(())) == pytest.approx(1 / begun, rel=1e-3)
    # After drift of five steps in each direction.
    width = (begun**2 + 4 * np.pi * 25) ** 0.5
    assert density_of(engine, jnp.asarray(25.0)) == pytest.approx(1 / width, rel=1e-3)
    assert density_of(engine, jnp.asarray(1e12)) == pytest.approx(1 / turn, rel=1e-6)
    # As wide as a turn: the theta function at one, pi^(1/4) / Gamma(3/4).
    wide = density_of(engine, (turn**2 - engine.meeting.width**2) / (4 * jnp.pi))
    assert wide * turn == pytest.approx(np.pi**0.25 / math.gamma(0.75), rel=1e-5)
    # The two sums that meet there have one slope.
    sides = turn * np.array([1 - 1e-6, 1 + 1e-6])
    slopes = [
        jax.grad(density_of, 1)(engine, (side**2 - engine.meeting.width**2) / (4 * jnp.pi))
        for side in sides
    ]
    assert slopes[0] == pytest.approx(float(slopes[1]), rel=1e-3)


def test_prompts_that_more_came_than_a_step_has_room_for():
    engine, _ = by_hand(Load(1000, 1001, concurrency=8))
    crowd = engine.crowd._replace(room=jnp.ones(()), chunks=jnp.asarray(2.0))
    # One server, a half of the time busy: u / (1 - u) is one, times half of two chunks and 9/16.
    half, one = jnp.asarray(0.5), jnp.ones(())
    assert steps_in_line(crowd, half, one) == pytest.approx(9 / 16)
    assert steps_in_line(crowd, one, one) == 0
    # Steps that are half as full: a quarter of the time busy, u / (1 - u) is a third.
    assert steps_in_line(crowd, half, half) == pytest.approx(9 / 16 / 3)
    assert steps_in_line(crowd, one, half) == 0


def test_first_prompts_of_several_ranks():
    # Four prompts on two ranks: the second of each rank does not fit beside the first.
    found = first_prompts(*map(jnp.asarray, (4.0, 2000.0, 7000.0, 4.0)), 2.0)
    assert found.step[63::64].tolist() == [1, 1, 2, 2]


def test_the_first_prompts_by_hand():
    engine, _ = by_hand(Load(1000, 101, concurrency=8, requests=8))
    # Two prompts fill a step; the two that decode then take two tokens of the next, and so on, so
    # the fourth and the eighth end a step later than they would in steps of two.
    steps = np.array([1, 1, 2, 3, 3, 4, 4, 5])
    whole = 0.03 * np.minimum(steps, 4) + 0.01 * (steps == 5)
    around = FRONT_END_S + float(output_s(Corrections(), 2.0))
    assert engine.first.reshape(8, -1).mean(1) == pytest.approx(around + whole, rel=2e-3)


def test_as_many_requests_as_clients_are_prefilled_and_decode_together():
    engine, demand = by_hand(Load(1000, 101, concurrency=8, requests=8))
    found = benchmark(engine, jnp.asarray(7.0), demand, jnp.zeros(()))  # a turn that nobody takes
    assert found.ttft == pytest.approx(float(np.mean(engine.first)))
    # A request meets the prompts after its own: of 6, 6, 4, 2, 2 and none, in a hundred steps.
    assert found.itl == pytest.approx(0.01 + 20 / 8 * 0.01 / 100, rel=1e-3)
    assert found.e2e == pytest.approx(float(found.ttft + 100 * found.itl))
    # The last to start is answered some steps after the mean one.
    assert found.throughput * found.e2e == pytest.approx(8.0, rel=0.02)


def test_what_is_met_in_step_and_apart_by_hand():
    engine, _ = by_hand(Load(1000, 1001, concurrency=8))
    # Steps have room for 1.996 prompts: in each round one more of them has one prompt alone, of
    # eight of them one in each round.
    assert engine.crowd.whole == 1
    first, settled, apart = (
        interference(engine, 1 / engine.meeting.width),
        interference(engine.after(jnp.asarray(8.0), jnp.asarray(0.0)), jnp.asarray(1 / 8)),
        interference(engine, 1 / engine.waits.round_steps),
    )
    # First: the step under way, with the two prompts before one's own in most rounds, and one's
    # own of two, and for half of a step more each round until all prompts have one of their own.
    assert first.in_step == pytest.approx(1.0)
    assert 0.06 < first.ttft < 0.075
    # Settled: the step under way and one's own, of a prompt each but for the first one.
    assert settled.in_step == pytest.approx(1.0)
    assert settled.ttft == pytest.approx((7 * 0.04 + 0.03) / 8, rel=2e-3)
    # Apart: two steps of 10 ms and one's own prompt, and hardly any other.
    assert apart.ttft == pytest.approx(0.03, rel=0.03)
    # Of seven prompts of others a request meets while it decodes those that it has not waited for.
    assert apart.others == pytest.approx(0.07, rel=0.02)
    for met in (first, settled):
        assert met.others + met.ttft == pytest.approx(float(apart.others + apart.ttft), rel=0.1)


def test_clients_that_drift_do_not_settle():
    engine, _ = by_hand(Load(1000, 1001, concurrency=8))
    rounds = jnp.asarray([8.0, 8.0, 8.0])
    found = engine.after(rounds, jnp.asarray([0.0, 1.0, 1e9])).meeting
    # Eight steps of a prompt each, or the four that all take at first; half of both where a client
    # is off by a step.
    assert found.width == pytest.approx([8, (8 + 4.008) / 2, 4.008], rel=1e-3)
    # Those that drift wait for no more than the step under way.
    assert found.waited[2] == pytest.approx(found.waited[0])


def predicted(loads, **server):
    cases = [
        physim.Case.from_options(
            MODEL,
            gpu="h100_sxm",
            tp=2,
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
            concurrency=load.concurrency,
            requests=load.requests,
            **server,
        )
        for load in loads
    ]
    return physim.predict_cases(cases, Corrections())


BENCHMARK = {"concurrency": 32, "requests": 320, "input_tokens": 1000}


def spread(share, outputs=500):
    return Lengths.normal(outputs, share * outputs)


@pytest.mark.slow
def test_a_fit_sees_what_is_predicted():
    (found,) = predicted([Load(1000, spread(0.01), concurrency=32, requests=320)])
    case = physim.Case.from_options(
        MODEL, tp=2, gpu="h100_sxm", output_tokens=spread(0.01), **BENCHMARK
    )
    system = row_of(CaseArrays.from_cases([case]), 0)
    seen = np.exp(log_predicted(flat(Corrections()), system))
    assert seen == pytest.approx([found.ttft_s, found.itl_s, found.e2e_s], rel=1e-6)


def test_many_requests_have_the_steady_state():
    load = Load(1000, spread(0.002), concurrency=32)
    # One by one, which others have compiled.
    (endless,) = predicted([load])
    (many,) = predicted([replace(load, requests=32 * 10**7)])
    for name in ("ttft_s", "itl_s", "e2e_s", "requests_per_s"):
        assert getattr(many, name) == pytest.approx(getattr(endless, name), rel=1e-3), name


def test_the_spread_of_lengths_takes_clients_apart_without_a_cliff():
    shares = np.linspace(0, 3e-3, 32)
    found = predicted([Load(1000, spread(x), concurrency=32, requests=320) for x in shares])
    ttft = np.array([p.ttft_s for p in found])
    assert np.all(np.diff(ttft) <= 3e-3 * ttft[:-1])
    assert ttft[-1] < 0.7 * ttft[0]
    assert np.all(np.diff(np.log(ttft)) > -0.06)


@pytest.mark.parametrize(
    ("clients", "dp", "prompt"),
    # Of nine on two ranks the first to end are outside for 1% less than a step, or 1% more.
    [(9, 1, 2000), (5, 1, 2000), (18, 2, 2000), (9, 2, 1920), (9, 2, 2020), (8, 2, 2000)],
)
@pytest.mark.parametrize("rounds", [pytest.param(10, marks=pytest.mark.slow), 40])
def test_clients_whose_prompts_hardly_share_steps_settle_as_replayed(clients, dp, prompt, rounds):
    # Steps of a rank have room for 1.75 prompts. With nine clients on a rank each round has one
    # more step of whole prompts; the first of five is outside for longer than a step.
    case = {"gpu": "h200_sxm", "dp": dp, "fit": "none", "engine_version": "0.12.0"}
    case |= {"max_num_batched_tokens": 3509, "max_model_len": 4500, "async_scheduling": False}
    case |= {"input_tokens": prompt, "output_tokens": 1000}
    case |= {"concurrency": clients, "requests": rounds * clients}
    fluid = physim.predict("Qwen/Qwen3-30B-A3B", **case)
    replayed = physim.predict("Qwen/Qwen3-30B-A3B", method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.06)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.02)


@pytest.mark.parametrize(
    ("model", "server"),
    [
        ("deepseek-ai/DeepSeek-V3", {"gpu": "h200_sxm", "tp": 8}),
        ("Qwen/Qwen3-30B-A3B", {"gpu": "h100_sxm", "dp": 2, "ep": 2}),
        ("mistralai/Mixtral-8x7B-v0.1", {"gpu": "h100_sxm", "tp": 4}),
    ],
)
def test_sixteen_prompts_in_a_step_of_experts_hardly_cost_more_than_one(model, server):
    # A prompt alone would read all experts too: decoding took 7% less than it does while what is
    # met in step was the difference to what is met anywhere.
    case = {**server, "fit": "none", "input_tokens": 1000, "output_tokens": 200}
    case |= {"concurrency": 48, "requests": 960}
    fluid = physim.predict(model, **case)
    replayed = physim.predict(model, method="replay", **case)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.01)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.06)


@pytest.mark.parametrize(
    ("clients", "prompt", "output", "layout"),
    [
        (16, 1000, 200, {"tp": 2, "pp": 2}),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (48, 1000, 200, {"tp": 2, "pp": 2}),
                (8, 3000, 400, {"pp": 4}),
                (32, 1000, 200, {"pp": 4}),
            )
        ),
    ],
)
def test_clients_of_a_pipeline_are_as_replayed(clients, prompt, output, layout):
    # Its batches of prompts begin one after the other, and while the first client's prompts are all
    # that there is, it waits for them: TTFT was 21 to 41% too short.
    case = {"gpu": "h100_sxm", "fit": "none", **layout, "concurrency": clients}
    case |= {"input_tokens": prompt, "output_tokens": output, "requests": 20 * clients}
    fluid = physim.predict(MODEL, **case)
    replayed = physim.predict(MODEL, method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.06)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.1)


@pytest.mark.slow
def test_more_clients_wait_longer():
    loads = [Load(1000, spread(0.06), concurrency=c, requests=10 * c) for c in (2, 4, 8, 16, 64)]
    found = predicted(loads)
    steady = predicted([replace(load, requests=None) for load in loads])
    for name in ("ttft_s", "itl_s", "e2e_s", "requests_per_s"):
        assert np.all(np.diff([getattr(p, name) for p in found]) > 0), name
    assert all(p.ttft_s > q.ttft_s for p, q in zip(found, steady, strict=True))


@pytest.mark.parametrize(
    "share", [0.0, pytest.param(0.001, marks=slow), 0.01, pytest.param(0.05, marks=slow), 0.2]
)
@pytest.mark.parametrize(
    ("clients", "prompt"),
    [(32, 1000), (12, 6000)],
)
def test_a_benchmark_is_as_replayed(clients, prompt, share):
    case = {**SERVER, "concurrency": clients, "requests": 10 * clients}
    case |= {"input_tokens": prompt, "output_tokens": spread(share)}
    fluid = physim.predict(MODEL, **case)
    replayed = physim.predict(MODEL, method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.15)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.03)
    assert fluid.e2e_s == pytest.approx(replayed.e2e_s, rel=0.03)
    # The last request's length is a draw.
    assert fluid.requests_per_s == pytest.approx(replayed.requests_per_s, rel=0.06)


def test_clients_without_a_slot_are_as_replayed():
    case = {**SERVER, "concurrency": 64, "requests": 640, "max_num_seqs": 16}
    case |= {"input_tokens": 1000, "output_tokens": spread(0.1, 200)}
    fluid = physim.predict(MODEL, **case)
    replayed = physim.predict(MODEL, method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.03)
    assert fluid.e2e_s == pytest.approx(replayed.e2e_s, rel=0.03)
    for name in ("p50", "p90", "p99"):
        of = fluid.whole.latencies["ttft"], replayed.whole.latencies["ttft"]
        assert of[0][name] == pytest.approx(of[1][name], rel=0.15), name


@pytest.mark.slow
def test_gradients_in_the_load():
    demand = Demand.from_load(Load(1000, Lengths.normal(101, 2), concurrency=8, requests=80), 16)

    def ttft(clients, factor):
        own = replace(demand, concurrency=clients, output_steps=demand.output_steps * factor)
        engine = engine_of(CONSTANT, own, LIMITS, clients)
        return benchmark(engine, jnp.asarray(1.2), own, jnp.zeros(())).e2e

    at = jnp.asarray(8.2), jnp.asarray(1.01)
    slopes = jax.grad(ttft, (0, 1))(*at)
    for place, slope in enumerate(slopes):
        moved = [list(at), list(at)]
        moved[0][place] += 1e-4
        moved[1][place] -= 1e-4
        difference = (ttft(*moved[0]) - ttft(*moved[1])) / 2e-4
        assert slope == pytest.approx(float(difference), rel=1e-3)


def test_the_first_requests_wait_for_a_warm_up():
    load = {"concurrency": 16, "requests": 160, "input_tokens": 786}
    case = {"gpu": "h100_sxm", "tp": 2, "output_tokens": 151, "fit": "none", **load}
    for method, within in (("fluid", 1e-6), ("replay", 0.02)):
        without, waited = (
            physim.predict("Qwen/Qwen3-14B", method=method, warm_up_s=seconds, **case)
            for seconds in (0.0, 2.0)
        )
        # One request in ten is a client's first.
        assert waited.ttft_s - without.ttft_s == pytest.approx(0.2, rel=within)
        assert waited.e2e_s - without.e2e_s == pytest.approx(0.2, rel=within)
        assert waited.itl_s == pytest.approx(without.itl_s, rel=within)
        assert waited.requests_per_s < without.requests_per_s


def test_a_warm_up_is_of_clients_who_send_a_number_of_requests():
    for load in ({"rate": 2.0}, {"concurrency": 4}):
        with pytest.raises(physim.InputError, match="warm_up_s: is for clients"):
            physim.Load(100, 100, warm_up_s=1.0, **load)
