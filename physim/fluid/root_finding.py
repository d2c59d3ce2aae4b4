"""A bracketed root of a scalar function, with gradients by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from physim.types import Scalar

# More than halving a step's bracket takes in 64 bit, which are 51.
_MAX_EVALUATIONS = 64
# Rounding errors below which the sign of a value says nothing.
_ROUNDING_ERRORS = 32
# Of a point and parameters: a value whose root is wanted, and whatever else was found there.
Function = Callable[[Scalar, Any], tuple[Scalar, Any]]


class _Bracket(NamedTuple):
    """Two points with values of opposite sign, and what was found at the point tried last."""

    low: Scalar
    high: Scalar
    at_low: Scalar
    at_high: Scalar
    point: Scalar
    value: Scalar
    found: Any
    evaluations: Int[Array, ""]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def bracketed_root(
    function: Function, parameters: Any, lower: Scalar, upper: Scalar, start: Scalar
) -> tuple[Scalar, Any]:
    """Where a function that rises through zero between two bounds does so, and what it found there.

    The Illinois variant of regula falsi (Dowell and Jarratt, BIT 11, 1971): superlinear, always
    bracketed, one evaluation an iteration. What the function finds beside its value comes out of
    the last iteration, so that a model is compiled once, within the loop. The bounds' values need
    only have the right sign, and are taken as their distance from where the search starts: the
    functions solved here are the difference of their argument and something that changes less.

    Args:
        function: Of a point and the parameters: a value, negative at ``lower``, positive at
            ``upper`` and continuous, and a tree of floating-point arrays. Derivatives with respect
            to what it closes over are not seen.
        parameters: What the root depends on; a tree of arrays, differentiable.
        lower: Start of the bracket.
        upper: Its end.
        start: Where the function is first evaluated, between the two.
    """
    tolerance = _ROUNDING_ERRORS * jnp.finfo(lower.dtype).eps

    def unfinished(bracket: _Bracket) -> Array:
        wide = bracket.high - bracket.low > tolerance
        more = bracket.evaluations < _MAX_EVALUATIONS
        return wide & (jnp.abs(bracket.value) > tolerance) & more

    def narrow(bracket: _Bracket) -> _Bracket:
        low, high, at_low, at_high = bracket.low, bracket.high, bracket.at_low, bracket.at_high
        point = (low * at_high - high * at_low) / (at_high - at_low)
        value, found = function(point, parameters)
        below = value < 0
        # An end that is kept twice running has its value halved, which draws the next point
        # towards it.
        shrink = jnp.where(below == (bracket.value < 0), 0.5, 1.0)
        return _Bracket(
            low=jnp.where(below, point, low),
            high=jnp.where(below, high, point),
            at_low=jnp.where(below, value, at_low * shrink),
            at_high=jnp.where(below, at_high * shrink, value),
            point=point,
            value=value,
            found=found,
            evaluations=bracket.evaluations + 1,
        )

    _, shapes = jax.eval_shape(function, lower, parameters)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    low, high = lower - start, upper - start
    begin = _Bracket(lower, upper, low, high, lower, high, nothing, jnp.zeros((), int))
    end = jax.lax.while_loop(unfinished, narrow, begin)
    return end.point, end.found


@bracketed_root.defjvp
def _implicit(
    function: Function, primals: Any, tangents: Any
) -> tuple[tuple[Scalar, Any], tuple[Scalar, Any]]:
    parameters, *bracket = primals
    root, found = bracketed_root(function, parameters, *bracket)

    # One at a time, since a change of nothing in what is infinite, such as the rate of clients, has
    # no number.
    _, (slope, along_root) = jax.jvp(lambda x: function(x, parameters), (root,), (1.0,))
    _, (change, along_parameters) = jax.jvp(
        lambda p: function(root, p), (parameters,), (tangents[0],)
    )
    moved = -change / slope
    changes = jax.tree.map(lambda x, p: moved * x + p, along_root, along_parameters)
    return (root, found), (moved, changes)
