"""Functions of JAX as programs on NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from physim import kept, kept_files
from physim.programs.operations import NAMES
from physim.programs.program import Program, UnwrittenError
from physim.programs.writing import written

ROWS = np.linspace(-2.0, 3.0, 12).reshape(3, 4)
SQUARE = np.cos(np.arange(9.0)).reshape(3, 3)
PLACES = np.array([2, 0, 1, 5, -1])
POSITIVE = np.array([0.3, 1.0, 2.5, 40.0])


def program_of(function, *args) -> Program:
    return written(jax.make_jaxpr(lambda *leaves: jax.tree.leaves(function(*leaves)))(*args))


def halved(x):
    """How often something is halved until it is less than one, and what is left."""
    return jax.lax.while_loop(lambda at: at[1] >= 1.0, lambda at: (at[0] + 1, at[1] / 2), (0, x))


def nested(x):
    """A loop in a loop, both with something that does not change."""

    def outer(at):
        count, total = at
        inner = jax.lax.while_loop(
            lambda own: own < count + jnp.sin(x), lambda own: own + jnp.cos(x) ** 2, 0.0
        )
        return count + 1.0, total + inner

    return jax.lax.while_loop(lambda at: at[0] < 4.0, outer, (0.0, x))


def running(rows, reverse=False):
    def step(total, row):
        return total + row.sum(), (total * row, row.max())

    return jax.lax.scan(step, 1.0, rows, reverse=reverse)


FUNCTIONS = {
    "arithmetic": (lambda x, y: (x + y) * x - y / (x + 5.0), ROWS, ROWS[0]),
    "numbers alone": (lambda x: x * 2.0 + jnp.exp(1.0) + jnp.arange(4.0), ROWS),
    "powers": (lambda x: (x**2, x**3, x**-1, x**-2, jnp.abs(x) ** 1.7), ROWS),
    "comparisons": (lambda x, y: jnp.where((x > y) & ~(x == 2.0) | (y <= -1.0), x, y), ROWS, ROWS),
    "limits": (lambda x: jnp.clip(x, -1.0, 2.0), ROWS),
    "whole numbers": (lambda n: (n // 3, n % 3, n * 2, n.sum(), n.astype(float)), np.arange(-7, 7)),
    "quotients": (jax.lax.div, np.array([7, -7, 6, -1]), np.array([2, 2, -3, 4])),
    "rounding": (lambda x: (jnp.round(x), jnp.floor(x), jnp.ceil(x), jnp.sign(x)), ROWS),
    "logarithms": (lambda x: (jnp.log(x), jnp.log1p(x), jnp.expm1(x), jnp.sqrt(x)), POSITIVE),
    "curves": (lambda x: (jax.nn.sigmoid(x), jnp.tanh(x), jax.nn.softplus(x)), ROWS),
    "shapes": (lambda x: (x.T, x.reshape(2, 6), x[:, None, ::2], x[1], x[..., 1:3]), ROWS),
    "together": (lambda x: (jnp.concatenate([x, x * 2], 1), jnp.stack([x, -x], 1)), ROWS),
    "spread": (lambda x: jnp.concatenate([jnp.broadcast_to(x[0], (2, 4)), x]), ROWS),
    "apart": (lambda x: jnp.split(x, [1, 3], axis=1), ROWS),
    "sums": (lambda x: (x.sum(), x.mean(0), x.max(1), x.min(), (x > 0).any(0), x.prod(1)), ROWS),
    "sums of spread": (lambda x: jnp.broadcast_to(x[:, :1], (3, 4)).sum(1), ROWS),
    "running sums": (lambda x: (jnp.cumsum(x, 1), jax.lax.cumsum(x, reverse=True)), ROWS),
    "least and most": (lambda x: (jnp.argmin(x, 1), jnp.argmax(x)), SQUARE),
    "order": (lambda x: (jnp.sort(x, 0), jnp.argsort(x), jnp.flip(x, 1)), SQUARE),
    "two keys": (lambda x, y: jnp.lexsort((x, y)), np.array([3, 1, 2, 0]), np.array([1, 0, 1, 0])),
    "products": (lambda x, y: (x @ y, y @ y[0], jnp.einsum("ij,kj->ik", x, y)), ROWS.T, SQUARE),
    "products of many": (jax.vmap(jnp.dot), SQUARE, SQUARE),
    "products in an order": (lambda x, y: jnp.tensordot(x, y, [[0, 1], [1, 0]]), SQUARE, SQUARE),
    "at places": (lambda x, n: (x[n], x[:, n % 3], jnp.take(x, n, mode="clip")), ROWS, PLACES),
    "beyond": (lambda x, n: x.at[n].get(mode="fill"), ROWS, PLACES),
    "along": (lambda x, n: jnp.take_along_axis(x, n, 1), ROWS, PLACES[:3, None]),
    "each its own": (jax.vmap(lambda row, n: row[n]), ROWS, PLACES[:3]),
    "set": (lambda x, n: (x.at[n].set(0.0), x.at[1, n].add(1.0)), ROWS, PLACES),
    "changed": (lambda x: (x.at[1:, 0].multiply(3.0), x.at[-1].max(0.0), x.at[0].min(0.0)), ROWS),
    "each its own set": (jax.vmap(lambda row, n: row.at[n].set(7.0)), ROWS, PLACES[2:]),
    "twice": (lambda x: x.at[np.array([1, 1])].add(1.0), ROWS),
    "windows": (
        lambda x, n: (
            jax.lax.dynamic_slice(x, (n, 2), (2, 2)),
            jax.lax.dynamic_update_slice(x, jnp.zeros((2, 2), x.dtype), (n, 1)),
        ),
        ROWS,
        np.array(2),
    ),
    "a loop": (halved, np.array(37.0)),
    "a loop of many": (jax.vmap(halved), np.array([37.0, 0.5, 1000.0])),
    "loops in loops": (nested, np.array(0.4)),
    "loops in loops of many": (jax.vmap(nested), np.array([0.4, 1.0])),
    "a scan": (running, ROWS),
    "a scan from the end": (lambda x: running(x, reverse=True), ROWS),
    "scans of many": (jax.vmap(running), np.stack([ROWS, ROWS + 1.0])),
    "slopes": (jax.vmap(jax.grad(lambda x: jnp.sum(jnp.tanh(x) * jnp.arange(4.0)))), ROWS),
    "a slope of a loop": (jax.jacfwd(lambda x: nested(x)[1]), np.array(0.4)),
    "tiles": (lambda x: jnp.tile(x, (2, 1, 3)), ROWS),
    "functions within": (jax.jit(lambda x: jax.nn.relu(jax.jit(jnp.sin)(x))), ROWS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_program_finds_what_jax_does(name, kind):
    function, *args = FUNCTIONS[name]
    args = [one.astype(kind) if one.dtype == float else one for one in args]
    expected = jax.tree.leaves(jax.jit(function)(*args))
    program = program_of(function, *args)
    for found in (program.run(args), Program.from_bytes(program.to_bytes()).run(args)):
        assert [one.dtype for one in found] == [one.dtype for one in expected]
        for own, other in zip(found, expected, strict=True):
            assert own.shape == other.shape
            np.testing.assert_allclose(own, other, rtol=20 * np.finfo(kind).eps, atol=1e-6)


@given(
    st.lists(st.integers(-9, 9), min_size=1, max_size=6),
    st.sampled_from(["fill", "clip"]),
    st.integers(0, 1),
)
def test_places_beyond_an_array(places, mode, axis):
    own = np.array(places)

    def taken(x, n):
        return jnp.take(x, n, axis=axis, mode=mode), x.at[n].add(1.0, mode="drop")

    found = program_of(taken, ROWS, own).run([ROWS, own])
    for one, other in zip(found, jax.jit(taken)(ROWS, own), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "other", "numbers"),
    [
        ("log_gamma", scipy.special.gammaln, [1e-9, 0.5, 1.0, 3.7, 200.0, -0.5, 0.0, -3.0]),
        ("digamma", scipy.special.digamma, [1e-6, 0.5, 1.0, 9.99, 10.0, 1e5, -0.5, -7.3, np.inf]),
        ("erf", scipy.special.erf, [-8.0, -0.3, 0.0, 1e-9, 2.0, np.inf]),
        ("erfc", scipy.special.erfc, [-8.0, -0.3, 0.0, 5.0, 20.0]),
        (
            "erf_inv",
            scipy.special.erfinv,
            [-1.0, -0.499, 0.501, -0.99999999, -0.3, 0.0, 1e-12, 0.7, 1.0, 1.5],
        ),
    ],
)
def test_special_functions(name, other, numbers):
    x = np.array(numbers)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(NAMES[name](x), other(x), rtol=1e-12)
    assert NAMES[name](x.astype(np.float32)).dtype == np.float32


def test_what_does_not_change_is_found_before_the_loop():
    def roots(x):
        same = jnp.exp(x) + 2.0

        def step(at):
            # Both are the same in every turn, and the second is the first.
            return at - (at**2 - jnp.log(same)) / (2.0 * at) + 0.0 * jnp.log(same)

        return jax.lax.fori_loop(0, 9, lambda _, at: step(at), 1.0)

    calls = []

    def counted(x):
        calls.append(x)
        return np.log(x)

    program = program_of(roots, np.array(0.3))
    program.constants["log"] = counted
    (found,) = program.run([np.array(0.3)])
    assert found == pytest.approx(math.sqrt(math.log(math.exp(0.3) + 2.0)), rel=1e-12)
    assert len(calls) == 1


def test_what_nothing_needs_is_left_out():
    program = program_of(lambda x: (jnp.sin(x), jnp.cos(x))[0], ROWS)
    assert program.lines == 1


def test_numbers_that_are_alike_are_found_once():
    def spread(x):
        return jnp.tanh(jnp.exp(jnp.broadcast_to(x[:, None], (3, 9999))) * 2.0) + 1.0

    same, apart = program_of(spread, np.ones(3)), program_of(spread, np.ones(3))
    sizes = []
    same.constants["exp"] = lambda x: sizes.append(x.size) or np.exp(x)
    (found,) = same.run([np.arange(3.0)])
    assert sizes == [3]
    np.testing.assert_array_equal(found, apart.run([np.arange(3.0)])[0])
    assert found.shape == (3, 9999)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.linalg.inv(x),
        lambda x: jax.pure_callback(lambda own: own, x, x),
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.scan(lambda at, row: (at, row), 0.0, x[:0])[1],
    ],
)
def test_what_no_program_has_is_said(function):
    with pytest.raises(UnwrittenError):
        program_of(function, SQUARE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of kept functions, empty, and what XLA takes a line as it is outside of tests."""
    monkeypatch.setattr(kept, "OPTIMISED_S", 1.7e-3)
    usual = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "physim"
    jax.config.update("jax_compilation_cache_dir", usual)


def curve(x):
    return {"sum": jnp.sum(jnp.sin(x))}


def suffixes(folder) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def test_what_has_little_to_do_is_a_program_until_it_is_called_often(folder, monkeypatch):
    x = np.arange(3.0)
    function = kept.kept(curve)
    first = float(function(x)["sum"])
    assert first == pytest.approx(math.sin(1.0) + math.sin(2.0), rel=1e-14)
    assert suffixes(folder) == [kept_files.PROGRAM]
    program = program_of(curve, x)
    calls = math.ceil(kept.OPTIMISED_S * program.lines / program.work_s)
    for _ in range(calls - 1):
        assert float(function(x)["sum"]) == first
    assert suffixes(folder) == [kept_files.PROGRAM]
    assert float(function(x)["sum"]) == pytest.approx(first, rel=1e-14)
    assert suffixes(folder) == [kept_files.COMPILED, kept_files.PROGRAM]
    # The next process begins with the program again: equal calls find equal numbers.
    monkeypatch.setattr(kept, "_made_program", None)
    again = kept.kept(curve)
    assert float(again(x)["sum"]) == first


@pytest.mark.slow
def test_what_has_much_to_do_is_compiled_at_once(folder):
    def much(x):
        return jnp.sum(jnp.sin(x[:, None] * jnp.arange(1e5)))

    found = kept.kept(much)(np.arange(2_000.0))
    assert float(found) == pytest.approx(float(jax.jit(much)(np.arange(2_000.0))), abs=1e-6)
    assert suffixes(folder) == [kept_files.COMPILED]
