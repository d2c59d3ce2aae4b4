"""Look-up in grids: against SciPy, at the edges, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from physim.errors import InputError
from physim.grids.efficiency import ExpertGrid, Grid, along, hat_weights, look_up
from physim.grids.store import load_grid, measured_gpus, save_grid, tables

A, B = np.array([1.0, 2.0, 10.0]), np.array([3.0, 5.0, 7.0, 100.0])
VALUES = np.random.default_rng(0).normal(size=(3, 4))
GRID = Grid((("a", A), ("b", B)), VALUES)


@given(st.floats(1, 10), st.floats(3, 100))
def test_agrees_with_scipy_inside(a, b):
    reference = RegularGridInterpolator((np.log(A), np.log(B)), VALUES)
    expected = np.exp(reference((np.log(a), np.log(b))))
    assert look_up(VALUES, (A, B), (a, b)) == pytest.approx(float(expected), rel=1e-9)


@given(st.floats(1e-6, 1e9))
def test_weights_are_a_partition_of_one(x):
    weights = hat_weights(B, x)
    assert jnp.sum(weights) == pytest.approx(1.0)
    assert jnp.min(weights) >= 0
    assert jnp.sum(weights > 0) <= 2


def test_knots_are_hit_exactly():
    for i, a in enumerate(A):
        for j, b in enumerate(B):
            assert GRID.efficiency(a=a, b=b) == pytest.approx(np.exp(VALUES[i, j]))


def test_beyond_the_grid_the_edge_is_held():
    assert GRID.efficiency(a=0.0, b=1e9) == GRID.efficiency(a=1.0, b=100.0)


def test_gradient_agrees_with_differences():
    def efficiency(a):
        return look_up(VALUES, (A, B), (a, 6.0))

    for a in (1.3, 2.0001, 7.0):
        step = 1e-6
        difference = (efficiency(a + step) - efficiency(a - step)) / (2 * step)
        assert jax.grad(efficiency)(a) == pytest.approx(float(difference), rel=1e-5)


def test_gradient_at_knots_is_the_mean_of_both_sides_and_at_ends_that_within():
    gradient = jax.vmap(jax.grad(lambda a: along(VALUES[:, 0], A, a)))
    first, last = np.diff(VALUES[:, 0]) / np.diff(np.log(A))
    expected = [0.0, first, (first + last) / 2 / 2.0, last / 10.0, 0.0]
    np.testing.assert_allclose(gradient(jnp.array([0.0, 1.0, 2.0, 10.0, 1e6])), expected)


def test_numpy_and_jax_weights_agree():
    for x in (0.5, 3.0, 6.5, 1000.0):
        np.testing.assert_allclose(hat_weights(B, x, np), hat_weights(B, x), rtol=1e-12)


def test_a_point_for_each_row():
    rows = along(VALUES, B, jnp.array([3.0, 5.0, 100.0]))
    np.testing.assert_allclose(rows, [VALUES[0, 0], VALUES[1, 1], VALUES[2, 3]])


def test_thousands_of_points_at_once_are_as_few():
    # In 32 bit, as it runs outside of tests: a kernel that XLA once made of this was wrong from
    # the 2,341st point on.
    with jax.enable_x64(False):
        values = np.random.default_rng(0).normal(size=(14, 21)).astype(np.float32)
        rows, columns = 2.0 ** np.arange(14), 2.0 ** np.arange(21)
        points = np.geomspace(1, 8000, 4096).astype(np.float32)

        @jax.jit
        @jax.vmap
        def value_at(x):
            return along(along(values, columns, x), rows, x)

        few = np.concatenate([np.asarray(value_at(part)) for part in np.split(points, 64)])
        np.testing.assert_allclose(np.asarray(value_at(points)), few, rtol=1e-4, atol=1e-5)


def test_fixing_an_axis():
    curve = GRID.sliced(b=6.0)
    assert [name for name, _ in curve.axes] == ["a"]
    assert curve.efficiency(a=1.7) == pytest.approx(float(GRID.efficiency(a=1.7, b=6.0)))


def test_resampling():
    resampled = GRID.resampled(a=np.array([1.0, 5.0]), b=np.array([4.0, 50.0, 60.0]))
    assert resampled.shape == (2, 3)
    assert np.exp(resampled[1, 0]) == pytest.approx(float(GRID.efficiency(a=5.0, b=4.0)))


def test_nearest_shape():
    shapes = np.array([[1024.0, 512, 2, 8], [4096.0, 512, 2, 8], [4096.0, 512, 8, 128]])
    grid = ExpertGrid(
        shapes, np.array([1.0, 2.0]), np.log(np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]]))
    )
    assert grid.nearest(4000, 700, 2, 10).efficiency(tokens=1) == pytest.approx(0.2)
    assert grid.nearest(4000, 700, 6, 64).efficiency(tokens=1) == pytest.approx(0.3)


def test_every_shipped_table_is_complete_and_plausible():
    assert measured_gpus() == (
        *("a100_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300", "h100_sxm", "h200_sxm", "l40s"),
        "rtx_pro_6000_server",
    )
    for gpu in measured_gpus():
        assert {"gemm_bfloat16", "decode_attention", "prefill_attention", "all_reduce"} <= set(
            tables(gpu)
        )
        for table in ("gemm_bfloat16", "decode_attention", "prefill_attention"):
            values = load_grid(gpu, table).log_efficiency
            assert np.all(np.isfinite(values))
            # No kernel is a million times slower than its roofline, nor four times faster.
            assert np.exp(values.min()) > 1e-6
            assert np.exp(values.max()) < 4


def test_a_table_survives_writing(tmp_path, monkeypatch):
    from physim.grids import store

    folder = tmp_path / "gpu"
    folder.mkdir()
    save_grid(folder / "t.npz", GRID)
    monkeypatch.setattr(store.data, "folder", lambda _: tmp_path)
    np.testing.assert_allclose(load_grid("gpu", "t").log_efficiency, VALUES, rtol=1e-6)
    (folder / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InputError, match=r"bad\.npz: is damaged"):
        load_grid("gpu", "bad")
