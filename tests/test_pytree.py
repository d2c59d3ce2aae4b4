"""Records that JAX takes apart: what they keep, what is traced, and what they look like."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, field, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physim.pytree import Pytree, swapped
from physim.types import Scalar


class Line(Pytree):
    slope: Scalar
    shift: Scalar = 1.0
    label: str = field(default="", metadata={"static": True})

    def __call__(self, x):
        return self.slope * x + self.shift


class Two(Pytree):
    lines: tuple[Line, Line]


def test_jax_takes_a_record_apart_and_puts_it_together():
    two = Two((Line(2.0, label="a"), Line(3.0, 4.0)))
    leaves, tree = jax.tree.flatten(two)
    assert leaves == [2.0, 1.0, 3.0, 4.0]
    again = jax.tree.unflatten(tree, leaves)
    assert again.lines[0].label == "a"
    assert jax.tree.structure(again) == tree
    other = replace(two, lines=(Line(2.0, label="b"), two.lines[1]))
    assert jax.tree.structure(other) != tree
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(two)
    assert jax.tree_util.keystr(path) == ".lines[0].slope"


def test_a_record_is_a_function_that_can_be_mapped_and_differentiated():
    lines = Line(jnp.arange(3.0), jnp.ones(3))
    mapped = jax.vmap(lambda line, x: line(x), in_axes=(0, None))(lines, 2.0)
    np.testing.assert_allclose(mapped, [1.0, 3.0, 5.0])
    slope = jax.jit(jax.grad(lambda line: line(5.0)))(Line(2.0, label="steep"))
    assert (float(slope.slope), float(slope.shift), slope.label) == (5.0, 1.0, "steep")


def test_leaves_are_swapped_for_others_of_any_shape():
    many = swapped(Line(2.0, 3.0, label="a"), slope=np.arange(4.0))
    np.testing.assert_array_equal(many.slope, np.arange(4.0))
    assert (type(many), many.shift, many.label) == (Line, 3.0, "a")
    with pytest.raises(TypeError, match="Line has no slopes"):
        swapped(Line(2.0), slopes=np.arange(4.0))


def test_a_record_does_not_change():
    with pytest.raises(FrozenInstanceError):
        Line(1.0).slope = 2.0
    with pytest.raises(TypeError, match="slope"):
        Line()


def test_a_record_shows_shapes_not_numbers():
    assert repr(Line(np.zeros((2, 3)))) == "Line(slope=f64[2,3](numpy))"


def test_a_prediction_imports_no_equinox():
    code = (
        "import physim, sys; physim.predict('Qwen/Qwen3-8B', gpu='h100', rate=1.0, "
        "input_tokens=100, output_tokens=10); sys.exit('equinox' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
