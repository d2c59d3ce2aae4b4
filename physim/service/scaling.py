"""How many servers a pool has as its load changes: which rule asks for them, and when they serve.

Target tracking is the rule of Kubernetes' HorizontalPodAutoscaler, which KEDA and llm-d drive:
https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from physim.errors import InputError
from physim.printable import shown_fields

# Requests that run, that wait, and both, a server; share of the KV blocks in use; and the mean time
# to first token, seconds, since the look before.
SCALING_METRICS = (RUNNING, WAITING, REQUESTS, KV, TTFT) = (
    "running",
    "waiting",
    "requests",
    "kv",
    "ttft",
)
# Those that servers share: a metric of Kubernetes' kind AverageValue; the others are Values.
SHARED_METRICS = (RUNNING, WAITING, REQUESTS)
# Those that say how full a server is before anybody waits: their targets follow from objectives.
DERIVED_METRICS = (RUNNING, REQUESTS, KV)
# What a timetable is called where a policy is text.
SCHEDULE = "schedule"
# What stands for a target that is derived.
AUTO = "auto"

# Defaults of Kubernetes: of `--horizontal-pod-autoscaler-sync-period`, of its tolerance, and of
# `behavior.scaleDown.stabilizationWindowSeconds`.
LOOK_S, TOLERANCE, HOLD_S = 15.0, 0.1, 300.0
# Its default `behavior.scaleUp`: in so many seconds so many times as many, or so many more.
PERIOD_S, _TIMES, _MORE = 15.0, 2, 4
# What no autoscaler looks more often than, seconds.
_LEAST_LOOK_S = 1.0
# Beyond what anybody has.
_MOST = 10_000
_EXAMPLE = "running=32"


@dataclass(frozen=True)
class TargetTracking:
    """An autoscaler that keeps a metric near a target, as Kubernetes' does.

    Attributes:
        metric: What it watches, one of `SCALING_METRICS`.
        target: What each server should have of it: requests, a share, or seconds.
        look_s: Time from a look to the next, seconds.
        tolerance: By which share the metric may be off the target before anything is done.
        hold_s: How long it must have wanted fewer servers before it has fewer, seconds: the
            highest number that it wanted in that time is taken.

    Raises:
        InputError: The metric is unknown, or a figure out of range.
    """

    metric: str
    target: float
    look_s: float = LOOK_S
    tolerance: float = TOLERANCE
    hold_s: float = HOLD_S

    def __post_init__(self) -> None:
        if self.metric not in SCALING_METRICS:
            known = ", ".join((*SCALING_METRICS, SCHEDULE))
            raise InputError("policy", f"{self.metric[:60]!r} is unknown", f"use one of {known}")
        if not 0 < self.target < math.inf:
            raise InputError("policy: target", f"{self.target:g} is not positive", "correct it")
        if not _LEAST_LOOK_S <= self.look_s < math.inf:
            problem = f"{self.look_s:g} s is below {_LEAST_LOOK_S:g} s"
            raise InputError("policy: look_s", problem, "look less often")
        for name in ("tolerance", "hold_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"policy: {name}", f"{value:g} is negative", "use 0 or more")
        if self.metric == KV and self.target > 1:
            raise InputError("policy: target", f"{self.target:g} is no share", "use, say, kv=0.8")

    @property
    def name(self) -> str:
        """Such as ``running=32``."""
        unit = "s" if self.metric == TTFT else ""
        return f"{self.metric}={self.target:g}{unit}"

    def wanted(self, value: float, asked: int, serving: int) -> int:
        """How many servers it wants by the metric alone.

        ``ceil(servers x metric / target)``, or as many as there are where the ratio is within the
        tolerance of one. A metric that servers share is spread over all that are asked for, so
        that those that do not serve yet count as idle; another is taken to follow from the servers
        that serve. Source: the algorithm's details in the documentation of Kubernetes, and its
        `replica_calculator.go`.

        Args:
            value: The metric, the sum over the servers that serve if they share it; NaN if nothing
                is known, and nothing is done.
            asked: Servers that serve or start.
            serving: Servers that serve.
        """
        if math.isnan(value):
            return asked
        shared = self.metric in SHARED_METRICS
        wanted = value / self.target * (1 if shared else serving)
        ratio = wanted / (asked if shared else serving)
        if abs(ratio - 1.0) <= self.tolerance:
            return asked
        # Rounded up, but not for the last digit of a product.
        return math.ceil(wanted * (1.0 - 1e-12))

    def __repr__(self) -> str:
        return shown_fields(self)


@dataclass(frozen=True)
class OpenTarget:
    """An autoscaler whose target follows from objectives and a day: ``requests=auto``.

    Attributes:
        metric: What it watches, one of `DERIVED_METRICS`.
        look_s: See `TargetTracking`, as for the next.
        tolerance: Likewise.
        hold_s: Likewise; None for what follows from the day too.

    Raises:
        InputError: The metric is unknown or has no such target, or a figure is out of range.
    """

    metric: str
    look_s: float = LOOK_S
    tolerance: float = TOLERANCE
    hold_s: float | None = None

    def __post_init__(self) -> None:
        # The target stands for one that is yet to be found.
        self.with_target(1.0, HOLD_S if self.hold_s is None else self.hold_s)
        if self.metric not in DERIVED_METRICS:
            problem = "does not say how full a server is until it is too late"
            known = ", ".join(DERIVED_METRICS)
            raise InputError(f"policy {self.metric}={AUTO}", problem, f"use one of {known}")

    def with_target(self, target: float, hold_s: float) -> TargetTracking:
        """The autoscaler with a target.

        Args:
            target: What each server should have of the metric.
            hold_s: How long fewer must have been wanted, seconds.
        """
        return TargetTracking(self.metric, target, self.look_s, self.tolerance, hold_s)


def most_after(before: int) -> int:
    """How many servers an autoscaler may have asked for `PERIOD_S` seconds later.

    Args:
        before: How many it has asked for.
    """
    return max(_TIMES * before, before + _MORE)


@dataclass(frozen=True)
class Timetable:
    """Numbers of servers that are known in advance.

    Attributes:
        start_s: From when on each number holds, seconds, rising; the first from the beginning.
        replicas: The numbers.
        lead_s: How long before servers are to serve they are asked for, seconds.

    Raises:
        InputError: There are none, or they are not in order, or a figure is out of range.
    """

    start_s: tuple[float, ...]
    replicas: tuple[int, ...]
    lead_s: float = 0.0

    def __post_init__(self) -> None:
        starts = self.start_s
        if not starts or len(starts) != len(self.replicas):
            raise InputError("timetable", "has no number for each time", "give as many of both")
        if any(not after > before for before, after in itertools.pairwise(starts)):
            raise InputError("timetable", "has times that do not rise", "put them in order")
        if min(self.replicas) < 1:
            raise InputError("timetable", f"{min(self.replicas)} is no server", "use 1 or more")
        if not 0 <= self.lead_s < math.inf:
            raise InputError("timetable: lead_s", f"{self.lead_s:g} is negative", "use 0 or more")

    @property
    def name(self) -> str:
        """Such as ``schedule=60s``, with how long before servers are asked for."""
        return f"{SCHEDULE}={self.lead_s:g}s"

    def wanted(self, time_s: float) -> int:
        """How many are asked for: the most from then on until the lead is over.

        Args:
            time_s: The time, seconds.
        """
        first, last = (max(place - 1, 0) for place in self._places(time_s))
        return max(self.replicas[first : last + 1])

    def next_look_s(self, time_s: float) -> float:
        """When the number may change next, seconds; infinite for never.

        Args:
            time_s: The time after which it is.
        """
        ways = zip(self._times, self._places(time_s), strict=True)
        after = [times[place] for times, place in ways if place < len(times)]
        return min(after, default=math.inf)

    @property
    def _times(self) -> tuple[tuple[float, ...], ...]:
        """When each number is to serve, and when it is asked for."""
        return self.start_s, tuple(start - self.lead_s for start in self.start_s)

    def _places(self, time_s: float) -> list[int]:
        """How many of both have come."""
        return [bisect.bisect_right(times, time_s) for times in self._times]


@dataclass(frozen=True)
class Autoscaling:
    """How many servers a pool has as its load changes.

    Attributes:
        policy: What asks for them.
        least: The fewest,
        most: and the most.
        start_up_s: Time from when a server is asked for until it serves, seconds: a node, the
            image, the weights, warming up.

    Raises:
        InputError: A figure is out of range.
    """

    policy: TargetTracking | Timetable
    least: int = 1
    most: int = 8
    start_up_s: float = 0.0

    def __post_init__(self) -> None:
        if self.least < 1:
            raise InputError("least", f"{self.least} is no server", "use 1 or more")
        if self.most < self.least:
            raise InputError("most", f"{self.most} are fewer than {self.least}", "raise it")
        if self.most > _MOST:
            raise InputError("most", f"{self.most} are above {_MOST}", "lower it")
        if not 0 <= self.start_up_s < math.inf:
            problem = f"{self.start_up_s:g} s is no time"
            raise InputError("start-up", problem, "use seconds from 0 on")

    def bounded(self, replicas: int) -> int:
        """A number of servers within the bounds.

        Args:
            replicas: The number.
        """
        return min(max(replicas, self.least), self.most)


def seconds_in(where: str, text: str) -> float:
    """A time from text such as ``500ms``, ``60s`` or ``60``, seconds.

    Args:
        where: What it is of, for the message.
        text: The text.

    Raises:
        InputError: It is none.
    """
    number, scale = text.strip(), 1.0
    for unit, one in (("ms", 1e-3), ("s", 1.0)):
        if number.endswith(unit):
            number, scale = number[: -len(unit)], one
            break
    return scale * _number(where, number)


def read_policy(
    text: str,
    timetable: Sequence[tuple[float, int]] = (),
    look_s: float = LOOK_S,
    tolerance: float = TOLERANCE,
    hold_s: float | None = None,
) -> TargetTracking | OpenTarget | Timetable:
    """A policy from text: ``running=32``, ``ttft=500ms``, or ``schedule=60s`` for a timetable.

    Args:
        text: A metric of `SCALING_METRICS` and its target, ``auto`` for one that is derived; or
            ``schedule`` and its lead.
        timetable: Times and numbers of the schedule.
        look_s: See `TargetTracking`, as for the others.
        tolerance: Likewise.
        hold_s: Likewise; None for `HOLD_S`, or for what is derived with the target.

    Raises:
        InputError: It is none.
    """
    name, equals, value = (word.strip() for word in text.partition("="))
    where = f"policy {text[:60]!r}"
    if name == SCHEDULE:
        starts, replicas = tuple(one[0] for one in timetable), tuple(one[1] for one in timetable)
        return Timetable(starts, replicas, seconds_in(where, value) if equals else 0.0)
    if not (equals and value):
        raise InputError(where, "is no metric and its target", f"write it like {_EXAMPLE}")
    if value == AUTO:
        return OpenTarget(name, look_s, tolerance, hold_s)
    target = seconds_in(where, value) if name == TTFT else _number(where, value)
    return TargetTracking(name, target, look_s, tolerance, HOLD_S if hold_s is None else hold_s)


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        problem = f"{text[:60]!r} is not a number"
        raise InputError(where, problem, f"write it like {_EXAMPLE}") from None
