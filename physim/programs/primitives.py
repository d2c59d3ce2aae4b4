"""How each of JAX's operations is written on NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from physim.programs.lines import Line, Shape, Value
from physim.programs.program import UnwrittenError
from physim.programs.writer import Writer, Writes

# Elementwise operations: of JAX, as an expression of their operands.
_ELEMENTWISE = {
    "abs": "absolute({})",
    "add": "{} + {}",
    "add_any": "{} + {}",
    "and": "{} & {}",
    "atan2": "arctan2({}, {})",
    "ceil": "ceil({})",
    "copy": "{}",
    "copy_p": "{}",
    "cos": "cos({})",
    "digamma": "digamma({})",
    "eq": "{} == {}",
    "eq_to": "{} == {}",
    "erf": "erf({})",
    "erf_inv": "erf_inv({})",
    "erfc": "erfc({})",
    "exp": "exp({})",
    "exp2": "exp2({})",
    "expm1": "expm1({})",
    "floor": "floor({})",
    "ge": "{} >= {}",
    "gt": "{} > {}",
    "is_finite": "isfinite({})",
    "le": "{} <= {}",
    "le_to": "{} <= {}",
    "lgamma": "log_gamma({})",
    "log": "log({})",
    "log1p": "log1p({})",
    "logistic": "logistic({})",
    "lt": "{} < {}",
    "lt_to": "{} < {}",
    "max": "maximum({}, {})",
    "min": "minimum({}, {})",
    "mul": "{} * {}",
    "ne": "{} != {}",
    "neg": "-{}",
    "nextafter": "nextafter({}, {})",
    "not": "~{}",
    "or": "{} | {}",
    "pow": "power({}, {})",
    "rem": "fmod({}, {})",
    "round": "rint({})",
    "sign": "sign({})",
    "sin": "sin({})",
    "sqrt": "sqrt({})",
    "square": "{0} * {0}",
    "stop_gradient": "{}",
    "sub": "{} - {}",
    "tanh": "tanh({})",
    "xor": "{} ^ {}",
}
_REDUCTIONS = {
    "reduce_and": "logical_and",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_or": "logical_or",
    "reduce_prod": "multiply",
    "reduce_sum": "add",
}
_SCATTERS = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter-max": "maximum",
    "scatter-min": "minimum",
    "scatter-mul": "multiply",
    "scatter_add": "add",
    "scatter_max": "maximum",
    "scatter_min": "minimum",
    "scatter_mul": "multiply",
}
# Calls of functions, which are written where they stand, by where their own operations are.
_CALLS = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
}


def _together(operands: Sequence[Value]) -> Shape:
    """The shape of what an elementwise operation finds."""
    return np.broadcast_shapes(*(one.shape for one in operands))


def _elementwise(text: str) -> Writes:
    """Writes an elementwise operation as an expression of its operands."""

    def write(writer: Writer, _equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
        return [writer.line(text, operands, _together(operands))]

    return write


def _call(where: str) -> Writes:
    """Writes a call, whose function's operations are its parameter of a name."""

    def write(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
        called = equation.params[where]
        if isinstance(called, core.Jaxpr):
            called = core.ClosedJaxpr(called, ())
        return writer.inlined(called, operands)

    return write


def _divide(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    is_whole = not np.issubdtype(equation.outvars[0].aval.dtype, np.inexact)
    return [
        writer.line("quotient({}, {})" if is_whole else "{} / {}", operands, _together(operands))
    ]


def _whole(numbers: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers as Python's."""
    return tuple(map(int, numbers))


def _listed(count: int) -> str:
    """Places for so many names, in a tuple."""
    return f"({'{}, ' * count})"


def _select(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    if len(operands) != 3 or equation.invars[0].aval.dtype != bool:
        raise UnwrittenError("select_n")
    return [writer.line("where({0}, {2}, {1})", operands, _together(operands))]


def _clamp(writer: Writer, _equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    return [writer.line("minimum(maximum({1}, {0}), {2})", operands, _together(operands))]


def _convert(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), kind = operands, np.dtype(equation.params["new_dtype"])
    if equation.invars[0].aval.dtype == kind:
        return [value]
    return [writer.line(f"{{}}.astype({kind.name!r})", [value], value.shape)]


def _integer_power(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), power = operands, equation.params["y"]
    product = " * ".join(["{0}"] * abs(power))
    if power > 0:
        return [writer.line(product, [value], value.shape)]
    one = writer.constant(np.ones((), equation.invars[0].aval.dtype))
    return [writer.line(f"{{1}} / ({product})", [value, one], value.shape)]


def _broadcast(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value, *others), own = operands, _whole(equation.params["broadcast_dimensions"])
    if others:
        raise UnwrittenError("broadcast_in_dim of shapes known at run time")
    if not value.shape:
        return [value]
    shape = [1] * len(equation.params["shape"])
    for axis, size in zip(own, value.shape, strict=True):
        shape[axis] = size
    if tuple(shape) == value.shape:
        return [value]
    places = ", ".join(":" if axis in own else "None" for axis in range(len(shape)))
    return [writer.line(f"{{}}[{places}]", [value], tuple(shape))]


def _squeeze(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,) = operands
    gone = _whole(equation.params["dimensions"])
    if not value.shape or not gone:
        return [value]
    places = ", ".join("0" if axis in gone else ":" for axis in range(len(value.shape)))
    shape = tuple(size for axis, size in enumerate(value.shape) if axis not in gone)
    return [writer.line(f"{{}}[{places}]", [value], shape)]


def _reshape(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    shape = _whole(equation.params["new_sizes"])
    if not operands[0].shape:
        return operands[:1]
    (value,) = writer.all_spread(equation, operands)
    return [writer.line(f"{{}}.reshape({shape})", [value], shape)]


def _transpose(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), order = operands, _whole(equation.params["permutation"])
    if not value.shape or order == tuple(range(len(order))):
        return [value]
    return [
        writer.line(f"{{}}.transpose({order})", [value], tuple(value.shape[axis] for axis in order))
    ]


def _slice(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), params = operands, equation.params
    if not value.shape:
        return [value]
    shape, places = [], []
    starts, limits = _whole(params["start_indices"]), _whole(params["limit_indices"])
    strides = _whole(params["strides"] or [1] * len(starts))
    for axis, (size, whole) in enumerate(
        zip(value.shape, equation.invars[0].aval.shape, strict=True)
    ):
        start, limit, stride = starts[axis], limits[axis], strides[axis]
        if size < whole or (start, limit, stride) == (0, whole, 1):
            places.append(":")
            shape.append(size)
        else:
            places.append(f"{start}:{limit}:{stride}")
            shape.append(equation.outvars[0].aval.shape[axis])
    if set(places) == {":"}:
        return [value]
    return [writer.line(f"{{}}[{', '.join(places)}]", [value], tuple(shape))]


def _split(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), axis = writer.all_spread(equation, operands), int(equation.params["axis"])
    found, start = [], 0
    for size, variable in zip(_whole(equation.params["sizes"]), equation.outvars, strict=True):
        text = f"{{}}[{':, ' * axis}{start}:{start + size}]"
        found.append(writer.line(text, [value], variable.aval.shape))
        start += size
    return found


def _reverse(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), axes = writer.all_spread(equation, operands), _whole(equation.params["dimensions"])
    return [writer.line(f"flip({{}}, {axes})", [value], value.shape)]


def _reduce(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), function = (
        writer.all_spread(equation, operands),
        _REDUCTIONS[equation.primitive.name],
    )
    axes, result = _whole(equation.params["axes"]), equation.outvars[0].aval
    if not axes:
        return [value]
    # Of whole numbers NumPy's sum is of a wider type.
    kind = "" if np.issubdtype(result.dtype, np.inexact) else f", {result.dtype.name!r}"
    along = axes[0] if len(axes) == 1 else axes
    return [writer.line(f"{function}.reduce({{}}, {along}{kind})", [value], result.shape)]


def _arg_reduce(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), result = writer.all_spread(equation, operands), equation.outvars[0].aval
    (axis,), name = _whole(equation.params["axes"]), equation.primitive.name
    text = f"{name}({{}}, {axis}).astype({result.dtype.name!r})"
    return [writer.line(text, [value], result.shape)]


def _cumulate(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,), axis = writer.all_spread(equation, operands), int(equation.params["axis"])
    text = f"{equation.primitive.name}({{}}, {axis})"
    if equation.params["reverse"]:
        text = f"flip({equation.primitive.name}(flip({{}}, {axis}), {axis}), {axis})"
    return [writer.line(text, [value], value.shape)]


def _tile(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,) = writer.all_spread(equation, operands)
    times, shape = _whole(equation.params["reps"]), equation.outvars[0].aval.shape
    return [writer.line(f"tile({{}}, {times})", [value], shape)]


def _concatenate(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, axis = writer.all_spread(equation, operands), int(equation.params["dimension"])
    text = f"concatenate({_listed(len(values))}, {axis})"
    return [writer.line(text, values, equation.outvars[0].aval.shape)]


def _stack(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, axis = writer.all_spread(equation, operands), int(equation.params["axis"])
    # At the first axis it is what `array` does, five times as quick.
    text = f"stack({_listed(len(values))}, {axis})" if axis else f"array({_listed(len(values))})"
    return [writer.line(text, values, equation.outvars[0].aval.shape)]


def _iota(writer: Writer, equation: core.JaxprEqn, _operands: list[Value]) -> list[Value]:
    result, axis = equation.outvars[0].aval, equation.params["dimension"]
    shape = [1] * len(result.shape)
    shape[axis] = result.shape[axis]
    numbers = np.arange(result.shape[axis], dtype=result.dtype).reshape(shape)
    return [writer.constant(np.broadcast_to(numbers, result.shape))]


def _dot(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, shape = writer.all_spread(equation, operands), equation.outvars[0].aval.shape
    contracted, batched = (
        tuple(map(_whole, pairs)) for pairs in equation.params["dimension_numbers"]
    )
    sides = [[""] * len(one.shape) for one in values]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    result = ""
    for pairs, stays in ((batched, True), (contracted, False)):
        for left, right in zip(*pairs, strict=True):
            sides[0][left] = sides[1][right] = letter = next(letters)
            result += letter if stays else ""
    for side in sides:
        for axis, letter in enumerate(side):
            if not letter:
                side[axis] = next(letters)
                result += side[axis]
    # What `matmul` does is quicker by it.
    is_plain = not batched[0] and contracted == ((len(sides[0]) - 1,), (0,)) and len(sides[1]) <= 2
    subscripts = f"{''.join(sides[0])},{''.join(sides[1])}->{result}"
    text = "matmul({}, {})" if is_plain else f"einsum({subscripts!r}, {{}}, {{}})"
    return [writer.line(text, values, shape)]


def _sort(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, params = writer.all_spread(equation, operands), equation.params
    text = f"sort({_listed(len(values))}, {params['dimension']}, {params['num_keys']})"
    shapes = [variable.aval.shape for variable in equation.outvars]
    if all(one.known is not None for one in values):
        # Constants are arrays, not tuples of them.
        return [writer.line(f"{text}[{place}]", values, own) for place, own in enumerate(shapes)]
    every = writer.line(text, values, ())
    return [writer.line(f"{{}}[{place}]", [every], own) for place, own in enumerate(shapes)]


def _gather(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, params = writer.all_spread(equation, operands), equation.params
    numbers, fill = params["dimension_numbers"], params["fill_value"]
    fills = params["mode"].name == "FILL_OR_DROP"
    if fills and fill is not None and not math.isnan(fill):
        raise UnwrittenError(f"gather filled with {fill}")
    how = [
        numbers.offset_dims,
        numbers.collapsed_slice_dims,
        numbers.start_index_map,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        params["slice_sizes"],
    ]
    told = ", ".join(str(_whole(one)) for one in how)
    text = f"gather({{}}, {{}}, {told}, {fills})"
    return [writer.line(text, values, equation.outvars[0].aval.shape)]


def _scatter(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, params = writer.all_spread(equation, operands), equation.params
    numbers = params["dimension_numbers"]
    if params["mode"].name not in ("PROMISE_IN_BOUNDS", "FILL_OR_DROP"):
        raise UnwrittenError("scatter")
    how = [
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    ]
    kind, told = _SCATTERS[equation.primitive.name], ", ".join(str(_whole(one)) for one in how)
    text = f"scatter({{}}, {{}}, {{}}, {kind!r}, {told})"
    return [writer.line(text, values, equation.outvars[0].aval.shape)]


def _dynamic_slice(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    values, sizes = writer.all_spread(equation, operands), _whole(equation.params["slice_sizes"])
    text = f"dynamic_slice({{}}, {_listed(len(sizes))}, {sizes})"
    return [writer.line(text, values, sizes)]


def _dynamic_update_slice(
    writer: Writer, equation: core.JaxprEqn, operands: list[Value]
) -> list[Value]:
    array, window, *starts = writer.all_spread(equation, operands)
    text = f"dynamic_update_slice({{}}, {{}}, {_listed(len(starts))})"
    return [writer.line(text, [array, window, *starts], array.shape)]


def _while(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    params, values = equation.params, writer.all_spread(equation, operands)
    of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
    begins = values[of_test + of_body :]
    loop = writer.begin("while True:", begins)
    own = operands[:of_test], operands[of_test : of_test + of_body]
    (going,) = writer.inlined(params["cond_jaxpr"], [*own[0], *loop.changes])
    rows = len(going.shape)
    # Of many at once each goes on for as long as its own test says, and the loop while any does.
    some = writer.line("{}.any()", [going], ()) if rows else going
    loop.inside.append(Line(None, f"if not {some.name}: break", [some]))
    found = writer.inlined(params["body_jaxpr"], [*own[1], *loop.changes])
    ends = []
    for before, after in zip(loop.changes, found, strict=True):
        if rows and after != before:
            shape = going.shape + (1,) * (len(before.shape) - rows)
            own_test = going
            if shape != going.shape:
                own_test = writer.line(f"{{}}.reshape({shape})", [going], shape)
            three = [own_test, after, before]
            after = writer.line("where({}, {}, {})", three, before.shape)
        ends.append(writer.spread(after, before.shape))
    return writer.end(loop, ends)


def _scan(writer: Writer, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
    params, values = equation.params, writer.all_spread(equation, operands)
    fixed, carried, length = params["num_consts"], params["num_carry"], params["length"]
    begins, every = values[fixed : fixed + carried], values[fixed + carried :]
    depth = len(writer.blocks)
    turn = writer.fresh((), depth)
    turns = f"reversed(range({length}))" if params["reverse"] else f"range({length})"
    loop = writer.begin(f"for {turn.name} in {turns}:", begins)
    own = [writer.line("{}[{}]", [one, turn], one.shape[1:]) for one in every]
    found = writer.inlined(params["jaxpr"], [*operands[:fixed], *loop.changes, *own])
    ends = [
        writer.spread(after, before.shape)
        for after, before in zip(found[:carried], loop.changes, strict=True)
    ]
    if not length:
        raise UnwrittenError("a scan of nothing")
    lists = []
    for value, variable in zip(found[carried:], equation.outvars[carried:], strict=True):
        value = writer.spread(value, variable.aval.shape[1:])
        name = writer.fresh((), depth).name
        lists.append(name)
        loop.inside.append(Line(None, f"{name}.append({value.name})", [value]))
    loop.lists, loop.turns = lists, length
    after = writer.end(loop, ends)
    loop.results = [
        writer.fresh(variable.aval.shape, depth - 1) for variable in equation.outvars[carried:]
    ]
    loop.turned = params["reverse"]
    return [*after, *loop.results]


PRIMITIVES: dict[str, Writes] = {
    "argmax": _arg_reduce,
    "argmin": _arg_reduce,
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "convert_element_type": _convert,
    "cumprod": _cumulate,
    "cumsum": _cumulate,
    "div": _divide,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "integer_pow": _integer_power,
    "iota": _iota,
    "reshape": _reshape,
    "rev": _reverse,
    "scan": _scan,
    "select_n": _select,
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
    "while": _while,
}
PRIMITIVES |= {name: _elementwise(text) for name, text in _ELEMENTWISE.items()}
PRIMITIVES |= {name: _call(where) for name, where in _CALLS.items()}
PRIMITIVES |= dict.fromkeys(_REDUCTIONS, _reduce) | dict.fromkeys(_SCATTERS, _scatter)
