"""Ages of requests that decode, as phases in a row (the linear chain trick)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.batching.guards import LITTLE
from physim.pytree import Pytree
from physim.service.phases import decode_steps
from physim.types import AnyArray

# Chosen on benchmarks/fluid_against_replay.py (loads above the capacity).
_COUNT = 8


class AgePhases(Pytree):
    """Ages of decoding requests in a row, in steps.

    Attributes:
        stay: Mean stay in each.
        onward: Share that goes on to the next.
        age: Tokens that a request in it has generated, mean.
    """

    stay: Float[AnyArray, " phases"]
    onward: Float[AnyArray, " phases"]
    age: Float[AnyArray, " phases"]

    @classmethod
    def from_demand(cls, demand: Demand) -> AgePhases:
        """Those of a load.

        Args:
            demand: The load.
        """
        steps = jnp.maximum(decode_steps(demand.output_steps), LITTLE)
        edges = jnp.max(steps) * np.linspace(0.0, 1.0, _COUNT + 1)
        left = jnp.mean(steps[:, None] > edges, axis=0)
        width = edges[1]
        stay = jnp.mean(jnp.clip(steps[:, None] - edges[:-1], 0.0, width), axis=0) / left[:-1]
        age = demand.tokens_each * (edges[:-1] + stay / 2) + 1.0
        return cls(stay, left[1:] / left[:-1], age)
