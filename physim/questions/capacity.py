"""The highest rate of requests that keeps to an objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions
from physim.options import named_options
from physim.prediction.intervals import predict_with_interval
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction
from physim.printable import shown
from physim.progress import told_in_notebooks
from physim.questions.objectives import GOODPUT, THROUGHPUT, Objective, Requirements, share_within

if TYPE_CHECKING:
    import pandas as pd

# Rates that are looked at together, and from which share of the capacity on: what holds nowhere
# above it is said to hold nowhere.
_TOGETHER, LEAST_SHARE = 64, 1e-3
# Rounds of narrowing: each by the number of rates, so that the last is within 1e-5.
_ROUNDS = 2


@dataclass(frozen=True)
class Capacity:
    """The highest rate that keeps to all objectives.

    Attributes:
        rate_rps: Requests per second.
        limited_by: Name of the objective that is reached there, ``goodput``, or ``throughput`` if
            the server can serve no more.
        objectives: The objectives.
        goodput: Share of the requests that keep to what each is held to, there; None where nothing
            is asked of each.
        interval_rps: Between which rates the highest lies in nine of ten cases; None without a fit
            that knows.
        prediction: What the server does at that rate.
    """

    rate_rps: float
    limited_by: str
    objectives: tuple[Objective, ...]
    goodput: float | None
    interval_rps: tuple[float, float] | None
    prediction: Prediction

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "rate_rps": self.rate_rps,
            "limited_by": self.limited_by,
            "objectives": [asdict(objective) for objective in self.objectives],
            "goodput": self.goodput,
            "interval_rps": self.interval_rps and list(self.interval_rps),
            "prediction": self.prediction.to_dict(),
        }

    def __repr__(self) -> str:
        between = ""
        if self.interval_rps is not None:
            between = f" (90%: {self.interval_rps[0]:.3g} to {self.interval_rps[1]:.3g})"
        one = self.prediction
        return shown(
            self,
            f"{one.model} on {one.gpus}: up to {self.rate_rps:.4g} requests/s{between}, "
            f"limited by {self.limited_by}",
            f"there {one.figures}",
        )

    def to_frame(self) -> pd.DataFrame:
        """What the server does at that rate, as `Prediction.to_frame` has it, and the rate."""
        frame = self.prediction.to_frame()
        return frame.assign(rate_rps=self.rate_rps, limited_by=self.limited_by)


@told_in_notebooks("searching the highest rate")
@named_options
def capacity(
    model: str | Path | Case,
    *,
    slo: Sequence[str | Objective],
    goodput: float = 0.9,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> Capacity:
    """The highest rate at which a server, or a service of several, keeps to objectives.

    All rates below keep to them too. Of pools apart ``prediction.limiting_pool`` is the one that
    can do least.

    Args:
        model: A case, whose rate is of no account, and whose clients' requests come by chance; or
            a path of a ``config.json``, shipped name or hub id, with the rest of the case beside
            it.
        slo: Objectives such as ``ttft_p99=500ms``; or ``ttft=500ms``, which is asked of requests
            one by one.
        goodput: Share of the requests that must keep to all that is asked of each.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, deployment and load without a rate; see `CaseOptions`.

    Raises:
        InputError: Some input cannot be used, or an objective is missed at any rate.
    """
    asked = Requirements.parse(slo, goodput)
    if not isinstance(model, Case):
        for name in ("rate", "concurrency", "stages"):
            if options.get(name):
                raise InputError(name, "cannot be given: capacity finds the rate", "leave it out")
        options = {**options, "rate": 1.0}
    case = Case.from_options(model, **options)
    asked_load = case.demanded
    load = replace(
        asked_load.in_open_loop(1.0),
        rate=1.0,
        stages=(),
        requests=None,
        # Clients who think between requests of their own are not there any more.
        think_s=asked_load.think_s if asked_load.conversing else 0.0,
    )
    known = load_fit(fit).on(case)

    def predicted_at(rates: np.ndarray) -> list[Prediction]:
        cases = [case.under(replace(load, rate=float(rate))) for rate in rates]
        return predict_cases(cases, known.corrections, known.name)

    most = predicted_at(np.array([1.0]))[0].saturation_rps
    kept, limited_by = highest_rate(predicted_at, most, asked)
    if kept == 0:
        raise never_met(asked, limited_by, predicted_at(np.array([LEAST_SHARE * most]))[0])
    final = predict_with_interval(case.under(replace(load, rate=kept)), known)
    # At half the rate no queue makes more of what is not known of the server.
    light = predict_with_interval(case.under(replace(load, rate=kept / 2)), known)
    faster, slower = _factors(light, limited_by)
    interval = None
    if "saturation_rps" in light.intervals:
        least, largest = (rate / light.saturation_rps for rate in light.intervals["saturation_rps"])
        interval = (
            least * highest_rate(predicted_at, most, asked.tightened(slower))[0],
            largest * highest_rate(predicted_at, most, asked.tightened(faster))[0],
        )
    share = share_within(asked.objectives, final)
    return Capacity(kept, limited_by, asked.objectives, share, interval, final)


def highest_rate(
    predicted_at: Callable[[np.ndarray], list[Prediction]], most: float, asked: Requirements
) -> tuple[float, str]:
    """The highest rate up to which nothing is missed, 0 if there is none, and what is then.

    Args:
        predicted_at: Predictions at some rates.
        most: Saturation throughput.
        asked: What is asked.
    """
    rates, kept = np.geomspace(LEAST_SHARE * most, most, _TOGETHER), 0.0
    for _ in range(1 + _ROUNDS):
        missed = [asked.missed(prediction) for prediction in predicted_at(rates)]
        first = next((row for row, name in enumerate(missed) if name), None)
        if first is None:
            return float(rates[-1]), THROUGHPUT
        limited_by = missed[first] or ""
        if first == 0:
            break
        kept = float(rates[first - 1])
        rates = np.linspace(kept, float(rates[first]), _TOGETHER)
    return kept, limited_by


def _factors(prediction: Prediction, limited_by: str) -> tuple[float, float]:
    """By how much the latency that limits a server may be shorter or longer than predicted."""
    metric = limited_by.partition("_")[0]
    name = f"{metric}_s" if metric in ("ttft", "e2e") else "itl_s"
    centre = getattr(prediction, name)
    low, high = prediction.intervals.get(name, (centre, centre))
    # Where the load may be above capacity, a latency has no upper bound, and its lower one stands
    # for both.
    return low / centre, high / centre if math.isfinite(high) else centre / low


def never_met(asked: Requirements, name: str, prediction: Prediction) -> InputError:
    """The error for an objective that is missed when hardly anything is served.

    Args:
        asked: What is asked.
        name: What is missed.
        prediction: What the server does at such a rate.
    """
    remedy = "relax it, or take more or faster GPUs"
    if name == GOODPUT:
        share = share_within(asked.objectives, prediction)
        return InputError(
            f"goodput {asked.goodput:g}",
            f"is missed at any rate: {share:.3g} of the requests meet all objectives on an idle "
            "server",
            remedy,
        )
    objective = next(one for one in asked.objectives if one.name == name)
    least = objective.latency_s(prediction) * 1e3
    return InputError(
        f"slo {name}={objective.seconds * 1e3:g}ms",
        f"is missed at any rate: it is {least:.3g} ms on an idle server",
        remedy,
    )
