"""A bracketed root of a scalar function, with gradients by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from physim.types import Scalar

_MAX_EVALUATIONS = 64


class _Bracket(NamedTuple):
    """Two points with values of opposite sign, and the value that was found last."""

    low: Scalar
    high: Scalar
    at_low: Scalar
    at_high: Scalar
    last: Scalar
    evaluations: Int[Array, ""]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def bracketed_root(
    function: Callable[[Scalar, Any], Scalar], parameters: Any, lower: Scalar, upper: Scalar
) -> Scalar:
    """Where a function that rises through zero between two bounds does so.

    The Illinois variant of regula falsi (Dowell and Jarratt, BIT 11, 1971): superlinear, always
    bracketed, one evaluation an iteration, so that it compiles to few copies of the function. The
    bounds' values need only have the right sign, and are taken as the width of the bracket: the
    functions solved here are the difference of their argument and something bounded.

    Args:
        function: Of a point and the parameters; negative at ``lower``, positive at ``upper``,
            continuous. Derivatives with respect to what it closes over are not seen.
        parameters: What the root depends on; a tree of arrays, differentiable.
        lower: Start of the bracket.
        upper: Its end.
    """
    # Some tens of rounding errors, below which the sign of a value says nothing.
    tolerance = 32 * jnp.finfo(lower.dtype).eps

    def unfinished(bracket: _Bracket) -> Array:
        wide = bracket.high - bracket.low > tolerance
        return wide & (jnp.abs(bracket.last) > tolerance) & (bracket.evaluations < _MAX_EVALUATIONS)

    def narrow(bracket: _Bracket) -> _Bracket:
        low, high, at_low, at_high, last, evaluations = bracket
        point = (low * at_high - high * at_low) / (at_high - at_low)
        value = function(point, parameters)
        below = value < 0
        # An end that is kept twice running has its value halved, which draws the next point
        # towards it.
        shrink = jnp.where(below == (last < 0), 0.5, 1.0)
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


@bracketed_root.defjvp
def _implicit(
    function: Callable[[Scalar, Any], Scalar], primals: Any, tangents: Any
) -> tuple[Scalar, Scalar]:
    parameters, lower, upper = primals
    root = bracketed_root(function, parameters, lower, upper)
    slope = jax.grad(function)(root, parameters)
    _, change = jax.jvp(lambda p: function(root, p), (parameters,), (tangents[0],))
    return root, -change / slope
