"""Runs of steps for prompts, held against the chain that they are."""

import numpy as np
import pytest
from scipy.stats import nbinom, poisson

from physim.batching.prompt_runs import (
    DecodeCycle,
    Run,
    all_busy,
    no_prompts,
    prompts_of_steps,
    run_of,
    sole_rank,
    steps_after,
)

MOST = 120

# Prompts of one length that come by chance to one rank, in steps of any size.
PLAIN = {
    "several": 1e9,
    "each_cv2": 0.0,
    "varied": 0.0,
    "unfinished": 0.0,
    "arrival_cv2": 1.0,
    "every": 1.0,
    "ranks": 1.0,
    "least": 0.0,
    "most": 1e9,
    "dealt": 1.0,
    "ahead": 0.0,
}


def first_passage(waiting, fixed, each, law):
    """Steps until one for which no prompt has come, by the linear equations of the chain."""
    numbers = np.arange(1, MOST)
    moves = np.array([law(numbers, fixed + each * n) for n in numbers])
    steps = np.linalg.solve(np.eye(len(numbers)) - moves, np.ones(len(numbers)))
    return law(numbers, waiting) @ steps


@pytest.mark.parametrize(
    ("waiting", "fixed", "each"),
    [(0.3, 0.3, 0.05), (1.6, 1.2, 0.2), (4.2, 1.7, 0.3), (9.0, 0.2, 0.6)],
)
def test_a_run_lasts_as_long_as_its_chain(waiting, fixed, each):
    chance, steps = steps_after(waiting, fixed, each, 1.0)
    assert chance == pytest.approx(-np.expm1(-waiting))
    exact = first_passage(waiting, fixed, each, lambda n, mean: poisson.pmf(n, mean))
    assert steps == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("varied", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(("waiting", "fixed", "each"), [(1.6, 0.6, 0.4), (4.2, 0.9, 0.5)])
def test_prompts_of_varied_lengths_have_shorter_runs(waiting, fixed, each, varied):
    # What n prompts add has a gamma distribution, so that a negative binomial number come in it.
    numbers = np.arange(MOST)
    moves = [
        np.convolve(
            poisson.pmf(numbers, fixed), nbinom.pmf(numbers, n / varied, 1 / (1 + varied * each))
        )[1:MOST]
        for n in numbers[1:]
    ]
    steps = np.linalg.solve(np.eye(MOST - 1) - np.array(moves), np.ones(MOST - 1))
    exact = poisson.pmf(numbers[1:], waiting) @ steps
    found = steps_after(waiting, fixed, each, 1.0, varied)[1]
    assert found == pytest.approx(exact, rel=1e-3)
    assert found < 0.97 * steps_after(waiting, fixed, each, 1.0)[1]


def test_bursts_make_runs_shorter_and_even_arrivals_have_none_that_ends():
    by_chance, in_bursts = (float(steps_after(1.6, 1.2, 0.2, cv2)[1]) for cv2 in (1.0, 3.0))
    assert in_bursts < 0.7 * by_chance
    # Of one prompt in two steps, the run after each is one step and half of another, and so on.
    chance, steps = steps_after(0.5, 0.4, 0.1, 0.0)
    assert (chance, steps) == (0.5, 1.0)
    assert steps_after(0.5, 0.9, 0.1, 0.0)[1] > 1e5


def test_a_turn_has_the_prompts_that_come_in_it():
    # A hundred prompts a second come in 11 ms of decoding and in what steps for prompts take.
    given = {"decode_s": 11e-3, "fixed_s": 9e-3, "each_s": 1.5e-3, "further_s": 0.0}
    exact = first_passage(1.1, 0.9, 0.15, lambda n, mean: poisson.pmf(n, mean))
    seconds = (11e-3 + exact * 9e-3) / (1 - 0.15)
    run = run_of(DecodeCycle(**given, **PLAIN, prompts=100 * seconds, room=1.0))
    assert run.steps == pytest.approx(exact, rel=1e-3)
    assert run.of_any == pytest.approx(run.steps)
    # Without room for more there are no steps but those that must be.
    assert (
        run_of(DecodeCycle(**given, **{**PLAIN, "least": 0.8}, prompts=1.0, room=0.0)).steps == 0.8
    )


def test_a_step_that_is_formed_ahead_has_what_came_in_the_one_before_the_last():
    # One prompt a second comes by chance; a step that decodes takes a quarter of one, a step for
    # prompts one. With prompts are 0.2212 / (0.2212 + 0.3679) of all steps; the next of any step
    # is one as often, and the one after a step that decodes with a chance of 0.2212.
    given = {"decode_s": 0.25, "fixed_s": 1.0, "each_s": 0.0, "further_s": 0.0}
    prompts = 0.25 + 0.2212 / 0.3679
    cycle = DecodeCycle(**given, **PLAIN | {"ahead": 1.0}, prompts=prompts, room=1.0)
    run = run_of(cycle)
    assert run.steps == pytest.approx(0.2212 / 0.3679, rel=1e-3)
    assert run.chance == pytest.approx(0.2212 / 0.5891, rel=1e-3)
    assert run.second == pytest.approx(0.2212, rel=1e-3)
    rng, busy = np.random.default_rng(0), [False, False]
    for _ in range(40_000):
        busy.append(rng.random() > np.exp(-1.0 if busy[-2] else -0.25))
    runs = np.diff(np.flatnonzero(~np.array(busy))) - 1
    assert run.chance == pytest.approx(np.mean(runs > 0), rel=0.03)
    assert run.second == pytest.approx(np.mean(runs[runs > 0] > 1), rel=0.05)
    # Formed after the one before it, a run ends after each of its steps with the same chance.
    after = run_of(cycle._replace(ahead=0.0))
    assert (after.steps, after.chance) == pytest.approx((float(run.steps), 0.2212), rel=1e-3)
    assert after.second == pytest.approx(1.0 - 0.3679, rel=1e-3)


def test_prompts_of_a_step_from_those_of_a_turn():
    # Two prompts a step make runs of exp(2) - 1 steps, so a turn has 2 exp(2) of them.
    for each in (0.01, 0.5, 2.0, 7.0):
        assert prompts_of_steps(each * np.exp(each), 1.0) == pytest.approx(each, rel=1e-5)
    assert prompts_of_steps(0.6, 0.0) == pytest.approx(0.6)
    assert prompts_of_steps(3.0, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("ranks", "prompts"), [(2, 0.6), (4, 0.5), (4, 1.7), (8, 2.0), (8, 5.0)])
def test_a_rank_decodes_while_no_other_has_prompts(ranks, prompts):
    # By chance each rank has a number of prompts of its own; dealt out, the first get one each.
    def steps(busy):
        return busy / (1 - busy)

    each = -np.expm1(-prompts / ranks)
    by_chance = sole_rank(steps(each), ranks, 0.0, 0.5)
    assert by_chance == pytest.approx((1 - each) ** (ranks - 1))
    numbers = np.arange(200)
    busy = np.sum(poisson.pmf(numbers, prompts) * np.minimum(numbers, ranks)) / ranks
    # Of the steps in which a rank has none, those in which nobody has.
    none = np.exp(-prompts)
    assert sole_rank(steps(busy), ranks, 1.0, none) == pytest.approx(none / (1 - busy))
    assert sole_rank(steps(1 - none), 1.0, 1.0, none) == 1.0
    assert all_busy(busy, ranks, 0.0) == pytest.approx(busy**ranks)
    assert all_busy(busy, ranks, 1.0) == pytest.approx(poisson.sf(ranks - 1, prompts), abs=0.04)


def test_long_steps_gather_prompts_and_leave_short_ones_none():
    # 0.6 prompts come in a step that decodes and 2 in one for prompts. Of equal times exp(-2) of
    # the latter are followed by a step without; of exponential ones, a third.
    for varied, none in ((0.0, np.exp(-2.0)), (1.0, 1 / 3)):
        chance = none / (none + 1 - np.exp(-0.6))
        assert no_prompts(0.6, 2.0, varied, 1.0) == pytest.approx(chance, rel=1e-5)
    # Where prompts go on in half of the steps, half as many are followed by one without.
    none = np.exp(-2.0) / 2
    chance = none / (none + 1 - np.exp(-0.6))
    assert no_prompts(0.6, 2.0, 0.0, 0.5) == pytest.approx(chance, rel=1e-5)


def test_others_decode_in_the_steps_that_are_not_theirs():
    # Of two ranks, each with prompts in half of its steps: of the four pairs three have some, and
    # in two of these the other decodes.
    two = Run(0.5, 0.5, 1.0, 1.0, sole_rank(1.0, 2.0, 0.0, 0.5))
    assert two.of_any == pytest.approx(1.5)
    assert two.others_that_decode(2.0, 0.0) == pytest.approx((2 / 3, 2 / 3))
    one = Run(0.5, 0.5, 1.0, 1.0, sole_rank(1.0, 1.0, 0.0, 0.5))
    assert one.others_that_decode(1.0, 0.0) == (0.0, 0.0)
