"""Chances that none and that one of some arrivals comes: closed forms, exact sums and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import gamma

from physim.batching.arrival_numbers import clumps, none_and_one


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
