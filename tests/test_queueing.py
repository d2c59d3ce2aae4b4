"""Queues by chance against closed forms, and the KV cache's room."""

import heapq
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammainc

import physim
from physim.batching.batch_statistics import (
    Nodes,
    decoding,
    exponential_up_to,
    following,
    met_while_decoding,
    prefill_share,
)
from physim.batching.kind_times import _decoding_without_graph
from physim.batching.kv_capacity import blocks_held, requests_held
from physim.batching.prefix_cache import Prefixes
from physim.batching.queueing import (
    Varied,
    coming_together,
    lasting,
    peakedness,
    wait_for_a_slot,
    wait_for_tokens,
)
from physim.batching.strata import PARTS
from physim.fluid.distributions import drawn, drawn_at_times, quantiles, reciprocal_gamma
from physim.fluid.percentiles import lattice
from physim.inputs.lengths import Lengths
from physim.inputs.popularity import Popularity
from physim.inputs.request_points import LONGEST

# Two prompts wherever several come together.
_TWO = Nodes(2.0, 2.0, 0.5)


def erlang(servers, share):
    """Chance to wait and mean number waiting of M/M/c (Erlang's C)."""
    load = servers * share
    below = sum(load**k / math.factorial(k) for k in range(servers))
    full = load**servers / math.factorial(servers) / (1 - share)
    chance = full / (below + full)
    return chance, chance * share / (1 - share)


def test_an_exponential_number_as_far_as_there_is_room():
    # 5 (1 - exp(-1)), and the mean of draws.
    assert exponential_up_to(5.0, 5.0) == pytest.approx(3.16060, rel=1e-5)
    assert exponential_up_to(5.0, 1e3) == pytest.approx(5.0)
    assert exponential_up_to(5.0, -1.0) == 0.0
    draws = np.random.default_rng(0).exponential(5.0, 200_000)
    assert exponential_up_to(5.0, 9.0) == pytest.approx(np.minimum(draws, 9.0).mean(), rel=0.01)


@pytest.mark.parametrize("servers", [4, 8, 32, 128])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_equal_steps_are_erlangs_queue(servers, share):
    waiting, chance = wait_for_a_slot(servers * share / 0.01, float(servers), 0.01, 0.0, Varied())
    exact_chance, exact_waiting = erlang(servers, share)
    assert chance == pytest.approx(exact_chance, rel=0.03)
    assert waiting == pytest.approx(exact_waiting, rel=0.03)


def test_steps_that_grow_with_the_batch_are_a_birth_death_chain():
    # G(n) = 10 ms + 0.1 ms n, 40 slots: p(n)/p(n-1) = offered G(n)/n, then a geometric tail.
    slots, offered = 40, 2400.0
    step = 0.010 + 0.0001 * np.arange(1, slots + 1)
    logs = np.cumsum(np.log(offered * step / np.arange(1, slots + 1)))
    weights = np.append(1.0, np.exp(logs))
    share = offered * step[-1] / slots
    beyond = weights[-1] / (1 - share)
    chance = beyond / (weights[:-1].sum() + beyond)
    waiting, found = wait_for_a_slot(offered, float(slots), step[-1], 0.0001, Varied())
    assert share < 0.95
    assert found == pytest.approx(chance, rel=0.03)
    assert waiting == pytest.approx(chance * share / (1 - share), rel=0.03)


def test_clumps_last_where_requests_end_as_they_began():
    # Equal ones all end together, of exponential ones any is next, and half of it between.
    assert [lasting(1.0, 4.0, even) for even in (1.0, 0.75, 0.5, 0.3)] == [4.0, 2.5, 1.0, 1.0]


def test_even_arrivals_of_equal_requests_never_wait_for_a_slot():
    peaked = peakedness(0.0, 1.0)
    assert peaked == 0.0
    equal = Varied(peaked, peaked, 0.0, 0.0, 0.0)
    waiting, _ = wait_for_a_slot(0.9 * 64 / 0.01, 64.0, 0.01, 0.0, equal)
    assert waiting < 1e-6
    assert peakedness(1.0, 0.3) == 1.0  # Poisson, whatever the lengths


def waits_where_prompts_hold_others_up(slots, step_s, prompt_s, steps, rate, seed=2, count=60_000):
    """Requests that wait, mean, and the chance to, at an engine that computes prompts first."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    lives = rng.choice(steps, count)
    now, done, place, started, ends = 0.0, 0, 0, 0, []
    waited = waiting_s = 0.0
    while started < count:
        while place < count and arrivals[place] <= now:
            place += 1
        if not ends and place == started:
            now = arrivals[place]
            continue
        if place > started and len(ends) < slots:
            heapq.heappush(ends, done + lives[started])
            # What waits for the step under way alone waits for no slot.
            beyond = now - arrivals[started] - step_s
            waited, waiting_s = waited + (beyond > prompt_s), waiting_s + max(beyond, 0.0)
            started, now = started + 1, now + prompt_s
            continue
        now, done = now + step_s, done + 1
        while ends and ends[0] <= done:
            heapq.heappop(ends)
    return waiting_s / now, waited / count


@pytest.mark.parametrize("share", [0.8, 0.9])
@pytest.mark.parametrize("varied", [False, True])
def test_a_slot_is_waited_for_less_where_prompts_hold_others_up(share, varied):
    # 16 slots, steps of 5 ms, prompts of 20 ms, answers of 100 steps: with all slots taken 16
    # requests end in 100 x 5 + 16 x 20 = 820 ms, of which prompts take 39%.
    slots, step_s, prompt_s, mean = 16, 0.005, 0.02, 100
    ranks = (np.arange(2000) + 0.5) / 2000
    steps = np.ceil(-mean * np.log(ranks))
    if varied:
        # Log-normal ones of a squared coefficient of variation of three.
        steps = np.ceil(mean * np.random.default_rng(0).lognormal(-0.693, 1.177, 4000))
    full_s = mean * step_s + slots * prompt_s
    rate = share * slots / full_s
    waiting, chance = waits_where_prompts_hold_others_up(slots, step_s, prompt_s, steps, rate)
    taken = rate * prompt_s
    evenness = np.minimum(*np.random.default_rng(1).choice(steps, (2, 100_000))).mean() / mean
    clumped = peakedness(1 / (1 - taken) ** 2, evenness)
    found, of_all = wait_for_a_slot(
        rate * steps.mean(),
        float(slots),
        step_s + slots * prompt_s / mean,
        prompt_s / mean,
        Varied(
            peaked=clumped,
            lasting=lasting(1.0, clumped, evenness),
            steps_cv2=steps.var() / steps.mean() ** 2,
            prompt_cv2=0.0,
        ),
        prompt_s / mean,
    )
    assert of_all == pytest.approx(chance, rel=0.25)
    assert found == pytest.approx(waiting, rel=0.25)


def left_when_requests_come(prompts, room, full_s, rate, seed=3, count=60_000):
    """Mean wait for left tokens, chance of any and its spread, at an engine that is walked."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    sizes = rng.choice(prompts, count)
    now, backlog, place, waits = 0.0, 0.0, 0, []
    while place < count:
        step_s = full_s if backlog > 0 else full_s / 50
        backlog = max(backlog - room, 0.0)
        now += step_s
        came = 0.0
        while place < count and arrivals[place] < now:
            waits.append(backlog / room * full_s)
            came += sizes[place]
            place += 1
        backlog += came
    waits = np.array(waits)
    some = waits[waits > 0]
    return np.mean(waits), np.mean(waits > 0), np.std(some) / np.mean(some)


@pytest.mark.parametrize(
    ("prompts", "rate"),
    # Three steps each; a step and a half; mostly short, few of which are many steps long.
    [([3000.0], 1.6), ([1500.0], 2.5), ([100.0] * 15 + [9000.0], 6.0)],
)
def test_what_is_left_of_long_prompts_is_waited_for(prompts, rate):
    strata = np.sort(np.resize(prompts, 64))
    parts = np.append(strata[:-1], np.full(LONGEST, strata[-1]))
    found = wait_for_tokens(parts, 1000.0, 0.1, rate, 1.0, _TWO, 1.0, 1.0, 1.0)
    wait, chance, cv = left_when_requests_come(np.array(prompts), 1000.0, 0.1, rate)
    assert found.wait_s == pytest.approx(wait, rel=0.12)
    assert found.chance == pytest.approx(chance, rel=0.12)
    assert found.cv == pytest.approx(cv, rel=0.15)


def test_prompts_that_fit_a_step_wait_for_none():
    found = wait_for_tokens(np.full(len(PARTS), 400.0), 1000.0, 0.1, 1.0, 0.9, _TWO, 1.0, 1.0, 1.0)
    assert found.wait_s == 0.0


@pytest.mark.parametrize(
    ("tokens", "others", "expected"),
    [
        # Two fit into a step: each has the other beside it.
        (400.0, 1.0, (1.0, 0.0, 0.0, 0.0)),
        # Of two of 600 the first has 400 of the other's beside it, and the second ends a step
        # later, beside none, with 600 tokens before it.
        (600.0, 1.0, ((400 + 0) / 2 / 600, 0.5, 0.5, 0.3)),
        # Of two of 1,200 the first has 800 beside its last 200, and the second 0 beside its own.
        (1200.0, 1.0, ((800 + 0) / 2 / 1200, 0.5, 0.5, 0.6)),
        # Of three of 600 the first has 400 beside it; after the second 600 of the third come in
        # the step in which both end.
        (600.0, 2.0, ((400 + 2 * 600 + 0) / 4 / 1200, 0.75, 0.75, (2 * 0.6 + 1.2) / 4)),
    ],
)
def test_prompts_that_come_together_share_steps(tokens, others, expected):
    found = coming_together(np.full(len(PARTS), tokens), 1000.0, others)
    assert tuple(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("mean", [0.003, 0.03, 0.3, 3.0, 30.0])
def test_requests_that_follow_in_bursts(shape, mean):
    # The n-th is there within t if the sum of n gamma distributed distances is less.
    places = np.arange(1, 3000)
    expected = np.sum(gammainc(shape * places, shape * mean)) - mean
    assert following(mean, 1 / shape) == pytest.approx(expected, rel=0.08)


def test_requests_that_follow_in_the_long_run_and_by_chance():
    assert following(1e4, 2.0) == pytest.approx((2.0 - 1.0) / 2, rel=1e-3)
    assert following(0.3, 1.0) == pytest.approx(0.0, abs=1e-6)


def alike(number: int) -> Prefixes:
    """Prefixes that are asked for alike."""
    return Prefixes(0.0, *Popularity().classes(number), 1.0, 0.0)


@given(
    blocks=st.floats(200, 1e5),
    own=st.floats(1, 100),
    shared=st.floats(0, 100),
    prefixes=st.integers(1, 1000),
)
def test_slots_fill_the_cache(blocks, own, shared, prefixes):
    asked_for = alike(prefixes)
    slots = requests_held(blocks, own, shared, asked_for)
    assert slots >= blocks / (own + shared) * (1 - 1e-6)
    if blocks > 2 * (own + shared):
        assert blocks_held(slots, own, shared, asked_for) == pytest.approx(blocks, rel=1e-3)


def test_prefixes_are_held_once():
    assert blocks_held(10.0, 5.0, 48.0, alike(1)) == pytest.approx(10 * 5 + 48)
    assert blocks_held(10.0, 5.0, 48.0, alike(10**6)) == pytest.approx(10 * (5 + 48), rel=1e-4)
    # Two prefixes, two requests: one and a half are held on average.
    assert blocks_held(2.0, 0.0, 10.0, alike(2)) == pytest.approx(15.0)


@pytest.mark.parametrize("mean", [0.05, 0.9, 4.0, 30.0])
def test_the_share_of_steps_with_prompts(mean):
    assert prefill_share(mean, 1.0, 1e6) == pytest.approx(1 - math.exp(-mean), rel=1e-4)
    assert prefill_share(mean, 0.0, 1e6) == pytest.approx(min(mean, 1.0))
    assert prefill_share(mean, 2.0, 1e6) < 1 - math.exp(-mean)


def test_steps_have_prompts_as_often_as_the_budget_takes():
    assert prefill_share(3.0, 1.0, 3.5) >= 3.0 / 3.5


@pytest.mark.parametrize("mean", [0.2, 3.0, 40.0])
def test_decoding_requests_as_one_meets_them(mean):
    by_chance = decoding(mean, 1.0, 1e6)
    # Poisson: the mean of the others, and itself; the variance is the mean.
    assert by_chance.mean(by_chance.low, by_chance.high) == pytest.approx(mean + 1)
    squares = by_chance.mean(by_chance.low**2, by_chance.high**2)
    assert squares - (mean + 1) ** 2 == pytest.approx(mean)
    evenly = decoding(mean, 0.0, 1e6)
    assert evenly.mean(evenly.low, evenly.high) == pytest.approx(max(mean, 1.0), rel=0.01)


def test_prompts_met_while_decoding():
    steps = jnp.full(64, 100.0)
    assert met_while_decoding(0.02, 0.0, 1.0, steps) == pytest.approx(0.02)
    # Evenly spaced: the last of those that follow comes half a gap before the end, on average.
    assert met_while_decoding(0.02, 0.0, 0.0, steps) == pytest.approx(0.015)
    assert met_while_decoding(0.005, 0.0, 0.0, steps) < 1e-4


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0])
def test_drawn_parts_have_mean_one_and_their_spread(cv):
    points = (np.arange(20_000) + 0.5) / 20_000
    values = np.asarray(drawn(points, cv))
    assert values.mean() == pytest.approx(1.0, rel=0.01)
    assert values.std() == pytest.approx(cv, rel=0.05)
    assert np.all(np.diff(values) >= 0)


@pytest.mark.parametrize(("chance", "cv"), [(0.1, 0.5), (0.5, 1.0), (0.9, 1.8)])
def test_drawn_parts_are_nothing_at_times(chance, cv):
    points = (np.arange(200_000) + 0.5) / 200_000
    found = np.asarray(drawn_at_times(points, chance, cv))
    assert np.mean(found > 0) == pytest.approx(chance, abs=1e-4)
    assert np.mean(found) == pytest.approx(1.0, rel=2e-3)
    some = found[found > 0]
    assert np.std(some) / np.mean(some) == pytest.approx(cv, rel=0.1)


def test_the_lattice_is_even():
    points = lattice(512)
    assert points.min() >= 0
    assert points.max() < 1
    for column in points.T:
        counts, _ = np.histogram(column, bins=16, range=(0, 1))
        assert np.abs(counts - 32).max() <= 4


def test_quantiles_of_weighted_values():
    values, weights = jnp.asarray([3.0, 1.0, 2.0]), jnp.asarray([1.0, 1.0, 2.0])
    assert quantiles(values, weights)[0] == pytest.approx(2.0)
    slope = jax.grad(lambda v: quantiles(v, weights)[0])(values)
    assert slope.sum() == pytest.approx(1.0)


def test_peakedness_of_equal_lengths_is_no_less_than_none():
    """As 32 bit rounds the mean of 64 lengths of 3.7 tokens."""
    assert float(peakedness(0.0, 1.0000001)) == 0.0


@pytest.mark.slow
def test_requests_that_fit_into_graphs_find_slots_free():
    # 1,024 slots, and CUDA graphs of 512 requests: a step beyond takes four times as long. On a
    # straight line from these few requests to all slots, half of them waited for a slot.
    load = {"input_tokens": 200, "output_tokens": 1000, "rate": 13.0, "arrival": "poisson"}
    fluid, replay = (
        physim.predict("Qwen/Qwen3-30B-A3B", fit="none", gpu="b200_sxm", **load, **more)
        for more in ({}, {"method": "replay", "requests": 3000})
    )
    assert replay.pools[0].running < 512
    assert fluid.ttft_s == pytest.approx(replay.ttft_s, rel=0.1)
    assert any("completes 11.6 req/s, fewer" in note for note in fluid.assumptions)


def test_which_steps_that_only_decode_are_too_large_for_a_graph():
    host = physim.step_model("Qwen/Qwen3-14B", gpu="h100_sxm").ops.host

    def shares(few, many):
        tokens = jnp.asarray([few, many, 0.6 * few + 0.4 * many])
        return _decoding_without_graph(host, tokens, jnp.asarray(0.4))

    assert host.captured == 512
    # A range of sqrt(12 0.4 0.6) 50 = 84.9 about a mean of 510, whose upper 39.9 are too large: all
    # of the 40% that are many, and of the 60% that are few what is left of 47%.
    assert shares(490.0, 540.0) == pytest.approx([0.1174, 1.0, 0.4704], abs=1e-3)
    assert shares(470.0, 520.0) == pytest.approx([0.0, 0.587, 0.2348], abs=1e-3)
    assert shares(300.0, 340.0) == pytest.approx([0.0, 0.0, 0.0])
    assert shares(600.0, 640.0) == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [19.0, 23.4, 31.8])
def test_latencies_have_no_spikes_where_as_many_decode_as_graphs_hold(rate):
    """One in sixteen of these loads had an ITL of twice its neighbours'."""
    lengths = {"input_tokens": Lengths.gamma(400, 120), "output_tokens": Lengths.gamma(300, 90)}
    cases = [
        physim.Case.from_options(
            "Qwen/Qwen3-30B-A3B",
            gpu="h100_sxm",
            tp=2,
            rate=rate,
            arrival="gamma",
            burstiness=burstiness,
            **lengths,
        )
        for burstiness in np.geomspace(1, 8, 16).tolist()
    ]
    itl = np.array([one.itl_s for one in physim.predict_cases(cases, physim.Corrections())])
    assert np.all(np.abs(np.diff(np.log(itl))) < 0.1)


def test_one_over_the_gamma_function_has_all_digits():
    # Of 1, 1.5, 2 and 3: by the root of pi, and by factorials.
    known = [(0.0, 1.0), (0.5, 2 / np.sqrt(np.pi)), (1.0, 1.0), (2.0, 0.5)]
    for beyond_one, value in known:
        assert reciprocal_gamma(beyond_one) == pytest.approx(value, rel=1e-14)
    places = np.linspace(0.0, 3.0**0.9, 1001)
    exact = np.array([1 / math.gamma(1 + place) for place in places])
    np.testing.assert_allclose(reciprocal_gamma(places), exact, rtol=1e-14)
