"""Requests that stand for all of a load, and their latencies by the length of their prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from physim.metrics import PERCENTILES, STATISTICS
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd

# What a request has of its own; ITL is over the gaps of all.
OF_A_REQUEST = ("ttft", "tpot", "e2e")
# Shares of the requests at which groups of prompts end, and the longest that are a group too.
_QUARTERS = (0.25, 0.5, 0.75)
_LONGEST = 0.9

Numbers = Float[np.ndarray, " n"]
Percents = Float[np.ndarray, " percents"]
Chosen = Bool[np.ndarray, " n"]


def keeps_to(
    ttft_s: Float[np.ndarray, "*n"],
    tpot_s: Float[np.ndarray, "*n"],
    e2e_s: Float[np.ndarray, "*n"],
    metric: str,
    seconds: float,
) -> Bool[np.ndarray, "*n"]:
    """Which requests keep to a bound: those of one token, to any on the time between tokens.

    Args:
        ttft_s: Times to first token, seconds,
        tpot_s: mean times from a token to the next,
        e2e_s: and times of the same requests.
        metric: Which of them is bounded: ``ttft``, ``tpot`` or ``e2e``.
        seconds: The bound.
    """
    kept: Bool[np.ndarray, "*n"] = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}[metric] <= seconds
    return kept | (e2e_s <= ttft_s) if metric == "tpot" else kept


@dataclass(frozen=True)
class LengthGroup:
    """Latencies of the requests whose prompts are about as long.

    Attributes:
        least_tokens: Tokens of the shortest prompt.
        most_tokens: Tokens of the longest prompt.
        mean_tokens: Their mean.
        share: Share of the answered requests that are in the group.
        latencies: ``ttft`` and ``e2e``, each with ``mean``, ``p50``, ``p90``, ``p95`` and ``p99``,
            seconds. Without a value where there is none.
    """

    least_tokens: float
    most_tokens: float
    mean_tokens: float
    share: float
    latencies: Mapping[str, Mapping[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """The group as plain values."""
        names = ("least_tokens", "most_tokens", "mean_tokens", "share")
        content: dict[str, Any] = {name: getattr(self, name) for name in names}
        return content | {"latencies": {name: dict(row) for name, row in self.latencies.items()}}

    def __repr__(self) -> str:
        tokens = f"prompts of {self.least_tokens:.6g} to {self.most_tokens:.6g} tokens"
        means = ", ".join(
            f"{name.upper()} {1e3 * row['mean']:.4g} ms"
            for name, row in self.latencies.items()
            if "mean" in row
        )
        return shown(self, f"{tokens}, {self.share:.3g} of the requests: {means or 'no latencies'}")


@dataclass(frozen=True)
class Requests:
    """Latencies of some requests that stand for all, seconds.

    Attributes:
        ttft_s: Time to first token; infinite where there is none.
        tpot_s: Mean time from a token to the next.
        e2e_s: Time of the request.
        input_tokens: Tokens of the whole prompt, with its cached part. In the fluid these are means
            of equal parts of the requests.
        weight: How many requests each stands for; None where all stand for as many.
        answered: Share of all requests that are answered at all; the others are not among these.
    """

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray
    input_tokens: np.ndarray
    weight: np.ndarray | None = None
    answered: float = 1.0

    def some_of(self, other: Requests, share: float) -> Requests:
        """Requests of which every so many are these and the others those of another, row by row.

        Args:
            other: As many others.
            share: The share of these.
        """
        own = np.diff(np.floor(share * np.arange(len(self.ttft_s) + 1))) > 0
        columns = ("ttft_s", "tpot_s", "e2e_s", "input_tokens")
        chosen = {
            name: np.where(own, getattr(self, name), getattr(other, name)) for name in columns
        }
        return replace(self, **chosen)

    def within(self, bounds: Mapping[str, float]) -> float:
        """Share of all requests that keep to all bounds together.

        Args:
            bounds: Seconds at most, for ``ttft``, ``tpot`` and ``e2e``.
        """
        kept = np.ones(len(self.ttft_s), bool)
        for metric, bound in bounds.items():
            kept &= keeps_to(self.ttft_s, self.tpot_s, self.e2e_s, metric, bound)
        return float(self.answered * np.average(kept, weights=self.weight))

    def parted(self, shares: Sequence[float]) -> list[Chosen]:
        """Groups of requests from short prompts to long ones, each of which has some.

        Prompts of one length are in one group, so that groups hold about the shares asked for.

        Args:
            shares: Shares of the requests at which a group ends, rising.
        """
        ends = np.unique(_percentiles(self.input_tokens, self._weight, 100 * np.array(shares)))
        # The percentile lies between two prompts where it is none itself.
        group = np.searchsorted(ends, self.input_tokens)
        counted = self._weight > 0
        chosen = [(group == place) & counted for place in range(len(ends) + 1)]
        return [one for one in chosen if one.any()]

    def by_length(self, metrics: Iterable[str]) -> list[LengthGroup]:
        """Latencies of the quarters of the requests by prompt, then of the longest tenth.

        The tenth is left out where it is a group already.

        Args:
            metrics: Latencies of a request that there are.
        """
        chosen = self.parted(_QUARTERS)
        longest = self._longest()
        if not any(np.array_equal(one, longest) for one in chosen):
            chosen.append(longest)
        named = tuple(metrics)
        return [self._group(one, named) for one in chosen]

    def percentiles(self, metric: str, chosen: Chosen, percents: Sequence[float]) -> Percents:
        """Percentiles of a latency of some of the requests, seconds.

        Args:
            metric: ``ttft``, ``tpot`` or ``e2e``.
            chosen: Which requests.
            percents: Which percentiles, from 0 to 100.
        """
        values = getattr(self, f"{metric}_s")[chosen]
        return _percentiles(values, self._weight[chosen], np.array(percents, float))

    def mean_tokens(self, chosen: Chosen) -> float:
        """Mean prompt of some of the requests, tokens."""
        return float(np.average(self.input_tokens[chosen], weights=self._weight[chosen]))

    @property
    def _weight(self) -> Numbers:
        return np.ones(len(self.ttft_s)) if self.weight is None else self.weight

    def _longest(self) -> Chosen:
        """The longest tenth, or all of the longest prompts where they are more."""
        tokens, counted = self.input_tokens, self._weight > 0
        (end,) = _percentiles(tokens, self._weight, np.array([100 * _LONGEST]))
        most = tokens[counted].max()
        return counted & ((tokens > end) | (tokens == most))

    def _group(self, chosen: Chosen, metrics: Sequence[str]) -> LengthGroup:
        weight, tokens = self._weight[chosen], self.input_tokens[chosen]
        latencies = {}
        for metric in metrics:
            mean = float(np.average(getattr(self, f"{metric}_s")[chosen], weights=weight))
            found = self.percentiles(metric, chosen, PERCENTILES).tolist()
            latencies[metric] = dict(zip(STATISTICS, (mean, *found), strict=True))
        return LengthGroup(
            float(tokens.min()),
            float(tokens.max()),
            self.mean_tokens(chosen),
            float(weight.sum() / self._weight.sum()),
            latencies,
        )

    def __repr__(self) -> str:
        return shown(self, f"{len(self.ttft_s):,} requests, {self.answered:.4g} of all answered")

    def to_frame(self) -> pd.DataFrame:
        """A row for each request: its latencies, prompt, and how many it stands for."""
        import pandas as pd

        names = ("ttft_s", "tpot_s", "e2e_s", "input_tokens")
        columns = {name: getattr(self, name) for name in names}
        return pd.DataFrame({**columns, "weight": self._weight})


def _percentiles(values: Numbers, weights: Numbers, percents: Percents) -> Percents:
    """Percentiles of values that stand for some requests each, between which lines are straight."""
    values, weights = values[weights > 0], weights[weights > 0]
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order])
    found: Percents = np.interp(
        percents / 100, (share - weights[order] / 2) / share[-1], values[order]
    )
    return found
