"""The highest rate of requests that keeps to an objective."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from physim.cases import Case
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.intervals import predict_with_interval
from physim.prediction import predict_cases
from physim.results import Prediction
from physim.serving.lengths import Tokens
from physim.serving.load import Load

METRICS, STATISTICS = ("ttft", "itl", "e2e"), ("mean", "p50", "p90", "p99")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_FORM = re.compile(r"(\w+)_(\w+)=([0-9.eE+-]+)\s*(us|ms|s)")
# Rates that are looked at together, and from which share of the capacity on: what holds nowhere
# above it is said to hold nowhere.
_TOGETHER, _LEAST = 64, 1e-3
# Rounds of narrowing: each by the number of rates, so that the last is within 1e-5.
_ROUNDS = 2


@dataclass(frozen=True)
class Objective:
    """An upper bound on a latency.

    Attributes:
        metric: ``ttft``, ``itl`` or ``e2e``.
        statistic: ``mean``, ``p50``, ``p90`` or ``p99``; of ITL over requests' means.
        seconds: The bound.
    """

    metric: str
    statistic: str
    seconds: float

    def __post_init__(self) -> None:
        name = f"slo {self.metric}_{self.statistic}"
        if self.metric not in METRICS or self.statistic not in STATISTICS:
            known = f"{', '.join(METRICS)}, each with {', '.join(STATISTICS)}"
            raise InputError(name, "is unknown", f"known are {known}")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InputError(name, f"{self.seconds:g} is not positive", "correct it")

    @classmethod
    def parse(cls, text: str) -> Objective:
        """An objective from text such as ``ttft_p99=500ms``.

        Raises:
            InputError: The text is none.
        """
        match = _FORM.fullmatch(text.strip())
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            match = None
        if match is None:
            raise InputError(f"slo {text!r}", "is no objective", "write it like ttft_p99=500ms")
        return cls(match[1], match[2], value * _UNITS[match[4]])

    @property
    def name(self) -> str:
        """Such as ``ttft_p99``."""
        return f"{self.metric}_{self.statistic}"

    def latency_s(self, prediction: Prediction) -> float:
        """The predicted latency, seconds; infinite above capacity."""
        values = prediction.whole.latencies.get(self.metric)
        if values is None:
            # One token out has no time between tokens, which keeps any bound.
            return 0.0 if self.metric == "itl" else math.inf
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
    model: str | Path,
    *,
    gpu: str,
    input_tokens: Tokens,
    output_tokens: Tokens,
    slo: Sequence[str | Objective],
    cached_tokens: float = 0.0,
    prefixes: int = 1,
    arrival: str = "poisson",
    burstiness: float = 1.0,
    fit: str | Path = DEFAULT_FIT,
    **deployment: Any,
) -> Capacity:
    """The highest rate at which a server keeps to objectives on its latencies.

    All rates below keep to them too.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpu: Key of a GPU, or a JSON file.
        input_tokens: Prompt length, tokens: a number, or `physim.Lengths`.
        output_tokens: Generated length, tokens: a number, or `physim.Lengths`.
        slo: Objectives such as ``ttft_p99=500ms``.
        cached_tokens: Prompt tokens that are found in the prefix cache.
        prefixes: Different cached prefixes.
        arrival: ``poisson``, ``constant`` or ``gamma``.
        burstiness: Shape of gamma arrivals.
        fit: Name or path of a fit, ``default`` or ``none``.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used, or an objective is missed at any rate.
    """
    objectives = tuple(o if isinstance(o, Objective) else Objective.parse(o) for o in slo)
    if not objectives:
        raise InputError("slo", "is missing", "give at least one, such as ttft_p99=500ms")
    load = Load(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        rate=1.0,
        cached_tokens=cached_tokens,
        prefixes=prefixes,
        arrival=arrival,
        burstiness=burstiness,
    )
    case = Case.of(model, gpu, Deployment(**deployment), load)
    known = load_fit(fit, case.gpu.key)

    def at(rates: np.ndarray) -> list[Prediction]:
        cases = [replace(case, load=replace(load, rate=float(rate))) for rate in rates]
        return predict_cases(cases, known.corrections, known.name)

    most = at(np.array([1.0]))[0].capacity_rps
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
    final = predict_with_interval(
        replace(case, load=replace(load, rate=kept)), known, "additive", "fluid", 0
    )
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
