"""The types of arrays that annotations name.

Lowered models hold NumPy arrays, which become JAX arrays when a function is traced, so both are
meant wherever an array is. The type checker takes them all for opaque; shapes and types are
checked at run time, in the tests (`tests/conftest.py`). Naming them loads no JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float, Num

# Whatever has a shape and a type of its numbers.
AnyArray: TypeAlias = Any
if TYPE_CHECKING:
    Scalar: TypeAlias = Any
    Number: TypeAlias = Any
else:
    Scalar = Num[AnyArray, ""] | float | int
    # Of any shape, for elementwise arithmetic.
    Number = Num[AnyArray, "..."] | float | int
Knots: TypeAlias = Float[np.ndarray, " knots"]


def known_number(leaf: object) -> bool:
    """Whether a leaf of a record is one number whose value is known, and not traced or an array."""
    import jax

    if isinstance(leaf, jax.core.Tracer):
        return False
    return isinstance(leaf, int | float | np.ndarray | np.generic | jax.Array) and not np.ndim(leaf)
