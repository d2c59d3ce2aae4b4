"""What is written so far of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.extend import core

from physim.programs.lines import Line, Loop, Shape, Value
from physim.programs.operations import NAMES
from physim.programs.program import UnwrittenError


class Writer:
    """What is written so far of a program.

    Args:
        primitives: What writes each of JAX's operations.

    Attributes:
        blocks: Lines outside of all loops, in the loop that is being written, in the one in that.
        constants: Arrays by their names.
    """

    def __init__(self, primitives: Mapping[str, Writes]) -> None:
        self._primitives = primitives
        self.blocks: list[list[Line | Loop]] = [[]]
        self.constants: dict[str, np.ndarray] = {}
        self._number = 0
        self._known: dict[tuple[Shape, str, bytes], Value] = {}
        self._said: dict[str, Value] = {}

    def constant(self, number: Any) -> Value:
        """An array whose numbers are known."""
        array = np.asarray(number)
        key = array.shape, array.dtype.str, array.tobytes()
        if key not in self._known:
            name = f"k{len(self._known)}"
            # Scalars of their type are what NumPy is quickest with.
            self.constants[name] = array[()]
            self._known[key] = Value(name, array.shape, 0, array)
        return self._known[key]

    def fresh(self, shape: Shape, depth: int) -> Value:
        """A new name."""
        self._number += 1
        return Value(f"v{self._number}", shape, depth)

    def line(self, text: str, reads: Sequence[Value], shape: Shape) -> Value:
        """What an expression is, in the outermost loop where it can be told.

        Args:
            text: The expression, with ``{}`` for the name of each value that it reads in turn.
            reads: These.
            shape: Its shape.
        """
        expression = text.format(*(one.name for one in reads))
        if all(one.known is not None for one in reads):
            return self.constant(eval(expression, {**NAMES, **self.constants}))
        if expression not in self._said:
            depth = max(one.depth for one in reads)
            value = self.fresh(shape, depth)
            self.blocks[depth].append(Line(value, expression, reads))
            self._said[expression] = value
        return self._said[expression]

    def spread(self, value: Value, shape: Shape) -> Value:
        """The value with all numbers of a shape, of which it may have each once."""
        if value.shape == shape:
            return value
        return self.line(f"broadcast_to({{}}, {shape})", [value], shape)

    def inlined(self, called: core.ClosedJaxpr, arguments: Sequence[Value]) -> list[Value]:
        """What a function finds, written where it is called."""
        jaxpr = called.jaxpr
        names: dict[core.Var, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        names.update(zip(jaxpr.constvars, map(self.constant, called.consts), strict=True))

        def read(variable: core.Var | core.Literal) -> Value:
            if isinstance(variable, core.Literal):
                return self.constant(np.asarray(variable.val, variable.aval.dtype))
            return names[variable]

        for equation in jaxpr.eqns:
            found = self._operation(equation, [read(one) for one in equation.invars])
            names.update(zip(equation.outvars, found, strict=True))
        return [read(one) for one in jaxpr.outvars]

    def _operation(self, equation: core.JaxprEqn, operands: list[Value]) -> list[Value]:
        name = equation.primitive.name
        write = self._primitives.get(name)
        if write is None:
            raise UnwrittenError(name)
        return write(self, equation, operands)

    def all_spread(self, equation: core.JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Operands with all their numbers."""
        return [
            self.spread(value, variable.aval.shape)
            for value, variable in zip(operands, equation.invars, strict=True)
        ]

    def begin(self, head: str, begins: Sequence[Value]) -> Loop:
        """A loop in which some names change.

        Args:
            head: Its first line.
            begins: What they are before it.
        """
        depth = len(self.blocks)
        changes = [self.fresh(one.shape, depth) for one in begins]
        loop = Loop(head, begins, changes)
        self.blocks.append(loop.inside)
        return loop

    def end(self, loop: Loop, ends: Sequence[Value]) -> list[Value]:
        """Ends a loop, and names what the changing names are after it.

        Args:
            loop: The loop.
            ends: What they are set to at the end of each turn.
        """
        self.blocks.pop()
        depth = len(self.blocks)
        # What is found inside is known nowhere else.
        self._said = {text: one for text, one in self._said.items() if one.depth < depth}
        loop.ends = ends
        loop.after = [self.fresh(one.shape, depth - 1) for one in loop.changes]
        self.blocks[depth - 1].append(loop)
        return list(loop.after)


# Writes an operation of JAX, of values for its operands, and returns those of its results.
Writes: TypeAlias = Callable[[Writer, core.JaxprEqn, list[Value]], list[Value]]
