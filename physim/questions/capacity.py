"""The highest rate of requests that keeps to an objective."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions
from physim.prediction.intervals import predict_with_interval
from physim.prediction.many import predict_cases
from physim.prediction.metrics import METRICS
from physim.prediction.results import Prediction

STATISTICS = ("mean", "p50", "p90", "p99")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_EXAMPLE = "ttft_p99=500ms"
# Rates that are looked at together, and from which share of the capacity on: what holds nowhere
# above it is said to hold nowhere.
_TOGETHER, _LEAST = 64, 1e-3
# Rounds of narrowing: each by the number of rates, so that the last is within 1e-5.
_ROUNDS = 2


@dataclass(frozen=True)
class Objective:
    """An upper bound on a latency.

    Attributes:
        metric: ``ttft``, ``itl``, ``tpot`` or ``e2e``.
        statistic: ``mean``, ``p50``, ``p90`` or ``p99``, over requests.
        seconds: The bound.
    """

    metric: str
    statistic: str
    seconds: float

    def __post_init__(self) -> None:
        where = f"slo {self.name}"
        for part, value, known in (
            ("metric", self.metric, METRICS),
            ("statistic", self.statistic, STATISTICS),
        ):
            if value not in known:
                raise InputError(
                    where, f"the {part} {value!r} is unknown", f"use one of {', '.join(known)}"
                )
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InputError(
                where, f"the bound of {self.seconds:g} s is not positive", "give a time above zero"
            )

    @classmethod
    def parse(cls, text: str) -> Objective:
        """An objective from text such as ``ttft_p99=500ms``.

        Raises:
            InputError: The text is none.
        """
        where = f"slo {text!r}"
        name, has_bound, bound = (part.strip() for part in text.partition("="))
        metric, has_statistic, statistic = name.partition("_")
        if not has_bound:
            raise InputError(where, "has no bound", f"write it like {_EXAMPLE}")
        if metric in METRICS and not has_statistic:
            known = ", ".join(f"{metric}_{one}" for one in STATISTICS)
            raise InputError(where, f"{name!r} has no statistic", f"use one of {known}")
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
        return cls(metric, statistic, value * _UNITS[unit])

    @property
    def name(self) -> str:
        """Such as ``ttft_p99``."""
        return f"{self.metric}_{self.statistic}"

    def latency_s(self, prediction: Prediction) -> float:
        """The predicted latency, seconds; infinite above capacity."""
        values = prediction.whole.latencies.get(self.metric)
        if values is None:
            # One token out has no time between tokens, which keeps any bound.
            return 0.0 if self.metric in ("itl", "tpot") else math.inf
        return values[self.statistic]


@dataclass(frozen=True)
class Capacity:
    """The highest rate that keeps to all objectives.

    Attributes:
        rate_rps: Requests per second.
        limited_by: Name of the objective that is reached there, or ``throughput`` if the server can
            serve no more.
        objectives: The objectives.
        prediction: What the server does at that rate.
    """

    rate_rps: float
    limited_by: str
    objectives: tuple[Objective, ...]
    prediction: Prediction

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "rate_rps": self.rate_rps,
            "limited_by": self.limited_by,
            "objectives": [asdict(objective) for objective in self.objectives],
            "prediction": self.prediction.to_dict(),
        }


def capacity(
    model: str | Path | Case,
    *,
    slo: Sequence[str | Objective],
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> Capacity:
    """The highest rate at which a server keeps to objectives on its latencies.

    All rates below keep to them too.

    Args:
        model: A case, whose rate is of no account; or a path of a ``config.json``, shipped name or
            hub id, with the rest of the case beside it.
        slo: Objectives such as ``ttft_p99=500ms``.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, deployment and load without a rate; see `CaseOptions`. Arrivals are
            ``poisson`` unless another kind is given.

    Raises:
        InputError: Some input cannot be used, or an objective is missed at any rate.
    """
    objectives = tuple(o if isinstance(o, Objective) else Objective.parse(o) for o in slo)
    if not objectives:
        raise InputError("slo", "is missing", "give at least one, such as ttft_p99=500ms")
    if not isinstance(model, Case):
        for name in ("rate", "concurrency", "stages"):
            if options.get(name):
                raise InputError(
                    name, "cannot be given: the rate is what is asked for", "leave it out"
                )
        options = {"arrival": "poisson", **options, "rate": 1.0}
    case = Case.of(model, **options)
    load = replace(case.demanded, rate=1.0, concurrency=None, stages=(), requests=None)
    known = load_fit(fit, case.gpu.key)

    def at(rates: np.ndarray) -> list[Prediction]:
        cases = [case.under(replace(load, rate=float(rate))) for rate in rates]
        return predict_cases(cases, known.corrections, known.name)

    most = at(np.array([1.0]))[0].saturation_rps
    rates = np.geomspace(_LEAST * most, most, _TOGETHER)
    for _ in range(1 + _ROUNDS):
        missed = [_missed(objectives, prediction) for prediction in at(rates)]
        first = next((row for row, name in enumerate(missed) if name), None)
        if first is None:
            kept, limited_by = float(rates[-1]), "throughput"
            break
        limited_by = missed[first] or ""
        if first == 0:
            raise _never(objectives, limited_by, at(rates[:1])[0])
        kept = float(rates[first - 1])
        rates = np.linspace(kept, float(rates[first]), _TOGETHER)
    final = predict_with_interval(case.under(replace(load, rate=kept)), known)
    return Capacity(kept, limited_by, objectives, final)


def _missed(objectives: Sequence[Objective], prediction: Prediction) -> str | None:
    """The objective that a prediction misses, ``throughput`` where it is above capacity."""
    if prediction.saturated:
        return "throughput"
    for objective in objectives:
        if objective.latency_s(prediction) > objective.seconds:
            return objective.name
    return None


def _never(objectives: Sequence[Objective], name: str, prediction: Prediction) -> InputError:
    """The error for an objective that is missed when hardly anything is served."""
    objective = next(one for one in objectives if one.name == name)
    least = objective.latency_s(prediction) * 1e3
    return InputError(
        f"slo {name}={objective.seconds * 1e3:g}ms",
        f"is missed at any rate: it is {least:.3g} ms on an idle server",
        "relax it, or take more or faster GPUs",
    )
