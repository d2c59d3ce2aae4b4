"""Many records of numbers as one, with a leading axis for ``vmap``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Record = TypeVar("Record")


def stack(records: Sequence[Record]) -> Record:
    """Stacks records of one shape leaf by leaf, in NumPy."""
    leaves, structures = zip(*(jax.tree.flatten(record) for record in records), strict=True)
    columns = zip(*leaves, strict=True)
    return jax.tree.unflatten(structures[0], [np.array(column) for column in columns])


def stacked(records: Sequence[Record]) -> Record:
    """Stacks records of one shape leaf by leaf while tracing."""
    whole: Record = jax.tree.map(lambda *x: jnp.stack(jnp.broadcast_arrays(*x)), *records)
    return whole
