"""The fluid's prediction beside a replay of the same load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.metrics import METRICS, STATISTICS
from physim.prediction.replayed import replay_load, replayed_prediction
from physim.prediction.results import Prediction, StageLatencies, refuse_unanswered
from physim.printable import aligned, shown
from physim.replay.outcome import WITHIN_90, Replayed, completed_of

if TYPE_CHECKING:
    import pandas as pd

# Of the requests of a load without end, in the order in which they come: the engine fills up with
# the first ones, and nothing comes after the last ones. As in benchmarks/fluid_against_replay.py.
_FIRST, _LAST = 0.2, 0.9


@dataclass(frozen=True)
class Compared:
    """A figure of the fluid and of the replay.

    Attributes:
        part: What requests it is of: ``all``, or a stage as ``RATE/s, SECONDS s``.
        quantity: ``ttft``, ``itl``, ``tpot`` and ``e2e``, seconds; ``requests_per_s`` and
            ``output_tokens_per_s``; of a load without end also ``running`` and ``batch``, requests
            that run and that decode, means over time, and ``kv_use``, the share of the KV blocks
            that they hold.
        statistic: ``mean``, ``p50``, ``p90``, ``p95`` or ``p99``.
        fluid: As the fluid has it.
        replay: As the replay has it.
        replay_error: The standard error of that, by the chance of which requests came; None where
            it is not known.
    """

    part: str
    quantity: str
    statistic: str
    fluid: float
    replay: float
    replay_error: float | None = None

    @property
    def difference_pct(self) -> float | None:
        """How much more the fluid has, percent of the replay's; None where that has nothing."""
        if not self.replay:
            return None
        return 100 * (self.fluid / self.replay - 1)

    @property
    def chance_pct(self) -> float | None:
        """Within how much of it many replays are in nine of ten cases, percent; None if unknown."""
        if not self.replay or self.replay_error is None:
            return None
        return 100 * WITHIN_90 * self.replay_error / self.replay

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        names = ("part", "quantity", "statistic", "fluid", "replay", "difference_pct", "chance_pct")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Check:
    """The fluid's prediction and what a replay of the same load says of it.

    Attributes:
        prediction: The fluid's.
        replayed: Requests that were replayed.
        compared: Of them, those that figures are of: without those that never were answered and,
            where the load goes on without end, without the first fifth and the last tenth, while
            the engine fills up and empties.
        rows: The figures that both know.
    """

    prediction: Prediction
    replayed: int
    compared: int
    rows: tuple[Compared, ...]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values, without the prediction."""
        rows = [row.to_dict() for row in self.rows]
        return {"replayed": self.replayed, "compared": self.compared, "rows": rows}

    def __repr__(self) -> str:
        rows = [("mean", "fluid", "replay", "difference")]
        for row in self.rows:
            if row.part == "all" and row.statistic == "mean":
                percent = row.difference_pct
                off = "-" if percent is None else f"{percent:+.1f}%"
                off += "" if row.chance_pct is None else f" ±{row.chance_pct:.1f}"
                rows.append((row.quantity, f"{row.fluid:.4g}", f"{row.replay:.4g}", off))
        compared = f"{self.compared:,} of {self.replayed:,} replayed requests compared"
        return shown(self, self.prediction.describe(), compared, *aligned(rows))

    def to_frame(self) -> pd.DataFrame:
        """A row for each figure that both know."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows])


def checked(prediction: Prediction, case: Case, corrections: Corrections, seed: int) -> Check:
    """A prediction of the fluid beside a replay.

    Of a load without end, `physim.prediction.replayed.REPLAYED` requests are replayed, or ten
    times those that are under way.

    Args:
        prediction: The fluid's.
        case: What it is of.
        corrections: Those that it was made with.
        seed: Seed of the requests.

    Raises:
        InputError: The replay cannot do this, or answers no request.
    """
    result = replay_load(case, corrections, seed, prediction)
    if case.demanded.endless:
        count, rows = _steady(prediction, result)
    else:
        other = replayed_prediction(prediction, case, result)
        count = int(other.whole.completed or 0)
        rows = list(_of_parts(prediction, other))
    return Check(prediction, len(result.requests), count, tuple(rows))


def _of_parts(prediction: Prediction, other: Prediction) -> Iterator[Compared]:
    """Figures of all requests of a load that ends, and of its stages."""
    ours, theirs = ((own.whole, *own.stages) for own in (prediction, other))
    for place, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
        name = f"{yours.rate:g}/s, {yours.duration_s:g} s" if place else "all"
        yield from _latencies(name, mine, yours.latencies, {})
        if not place:
            for rate in ("requests_per_s", "output_tokens_per_s"):
                values = getattr(prediction, rate), getattr(other, rate)
                yield Compared(name, rate, "mean", *values)


def _latencies(
    name: str,
    part: StageLatencies,
    replayed: Mapping[str, Mapping[str, float]],
    errors: Mapping[str, Mapping[str, float]],
) -> Iterator[Compared]:
    """Latencies that both know; where the queue grows without end, the fluid has no TTFT."""
    for metric in METRICS:
        if metric in part.latencies and metric in replayed:
            ours, theirs = part.latencies[metric], replayed[metric]
            for statistic in STATISTICS:
                error = errors[metric][statistic] if metric in errors else None
                yield Compared(name, metric, statistic, ours[statistic], theirs[statistic], error)


def _steady(prediction: Prediction, result: Replayed) -> tuple[int, list[Compared]]:
    """Requests compared and figures of a load without end."""
    frame = result.to_frame()
    middle = completed_of(frame.iloc[int(_FIRST * len(frame)) : int(_LAST * len(frame))])
    done = np.sort(completed_of(frame)["finished_s"].to_numpy())
    refuse_unanswered(len(middle))
    first, last = int(_FIRST * len(done)), int(_LAST * len(done))
    begin, end = float(done[first]), float(done[last])
    if begin == end:
        raise InputError(
            "check",
            f"so many clients have all {len(frame)} replayed requests answered at once",
            "give a number of requests",
        )
    figures, errors = (of(middle, begin, end) for of in (result.latencies, result.errors))
    rows = list(_latencies("all", prediction.whole, figures, errors))
    per_s = (last - first) / (end - begin)
    tokens_per_s = per_s * float(middle["output_tokens"].mean())
    replay = {"requests_per_s": per_s, "output_tokens_per_s": tokens_per_s}
    own: list[tuple[object, Mapping[str, float]]] = [(prediction, replay)]
    # Of several servers the replay knows what all hold together.
    if len(prediction.pools) == 1 and prediction.pool.replicas == 1:
        own.append((prediction.pool, _held(result, frame, begin, end)))
    for fluid, values in own:
        rows += [
            Compared("all", name, "mean", getattr(fluid, name), value)
            for name, value in values.items()
        ]
    return len(middle), rows


def _held(result: Replayed, frame: pd.DataFrame, begin: float, end: float) -> dict[str, float]:
    """Requests that run and decode, and the share of KV blocks that they hold, means over time."""
    ran = completed_of(frame)
    starts, answers, ends = (
        np.clip(ran[name].to_numpy(), begin, end)
        for name in ("scheduled_s", "first_token_s", "finished_s")
    )
    # The engine is noted where it runs; when all have left nothing is, and nothing is held.
    order = np.argsort(starts)
    gone = np.maximum.accumulate(ends[order])
    idle_from, idle_to = gone[:-1], np.maximum(starts[order][1:], gone[:-1])
    edges = np.ravel(np.column_stack([idle_from, idle_to]))
    idle = np.ravel(np.cumsum(np.column_stack([np.zeros(len(gone) - 1), idle_to - idle_from])))
    samples = result.samples
    times = np.clip(np.append(samples.time_s, max(result.end_s, end)), begin, end)
    lasting = np.diff(times - np.interp(times, edges, idle))
    span = end - begin
    return {
        "running": float(lasting @ samples.running) / span,
        "batch": float(np.sum(ends - answers)) / span,
        "kv_use": float(lasting @ samples.kv_blocks) / span / result.kv_blocks,
    }
