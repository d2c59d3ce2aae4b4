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
# Newton's steps from below to the root of a curve that does not turn: each doubles the digits.
NEWTON_STEPS = 5
# Rounding errors below which the sign of a value says nothing.
_ROUNDING_ERRORS = 32
# Of a point and parameters: a value whose root is wanted, and whatever else was found there.
Function = Callable[[Scalar, Any], tuple[Scalar, Any]]
# Of a point, parameters and a case, a whole number: of the case 0 a value whose root is wanted,
# what was found there, and of every case what is wanted of it at the root.
OfCases = Callable[[Scalar, Any, Int[Array, ""]], tuple[Scalar, Any, Any]]


class _Bracket(NamedTuple):
    """Two points with values of opposite sign, and what was found at the point tried last."""

    low: Scalar
    high: Scalar
    at_low: Scalar
    at_high: Scalar
    point: Scalar
    value: Scalar
    found: Any
    of_cases: Any
    case: Int[Array, ""]
    evaluations: Int[Array, ""]


def bracketed_root(
    function: Function, parameters: Any, lower: Scalar, upper: Scalar, start: Scalar
) -> tuple[Scalar, Any]:
    """Where a function that rises through zero between two bounds does so, and what it found there.

    Args:
        function: Of a point and the parameters: a value, negative at ``lower``, positive at
            ``upper`` and continuous, and a tree of floating-point arrays. Derivatives with respect
            to what it closes over are not seen.
        parameters: What the root depends on; a tree of arrays, differentiable.
        lower: Start of the bracket.
        upper: Its end.
        start: Where the function is first evaluated, between the two.
    """

    def of_one(point: Scalar, parameters: Any, _: Int[Array, ""]) -> tuple[Scalar, Any, Any]:
        return *function(point, parameters), ()

    root, found, _ = root_of_cases(of_one, 1, parameters, lower, upper, start)
    return root, found


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def root_of_cases(
    function: OfCases, cases: int, parameters: Any, lower: Scalar, upper: Scalar, start: Scalar
) -> tuple[Scalar, Any, Any]:
    """The root of a function's case 0, what was found there, and what other cases are at it.

    The Illinois variant of regula falsi (Dowell and Jarratt, BIT 11, 1971): superlinear, always
    bracketed, one evaluation an iteration. What the function finds beside its value comes out of
    the last iteration, and other cases take a turn of the loop each after it, so that a model is
    compiled once, within the loop. The bounds' values need only have the right sign, and are taken
    as their distance from where the search starts: the functions solved here are the difference of
    their argument and something that changes less.

    Args:
        function: Of a point, the parameters and a case; see `bracketed_root`.
        cases: How many cases there are.
        parameters: What the root depends on; a tree of arrays, differentiable.
        lower: Start of the bracket.
        upper: Its end.
        start: Where the function is first evaluated, between the two.
    """
    tolerance = _ROUNDING_ERRORS * jnp.finfo(lower.dtype).eps

    def searching(bracket: _Bracket) -> Array:
        wide = bracket.high - bracket.low > tolerance
        more = bracket.evaluations < _MAX_EVALUATIONS
        return wide & (jnp.abs(bracket.value) > tolerance) & more

    def narrow(bracket: _Bracket) -> _Bracket:
        low, high, at_low, at_high = bracket.low, bracket.high, bracket.at_low, bracket.at_high
        search = bracket.case == 0
        point = (low * at_high - high * at_low) / (at_high - at_low)
        point = jnp.where(search, point, bracket.point)
        value, found, of_case = function(point, parameters, bracket.case)
        of_cases = jax.tree.map(
            lambda every, own: every.at[bracket.case].set(own), bracket.of_cases, of_case
        )
        below = value < 0
        # An end that is kept twice running has its value halved, which draws the next point
        # towards it.
        shrink = jnp.where(below == (bracket.value < 0), 0.5, 1.0)
        next_one = _Bracket(
            low=jnp.where(below, point, low),
            high=jnp.where(below, high, point),
            at_low=jnp.where(below, value, at_low * shrink),
            at_high=jnp.where(below, at_high * shrink, value),
            point=point,
            value=value,
            found=found,
            of_cases=of_cases,
            case=bracket.case,
            evaluations=bracket.evaluations + 1,
        )
        kept = bracket._replace(of_cases=of_cases)
        after: _Bracket = jax.tree.map(partial(jnp.where, search), next_one, kept)
        return after._replace(case=bracket.case + (~search | ~searching(after)))

    _, *shapes = jax.eval_shape(function, lower, parameters, jnp.zeros((), int))
    # Zero, with an axis of its own where the bounds have one: JAX batches the loop once, not twice.
    nothing = 0.0 * lower

    def empty(leaf: jax.ShapeDtypeStruct, *number: int) -> Array:
        return jnp.broadcast_to(nothing.astype(leaf.dtype), (*number, *leaf.shape))

    found, of_case = jax.tree.map(empty, shapes)
    of_cases = jax.tree.map(lambda leaf: empty(leaf, cases), of_case)
    low, high, none = lower - start, upper - start, nothing.astype(int)
    begin = _Bracket(lower, upper, low, high, lower, high, found, of_cases, none, none)
    end = jax.lax.while_loop(lambda bracket: bracket.case < cases, narrow, begin)
    return end.point, end.found, end.of_cases


@root_of_cases.defjvp
def _implicit(
    function: OfCases, cases: int, primals: Any, tangents: Any
) -> tuple[tuple[Scalar, Any, Any], tuple[Scalar, Any, Any]]:
    parameters, *bracket = primals
    root, *found = root_of_cases(function, cases, parameters, *bracket)

    # A case at a time, in loops of their own: at once, where one root is sought within another,
    # they took XLA three times the memory. Along the point and the parameters apart, since a change
    # of nothing in what is infinite, such as the rate of clients, has no number.
    def along(change: Callable[[Int[Array, ""]], tuple[Scalar, Any, Any]]) -> Any:
        value, found, of_cases = jax.lax.map(change, jnp.arange(cases))
        return value[0], jax.tree.map(lambda x: x[0], found), of_cases

    def along_point(case: Int[Array, ""]) -> tuple[Scalar, Any, Any]:
        return jax.jvp(lambda x: function(x, parameters, case), (root,), (1.0,))[1]

    def along_parameters(case: Int[Array, ""]) -> tuple[Scalar, Any, Any]:
        return jax.jvp(lambda p: function(root, p, case), (parameters,), (tangents[0],))[1]

    slope, *by_point = along(along_point)
    change, *by_parameters = along(along_parameters)
    moved = -change / slope
    changes = jax.tree.map(lambda x, p: moved * x + p, by_point, by_parameters)
    return (root, *found), (moved, *changes)
