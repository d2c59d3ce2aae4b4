"""What became of a load over a day whose servers come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from physim.inputs.case import Case
from physim.inputs.profile import LoadProfile
from physim.printable import aligned, shown
from physim.questions.objectives import Requirements
from physim.questions.thresholds import Threshold
from physim.replay.scaling import Replica
from physim.service.scaling import Autoscaling

if TYPE_CHECKING:
    import pandas as pd

_HOUR, _MINUTE = 3600.0, 60.0
_TTFT = ("p50", "p99")


@dataclass(frozen=True)
class ScalingRun:
    """A replay of a load profile with servers that come and go.

    Attributes:
        name: What asks for servers.
        start_up_s: Time from when a server is asked for until it serves, seconds; None where none
            is asked for late.
        replicas: The time of each server.
        gpus: GPUs of a server.
        end_s: When the profile ends, seconds from its first window.
        arrival_s: When each request came, likewise.
        ttft_s: Its time to first token, seconds.
        kept: Whether it keeps to all that is asked of each.
        peak_waiting: Most requests that waited at once for their first step.
        price: Price of a GPU for an hour; None if not known.
        missed: The first objective that is missed over all of it, ``goodput`` where too few
            requests keep to what is asked of each; None where all is kept.
    """

    name: str
    start_up_s: float | None
    replicas: Sequence[Replica] = field(repr=False)
    gpus: int
    end_s: float
    arrival_s: Float[np.ndarray, " requests"] = field(repr=False)
    ttft_s: Float[np.ndarray, " requests"] = field(repr=False)
    kept: Bool[np.ndarray, " requests"] = field(repr=False)
    peak_waiting: int
    price: float | None = None
    missed: str | None = None

    @property
    def goodput(self) -> float:
        """Share of the requests that keep to all that is asked of each."""
        return float(np.mean(self.kept))

    @property
    def gpu_hours(self) -> float:
        """GPU-hours from when each server was asked for until its last request ended."""
        seconds = sum(one.ended_s - one.asked_s for one in self.replicas)
        return self.gpus * seconds / _HOUR

    @property
    def cost(self) -> float | None:
        """Price of these GPU-hours; None without a price."""
        return None if self.price is None else self.price * self.gpu_hours

    def asked(self) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """When the number of servers that serve or start changes, seconds, and what it is then."""
        return self._numbers([one.asked_s for one in self.replicas])

    def serving(self) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """When the number of servers that are given requests changes, seconds, and what it is."""
        return self._numbers([one.serves_s for one in self.replicas])

    def to_frame(self) -> pd.DataFrame:
        """Servers and GPUs over time: a row for each change, seconds from the first window on.

        ``gpus`` are those of servers that serve or start; draining servers are not among them.
        """
        import pandas as pd

        (asked_s, asked), (serving_s, serving) = self.asked(), self.serving()
        times = np.unique(np.concatenate([asked_s, serving_s]))

        def number(moments: np.ndarray, numbers: np.ndarray) -> np.ndarray:
            places = np.searchsorted(moments, times, side="right") - 1
            return np.where(places < 0, 0, numbers[np.maximum(places, 0)])

        both = number(asked_s, asked)
        columns = {"start_s": times, "asked": both, "serving": number(serving_s, serving)}
        return pd.DataFrame(columns | {"gpus": both * self.gpus}).round(6)

    def _numbers(
        self, begins: Sequence[float]
    ) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Numbers of servers over the time of the profile, which end as it ends."""
        own = [
            (begin, one.leaves_s)
            for begin, one in zip(begins, self.replicas, strict=True)
            if begin < min(one.leaves_s, self.end_s)
        ]
        # All begins, then all ends.
        moments, place = np.unique(np.array(own).T.ravel(), return_inverse=True)
        change = np.zeros(len(moments), int)
        np.add.at(change, place, np.repeat([1, -1], len(own)))
        within = (moments < self.end_s) & (change != 0)
        return moments[within], np.cumsum(change)[within]

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        _, asked = self.asked()
        times = np.percentile(self.ttft_s, [float(name[1:]) for name in _TTFT]).tolist()
        return {
            "policy": self.name,
            "start_up_s": self.start_up_s,
            "requests": len(self.kept),
            "goodput": self.goodput,
            "missed": self.missed,
            "gpu_hours": self.gpu_hours,
            "cost": self.cost,
            "most_replicas": int(asked.max()),
            **{f"ttft_{name}_s": time for name, time in zip(_TTFT, times, strict=True)},
            "peak_waiting": self.peak_waiting,
        }

    def __repr__(self) -> str:
        told = "" if self.start_up_s is None else f", ready after {self.start_up_s:g} s"
        return shown(
            self,
            f"{self.name}{told}: {self.goodput:.1%} of {len(self.kept):,} requests kept to what is "
            f"asked, {self.gpu_hours:.4g} GPU-hours",
        )


@dataclass(frozen=True)
class ScaledDay:
    """A load profile that is replayed with an autoscaler, and with the servers that it takes.

    Attributes:
        case: The server, under the load of the window with the highest rate.
        profile: The load profile.
        asked: What is asked of requests.
        fixed: As many servers at all times as the busiest window takes.
        schedule: As many as each window takes, there in time.
        runs: The autoscaler, for each start-up time.
        scaling: The autoscaler with its bounds, and the longest of these times.
        fit: Name of the fit.
        threshold: How its target was derived; None where it was given.
        notes: What is left open, one line each.
    """

    case: Case
    profile: LoadProfile
    asked: Requirements
    fixed: ScalingRun
    schedule: ScalingRun
    runs: Sequence[ScalingRun]
    scaling: Autoscaling
    fit: str
    threshold: Threshold | None = None
    notes: Sequence[str] = ()

    @property
    def lost_per_minute(self) -> float | None:
        """Goodput that a minute of start-up costs; None where one start-up time was tried.

        From the shortest start-up time to the next.
        """
        first, *rest = sorted(self.runs, key=lambda run: run.start_up_s or 0.0)
        if not rest:
            return None
        minutes = ((rest[0].start_up_s or 0.0) - (first.start_up_s or 0.0)) / _MINUTE
        return (first.goodput - rest[0].goodput) / minutes

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON, with when how many servers were asked for."""
        runs = []
        for run in (self.fixed, self.schedule, *self.runs):
            asked, serving = (
                [list(pair) for pair in zip(times.tolist(), numbers.tolist(), strict=True)]
                for times, numbers in (run.asked(), run.serving())
            )
            runs.append(run.to_dict() | {"asked": asked, "serving": serving})
        return {
            "model": self.case.model.name,
            "gpu": self.case.server.gpu.key,
            "hours": self.profile.hours,
            "objectives": {one.name: one.seconds for one in self.asked.objectives},
            "goodput_lost_per_minute": self.lost_per_minute,
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
            "runs": runs,
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """A row for each replay."""
        import pandas as pd

        return pd.DataFrame([one.to_dict() for one in (self.fixed, self.schedule, *self.runs)])

    def __repr__(self) -> str:
        rows = [("servers", "ready after", "goodput", "GPU-hours", "TTFT p99")]
        for run in (self.fixed, self.schedule, *self.runs):
            figures = run.to_dict()
            rows.append(
                (
                    run.name,
                    "-" if run.start_up_s is None else f"{run.start_up_s:g} s",
                    f"{run.goodput:.2%}",
                    f"{run.gpu_hours:.4g}",
                    f"{1e3 * figures['ttft_p99_s']:.4g} ms",
                )
            )
        return shown(self, f"{self.case.what}, {self.profile.hours:.4g} hours", *aligned(rows))
