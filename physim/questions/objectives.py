"""Objectives on latencies."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from physim.errors import InputError
from physim.inputs.attempts import check_lists
from physim.metrics import METRICS, STATISTICS
from physim.prediction.requests import OF_A_REQUEST
from physim.prediction.results import Prediction
from physim.printable import shown

# What every single request is held to, rather than a statistic of all.
EACH = "each"
# What limits a server, beside objectives by their names.
THROUGHPUT, GOODPUT = "throughput", "goodput"
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_EXAMPLE = "ttft_p99=500ms"


@dataclass(frozen=True)
class Objective:
    """An upper bound on a latency.

    Attributes:
        metric: ``ttft``, ``itl``, ``tpot`` or ``e2e``.
        statistic: ``mean``, ``p50``, ``p90``, ``p95`` or ``p99``, or ``each`` of what every single
            request is held to: see `Prediction.goodput`.
        seconds: The bound.
    """

    metric: str
    statistic: str
    seconds: float

    def __post_init__(self) -> None:
        where = f"slo {self.name}"
        for part, value, known in (
            ("metric", self.metric, tuple(METRICS)),
            ("statistic", self.statistic, (*STATISTICS, EACH)),
        ):
            if value not in known:
                raise InputError(
                    where, f"the {part} {value!r} is unknown", f"use one of {', '.join(known)}"
                )
        if self.statistic == EACH and self.metric not in OF_A_REQUEST:
            raise InputError(
                where,
                f"a request has many of {self.metric}",
                f"give a statistic, such as {self.metric}_p99, or tpot, its mean",
            )
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InputError(
                where, f"the bound of {self.seconds:g} s is not positive", "give a time above zero"
            )

    @classmethod
    def parse(cls, text: str) -> Objective:
        """An objective from text such as ``ttft_p99=500ms``, or ``ttft=500ms`` for each request.

        Raises:
            InputError: The text is none.
        """
        where = f"slo {text!r}"
        name, has_bound, bound = (part.strip() for part in text.partition("="))
        metric, _, statistic = name.partition("_")
        if not has_bound:
            raise InputError(where, "has no bound", f"write it like {_EXAMPLE}")
        number = bound.rstrip(string.ascii_letters + " ")
        unit = bound[len(number) :].strip()
        try:
            value = float(number)
        except ValueError:
            raise InputError(
                where,
                f"the bound {bound!r} is not a number and a unit",
                f"write it like {_EXAMPLE}",
            ) from None
        if unit not in _UNITS:
            known = ", ".join(_UNITS)
            said = f"the unit {unit!r} is unknown" if unit else f"the bound {bound!r} has no unit"
            raise InputError(where, said, f"use one of {known}")
        return cls(metric, statistic or EACH, value * _UNITS[unit])

    @property
    def name(self) -> str:
        """Such as ``ttft_p99``, or ``ttft`` of each request."""
        return self.metric if self.statistic == EACH else f"{self.metric}_{self.statistic}"

    def latency_s(self, prediction: Prediction) -> float:
        """The predicted latency, seconds; infinite above capacity, and the mean for ``each``."""
        values = prediction.whole.latencies.get(self.metric)
        if values is None:
            # One token out has no time between tokens, which keeps any bound.
            return 0.0 if self.metric in ("itl", "tpot") else math.inf
        return values["mean" if self.statistic == EACH else self.statistic]

    def __repr__(self) -> str:
        return shown(self, f"{self.name} at most {1e3 * self.seconds:g} ms")


def objectives_of(slo: Iterable[str | Objective]) -> tuple[Objective, ...]:
    """Objectives from texts."""
    return tuple(one if isinstance(one, Objective) else Objective.parse(one) for one in slo)


def share_within(objectives: Sequence[Objective], prediction: Prediction) -> float | None:
    """Share of the requests that keep to all that each is held to; None if that is nothing."""
    bounds = {one.metric: one.seconds for one in objectives if one.statistic == EACH}
    return prediction.goodput(**bounds) if bounds else None


@dataclass(frozen=True)
class Requirements:
    """What is asked of latencies.

    Attributes:
        objectives: The objectives.
        goodput: Share of requests that keep to all that is asked of each.
    """

    objectives: tuple[Objective, ...]
    goodput: float

    @classmethod
    def parse(cls, slo: Iterable[str | Objective], goodput: float) -> Requirements:
        """Objectives from texts, with the share of requests that must keep to them.

        Raises:
            InputError: There are none, one cannot be read, or the share is none.
        """
        check_lists(slo=slo)
        objectives = objectives_of(slo)
        if not objectives:
            raise InputError("slo", "is missing", f"give at least one, such as {_EXAMPLE}")
        if not 0 < goodput <= 1:
            raise InputError(
                "goodput", f"{goodput:g} is no share", "give one above 0, up to 1, such as 0.9"
            )
        return cls(objectives, goodput)

    def tightened(self, factor: float) -> Requirements:
        """All bounds divided by a factor."""
        bounds = (replace(one, seconds=one.seconds / factor) for one in self.objectives)
        return replace(self, objectives=tuple(bounds))

    def missed(self, prediction: Prediction) -> str | None:
        """The objective that a prediction misses, ``throughput`` where it is above capacity."""
        if prediction.saturated:
            return THROUGHPUT
        for objective in self.objectives:
            late = objective.latency_s(prediction) > objective.seconds
            if late and objective.statistic != EACH:
                return objective.name
        share = share_within(self.objectives, prediction)
        return GOODPUT if share is not None and share < self.goodput else None


# Of a server of which nothing is asked but that it serves its load.
NOTHING = Requirements((), 1.0)
