"""Prompts of many lengths in chunks and in steps, by hand and against draws."""

import jax.numpy as jnp
import numpy as np
import pytest

from physim.batching.demand import PARTS
from physim.batching.prompt_chunks import GROUPS, MEANS, Chunks, prompts_of_step
from physim.batching.step_kinds import _ranks_apart


def test_a_prompt_takes_full_steps_and_a_rest():
    chunks = Chunks.in_room(np.full(len(PARTS), 2500.0), jnp.asarray(1000.0))
    assert chunks.number == pytest.approx(3.0)
    assert np.asarray(chunks.full) == pytest.approx(2.0)
    assert np.asarray(chunks.last) == pytest.approx(500.0)
    assert np.asarray(chunks.before) == pytest.approx(2000.0)
    assert np.asarray(chunks.products) == pytest.approx(500.0 * 2000.0)
    # Before the second of its full steps there are 1,000 tokens, before the first none.
    assert chunks.before_full == pytest.approx(500.0)


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
    assert chunks.longest_of(jnp.asarray(1.0)) == pytest.approx(2.0)
    assert chunks.longest_of(jnp.asarray(2.0)) == pytest.approx(2.5)


@pytest.mark.parametrize("mean", [0.1, 0.7, 2.0])
def test_prompts_that_come_by_chance(mean):
    found = prompts_of_step(jnp.asarray(mean), jnp.asarray(1.0), jnp.asarray(1e6))
    every = jnp.ones(1)
    _, one = found.none_and_one(every, every)
    assert one == pytest.approx(mean * np.exp(-mean), rel=1e-6)
    rest = 1 - np.exp(-mean) * (1 + mean)
    several = found.several
    assert several.mean(several.low, several.high) == pytest.approx(
        (mean - mean * np.exp(-mean)) / rest, rel=1e-3
    )


def test_long_steps_have_more_prompts_than_short_ones():
    # Half of the steps half as long as the mean, half of them half as long again.
    found = prompts_of_step(jnp.asarray(0.5), jnp.asarray(1.0), jnp.asarray(1e6))
    longer, share = jnp.array([0.5, 1.5]), jnp.array([0.5, 0.5])
    by_hand = 0.5 * (0.25 * np.exp(-0.25) + 0.75 * np.exp(-0.75))
    assert found.none_and_one(longer, share)[1] == pytest.approx(by_hand, rel=1e-6)


def test_even_prompts_come_one_by_one():
    found = prompts_of_step(jnp.asarray(0.4), jnp.asarray(0.0), jnp.asarray(1e6))
    assert found.none_and_one(jnp.ones(1), jnp.ones(1))[1] == pytest.approx(0.4)
    found = prompts_of_step(jnp.asarray(1.6), jnp.asarray(0.0), jnp.asarray(1e6))
    # One or two: 0.4 x 1 + 0.6 x 2.
    assert found.none_and_one(jnp.ones(1), jnp.ones(1))[1] == pytest.approx(0.4)
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
