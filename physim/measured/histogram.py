"""Counts in bins, as engines keep the times and lengths of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim.errors import InputError
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many of some values lie in each bin, and what they add up to.

    Attributes:
        edges: Upper ends of the bins, which belong to them, in order; the last is infinite.
        counts: Values in each bin.
        total: Their sum.
        where: What it is of, for messages.

    Raises:
        InputError: Edges are not in order, a count is negative, or the sum cannot be that of values
            in these bins.
    """

    edges: Float[np.ndarray, " bins"]
    counts: Float[np.ndarray, " bins"]
    total: float
    where: str = "histogram"

    def __post_init__(self) -> None:
        if not len(self.edges) or self.edges[-1] != np.inf or (np.diff(self.edges) <= 0).any():
            raise InputError(f"{self.where}: le", "are no upper ends up to +Inf", "scrape it whole")
        if not np.isfinite(self.counts).all() or (self.counts < 0).any():
            raise InputError(f"{self.where}: buckets", "do not rise with le", "scrape it whole")
        # Each value is above the end of the bin below its own; sums are rounded as they are made.
        least = float(self.counts[1:] @ np.maximum(self.edges[:-1], 0.0))
        if not np.isfinite(self.total) or self.total < least * (1 - 1e-6):
            raise InputError(
                f"{self.where}: sum",
                f"{self.total:g} is too little for what its bins hold",
                "scrape it whole",
            )

    @property
    def count(self) -> float:
        """How many values there are."""
        return float(self.counts.sum())

    @property
    def mean(self) -> float:
        """Their mean; NaN of none."""
        return self.total / self.count if self.count else np.nan

    def percentile(self, percent: float) -> float:
        """The value that so many percent do not exceed, by a straight line within its bin.

        As Prometheus's ``histogram_quantile`` has it: the first bin begins at 0, and of the last,
        which has no end, no more is said than where it begins.

        Args:
            percent: From 0 to 100.
        """
        if not self.count:
            return np.nan
        rank = percent / 100 * self.count
        place = int(np.searchsorted(np.cumsum(self.counts), rank, side="left"))
        while place < len(self.counts) - 1 and not self.counts[place]:
            place += 1
        lower = self.edges[place - 1] if place else 0.0
        if place == len(self.counts) - 1:
            return float(lower)
        inside = (rank - self.counts[:place].sum()) / self.counts[place]
        return float(lower + (self.edges[place] - lower) * np.clip(inside, 0.0, 1.0))

    def to_text(self) -> str:
        """Its bins, as a column of measured rows has them; see `bins_in`."""
        own = zip(self.edges.tolist(), self.counts.tolist(), strict=True)
        return " ".join(f"{edge:g}:{count:.17g}" for edge, count in own)

    def to_dict(self) -> dict[str, Any]:
        """Its bins, as JSON takes them: the last upper end, which is none, is null."""
        return {
            "upper_ends": [*self.edges[:-1].tolist(), None],
            "counts": self.counts.tolist(),
            "sum": self.total,
        }

    def __repr__(self) -> str:
        return shown(
            self, f"{self.count:,.6g} values, mean {self.mean:.4g}, {len(self.edges)} bins"
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each bin: its upper end, and how many values are in it."""
        import pandas as pd

        return pd.DataFrame({"edge": self.edges, "count": self.counts})


def bins_in(
    text: str,
) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]]:
    """Upper ends of bins and the counts in them, of text such as ``0.1:0 0.25:31 inf:2``.

    Args:
        text: Pairs of an upper end and a count, in order, apart by spaces; the last end is ``inf``.

    Raises:
        InputError: The text is otherwise, or counts nothing.
    """
    try:
        pairs = [
            (float(edge), float(count))
            for edge, count in (pair.split(":") for pair in text.split())
        ]
    except ValueError:
        raise InputError("", f"{text[:40]!r} is no bins", "write 0.1:0 0.25:31 inf:2") from None
    edges, counts = np.array(pairs, float).reshape(-1, 2).T
    if not len(edges) or edges[-1] != np.inf or (np.diff(edges) <= 0).any() or not edges[0] > 0:
        raise InputError("", "do not rise from above 0 to inf", "write 0.1:0 0.25:31 inf:2")
    if not np.isfinite(counts).all() or (counts < 0).any() or not counts.any():
        raise InputError("", "count nothing, or less", "write 0.1:0 0.25:31 inf:2")
    return edges, counts
