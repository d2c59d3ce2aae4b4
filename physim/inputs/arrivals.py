"""How unevenly recorded requests come: their index of dispersion, in short windows and in long."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from physim import data
from physim.errors import InputError
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd

# Windows in which arrivals are counted, and the longest, as a share of the trace.
_WINDOWS, _LONGEST = 16, 0.1
# The fewest arrivals of which anything can be said.
_FEWEST = 100
# Traces that are kept as they were read, for the cases of a sweep.
_KEPT = 8
# Changes of the rate from one stretch of so long to the next are slow; what is within is bursts.
SLOW_S = 60.0
# The most stretches that a record is told apart in.
_MOST_STRETCHES = 64

# About how long a request lives, seconds, before anything is known of its server.
LIFE_S = 30.0

Times = Float[np.ndarray, " arrivals"]


class Stretch(NamedTuple):
    """A stretch of recorded arrivals.

    Attributes:
        rate: Arrivals per second.
        duration_s: For so long, seconds.
        numbers: Which of the record's requests they are, from 0 on.
    """

    rate: float
    duration_s: float
    numbers: Int[np.ndarray, " requests"]


@dataclass(frozen=True)
class ArrivalDispersion:
    """Recorded arrivals, and how much their counts vary.

    The index of dispersion of counts in windows of some length is the variance of the arrivals in a
    window over their mean: 1 at all lengths for Poisson arrivals, 0 for even ones. It rises with
    the window where bursts last, and without end where the rate itself changes. Which is which is
    told by a rule: changes of the mean rate from one stretch of a minute (`SLOW_S`) to the next are
    slow, which a server follows as it follows a load in stages; what counts vary within stretches
    is bursts, which its queue must take.

    Attributes:
        windows_s: Lengths of windows, seconds, from short to long.
        index: The index of dispersion in each.
        bursts: What of it is left in each where the rate of every stretch is taken out: the mean of
            the variances within stretches, over the mean count. In windows of more than half a
            stretch it is that of half a stretch.
        arrival_s: When requests came, seconds from the first.
        slow_s: How long a stretch is, seconds.
        life_s: About how long a request lives, in seconds at the rate of a load: the window in
            which bursts count.
    """

    windows_s: tuple[float, ...]
    index: tuple[float, ...]
    bursts: tuple[float, ...]
    arrival_s: tuple[float, ...]
    slow_s: float = SLOW_S
    life_s: float = LIFE_S

    @classmethod
    def from_arrivals(cls, arrival_s: Sequence[float] | Times) -> ArrivalDispersion:
        """The dispersion of some arrivals.

        Windows are sixteen, in equal ratios from the mean time between arrivals to a tenth of the
        trace.

        Args:
            arrival_s: When requests came, seconds, in any order.

        Raises:
            InputError: There are fewer than a hundred, one is no number, or all came at once.
        """
        times = np.sort(np.asarray(arrival_s, float))
        if len(times) < _FEWEST:
            problem = f"are {len(times)}, of which little can be said"
            raise InputError("arrivals", problem, f"give {_FEWEST} or more")
        if not np.isfinite(times).all() or not times[-1] > times[0]:
            raise InputError("arrivals", "have no length of time", "correct them")
        times -= times[0]
        shortest, longest = times[-1] / (len(times) - 1), _LONGEST * times[-1]
        windows = np.geomspace(shortest, longest, _WINDOWS)
        index = [_index(times, window) for window in windows]
        # A trace of less than a few stretches has no slow changes that could be told.
        within = min(SLOW_S, float(longest))
        bursts = [_bursts(times, min(window, within / 2), within) for window in windows]
        return cls(
            tuple(windows.tolist()), tuple(index), tuple(bursts), tuple(times.tolist()), within
        )

    @classmethod
    def read(cls, path: str | Path) -> ArrivalDispersion:
        """The dispersion of a trace's arrivals.

        Args:
            path: A trace; see `physim.inputs.request_traces.read_requests`.

        Raises:
            InputError: The file cannot be read, or says nothing of arrivals.
        """
        return _read(Path(path), data.modified_ns(Path(path)))

    def of_rows(self, rows: Int[np.ndarray, " rows"]) -> ArrivalDispersion:
        """Some of the arrivals alone.

        Args:
            rows: Which, from 0 on.

        Raises:
            InputError: They are too few.
        """
        return ArrivalDispersion.from_arrivals(self._times[rows])

    @property
    def rate(self) -> float:
        """Arrivals per second, as they were recorded."""
        return (len(self.arrival_s) - 1) / self.arrival_s[-1]

    def at_rate(self, rate: float) -> ArrivalDispersion:
        """The same arrivals, run faster or slower.

        Args:
            rate: Arrivals per second that they are to have.
        """
        ratio = self.rate / rate
        windows, times = (
            tuple(ratio * value for value in own) for own in (self.windows_s, self.arrival_s)
        )
        return replace(self, windows_s=windows, arrival_s=times, slow_s=ratio * self.slow_s)

    def index_at(self, window_s: float) -> float:
        """The index of dispersion in windows of a length, of bursts and slow changes together.

        Between windows it goes by the logarithm of their length; beyond them it stays as it is.

        Args:
            window_s: The length, seconds.
        """
        return self._between(self.index, window_s)

    def bursts_at(self, window_s: float) -> float:
        """The index of dispersion of bursts alone; see `index_at`."""
        return self._between(self.bursts, window_s)

    def follow_within(self, windows_s: Float[np.ndarray, " n"]) -> float:
        """Arrivals within windows after one, beyond the mean of its stretch, on average.

        Of those at the very same time half count. Records in batches may be so regular that it
        rises and falls with the window.

        Args:
            windows_s: The windows, seconds. Those longer than a quarter of a stretch are taken for
                some between an eighth and a quarter, in which what follows rises and falls as well.
        """
        eighth = self.slow_s / 8
        windows = np.where(windows_s > 2 * eighth, eighth + windows_s % eighth, windows_s)
        beyond = _follow(self._times, windows, self.slow_s)
        return float(np.mean(beyond + self._own / self.slow_s * windows))

    @functools.cached_property
    def _own(self) -> float:
        """Arrivals of a stretch because of any one of it: itself, and those before and after it.

        They are in the mean of the stretch, beyond which others are counted.
        """
        windows = self.slow_s / 8 * (1.0 + (np.arange(_WINDOWS) + 0.5) / _WINDOWS)
        beyond, share = _follow(self._times, windows, self.slow_s), windows / self.slow_s
        return float(1.0 + 2.0 * np.mean(beyond + share) / (1.0 - 2.0 * np.mean(share)))

    @functools.cached_property
    def at_once(self) -> float:
        """Others that come at the very time of a request, mean: of records in batches."""
        _, counts = np.unique(self._times, return_counts=True)
        return float(np.sum(counts**2) / np.sum(counts)) - 1.0

    def first(self, count: int) -> Times:
        """When so many requests come; after the last recorded one they start over.

        Args:
            count: How many.
        """
        return self._times[np.arange(count) % len(self._times)] + self.lasts * (
            np.arange(count) // len(self._times)
        )

    def before(self, end_s: float) -> Times:
        """When requests come before a time; see `first`.

        Args:
            end_s: The time, seconds.
        """
        rounds = math.ceil(end_s / self.lasts)
        times = self.first(rounds * len(self._times))
        return times[times < end_s]

    def stretches(self, lasts_s: float) -> list[Stretch]:
        """Stretches of equal length, as long as slow changes take, or longer where there are many.

        Args:
            lasts_s: How long all are together, seconds.
        """
        count = max(min(int(lasts_s / self.slow_s), _MOST_STRETCHES), 1)
        edges = np.linspace(0.0, lasts_s, count + 1)
        numbers = np.searchsorted(self.before(lasts_s), edges)
        # A stretch in which none came counts as one in which a thousandth of a request did.
        return [
            Stretch(
                max(float(last - first), 1e-3) * count / lasts_s,
                lasts_s / count,
                np.arange(first, last) % len(self.arrival_s),
            )
            for first, last in itertools.pairwise(numbers.tolist())
        ]

    def to_dict(self) -> dict[str, Any]:
        """What it is, in plain values, without the arrivals."""
        about = {"requests": len(self.arrival_s), "rate": self.rate, "slow_s": self.slow_s}
        return about | {
            name: list(getattr(self, name)) for name in ("windows_s", "index", "bursts")
        }

    @functools.cached_property
    def _times(self) -> Times:
        return np.array(self.arrival_s)

    @property
    def lasts(self) -> float:
        """After how long the arrivals start over: a mean gap after the last, seconds."""
        return self.arrival_s[-1] + 1 / self.rate

    def _between(self, values: Sequence[float], window_s: float) -> float:
        place = math.log(max(window_s, 1e-300))
        return float(np.interp(place, np.log(self.windows_s), values))

    def __repr__(self) -> str:
        ends = ", ".join(
            f"{self.index[place]:.3g} in windows of {self.windows_s[place]:.3g} s"
            for place in (0, -1)
        )
        count = f"{len(self.arrival_s):,} arrivals, {self.rate:.4g} requests/s"
        return shown(self, count, f"index of dispersion: {ends}")

    def to_frame(self) -> pd.DataFrame:
        """A row for each length of windows, with its index of dispersion and the part of bursts."""
        import pandas as pd

        return pd.DataFrame(
            {name: getattr(self, name) for name in ("windows_s", "index", "bursts")}
        )


@functools.lru_cache(maxsize=_KEPT)
def _read(path: Path, _modified_ns: int) -> ArrivalDispersion:
    # The file's time is part of the key, so that an edited file is read anew.
    from physim.inputs.request_traces import read_requests

    found = read_requests(path, arrivals=True)
    assert found.arrival_s is not None
    try:
        return ArrivalDispersion.from_arrivals(found.arrival_s)
    except InputError as error:
        raise InputError(f"{path}: {error.where}", error.what, error.remedy) from error


def arrivals_named(text: str | None) -> dict[str, Any]:
    """The fields ``arrival`` and ``dispersion`` of a load, of a kind or of ``trace:PATH``.

    Args:
        text: What is given; None for nothing.

    Raises:
        InputError: The trace cannot be used.
    """
    kind, _, path = (text or "").partition(":")
    if kind != "trace" or not path:
        return {"arrival": text}
    return {"arrival": kind, "dispersion": ArrivalDispersion.read(path)}


def _counts(times: Times, window_s: float) -> Float[np.ndarray, " windows"]:
    """Arrivals in each of the whole windows of a trace, from its first arrival on."""
    whole = int(times[-1] / window_s + 1e-9)
    places = (times / window_s).astype(int)
    return np.bincount(places[places < whole], minlength=whole).astype(float)


def _index(times: Times, window_s: float) -> float:
    counts = _counts(times, window_s)
    return float(np.var(counts, ddof=1) / np.mean(counts))


def _bursts(times: Times, window_s: float, stretch_s: float) -> float:
    """The index of dispersion within stretches, each of which has a rate of its own."""
    counts = _counts(times, window_s)
    size = int(stretch_s / window_s + 1e-9)
    stretches = counts[: len(counts) // size * size].reshape(-1, size)
    return float(np.mean(np.var(stretches, axis=1, ddof=1)) / np.mean(stretches))


def _follow(
    times: Times, windows_s: Float[np.ndarray, " n"], stretch_s: float
) -> Float[np.ndarray, " n"]:
    """Arrivals within windows after one, beyond the mean of its stretch, of those at once half."""
    last, first = (np.searchsorted(times, times, side=side) for side in ("right", "left"))
    half = (last + first + 1) / 2
    stretches = (times / stretch_s).astype(int)
    counts = np.bincount(stretches).astype(float)
    counts[-1] *= stretch_s / max(times[-1] - (len(counts) - 1) * stretch_s, stretch_s / 10)
    rates = counts[stretches] / stretch_s
    found = np.empty(len(windows_s))
    for place, window in enumerate(windows_s.tolist()):
        known = np.searchsorted(times, times[-1] - window, side="right")
        after = np.searchsorted(times, times[:known] + window, side="right")
        found[place] = np.mean(after - half[:known] - rates[:known] * window)
    return found
