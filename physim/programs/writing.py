"""Writes what JAX traced of a function as a program: Python on NumPy, a line an operation.

XLA takes seconds to compile some thousand operations on small arrays and half a second to load what
it made, while NumPy does them in a tenth of one. Lines do not depend on anything but what they
read, so each is written before the loops that do not change it, and once for all who need it.
"""

from __future__ import annotations

import numpy as np
from jax.extend import core

from physim.programs.lines import Value, rendered
from physim.programs.primitives import PRIMITIVES
from physim.programs.program import Program
from physim.programs.writer import Writer


def written(traced: core.ClosedJaxpr) -> Program:
    """What JAX traced, as a program.

    Args:
        traced: It, with a variable for each argument.

    Raises:
        UnwrittenError: It has an operation that no program has.
    """
    writer = Writer(PRIMITIVES)
    arguments = [
        Value(f"a{place}", variable.aval.shape, 0)
        for place, variable in enumerate(traced.jaxpr.invars)
    ]
    with np.errstate(all="ignore"):
        found = writer.inlined(traced, arguments)
        results = [
            writer.spread(value, variable.aval.shape)
            for value, variable in zip(found, traced.jaxpr.outvars, strict=True)
        ]
    needed = {one.name for one in results}
    lines, work_s = rendered(writer.blocks[0], needed, 1)
    names = ", ".join(one.name for one in arguments)
    text = "\n".join(
        [
            f"def run({names}):",
            *lines,
            f" return [{', '.join(one.name for one in results)}]",
        ]
    )
    constants = {name: array for name, array in writer.constants.items() if name in needed}
    kinds = [variable.aval.dtype.str for variable in traced.jaxpr.invars]
    return Program.from_text(
        text, constants=constants, kinds=kinds, lines=len(lines), work_s=work_s
    )
