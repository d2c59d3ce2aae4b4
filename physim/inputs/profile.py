"""A load that changes over a day: windows of time, each with a load that stays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from physim.errors import InputError
from physim.inputs.lengths import Tokens, lengths
from physim.inputs.load import Load
from physim.inputs.popularity import IN_TURN, UNIFORM
from physim.inputs.request_lengths import RequestLengths, filled_in
from physim.inputs.stages import Stage
from physim.printable import shown, shown_fields

if TYPE_CHECKING:
    import pandas as pd

_SHORTEST_S = 1e-6
# A window has a peak where so many times its requests come in one of so many parts of it, and more
# standard deviations more than Poisson arrivals have in a part of a day of windows.
_PARTS, _PEAKED, _BY_CHANCE = 10, 1.5, 5.0
# Windows of a profile, each of which is planned for: a year of five minutes each.
_MOST_WINDOWS = 105_120


@dataclass(frozen=True)
class Window:
    """A stretch of time.

    Attributes:
        start_s: When it begins, seconds from the beginning of the profile.
        duration_s: How long it lasts, seconds.
        rate: Arrivals per second.
        input_tokens: Prompt length, tokens: a number, or a distribution. Of ``lengths``, where they
            are given instead, the prompts alone; so with the next and with ``cached_tokens``.
        output_tokens: Generated length, likewise.
        cached_tokens: Prompt tokens that are found in the prefix cache, while there is room.
        prefixes: Different prefixes, of which requests have one by chance.
        lengths: Prompts, their cached parts and outputs as they go together.

    Raises:
        InputError: A time is negative or not finite, or the load cannot be used.
    """

    start_s: float
    duration_s: float
    rate: float
    # Filled in from `lengths` where that is given.
    input_tokens: Tokens = None  # type: ignore[assignment]
    output_tokens: Tokens = None  # type: ignore[assignment]
    cached_tokens: float = 0.0
    prefixes: int = 1
    lengths: RequestLengths | None = None

    def __post_init__(self) -> None:
        filled_in("window", self)
        for field, least in (("start_s", 0.0), ("duration_s", _SHORTEST_S)):
            value = getattr(self, field)
            if not least <= value < math.inf:
                raise InputError(f"window: {field}", f"{value} is below {least:g}", "correct it")
        self.load()

    def load(self, arrival: str = "poisson", burstiness: float = 1.0) -> Load:
        """Its load, as if it went on.

        Raises:
            InputError: It cannot be used.
        """
        return Load(
            self.input_tokens,
            self.output_tokens,
            rate=self.rate,
            cached_tokens=self.cached_tokens,
            prefixes=self.prefixes,
            popularity=UNIFORM if self.prefixes > 1 else IN_TURN,
            arrival=arrival,
            burstiness=burstiness,
            lengths=self.lengths,
        )

    @property
    def demands(self) -> tuple[float, float, float]:
        """Arrivals, and prompt tokens to compute and tokens to generate, per second."""
        new = lengths(self.input_tokens).mean - self.cached_tokens
        return self.rate, self.rate * new, self.rate * lengths(self.output_tokens).mean

    def means(self) -> dict[str, float]:
        """When it is, seconds, its rate, and the mean tokens of its requests."""
        return {
            "start_s": self.start_s,
            "duration_s": self.duration_s,
            "rate": self.rate,
            "input_tokens": lengths(self.input_tokens).mean,
            "output_tokens": lengths(self.output_tokens).mean,
            "cached_tokens": self.cached_tokens,
        }

    def __repr__(self) -> str:
        return shown_fields(self)


@dataclass(frozen=True)
class LoadProfile:
    """A load over a day, or any other time.

    Attributes:
        windows: Those in which requests arrive, in order.
        notes: What is not known of it, one line each.

    Raises:
        InputError: There are none, or one begins before the one before it has ended.
    """

    windows: tuple[Window, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.windows:
            raise InputError("load profile", "has no window with requests", "give a longer one")
        for before, after in itertools.pairwise(self.windows):
            # Ends are sums, so rounded.
            if after.start_s < before.start_s + 0.999 * before.duration_s:
                raise InputError(
                    f"load profile: window at {after.start_s:g} s",
                    f"begins before that at {before.start_s:g} s has ended",
                    "put them in order",
                )

    @classmethod
    def from_trace(cls, path: str | Path, window_s: float = 600.0) -> LoadProfile:
        """The load profile of a trace: rates, and lengths as they go together, by the window.

        Windows without a request are left out, and the last ends with the trace.

        Args:
            path: A trace; see `physim.inputs.request_traces.read_requests`.
            window_s: How long a window is, seconds.

        Raises:
            InputError: The trace cannot be read or lasts no time, or the window is not positive.
        """
        from physim.inputs.request_traces import read_requests

        check_window(window_s)
        trace = read_requests(path, arrivals=True)
        arrivals = trace.arrival_s
        columns = trace.input_tokens, trace.cached_tokens, trace.output_tokens
        assert arrivals is not None
        if not arrivals[-1] > 0:
            raise InputError(str(path), "has only one point in time", "give a trace of some time")
        edges = window_edges(0.0, float(arrivals[-1]), window_s, str(path))
        # The last window ends with the trace, so that its rate is not that of an empty rest.
        edges[-1] = arrivals[-1]
        places = np.minimum(arrivals // window_s, len(edges) - 2).astype(int)
        windows = []
        for place in np.unique(places).tolist():
            first, last = np.searchsorted(places, [place, place + 1]).tolist()
            inputs, cached, outputs = (own[first:last] for own in columns)
            duration_s = float(edges[place + 1] - edges[place])
            window = Window(
                float(edges[place]),
                duration_s,
                (last - first) / duration_s,
                lengths=RequestLengths.from_columns(inputs, outputs, cached, Path(path).name),
            )
            windows.append(window)
        return cls(tuple(windows), _peaks_hidden(windows, arrivals))

    def in_stages(self, arrival: str = "poisson", burstiness: float = 1.0) -> Load:
        """The windows as the stages of one load, whose requests are those of all windows.

        Args:
            arrival: How requests come within a window.
            burstiness: See `physim.Load`.

        Raises:
            InputError: A window has no joint lengths, or a stretch of time has no request.
        """
        own = [window.lengths for window in self.windows]
        joint = [one for one in own if one is not None]
        if len(joint) < len(own):
            remedy = "read the profile of a trace with physim.LoadProfile.from_trace"
            raise InputError("load profile", "has lengths of each window apart", remedy)
        for before, after in itertools.pairwise(self.windows):
            if after.start_s > before.start_s + 1.001 * before.duration_s:
                ends = before.start_s + before.duration_s
                problem = f"has no request from {ends:g} to {after.start_s:g} s"
                raise InputError("load profile", problem, "make windows longer")
        columns = zip(*(one.arrays for one in joint), strict=True)
        inputs, cached, outputs = (np.concatenate(own) for own in columns)
        return Load.of_requests(
            RequestLengths.from_columns(inputs, outputs, cached, joint[0].name),
            stages=tuple(Stage(window.rate, window.duration_s) for window in self.windows),
            arrival=arrival,
            burstiness=burstiness,
        )

    def between(self, begin_s: float, end_s: float) -> LoadProfile:
        """The windows of a part of the time, the first and last of which may be cut.

        Args:
            begin_s: Its start, seconds from the beginning of the profile,
            end_s: and its end.

        Raises:
            InputError: No window is in it.
        """
        kept = []
        for window in self.windows:
            first = max(window.start_s, begin_s)
            last = min(window.start_s + window.duration_s, end_s)
            if last - first >= _SHORTEST_S:
                kept.append(replace(window, start_s=first, duration_s=last - first))
        if not kept:
            problem = f"has no request from {begin_s:g} to {end_s:g} s"
            raise InputError("load profile", problem, "name other hours")
        return replace(self, windows=tuple(kept))

    @property
    def hours(self) -> float:
        """From the beginning of the first window to the end of the last."""
        last = self.windows[-1]
        return (last.start_s + last.duration_s - self.windows[0].start_s) / 3600

    def peaks(self, most: int) -> list[Window]:
        """Windows that may need most servers, the busiest first.

        They are those of which no other demands more in every way: of arrivals, of prompt tokens
        and of generated tokens. A window that is beyond another by a fiftieth at most is left out.

        Args:
            most: How many at most.
        """

        def work(window: Window) -> float:
            # Each token that is generated takes a step's share, which a few of a prompt take too.
            _, prompt, output = window.demands
            return prompt / 8 + output

        found: list[Window] = []
        for window in sorted(self.windows, key=work, reverse=True):
            if not any(_covers(one, window) for one in found):
                found.append(window)
        return found[:most]

    def __repr__(self) -> str:
        rates = [window.rate for window in self.windows]
        windows = f"{len(self.windows)} windows over {self.hours:.4g} hours"
        return shown(
            self, f"{windows}, {min(rates):.4g} to {max(rates):.4g} requests/s", *self.notes
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each window: when it is, and its load in means."""
        import pandas as pd

        rows = [{**window.means(), "prefixes": window.prefixes} for window in self.windows]
        return pd.DataFrame(rows)


def _peaks_hidden(windows: Sequence[Window], arrivals: Float[np.ndarray, " n"]) -> tuple[str, ...]:
    """Says where requests of a window come much faster for a while than in the mean of it.

    Args:
        windows: The windows.
        arrivals: When each request comes, seconds, in order.
    """
    worst, place, count = 1.0, 0, 0
    for number, window in enumerate(windows):
        edges = window.start_s + window.duration_s / _PARTS * np.arange(_PARTS + 1)
        # The last request of all comes as the last window ends.
        edges[-1] = np.nextafter(edges[-1], math.inf if window is windows[-1] else edges[-1])
        most = float(np.max(np.diff(np.searchsorted(arrivals, edges))))
        mean = window.rate * window.duration_s / _PARTS
        if most > _PEAKED * mean and most > mean + _BY_CHANCE * math.sqrt(mean):
            count += 1
            if most / mean > worst:
                worst, place = most / mean, number
    if not count:
        return ()
    window = windows[place]
    part = window.duration_s / _PARTS
    return (
        f"windows average over peaks within them: in {count} of {len(windows)}, requests come "
        f"faster for a while, most in that at {window.start_s:g} s, {worst:.2g} times as fast for "
        f"{part:.3g} s; plan with windows that are shorter",
    )


def check_window(window_s: float) -> None:
    """Refuses windows that are no time.

    Raises:
        InputError: It is not positive.
    """
    if not (math.isfinite(window_s) and window_s > 0):
        raise InputError("window", f"{window_s:g} s is not positive", "correct it")


def window_edges(
    start_s: float, end_s: float, window_s: float, where: str
) -> Float[np.ndarray, " edges"]:
    """Where the windows of a time begin, and the last ends.

    Raises:
        InputError: There are more than anybody plans for.
    """
    # Rounded, since a day of windows and a sample more is a day of windows.
    count = max(round((end_s - start_s) / window_s), 1)
    if count > _MOST_WINDOWS:
        raise InputError(
            "window",
            f"{window_s:g} s makes {count} windows of {where}, and {_MOST_WINDOWS} are the most",
            "make it longer, or correct the times",
        )
    return start_s + window_s * np.arange(count + 1)


def _covers(one: Window, other: Window, slack: float = 1.02) -> bool:
    """Whether one window demands about as much as another in every way, or more."""
    pairs: Sequence[tuple[float, float]] = list(zip(one.demands, other.demands, strict=True))
    return all(mine * slack >= theirs for mine, theirs in pairs)
