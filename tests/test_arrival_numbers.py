"""Arrivals within some time, and before another one: closed forms, exact sums and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import gamma

from physim.batching.arrival_numbers import Before, came_before, clumps, none_and_one


@pytest.mark.parametrize("mean", [0.01, 0.5, 3.0])
def test_arrivals_by_chance_are_poissons(mean):
    expected = np.exp(-mean), mean * np.exp(-mean)
    assert none_and_one(jnp.asarray(mean), 1.0) == pytest.approx(expected, rel=1e-5)
    assert none_and_one(jnp.asarray(mean), 1.0 + 1e-6) == pytest.approx(expected, rel=1e-3)
    assert clumps(jnp.asarray(mean), 1.0) == pytest.approx(1.0, rel=1e-3)


def test_evenly_spaced_arrivals():
    none, one = none_and_one(jnp.array([0.4, 1.0, 1.6, 2.5]), 0.0)
    assert np.asarray(none) == pytest.approx([0.6, 0.0, 0.0, 0.0], abs=1e-6)
    assert np.asarray(one) == pytest.approx([0.4, 1.0, 0.4, 0.0], abs=1e-6)


def test_one_in_two_phases_by_hand():
    # Half of one a mean distance is a phase. None comes without a phase, or in one if the second of
    # two is left; one comes with two phases, and with one or three in half of the cases.
    none, one = none_and_one(jnp.asarray(0.5), 0.5)
    assert none == pytest.approx(np.exp(-1) * (1 + 1 / 2), rel=1e-5)
    assert one == pytest.approx(np.exp(-1) * (1 / 2 + 1 / 2 + 1 / 6 / 2), rel=1e-5)


@pytest.mark.parametrize("shape", [0.05, 0.1, 0.3, 0.5, 0.8, 0.99, 1.5, 2.5, 6.5])
def test_none_is_the_survival_of_what_is_left_of_a_distance(shape):
    means = np.array([0.001, 0.05, 0.3, 1.0, 3.0])
    of_distances = gamma(shape, scale=1 / shape)
    exact = [quad(of_distances.sf, mean, np.inf, limit=400)[0] for mean in means]
    none, _ = none_and_one(jnp.asarray(means), 1 / shape)
    np.testing.assert_allclose(np.log(none), np.log(exact), rtol=0.02 if shape < 1 else 0.05)


@pytest.mark.parametrize(("shape", "within"), [(0.2, 0.06), (0.5, 0.05), (1.5, 0.03), (5.5, 0.01)])
def test_one_against_draws(shape, within):
    times = np.cumsum(np.random.default_rng(0).gamma(shape, 1 / shape, 1_000_000))
    for mean in (0.1, 0.3, 1.0):
        drawn = np.mean(np.bincount((times / mean).astype(int)) == 1)
        _, one = none_and_one(jnp.asarray(mean), 1 / shape)
        assert one == pytest.approx(drawn, rel=within), mean


@given(st.floats(0.0, 30.0), st.floats(0.0, 20.0))
@settings(max_examples=60, deadline=None)
def test_chances_are_chances_with_finite_slopes(mean, cv2):
    def chances(mean, cv2):
        return jnp.stack(none_and_one(mean, cv2))

    at = (jnp.asarray(mean), jnp.asarray(cv2))
    none, one = chances(*at)
    assert 0 <= none <= 1
    assert 0 <= one <= 1 - none + 1e-6
    assert chances(at[0] + 0.1, at[1])[0] <= none + 1e-6
    for slopes in jax.jacobian(chances, argnums=(0, 1))(*at):
        assert np.all(np.isfinite(slopes))


def before(begins, varies, lasts, cv2) -> list[float]:
    return [float(one) for one in came_before(*map(jnp.asarray, (begins, varies, lasts, cv2)))]


@pytest.mark.parametrize("cv2", [1.0, 7.0])
def test_what_comes_by_chance_comes_before_another_as_ever(cv2):
    for time in ((0.0, 0.2, 0.5), (0.3, 1.0, 1.2), (2.0, 3.0, 4.0)):
        assert before(*time, cv2) == pytest.approx([1.0, 1.0], rel=1e-3)


def test_evenly_spaced_ones_before_another_by_hand():
    # None came within a distance.
    assert before(0.1, 0.2, 0.5, 0.0) == pytest.approx([0.0, 0.0], abs=1e-6)
    # The time ends between 0.6 and 1 before it and lasts 0.3: the last one is within in three of
    # four cases, and on average 0.15 from its end. By chance 0.3 are, as far from it.
    assert before(0.6, 0.4, 0.3, 0.0) == pytest.approx([0.75 / 0.3, 0.75 / 0.3], rel=1e-5)
    # One that ends up to 0.4 before it and lasts 0.8: in half of the cases, 0.1 from its end.
    assert before(0.0, 0.4, 0.8, 0.0) == pytest.approx([0.5 / 0.8, 0.5 * 0.1 / 0.32], rel=1e-5)
    # Two of them: 0.2 to 0.5 before it, for 2.
    assert before(0.2, 0.3, 2.0, 0.0)[0] == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("shape", [1.5, 3.0, 5.5, 8.0, 20.0])
@pytest.mark.parametrize(
    "time", [(0.0, 0.1, 0.4), (0.1, 0.1, 0.7), (0.3, 0.3, 0.5), (0.1, 0.4, 1.2)]
)
def test_nearly_even_ones_before_another_against_draws(shape, time):
    begins, varies, lasts = time
    rng = np.random.default_rng(0)
    ago = np.cumsum(rng.gamma(shape, 1 / shape, (200_000, 8)), axis=1)
    ends = begins + varies * rng.random((200_000, 1))
    within = (ago > ends) & (ago < ends + lasts)
    number = within.sum(axis=1).mean() / lasts
    # The time began `lasts` before it ended; who came at its start is as far from its end as it is.
    until_end = np.sum(within * (ends + lasts - ago), axis=1).mean() / (lasts**2 / 2)
    # Those of more than eight phases are taken for straight from there to even spacing.
    off = 0.04 if shape <= 8 else 0.2
    assert before(*time, 1 / shape) == pytest.approx([number, until_end], rel=0.05, abs=off)


@pytest.mark.slow
@given(st.floats(0, 4), st.floats(0, 2), st.floats(0, 3), st.floats(0, 2))
@settings(max_examples=40, deadline=None)
def test_what_came_before_has_finite_slopes(begins, varies, lasts, cv2):
    at = tuple(jnp.asarray(x) for x in (begins, varies, lasts, cv2))
    found = came_before(*at)
    assert isinstance(found, Before)
    assert all(np.isfinite(one) and one > -1e-3 for one in found)
    for slopes in jax.tree.leaves(jax.jacobian(came_before, argnums=(0, 1, 2, 3))(*at)):
        assert np.all(np.isfinite(slopes))
