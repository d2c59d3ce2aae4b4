"""A linearly implicit solver for small stiff systems, as diffrax takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.types import AnyArray, Scalar

State = Float[AnyArray, " state"]

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

        def field(y: State) -> State:
            return self.func(terms, t0, y, args)

        matrix = jnp.eye(y0.shape[0]) / (_GAMMA * width) - jax.jacfwd(field)(y0)
        factors = jax.scipy.linalg.lu_factor(matrix)
        parts: list[State] = []
        for stages, slopes in zip(_STAGES, _SLOPES, strict=True):
            place = y0 + sum((a * k for a, k in zip(stages, parts, strict=True)), 0.0 * y0)
            slope = field(place)
            slope += sum((c / width * k for c, k in zip(slopes, parts, strict=True)), 0.0 * y0)
            parts.append(jax.scipy.linalg.lu_solve(factors, slope))
        y1 = y0 + sum((m * k for m, k in zip(_RESULT, parts, strict=True)), 0.0 * y0)
        return y1, parts[-1], {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful
