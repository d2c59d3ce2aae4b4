"""Counts in bins as what a fit compares: the end of a bin is a percentile that was measured.

Of so many requests some share was no slower than the end of a bin, whatever the others were. So a
histogram tells percentiles exactly where its bins end, and nothing of what is between.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from physim.corrections.fields import unflat
from physim.fluid.steady import steady_state
from physim.measured.histogram import bins_in
from physim.measured.schema import RunRow
from physim.prediction.arrays import CaseArrays
from physim.prediction.steady import latencies_at_points
from physim.pytree import Pytree
from physim.types import AnyArray

# Below and above these shares percentiles are of few requests, or of steps without others.
_LOW, _HIGH = 0.03, 0.97
# How much more the fluid errs on a percentile than on its mean: TTFT is off by 9.6% at most on 19
# of 20 loads, its median by 19.2 (docs/accuracy.md, percentiles and load shapes).
COARSER = 2.0


class Bins(Pytree):
    """Ends of bins that some but not all of a stage's requests are within.

    Attributes:
        row: The stage that each is of, by its place.
        metric: What was measured, by its place in `physim.fitting.observations.METRICS`.
        place: Its place among the ends of that stage and metric.
        share: Share of the requests that were no slower.
        observed: Logarithm of the end, seconds.
        sampling: Standard deviation of the percentile's logarithm, with so many requests.
        looks: How many ends each stage and metric has.
    """

    row: Int[np.ndarray, " ends"]
    metric: Int[np.ndarray, " ends"]
    place: Int[np.ndarray, " ends"]
    share: Float[np.ndarray, " ends"]
    observed: Float[np.ndarray, " ends"]
    sampling: Float[np.ndarray, " ends"]
    looks: Int[np.ndarray, "rows metrics"]

    @classmethod
    def of_rows(cls, rows: Sequence[RunRow], metrics: Sequence[str]) -> Bins:
        """The ends of the bins of rows.

        Args:
            rows: The rows.
            metrics: What is measured of each.
        """
        found: list[tuple[float, ...]] = []
        looks = np.zeros((len(rows), len(metrics)), int)
        for number, row in enumerate(rows):
            for column, metric in enumerate(metrics):
                text = getattr(row, f"{metric}_bins")
                ends = [] if text is None else _ends(text, row.n_success)
                looks[number, column] = len(ends)
                found += [(number, column, place, *end) for place, end in enumerate(ends)]
        columns = np.array(found, float).reshape(-1, 6).T
        row, metric, place = columns[:3].astype(int)
        share, observed, sampling = columns[3:]
        return cls(row, metric, place, share, observed, sampling, looks)

    @property
    def shares(self) -> Float[np.ndarray, "rows metrics most"]:
        """The shares of each stage and metric, and halves where there are fewer."""
        found = np.full((*self.looks.shape, int(np.max(self.looks, initial=0))), 0.5)
        found[self.row, self.metric, self.place] = self.share
        return found


def _ends(text: str, answered: int | None) -> list[tuple[float, float, float]]:
    """Share, logarithm and spread by chance of each end that tells something."""
    edges, counts = bins_in(text)
    total = np.sum(counts)
    requests = total if answered is None else min(total, answered)
    logs, shares = np.log(edges[:-1]), np.cumsum(counts)[:-1] / total
    inside = np.flatnonzero((shares > _LOW) & (shares < _HIGH))
    found = []
    for place in inside.tolist():
        # How fast the logarithm goes with the share, from the bins on both sides.
        near = slice(max(place - 1, 0), min(place + 2, len(logs)))
        share, log = shares[near], logs[near]
        steepness = np.ptp(log) / max(np.ptp(share), 1 / total)
        spread = np.sqrt(shares[place] * (1 - shares[place]) / requests) * steepness
        found.append((float(shares[place]), float(logs[place]), float(spread)))
    return found


def log_percentiles(
    numbers: Float[AnyArray, " n"], system: CaseArrays, shares: Float[AnyArray, "metrics most"]
) -> Float[AnyArray, "metrics most"]:
    """Logarithms of what so large shares of a load's requests are no slower than.

    Args:
        numbers: Its corrections, flat.
        system: Its model, load and engine.
        shares: The shares, for TTFT, ITL and E2E.
    """
    state = steady_state(system.model(unflat(numbers)), system.demand, system.limits)
    drawn = latencies_at_points(state, system.demand)
    values = jnp.sort(jnp.stack([drawn.ttft, drawn.itl, drawn.e2e]), axis=-1)
    middles = (jnp.arange(values.shape[-1]) + 0.5) / values.shape[-1]
    found = [jnp.interp(share, middles, own) for share, own in zip(shares, values, strict=True)]
    return jnp.log(jnp.stack(found))
