"""A bracketed root of a scalar function, with gradients by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_Scalar = Float[Array, ""]
_MAX_EVALUATIONS = 64


class _Bracket(NamedTuple):
    """Two points with values of opposite sign, and the value that was found last."""

    low: _Scalar
    high: _Scalar
    at_low: _Scalar
    at_high: _Scalar
    last: _Scalar
    evaluations: Int[Array, ""]


def bracketed_root(
    function: Callable[[_Scalar], _Scalar], lower: _Scalar, upper: _Scalar
) -> _Scalar:
    """Where a function that rises through zero between two bounds does so.

    The Illinois variant of regula falsi (Dowell and Jarratt, BIT 11, 1971): superlinear, always
    bracketed, one evaluation an iteration, so that it compiles to few copies of the function. The
    bounds' values need only have the right sign, and are taken as the distance to the bound: the
    functions solved here are the difference of their argument and something bounded.

    Args:
        function: Negative at ``lower``, positive at ``upper``, continuous.
        lower: Start of the bracket.
        upper: Its end.
    """
    # Some tens of rounding errors, below which the sign of a value says nothing.
    tolerance = 32 * jnp.finfo(lower.dtype).eps

    def unfinished(bracket: _Bracket) -> Array:
        wide = bracket.high - bracket.low > tolerance
        return wide & (jnp.abs(bracket.last) > tolerance) & (bracket.evaluations < _MAX_EVALUATIONS)

    def solve(f: Callable[[_Scalar], _Scalar], _: _Scalar) -> _Scalar:
        def narrow(bracket: _Bracket) -> _Bracket:
            low, high, at_low, at_high, last, evaluations = bracket
            point = (low * at_high - high * at_low) / (at_high - at_low)
            value = f(point)
            below = value < 0
            # An end that is kept twice running has its value halved, which draws the next point
            # towards it.
            repeated = (value < 0) == (last < 0)
            shrink = jnp.where(repeated, 0.5, 1.0)
            return _Bracket(
                low=jnp.where(below, point, low),
                high=jnp.where(below, high, point),
                at_low=jnp.where(below, value, at_low * shrink),
                at_high=jnp.where(below, at_high * shrink, value),
                last=value,
                evaluations=evaluations + 1,
            )

        width = upper - lower
        start = _Bracket(lower, upper, -width, width, width, jnp.zeros((), int))
        found = jax.lax.while_loop(unfinished, narrow, start)
        return jnp.where(found.last < 0, found.low, found.high)

    def tangent_solve(linear: Callable[[_Scalar], _Scalar], y: _Scalar) -> _Scalar:
        return y / linear(jnp.ones_like(y))

    root: _Scalar = jax.lax.custom_root(function, (lower + upper) / 2, solve, tangent_solve)
    return root
