"""What programs call: NumPy's functions, and those of JAX's operations that it has none for.

Loads neither JAX nor SciPy, whose import takes as long as a program runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from physim.types import AnyArray

# Of each axis of a window: which axis of the indexed array it is, and where its numbers lie.
Axes = Sequence[int]

# The digamma function is taken so far out by its recurrence that six terms of its asymptotic series
# (Abramowitz and Stegun, 6.3.18) have all digits.
_FAR = 10
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)


def _elementwise(function: Callable[[float], float]) -> Callable[[AnyArray], AnyArray]:
    """A function of one number for arrays, of their type."""
    many = np.frompyfunc(function, 1, 1)

    def of_array(x: AnyArray) -> AnyArray:
        return np.asarray(many(x)).astype(np.asarray(x).dtype)

    return of_array


def _log_gamma(x: float) -> float:
    """Logarithm of the gamma function's absolute value; infinite at its poles."""
    try:
        return math.lgamma(x)
    except ValueError:
        return math.inf


def _erf_inv(x: float) -> float:
    """The inverse of the error function."""
    if not abs(x) < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    found = -NormalDist().inv_cdf((1.0 - abs(x)) / 2.0) / math.sqrt(2.0)
    if abs(x) < 0.5:
        # The tail is a difference here. One of Newton's steps has the digits that it lacks.
        slope = 2.0 / math.sqrt(math.pi) * math.exp(-(found**2))
        found += (abs(x) - math.erf(found)) / slope
    return math.copysign(found, x)


def _digamma(x: float) -> float:
    """The gamma function's logarithmic derivative; no number at its poles."""
    if not x > 0.0:
        if math.isnan(x) or x == math.floor(x):
            return math.nan
        return _digamma(1.0 - x) - math.pi / math.tan(math.pi * x)
    if math.isinf(x):
        return x
    found = 0.0
    while x < _FAR:
        found -= 1.0 / x
        x += 1.0
    series = sum(term / x ** (2 * place) for place, term in enumerate(_DIGAMMA, start=1))
    return found + math.log(x) - 0.5 / x - series


def logistic(x: AnyArray) -> AnyArray:
    """One over one and the exponential of the negative."""
    one: AnyArray = np.asarray(x).dtype.type(1)
    return one / (one + np.exp(-x))


def quotient(dividend: AnyArray, divisor: AnyArray) -> AnyArray:
    """Whole numbers divided, without what is left over, towards zero."""
    found: AnyArray = (dividend - np.fmod(dividend, divisor)) // divisor
    return found


def sort(arrays: Sequence[AnyArray], axis: int, keys: int) -> tuple[AnyArray, ...]:
    """Arrays sorted along an axis by the first of them, and further ones where those are equal.

    Args:
        arrays: The arrays, of one shape.
        axis: Along which.
        keys: How many of them say the order.
    """
    if len(arrays) == 1:
        return (np.sort(arrays[0], axis),)
    order = np.lexsort(tuple(reversed(arrays[:keys])), axis)
    return tuple(np.take_along_axis(one, order, axis) for one in arrays)


def gather(
    array: AnyArray,
    starts: AnyArray,
    offset: Axes,
    collapsed: Axes,
    mapped: Axes,
    batched: Axes,
    starts_batched: Axes,
    sizes: Sequence[int],
    fills: bool,
) -> AnyArray:
    """XLA's gather: windows of an array, each from where an index says.

    Args:
        array: What the windows are of.
        starts: Where they start; the last axis is along that of ``mapped``.
        offset: Axes of the result that are those of a window.
        collapsed: Axes of a window, of one number each, that the result lacks.
        mapped: Axes of the array that the starts are along.
        batched: Axes that array and result go along together,
        starts_batched: and those of the starts that do.
        sizes: Numbers of a window along each axis of the array.
        fills: Whether windows beyond the array are filled with what is no number, rather than
            moved within it.
    """
    count = starts.ndim - 1 + len(offset)
    outer = [axis for axis in range(count) if axis not in offset]
    places = _places(array.ndim, starts, outer, count, mapped, batched, starts_batched)
    inside = _inside(places, array, mapped, sizes, count)
    for axis in mapped:
        places[axis] = np.clip(places[axis], 0, array.shape[axis] - sizes[axis])
    within = [axis for axis in range(array.ndim) if axis not in (*collapsed, *batched)]
    _add_windows(places, within, offset, sizes, count)
    found: AnyArray = array[tuple(places)]
    if fills and not inside.all():
        other = np.nan if np.issubdtype(found.dtype, np.inexact) else np.iinfo(found.dtype).min
        found = np.where(inside, found, np.asarray(other, found.dtype))
    return found


def scatter(
    array: AnyArray,
    starts: AnyArray,
    updates: AnyArray,
    kind: str,
    windows: Axes,
    inserted: Axes,
    mapped: Axes,
    batched: Axes,
    starts_batched: Axes,
) -> AnyArray:
    """XLA's scatter: an array some of whose numbers are changed; those beyond it are dropped.

    Args:
        array: The array.
        starts: Where each window of the updates begins; the last axis is along that of ``mapped``.
        updates: The new numbers, or what is added or multiplied.
        kind: ``set``, ``add``, ``multiply``, ``minimum`` or ``maximum``.
        windows: Axes of the updates that are those of a window.
        inserted: Axes of the array that windows lack.
        mapped: Axes of the array that the starts are along.
        batched: Axes that array and updates go along together,
        starts_batched: and those of the starts that do.
    """
    count = np.ndim(updates)
    outer = [axis for axis in range(count) if axis not in windows]
    places = _places(array.ndim, starts, outer, count, mapped, batched, starts_batched)
    within = [axis for axis in range(array.ndim) if axis not in (*inserted, *batched)]
    sizes = [1] * array.ndim
    for axis, own in zip(within, windows, strict=True):
        sizes[axis] = updates.shape[own]
    inside = _inside(places, array, mapped, sizes, count)
    _add_windows(places, within, windows, sizes, count)
    if not inside.all():
        inside = np.broadcast_to(inside, np.shape(updates))
        places = [np.broadcast_to(place, np.shape(updates))[inside] for place in places]
        updates = updates[inside]
    changed = np.array(array)
    where = tuple(places)
    if kind == "set":
        changed[where] = updates
    else:
        getattr(np, kind).at(changed, where, updates)
    return changed


def _places(
    axes: int,
    starts: AnyArray,
    outer: Axes,
    count: int,
    mapped: Axes,
    batched: Axes,
    starts_batched: Axes,
) -> list[Any]:
    """Where windows start along each of so many axes, for a result of ``count`` axes."""
    places: list[Any] = [np.zeros((1,) * count, int) for _ in range(axes)]

    def spread(numbers: AnyArray) -> AnyArray:
        shape = [1] * count
        for axis, size in zip(outer, numbers.shape, strict=True):
            shape[axis] = size
        return numbers.reshape(shape)

    for place, axis in enumerate(mapped):
        places[axis] = spread(starts[..., place].astype(int))
    for axis, own in zip(batched, starts_batched, strict=True):
        shape = [1] * (starts.ndim - 1)
        shape[own] = starts.shape[own]
        places[axis] = spread(np.arange(starts.shape[own]).reshape(shape))
    return places


def _inside(
    places: list[Any], array: AnyArray, mapped: Axes, sizes: Sequence[int], count: int
) -> Any:
    """Whether each window is whole within the array."""
    inside = np.ones((1,) * count, bool)
    for axis in mapped:
        most = array.shape[axis] - sizes[axis]
        inside = inside & (places[axis] >= 0) & (places[axis] <= most)
    return inside


def _add_windows(
    places: list[Any], within: Axes, windows: Axes, sizes: Sequence[int], count: int
) -> None:
    """Adds to where windows start the places of the numbers within them."""
    for axis, own in zip(within, windows, strict=True):
        shape = [1] * count
        shape[own] = sizes[axis]
        places[axis] = places[axis] + np.arange(sizes[axis]).reshape(shape)


def dynamic_slice(array: AnyArray, starts: Sequence[Any], sizes: Sequence[int]) -> AnyArray:
    """A window of an array, moved within it."""
    return array[_window(array, starts, sizes)]


def dynamic_update_slice(array: AnyArray, window: AnyArray, starts: Sequence[Any]) -> AnyArray:
    """An array with other numbers in a window, which is moved within it."""
    changed = np.array(array)
    changed[_window(array, starts, window.shape)] = window
    return changed


def _window(array: AnyArray, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    begins = [
        min(max(int(start), 0), total - size)
        for start, size, total in zip(starts, sizes, array.shape, strict=True)
    ]
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


_OF_NUMPY = (
    "absolute",
    "add",
    "all",
    "any",
    "arctan2",
    "argmax",
    "argmin",
    "array",
    "broadcast_to",
    "ceil",
    "concatenate",
    "cos",
    "cumsum",
    "cumprod",
    "divide",
    "einsum",
    "exp",
    "exp2",
    "expm1",
    "flip",
    "floor",
    "fmod",
    "isfinite",
    "log",
    "log1p",
    "logical_and",
    "logical_or",
    "matmul",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "power",
    "rint",
    "sign",
    "sin",
    "sqrt",
    "stack",
    "tanh",
    "tile",
    "where",
)
# By the names that programs call them by.
NAMES: dict[str, Any] = {name: getattr(np, name) for name in _OF_NUMPY} | {
    "digamma": _elementwise(_digamma),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "erf": _elementwise(math.erf),
    "erf_inv": _elementwise(_erf_inv),
    "erfc": _elementwise(math.erfc),
    "gather": gather,
    "log_gamma": _elementwise(_log_gamma),
    "logistic": logistic,
    "quotient": quotient,
    "scatter": scatter,
    "sort": sort,
}
