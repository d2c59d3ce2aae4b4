"""A linearly implicit solver for small stiff systems, as diffrax takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from physim.types import AnyArray, Scalar

# A record of numbers and arrays, which the solver takes for one vector.
State = Any
Vector = Float[AnyArray, " state"]

# Rodas3 of Sandu, Verwer, Blom, Spee, Carmichael and Potra, Atmospheric Environment 31(20), 1997:
# four stages, order 3 with an embedded order 2, L-stable.
_GAMMA = 0.5
_STAGES = ((), (0.0,), (2.0, 0.0), (2.0, 0.0, 1.0))
_SLOPES = ((), (4.0,), (1.0, -1.0), (1.0, -1.0, -8 / 3))
_RESULT = (2.0, 0.0, 1.0, 1.0)


class Rodas3(diffrax.AbstractAdaptiveSolver[None]):
    """A Rosenbrock method for autonomous systems: one Jacobian a step, and no iteration."""

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar[Callable[..., diffrax.LocalLinearInterpolation]] = (
        diffrax.LocalLinearInterpolation
    )

    def order(self, terms: Any) -> int:  # noqa: ARG002
        """Order of the method."""
        return 3

    def error_order(self, terms: Any) -> int:  # noqa: ARG002
        """Order of the error's estimate."""
        return 3

    def init(self, terms: Any, t0: Any, t1: Any, y0: State, args: Any) -> None:
        """Nothing is kept from step to step."""

    def func(self, terms: Any, t0: Scalar, y0: State, args: Any) -> State:
        """The vector field."""
        field: State = terms.vf(t0, y0, args)
        return field

    def step(
        self,
        terms: Any,
        t0: Scalar,
        t1: Scalar,
        y0: State,
        args: Any,
        state: None,  # noqa: ARG002
        jumped: Any,  # noqa: ARG002
    ) -> tuple[State, State, dict[str, State], None, Any]:
        """One step, its error, and its ends for interpolation."""
        width = t1 - t0
        start, record_of = ravel_pytree(y0)

        # Traced once for all its calls.
        @jax.jit
        def field(place: Vector) -> Vector:
            slope, _ = ravel_pytree(self.func(terms, t0, record_of(place), args))
            return slope

        def twice(place: Vector) -> tuple[Vector, Vector]:
            slope = field(place)
            return slope, slope

        jacobian, at_start = jax.jacfwd(twice, has_aux=True)(start)
        matrix = jnp.eye(start.shape[0]) / (_GAMMA * width) - jacobian
        factors = jax.scipy.linalg.lu_factor(matrix)
        none = 0.0 * start
        parts: list[Vector] = []
        for stages, slopes in zip(_STAGES, _SLOPES, strict=True):
            place = start + sum((a * k for a, k in zip(stages, parts, strict=True)), none)
            slope = field(place) if any(stages) else at_start
            slope += sum((c / width * k for c, k in zip(slopes, parts, strict=True)), none)
            parts.append(jax.scipy.linalg.lu_solve(factors, slope))
        y1 = record_of(start + sum((m * k for m, k in zip(_RESULT, parts, strict=True)), none))
        ends = {"y0": y0, "y1": y1}
        return y1, record_of(parts[-1]), ends, None, diffrax.RESULTS.successful
