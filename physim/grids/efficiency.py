"""Efficiency on a grid of operation shapes, looked up by linear interpolation in log space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Num

from physim.types import AnyArray, Knots, Scalar

# How far beyond the knots gaps end of which nothing or all lies above a point, in logarithm: by
# more than one, so that no point is on the edge of what they are cut to.
_BEYOND = 2.0


def hat_weights(
    knots: Knots, x: Num[AnyArray, "*points"] | float | int, xp: ModuleType = jnp
) -> Float[AnyArray, "*points knots"]:
    """Weights of the knots in linear interpolation at ``x``, along the logarithm of an axis.

    Beyond the ends the end knot has all the weight, so that what is interpolated is held there.
    The weights are dense, which keeps a look-up free of searches and gathers: they vectorise
    over thousands of configurations. They sum to one and their derivatives to zero: at a knot
    the derivative is the mean of the slopes on both sides, and at an end it is the slope within.

    Args:
        knots: Positive and strictly rising.
        x: Where to interpolate, in the units of the knots.
        xp: The array module to compute in, ``jax.numpy`` or ``numpy``.
    """
    log_knots = np.log(knots)
    # A choice, not a maximum, whose derivative at the end would be half of the slope within.
    x = xp.where(x < knots[0], knots[0], xp.where(x > knots[-1], knots[-1], x))
    # The share of each gap between knots that lies above; an outer gap is not cut at its end. Of a
    # gap before the first knot nothing does, and all of one after the last.
    least, most = np.zeros(len(knots) + 1), np.ones(len(knots) + 1)
    most[1:-1][:1], least[1:-1][-1:] = np.inf, -np.inf
    most[0], least[-1] = 0.0, 1.0
    ends = np.array([log_knots[0] - _BEYOND, *log_knots[1:], log_knots[-1] + _BEYOND])
    gaps = np.array([1.0, *np.diff(log_knots), 1.0])
    above = xp.clip((ends - xp.log(x)[..., None]) / gaps, least, most)
    return above[..., 1:] - above[..., :-1]


def along(
    values: Float[AnyArray, "*rest knots"],
    knots: Knots,
    x: Num[AnyArray, "*points"] | float | int,
) -> Float[AnyArray, "*rest"]:
    """Linear interpolation of the last axis at ``x``, along the logarithm of its knots.

    ``x`` may be a scalar, or have a point for each row of ``values``.
    """
    # Products, not sums: where one look-up follows another, XLA's CPU backend (jaxlib 0.10.2) makes
    # one kernel of the two sums, and vmapped over some thousand points its results are wrong.
    weights = hat_weights(knots, x)
    if weights.ndim == 1:
        return jnp.matmul(values, weights, precision=jax.lax.Precision.HIGHEST)
    return jnp.vecdot(values, weights, precision=jax.lax.Precision.HIGHEST)


def look_up(
    log_efficiency: Float[AnyArray, "*axes"],
    axes: Sequence[Float[np.ndarray, " _"]],
    coordinates: Sequence[Scalar],
) -> Scalar:
    """Efficiency at a point of a grid: differentiable, and made to be vmapped.

    Args:
        log_efficiency: Natural logarithm of roofline time over measured time.
        axes: Knots of each axis.
        coordinates: The point, a coordinate for each axis; outside the grid the nearest edge.
    """
    value = jnp.asarray(log_efficiency)
    for knots, x in zip(reversed(axes), reversed(coordinates), strict=True):
        value = along(value, knots, x)
    return jnp.exp(value)


@dataclass(frozen=True)
class Grid:
    """Measured efficiency on a regular grid of log axes.

    Attributes:
        axes: Name of each axis and its knots.
        log_efficiency: One value for each combination of knots.
        start_s: Time beside the roofline's that efficiency is relative to, seconds: that of layers
            of many small kernels, which hardly depends on how much there is to do.
    """

    axes: tuple[tuple[str, np.ndarray], ...]
    log_efficiency: np.ndarray
    start_s: float = 0.0

    def knots(self, name: str) -> np.ndarray:
        """Knots of one axis."""
        return dict(self.axes)[name]

    def efficiency(self, **coordinates: Scalar) -> Scalar:
        """Efficiency at one value of every axis."""
        points = [coordinates[name] for name, _ in self.axes]
        return look_up(self.log_efficiency, [knots for _, knots in self.axes], points)

    def sliced(self, **coordinates: float) -> Grid:
        """The grid that is left when some axes are fixed."""
        return self._contract(
            {name: hat_weights(self.knots(name), x, np)[None] for name, x in coordinates.items()}
        )

    def resampled(self, **coordinates: np.ndarray) -> np.ndarray:
        """Log-efficiency with each axis, in order, taken at other knots."""
        weights = {
            name: np.stack([hat_weights(self.knots(name), x, np) for x in points])
            for name, points in coordinates.items()
        }
        return self._contract(weights, keep=True).log_efficiency

    def _contract(self, weights: dict[str, np.ndarray], keep: bool = False) -> Grid:
        values, axes = self.log_efficiency, []
        for name, knots in self.axes:
            if name in weights:
                # The contracted axis goes last, so that after all axes the order is as before.
                values = np.tensordot(values, weights[name], axes=(0, 1))
                if not keep:
                    values = values[..., 0]
                    continue
            else:
                values = np.moveaxis(values, 0, -1)
            axes.append((name, knots))
        return Grid(tuple(axes), values, self.start_s)


@dataclass(frozen=True)
class ExpertGrid:
    """Measured efficiency of expert layers: a list of shapes, each over a token axis.

    Attributes:
        shapes: For each shape the hidden size, the expert width on one GPU, the experts that a
            token visits, and the experts of the layer.
        tokens: Knots of the token axis.
        log_efficiency: One value for each shape and token count.
    """

    shapes: np.ndarray
    tokens: np.ndarray
    log_efficiency: np.ndarray

    def nearest_row(self, hidden: float, width: float, per_token: float, experts: float) -> int:
        """Index of the measured shape that is nearest in log space."""
        return int(np.argmin(self._distances(hidden, width, per_token, experts)))

    def distance(self, hidden: float, width: float, per_token: float, experts: float) -> float:
        """How far the nearest measured shape is in log space; 0 for one that was measured."""
        return float(np.min(self._distances(hidden, width, per_token, experts)))

    def _distances(self, *shape: float) -> np.ndarray:
        return np.linalg.norm(np.log(self.shapes / np.array(shape)), axis=1)

    def nearest(self, hidden: float, width: float, per_token: float, experts: float) -> Grid:
        """The token curve of that shape."""
        row = self.nearest_row(hidden, width, per_token, experts)
        return Grid((("tokens", self.tokens),), self.log_efficiency[row])
