"""Logarithms of what is predicted, and their slopes in the corrections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from physim.fitting.bins import log_percentiles
from physim.fitting.observations import METRICS, ObservedChunk, log_predicted
from physim.fitting.step_cycles import Cycles, log_time
from physim.kept import kept
from physim.prediction.arrays import CaseArrays
from physim.step.batch import Batch
from physim.step.lowering import StepOps
from physim.step.mixed_steps import Mixing
from physim.types import AnyArray


def latencies_along(
    chunks: Sequence[ObservedChunk],
    numbers: Float[np.ndarray, "rows n"],
    directions: Float[np.ndarray, "k n"] | None,
) -> tuple[Float[np.ndarray, "rows metrics"], Float[np.ndarray, "rows metrics n"]]:
    """Logarithms of TTFT, ITL and E2E of loads that stay, and their slopes in the corrections.

    Args:
        chunks: The loads.
        numbers: The corrections of each, flat.
        directions: The corrections that slopes are wanted in; without any, slopes are zero.
    """
    values = np.zeros((len(numbers), len(METRICS)))
    slopes = np.zeros((*values.shape, numbers.shape[1]))
    for chunk in chunks:
        found = _of_stages(chunk.filled(numbers), directions, chunk.systems)
        _put(found, directions, values, slopes, chunk.places, len(chunk.places))
    return values, slopes


def percentiles_along(
    chunks: Sequence[ObservedChunk],
    shares: Float[np.ndarray, "rows metrics most"],
    numbers: Float[np.ndarray, "rows n"],
    directions: Float[np.ndarray, "k n"] | None,
) -> tuple[Float[np.ndarray, "rows metrics most"], Float[np.ndarray, "rows metrics most n"]]:
    """Logarithms of percentiles of TTFT, ITL and E2E of loads that stay, and their slopes.

    Args:
        chunks: The loads.
        shares: Which percentiles of each, as shares.
        numbers: The corrections of each, flat.
        directions: The corrections that slopes are wanted in; without any, slopes are zero.
    """
    values = np.zeros(shares.shape)
    slopes = np.zeros((*values.shape, numbers.shape[1]))
    for chunk in chunks:
        own = chunk.filled(shares.reshape(len(shares), -1)).reshape(-1, *shares.shape[1:])
        found = _of_percentiles(chunk.filled(numbers), directions, chunk.systems, own)
        _put(found, directions, values, slopes, chunk.places, len(chunk.places))
    return values, slopes


def cycles_along(
    cycles: Cycles,
    numbers: Float[AnyArray, "runs n"],
    directions: Float[np.ndarray, "k n"] | None,
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, "steps n"]]:
    """Logarithms of steps' times, and their slopes in the corrections of their run.

    Args:
        cycles: The steps.
        numbers: The corrections of each run, flat.
        directions: The corrections that slopes are wanted in; without any, slopes are zero.
    """
    logs = np.zeros(len(cycles.observed))
    slopes = np.zeros((len(logs), np.shape(numbers)[1]))
    for place, piece in cycles.chunks():
        found = _of_cycles(
            numbers, directions, piece.ops, piece.run, piece.batch, piece.clock, piece.mixing
        )
        _put(found, directions, logs, slopes, place, place.stop - place.start)
    return logs, slopes


def _put(
    found: tuple[AnyArray, AnyArray | None],
    directions: Float[np.ndarray, "k n"] | None,
    values: np.ndarray,
    slopes: np.ndarray,
    places: Int[np.ndarray, " rows"] | slice,
    count: int,
) -> None:
    """Puts what is found of the first of a chunk in their places; others fill it up.

    Args:
        found: Values, and slopes along the directions if there are any.
        directions: The corrections that slopes are found in.
        values: Values of all.
        slopes: Their slopes.
        places: Places of the first.
        count: How many these are.
    """
    value, slope = found
    values[places] = value[:count]
    if slope is not None:
        slopes[places] = slope[:count] @ directions


def _along(
    function: Callable[[AnyArray], AnyArray], numbers: AnyArray, directions: AnyArray | None
) -> tuple[AnyArray, AnyArray | None]:
    """A function's value, and its slopes along directions if there are any."""
    if directions is None:
        return function(numbers), None

    def values(steps: AnyArray) -> tuple[AnyArray, AnyArray]:
        found = function(numbers + steps @ directions)
        return found, found

    slopes, found = jax.jacfwd(values, has_aux=True)(jnp.zeros(len(directions)))
    return found, slopes


@kept
def _of_stages(
    numbers: AnyArray, directions: AnyArray | None, systems: CaseArrays
) -> tuple[AnyArray, AnyArray | None]:
    def one(own: AnyArray, system: CaseArrays) -> tuple[AnyArray, AnyArray | None]:
        return _along(lambda moved: log_predicted(moved, system), own, directions)

    return jax.vmap(one)(numbers, systems)


@kept
def _of_percentiles(
    numbers: AnyArray, directions: AnyArray | None, systems: CaseArrays, shares: AnyArray
) -> tuple[AnyArray, AnyArray | None]:
    def one(own: AnyArray, system: CaseArrays, share: AnyArray) -> tuple[AnyArray, AnyArray | None]:
        return _along(lambda moved: log_percentiles(moved, system, share), own, directions)

    return jax.vmap(one)(numbers, systems, shares)


@kept
def _of_cycles(
    numbers: AnyArray,
    directions: AnyArray | None,
    ops: StepOps,
    runs: AnyArray,
    batches: Batch,
    clocks: AnyArray,
    mixing: Mixing,
) -> tuple[AnyArray, AnyArray | None]:
    def one(run: AnyArray, batch: Batch, clock: AnyArray) -> tuple[AnyArray, AnyArray | None]:
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[run], ops)

        def log(moved: AnyArray) -> AnyArray:
            return log_time(moved, own, mixing, batch, clock)

        return _along(log, jnp.asarray(numbers)[run], directions)

    return jax.vmap(one)(jnp.asarray(runs), batches, jnp.asarray(clocks))
