"""Targets of an autoscaler that follow from objectives and a day, and are held against its replay.

What a server can take is the highest rate at which objectives hold if the load stays; the metric
there is the highest target that could do. Servers that start are late, so a server has to have less
than that, and how much less is what replays of the day say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from physim.corrections.files import Fit
from physim.errors import InputError
from physim.inputs.case import Case
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction
from physim.questions.capacity import LEAST_SHARE, highest_rate, never_met
from physim.questions.objectives import Requirements
from physim.service.scaling import AUTO, KV, RUNNING, OpenTarget, TargetTracking

# Shares of the rate that a server can take, which it has at the targets that are tried.
_SHARES = np.linspace(0.05, 1.0, 20)
# The longest `stabilizationWindowSeconds` that Kubernetes takes, seconds
# (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/
# horizontal-pod-autoscaler-v2/).
_LONGEST_HOLD_S = 3600.0
# What of the time to first token a request waits for in the engine.
_WAITS = ("scheduling", "queue")


class ReplayedDay(Protocol):
    """What a replay of the day with an autoscaler says."""

    @property
    def missed(self) -> str | None:
        """The objective that it misses; None if it keeps to all."""
        ...

    @property
    def goodput(self) -> float:
        """Share of the requests that keep to what is asked of each."""
        ...


@dataclass(frozen=True)
class Threshold:
    """A target that was derived.

    Attributes:
        policy: The autoscaler that has it.
        rate_rps: Requests per second that a server can take at most, in the window where the metric
            is lowest then.
        limited_by: What is reached there, as `physim.Capacity` has it.
        share: Share of that rate that a server has at the target.
        start_up_s: Time until a server serves with which the day was replayed, seconds.
        replays: How many targets were tried.
    """

    policy: TargetTracking
    rate_rps: float
    limited_by: str
    share: float
    start_up_s: float
    replays: int

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        own = {name: value for name, value in vars(self).items() if name != "policy"}
        return {"target": self.policy.target, "hold_s": self.policy.hold_s, **own}


def derived_threshold(
    policy: OpenTarget,
    cases: Sequence[Case],
    asked: Requirements,
    known: Fit,
    hold_s: float,
    start_up_s: float,
    replayed: Callable[[TargetTracking], ReplayedDay],
) -> Threshold:
    """The highest target of a metric with which a day keeps to objectives.

    Of shares of the rate that a server can take, 0.05 to 1, the highest is taken by bisection with
    which the replay misses nothing. The target is what a server has of the metric at that share,
    less the autoscaler's tolerance, up to which nothing is done.

    Args:
        policy: The autoscaler.
        cases: The server under the loads of windows that tell most, at any rate.
        asked: What is asked of each window, and of the day.
        known: The fit.
        hold_s: How long fewer must have been wanted, seconds, unless the policy says.
        start_up_s: Time until a server serves, seconds.
        replayed: Replays the day.

    Raises:
        InputError: An objective is missed at any rate, or by the day at any target.
    """
    hold_s = hold_s if policy.hold_s is None else policy.hold_s
    limits = [_limit(case, asked, known) for case in cases]
    levels = np.array(
        [
            _levels(policy.metric, case, known, rate)
            for case, (rate, _) in zip(cases, limits, strict=True)
        ]
    )
    tightest = int(np.argmin(levels[:, -1]))
    targets = levels.min(axis=0) / (1.0 + policy.tolerance)
    rounded = [float(f"{one:.3g}") for one in targets]
    tried: dict[int, ReplayedDay] = {}

    def holds(place: int) -> bool:
        tried[place] = replayed(policy.with_target(rounded[place], hold_s))
        return tried[place].missed is None

    # The highest that holds, if any does; those above it were found not to.
    low, high = -1, len(rounded) - 1
    if holds(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    if low < 0:
        run = tried[0]
        raise InputError(
            f"policy {policy.metric}={AUTO}",
            f"misses {run.missed} over the day at any target with a start-up of {start_up_s:g} s: "
            f"goodput is {run.goodput:.2%} at {rounded[0]:g}",
            "allow more servers with --least or --most, start faster, or use schedule=",
        )
    rate, limited_by = limits[tightest]
    return Threshold(
        policy.with_target(rounded[low], hold_s),
        rate,
        limited_by,
        float(_SHARES[low]),
        start_up_s,
        len(tried),
    )


def derived_hold_s(
    timetable: Sequence[tuple[float, int]], start_up_s: float, look_s: float
) -> float:
    """How long fewer servers must have been wanted before there are fewer, seconds.

    A server that is let go and asked for again costs its start-up, which is what keeping it as long
    costs; so it is kept for that. A dip of the day up to twice as long would save no more than its
    server costs to start again, so the longest such dip is bridged too.

    Args:
        timetable: From when on how many servers the day takes.
        start_up_s: Time until a server serves, seconds.
        look_s: Time from a look to the next, seconds.
    """
    dips = [0.0]
    for place, ((_, before), (begin_s, after)) in enumerate(itertools.pairwise(timetable), 2):
        again = (time_s for time_s, number in timetable[place:] if number > after)
        if after < before:
            dips += [end_s - begin_s for end_s in itertools.islice(again, 1)]
    bridged = max(one for one in dips if one <= 2 * start_up_s)
    return float(min(np.ceil(max(start_up_s, bridged, look_s)), _LONGEST_HOLD_S))


def _limit(case: Case, asked: Requirements, known: Fit) -> tuple[float, str]:
    """The highest rate of a server that keeps to objectives, and what is reached there."""

    def predicted_at(rates: Float[np.ndarray, " rates"]) -> list[Prediction]:
        return _predicted(case, known, rates)

    most = predicted_at(np.ones(1))[0].saturation_rps
    kept, limited_by = highest_rate(predicted_at, most, asked)
    if kept == 0:
        raise never_met(asked, limited_by, predicted_at(np.array([LEAST_SHARE * most]))[0])
    return kept, limited_by


def _levels(metric: str, case: Case, known: Fit, rate: float) -> Float[np.ndarray, " shares"]:
    """What a server has of a metric at shares of a rate."""
    return np.array([_level(metric, one) for one in _predicted(case, known, rate * _SHARES)])


def _level(metric: str, prediction: Prediction) -> float:
    pool, parts = prediction.pools[-1], prediction.ttft_parts_s
    if metric in (KV, RUNNING):
        return pool.kv_use if metric == KV else pool.running
    # Little's law: as many wait as come while one does.
    waits_s = sum(parts.get(name, 0.0) for name in _WAITS)
    return pool.running + prediction.requests_per_s * waits_s


def _predicted(case: Case, known: Fit, rates: Float[np.ndarray, " rates"]) -> list[Prediction]:
    cases = [case.under(replace(case.demanded, rate=float(rate))) for rate in rates]
    own = known.on(case)
    return predict_cases(cases, own.corrections, own.name)
