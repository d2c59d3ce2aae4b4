"""Batches of a pipeline that hold each other up, by hand and against drawn ones."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physim.batching.pipeline_turns import Turns

# A step with a prompt, one that a long prompt fills, and one that only decodes.
PROMPT, FULL, ALONE = range(3)


def turns(lanes, filled=0.0, follows=0.0, divided=0.0):
    of_kinds = jnp.array([divided, 0.0, 0.0])
    return Turns(*map(jnp.asarray, (float(lanes),)), FULL, filled, follows, of_kinds)


def test_without_a_pipeline_a_turn_is_a_step():
    times, share = jnp.array([3.0, 5.0, 1.0]), jnp.array([0.2, 0.1, 0.7])
    found = turns(1, filled=0.1, follows=0.5)
    assert np.asarray(found.longest(times, share)) == pytest.approx(np.eye(3), abs=1e-6)
    assert found.ends_apart_s(times, share) == pytest.approx(times)


def test_a_turn_takes_as_long_as_its_longest_step():
    # Of four steps none has a prompt with a chance of 0.8^4.
    times, share = jnp.array([3.0, 9.0, 1.0]), jnp.array([0.2, 0.0, 0.8])
    of_turns = share @ turns(4).longest(times, share)
    assert of_turns == pytest.approx([1 - 0.8**4, 0.0, 0.8**4], rel=1e-6)


def test_who_is_behind_a_long_step_ends_right_after_it():
    # One step of 8 s through four stages, 2 s each, among steps of 4 s: it ends 8 - 3 x 1 s after
    # the one before, and the next one a second later.
    times, share = jnp.array([8.0, 9.0, 4.0]), jnp.array([1e-6, 0.0, 1.0])
    assert turns(4).ends_apart_s(times, share) == pytest.approx([5.0, 6.0, 1.0], rel=1e-4)


def test_slopes_are_numbers_in_32_bits():
    """Where every step is as long as the longest, none is shorter, in 32 bits exactly so."""
    single = jnp.float32
    times, share = jnp.array([3.0, 5.0, 1.0], single), jnp.array([1.0, 0.0, 0.0], single)

    def mean_s(times, share):
        numbers = (jnp.asarray(x, single) for x in (1.0, 0.0, 0.0))
        lanes, filled, follows = numbers
        found = Turns(lanes, FULL, filled, follows, jnp.zeros(3, single))
        return share @ found.longest(times, share) @ times

    for slope in jax.grad(mean_s, (0, 1))(times, share):
        assert np.isfinite(slope).all()


def drawn(lanes, draw, count):
    """When the steps of a pipeline end.

    Args:
        lanes: Batches and stages.
        draw: Gives the time of a stage of the next step, from the time at which it begins.
        count: Steps.
    """
    stages, ended = np.zeros(lanes), deque(np.zeros(lanes))
    ends = []
    for _ in range(count):
        at = ended.popleft()
        stage_s = draw(max(at, stages[0]))
        for place in range(lanes):
            at = stages[place] = max(at, stages[place]) + stage_s
        ended.append(at)
        ends.append(at)
    return np.array(ends)


@pytest.mark.parametrize("lanes", [2, 4, 8])
@pytest.mark.parametrize("chance", [0.05, 0.15])
def test_turns_are_as_long_as_drawn_ones(lanes, chance):
    rng = np.random.default_rng(0)
    ends = drawn(lanes, lambda _: 3.0 if rng.random() < chance else 1.0, 40_000)
    times, share = lanes * jnp.array([3.0, 9.0, 1.0]), jnp.array([chance, 0.0, 1 - chance])
    found = turns(lanes)
    mean_s = share @ found.longest(times, share) @ times
    assert mean_s == pytest.approx(lanes * ends[-1] / len(ends), rel=0.1)
    if lanes <= 4:
        # The times between ends vary as much; of eight batches more, as two long ones are apart.
        apart_s, expected = np.diff(np.sort(ends)), found.ends_apart_s(times, share)
        squares, mean = share @ expected**2, share @ expected
        drawn_squares = np.mean(apart_s**2) / np.mean(apart_s) ** 2
        assert squares / mean**2 == pytest.approx(drawn_squares, rel=0.2)


@pytest.mark.parametrize("rate", [0.05, 0.15])
@pytest.mark.parametrize(("lanes", "full"), [(2, 1), (4, 1), (4, 3)])
def test_long_prompts_that_come_together_share_turns(lanes, full, rate):
    # Each fills so many steps of two seconds a stage; its last chunk takes one, and others 0.2.
    rng, waiting = np.random.default_rng(1), deque()
    stage_s, comes_s = {PROMPT: 1.0, FULL: 2.0, ALONE: 0.2}, rng.exponential(1 / rate)
    kinds = []

    def draw(now):
        nonlocal comes_s
        while comes_s <= now:
            waiting.extend([FULL] * full + [PROMPT])
            comes_s += rng.exponential(1 / rate)
        kinds.append(waiting.popleft() if waiting else ALONE)
        return stage_s[kinds[-1]]

    ends = drawn(lanes, draw, 60_000)
    share = jnp.array([np.mean(np.array(kinds) == kind) for kind in stage_s])
    times = lanes * jnp.array([*stage_s.values()])
    follows = np.mean(np.array(kinds[1:])[np.array(kinds[:-1]) == FULL] == FULL)
    found = turns(lanes, share[FULL], follows, divided=1.0)
    mean_s = share @ found.longest(times, share) @ times
    assert mean_s == pytest.approx(lanes * ends[-1] / len(ends), rel=0.12)
