"""Prompts of many lengths in chunks and in steps, by hand and against draws."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physim.batching.kind_times import _ranks_apart
from physim.batching.prompt_chunks import GROUPS, MEANS, Chunks, prompts_of_step
from physim.batching.step_kinds import KINDS, StepKinds
from physim.batching.strata import PARTS


def test_a_prompt_takes_full_steps_and_a_rest():
    chunks = Chunks.in_room(np.full(len(PARTS), 2500.0), jnp.asarray(1000.0))
    assert chunks.number == pytest.approx(3.0)
    assert np.asarray(chunks.full) == pytest.approx(2.0)
    assert np.asarray(chunks.last) == pytest.approx(500.0)
    assert np.asarray(chunks.before) == pytest.approx(2000.0)
    assert np.asarray(chunks.products) == pytest.approx(500.0 * 2000.0)
    # Before the second of its full steps there are 1,000 tokens, before the first none.
    assert chunks.before_full == pytest.approx(500.0)


def test_chunks_of_a_prompt_follow_each_other_in_a_pipeline():
    # Of four stages: 2,500 tokens are in three batches, two of them before the last one, which ends
    # half a step later for that; 5,500 are in six.
    sizes = np.where(np.cumsum(PARTS) > 0.5 + 1e-9, 5500.0, 2500.0)
    chunks = Chunks.in_room(sizes, jnp.asarray(1000.0), 4)
    short, long = 0, -1
    assert (chunks.full[short], chunks.full[long]) == pytest.approx((2 / 4, 5 / 4))
    assert chunks.number == pytest.approx(1 + 3.5 / 4)
    assert np.asarray(chunks.last) == pytest.approx(500.0)
    assert (chunks.before[short], chunks.before[long]) == pytest.approx((2000.0, 5000.0))
    assert np.asarray(chunks.divided) == pytest.approx(1.0)
    # Before the full ones there are 0, 1,000, and so on to 4,000 tokens.
    assert chunks.before_full == pytest.approx((1000 + 10000) / (2 + 5))


def test_groups_keep_every_mean():
    prompts = np.sort(np.random.default_rng(0).lognormal(6.0, 1.0, len(PARTS)))
    mean = np.sum(PARTS * prompts)
    assert np.sum(GROUPS) == 1.0
    assert np.sum(GROUPS * (MEANS @ prompts)) == pytest.approx(mean)
    chunks = Chunks.in_room(prompts, jnp.asarray(600.0))
    whole = chunks.mean(chunks.before + chunks.last)
    assert whole == pytest.approx(mean, rel=1e-6)


def test_the_longest_of_two():
    # Of two drawn from 1 and 3, each as likely, the longer is 3 in three of four cases.
    prompts = np.where(np.cumsum(PARTS) > 0.5 + 1e-9, 3.0, 1.0)
    chunks = Chunks.in_room(prompts, jnp.asarray(10.0))
    assert chunks.longest_of(jnp.array([1.0, 2.0])) == pytest.approx([2.0, 2.5])


def test_prompts_together_by_hand():
    # 1 or 3 tokens, each as likely: alone these are the two values, half and one and a half of
    # their mean. The longer of two is 3 in three of four cases. Of two together the standard
    # deviation is the root of a half of the mean of one.
    prompts = np.where(np.cumsum(PARTS) > 0.5 + 1e-9, 3.0, 1.0)
    chunks = Chunks.in_room(prompts, jnp.asarray(10.0))
    count, apart = jnp.array([1.0, 1.0, 2.0, 2.0]), jnp.array([1.0, 2.0, 1.0, 1.0])
    found = chunks.sums(count, apart, jnp.array([9.0, 9.0, 9.0, 1.25]))
    root = np.sqrt(0.5) / 2
    # Where there is room for no more than a quarter above the mean, the values are so far apart.
    assert found.low == pytest.approx([0.5, 0.4, 1 - root, 0.75], abs=1e-5)
    assert found.high == pytest.approx([1.5, 1.2, 1 + root, 1.25], abs=1e-5)
    assert found.weight == pytest.approx([0.5, 0.75, 0.5, 0.5], abs=1e-5)


@given(st.integers(0, 10**6), st.floats(1.0, 8.0), st.floats(1.0, 4.0))
@settings(max_examples=30, deadline=None)
def test_prompts_together_keep_mean_variance_and_skewness(seed, count, apart):
    prompts = np.sort(np.random.default_rng(seed).lognormal(6.0, 1.0, len(PARTS)))
    chunks = Chunks.in_room(prompts, jnp.asarray(1e6))
    found = chunks.sums(*(jnp.array([x]) for x in (count, apart, 1e6)))
    weights = np.diff(np.cumsum(PARTS) ** apart, prepend=0.0)
    mean = weights @ prompts
    more = (prompts - mean) / mean
    moments = [weights @ more**2, weights @ more**3]
    for power, moment in zip(
        (1, 2, 3), (0.0, moments[0] / count, moments[1] / count**2), strict=True
    ):
        assert found.mean((found.low - 1) ** power, (found.high - 1) ** power) == pytest.approx(
            moment, rel=1e-3, abs=1e-4
        )


@pytest.mark.parametrize("mean", [0.1, 0.7, 2.0])
def test_prompts_that_come_by_chance(mean):
    found = prompts_of_step(*map(jnp.asarray, (mean, 1.0, 1.0, 1e6)))
    every = jnp.ones(2)
    _, one = found.none_and_one(every, every)
    assert one == pytest.approx(mean * np.exp(-mean), rel=1e-6)
    rest = 1 - np.exp(-mean) * (1 + mean)
    several = found.several
    assert several.mean(several.low, several.high) == pytest.approx(
        (mean - mean * np.exp(-mean)) / rest, rel=1e-3
    )


def test_long_steps_have_more_prompts_than_short_ones():
    # Steps with prompts take half as long again as the mean, those without half of it: after the
    # former there are none with a chance of exp(-3/4), after the latter with exp(-1/4).
    found = prompts_of_step(*map(jnp.asarray, (0.5, 1.0, 1.0, 1e6)))
    longer, share = jnp.array([1.5, 0.5]), jnp.array([0.5, 0.5])
    none = 0.47237 / (0.47237 + 0.22120)
    one = none * 0.25 * np.exp(-0.25) + (1 - none) * 0.75 * np.exp(-0.75)
    assert found.none_and_one(longer, share) == pytest.approx((none, one), rel=1e-4)


def test_shares_of_steps_follow_from_how_long_these_are():
    # A step that only decodes takes a second, one with prompts five, and 0.4 prompts come in a
    # second: none come with chances of exp(-0.4) and exp(-2).
    share = 0.32968 / (0.32968 + 0.13534)
    step_s = 1.0 + 4.0 * share
    come = prompts_of_step(*map(jnp.asarray, (0.4 * step_s, 1.0, 1.0, 1e6)))
    nothing = jnp.zeros(())
    kinds = StepKinds._make([None] * len(StepKinds._fields))._replace(
        chunks=Chunks.in_room(np.ones(len(PARTS)), jnp.asarray(1e6)),
        lanes=jnp.ones(()),
        come=come,
        filled=nothing,
        follows=nothing,
        free=nothing,
    )
    found = kinds.shares(jnp.full(KINDS, 5.0), jnp.ones(()))
    assert jnp.sum(found) == pytest.approx(share, rel=3e-3)


def test_prompts_that_are_seen_once_in_so_many_steps():
    # As in test_looks: four steps between looks, a prompt in each.
    found = prompts_of_step(*map(jnp.asarray, (1.0, 4.0, 1.0, 1e6)))
    none, one = found.none_and_one(jnp.ones(2), jnp.ones(2))
    assert none == pytest.approx(4.0746 / 6.7929, rel=1e-4)
    # One is in the first look of a turn with a chance of 4 / (e^4 - 1), in each of the 1.718 others
    # with 1 / (e - 1).
    assert one == pytest.approx((0.07463 + 1.0) / 6.7929, rel=1e-3)


def test_even_prompts_come_one_by_one():
    found = prompts_of_step(*map(jnp.asarray, (0.4, 1.0, 0.0, 1e6)))
    assert found.none_and_one(jnp.ones(2), jnp.ones(2))[1] == pytest.approx(0.4)
    found = prompts_of_step(*map(jnp.asarray, (1.6, 1.0, 0.0, 1e6)))
    # One or two: 0.4 x 1 + 0.6 x 2.
    assert found.none_and_one(jnp.ones(2), jnp.ones(2))[1] == pytest.approx(0.4)
    assert found.several.mean(found.several.low, found.several.high) == pytest.approx(2.0, abs=2e-3)


def test_long_prompts_that_come_together_fill_the_same_steps():
    # One at a time, each of four ranks fills steps of its own; of one each they all end with the
    # longest of four exponential runs; of very many all ranks are full as long.
    assert _ranks_apart(4.0, 0.3) == pytest.approx(4.0)
    assert _ranks_apart(4.0, 1.0) == pytest.approx(4.0)
    assert _ranks_apart(4.0, 2.0) == pytest.approx(4 / 2 * (1 + 1 / 2))
    assert _ranks_apart(4.0, 4.0) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert _ranks_apart(4.0, 4e6) == pytest.approx(1.0, rel=1e-2)
    assert _ranks_apart(1.0, 7.0) == pytest.approx(1.0)
