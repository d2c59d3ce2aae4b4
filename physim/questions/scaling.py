"""What an autoscaler does with a load over a day, beside the servers that its windows take."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, ServerOptions
from physim.inputs.load import Load
from physim.inputs.profile import LoadProfile
from physim.inputs.stages import Stage
from physim.options import named_options
from physim.prediction.replayed import replay_pool
from physim.prediction.replayed_trace import recorded_workload
from physim.progress import told_in_notebooks
from physim.questions.objectives import EACH, GOODPUT, Requirements
from physim.questions.prices import hourly_prices
from physim.questions.recommendation import shared
from physim.questions.scaled_day import ScaledDay, ScalingRun
from physim.questions.schedule import Arrivals, ReplicaSchedule
from physim.questions.thresholds import derived_hold_s, derived_threshold
from physim.replay.cluster import ReplayPool
from physim.replay.scaling import replay_scaled
from physim.replay.workload import Workload, check_seed, drawn_windows
from physim.service.scaling import (
    Autoscaling,
    OpenTarget,
    TargetTracking,
    Timetable,
    read_policy,
)

# Start-up times that are tried, seconds.
START_UPS_S = (0.0, 60.0, 120.0, 300.0)
# Requests of one replay, each of which takes about a tenth of a millisecond.
_MOST_REQUESTS = 200_000
_HOUR = 3600.0
# Ends of windows are sums, so rounded: of so much of a window.
_SLACK = 1e-3


class ScaledOptions(ServerOptions, total=False):
    """Servers that come and go, by names: one of them, the router, and how requests come.

    ``router`` is one of `physim.service.routers.ROUTERS`, and ``router_age_s`` the seconds from its
    look at loads to the next; ``arrival`` and ``burstiness`` are of a load (`physim.Load`).
    """

    router: str
    router_age_s: float | None
    arrival: str
    burstiness: float


@told_in_notebooks("replaying the day")
@named_options
def scale(
    model: str | Path | Case,
    profile: LoadProfile | None = None,
    *,
    trace: str | Path | None = None,
    window_s: float = 600.0,
    slo: Sequence[str],
    policy: str | TargetTracking | OpenTarget | Timetable,
    goodput: float = 0.9,
    least: int = 1,
    most: int = 8,
    start_ups_s: Sequence[float] = START_UPS_S,
    hours: tuple[float, float] | None = None,
    prices: Mapping[str, float] | None = None,
    seed: int = 0,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[ScaledOptions],
) -> ScaledDay:
    """What an autoscaler does with a load over a day: servers, GPU-hours and goodput.

    The day is replayed request by request with servers that are asked for by the policy, serve when
    they have started, with nothing in their caches, and end their requests when they are let go. It
    is replayed again for each start-up time, and beside it with as many servers as each window
    takes (what `physim.recommend` plans) and with the most of these at all times. All of them have
    the same requests, and begin with the servers that the first window takes.

    Args:
        model: A case of one server, whose load is of no account; or a path of a ``config.json``,
            shipped name or hub id, with the rest of the case beside it.
        profile: The load over the day, of which requests are drawn. See `physim.read_profile`.
        trace: A trace of the day, whose requests are replayed as they were recorded, instead; see
            `physim.predict_trace`.
        window_s: How long windows of the trace are, seconds.
        slo: Objectives; see `physim.capacity`. At least one is asked of each request, such as
            ``ttft=1s``.
        policy: A metric and the target of each server: ``running=32``, ``waiting=2``,
            ``requests=40``, ``kv=0.8`` or ``ttft=500ms``; ``requests=auto``, as ``running`` and
            ``kv``, for the highest target with which the day keeps to the objectives at the longest
            of the start-up times; ``schedule=60s`` for what each window takes, asked for so long
            before; or a record of `physim.service.scaling`.
        goodput: Share of the requests that must keep to all that is asked of each, where windows
            are planned.
        least: The fewest servers,
        most: and the most.
        start_ups_s: Times from when a server is asked for until it serves, seconds.
        hours: The hours of the day that are replayed, from and to; None for all.
        prices: Price of one GPU for an hour, by its key.
        seed: Seed of requests that are drawn, and of what is left to chance.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, deployment, router and arrivals; see `ScaledOptions`.

    Raises:
        InputError: Some input cannot be used, there are more requests than can be replayed, or no
            target keeps to the objectives where one is to be derived.
    """
    asked = Requirements.parse(slo, goodput)
    if not any(one.statistic == EACH for one in asked.objectives):
        problem = "asks nothing of each request, which goodput counts"
        raise InputError("slo", problem, "give a bound without a statistic, such as ttft=1s")
    check_seed(seed)
    start_ups = _start_ups(start_ups_s)
    if (profile is None) == (trace is None):
        problem = "is missing" if trace is None else "is given twice"
        raise InputError("load", problem, "give a load profile or a trace")
    if profile is None:
        assert trace is not None
        profile = LoadProfile.from_trace(trace, window_s)
    if hours is not None:
        profile = profile.between(hours[0] * _HOUR, hours[1] * _HOUR)
    _check_count(profile)
    given: dict[str, Any] = {name: own for name, own in options.items() if own is not None}
    arrivals = Arrivals() if isinstance(model, Case) else Arrivals.taken_from(given)
    case = Case.from_options(model, **given)
    if isinstance(policy, str):
        # What is misspelt is said before anything is computed.
        read_policy(policy, [(0.0, 1)])
    bounds = [Autoscaling(Timetable((0.0,), (1,)), least, most, one) for one in start_ups]
    price = hourly_prices(prices).get(case.server.gpu.key)
    known = load_fit(fit)
    plan = ReplicaSchedule.planned(case, profile, asked, known, most, arrivals)
    replicas = np.where(plan.replicas > 0, plan.replicas, most)
    busiest = int(np.argmax([window.rate for window in profile.windows]))
    own = shared(plan.cases[busiest], int(replicas[busiest]))
    corrections = known.on(own).corrections
    requests = functools.partial(drawn_windows, _windows(plan), case.server, seed)
    if trace is not None:
        requests = functools.partial(_recorded, case, Path(trace), profile, hours is not None)
    day = _Day(
        case=plan.cases[busiest],
        requests=requests,
        asked=asked,
        end_s=profile.hours * _HOUR,
        first=int(replicas[0]),
        seed=seed,
        price=price,
        pool=functools.partial(replay_pool, own, corrections),
    )
    table = _timetable(profile, replicas.tolist(), least)
    asks = read_policy(policy, table) if isinstance(policy, str) else policy
    threshold = None
    if isinstance(asks, OpenTarget):
        last = bounds[-1]
        threshold = derived_threshold(
            asks,
            [plan.cases[place] for place in plan.telling],
            asked,
            known,
            derived_hold_s(table, last.start_up_s, asks.look_s),
            last.start_up_s,
            lambda own: day.run(own.name, last.start_up_s, replace(last, policy=own)),
        )
        asks = threshold.policy
    starts, numbers = zip(*table, strict=True)
    peak = int(replicas.max())
    fixed = Autoscaling(Timetable((0.0,), (peak,)), peak, peak)
    in_time = Autoscaling(Timetable(starts, numbers), least, most)
    return ScaledDay(
        plan.cases[busiest],
        profile,
        asked,
        day.run(f"{peak} at all times", None, fixed),
        day.run("schedule, in time", None, in_time),
        [day.run(asks.name, one.start_up_s, replace(one, policy=asks)) for one in bounds],
        replace(bounds[-1], policy=asks),
        known.name,
        threshold,
        _notes(profile, plan, day.requests()),
    )


@dataclass(frozen=True)
class _Day:
    """A load profile that is replayed with servers that come and go.

    Attributes:
        case: The server.
        requests: Makes the requests anew, since a replay changes them.
        asked: What is asked of requests.
        end_s: When the last window ends, seconds.
        first: Servers that serve from the beginning.
        seed: Seed of what is left to chance.
        price: Price of a GPU for an hour; None if not known.
        pool: Makes the servers of a replay whose requests have so many tokens at most.
    """

    case: Case
    requests: Callable[[], Workload]
    asked: Requirements
    end_s: float
    first: int
    seed: int
    price: float | None
    pool: Callable[[int], ReplayPool]

    @functools.cached_property
    def _servers(self) -> ReplayPool:
        workload = self.requests()
        if not workload.requests:
            raise InputError("load profile", "has no request in these hours", "name longer ones")
        return self.pool(workload.longest)

    def run(self, name: str, start_up_s: float | None, scaling: Autoscaling) -> ScalingRun:
        """Replays the day.

        Args:
            name: What asks for servers.
            start_up_s: See `ScalingRun`.
            scaling: How servers come and go.

        Raises:
            InputError: No request comes, or one would never fit into the KV cache.
        """
        service = self.case.service
        found = replay_scaled(
            self.requests(),
            self._servers,
            scaling,
            self.first,
            self.end_s,
            service.router,
            self.seed,
            service.router_age_s,
        )
        frame = found.replayed.to_frame()
        kept = np.ones(len(frame), bool)
        for one in self.asked.objectives:
            if one.statistic == EACH:
                # A request of one token keeps to any bound on what is between tokens.
                kept &= np.nan_to_num(frame[f"{one.metric}_s"].to_numpy()) <= one.seconds
        missed = _missed(self.asked, found.replayed.latencies(frame), float(np.mean(kept)))
        arrival_s = frame["arrival_s"].to_numpy()
        return ScalingRun(
            name,
            start_up_s,
            found.replicas,
            self.case.server.parallelism.gpus,
            self.end_s,
            arrival_s,
            frame["ttft_s"].to_numpy(),
            kept,
            _most_waiting(arrival_s, frame["scheduled_s"].to_numpy()),
            self.price,
            missed,
        )


def _missed(
    asked: Requirements, latencies: Mapping[str, Mapping[str, float]], goodput: float
) -> str | None:
    """The first objective that latencies of a whole day miss.

    Args:
        asked: What is asked.
        latencies: Statistics of each metric.
        goodput: Share of the requests that keep to what is asked of each.
    """
    for one in asked.objectives:
        # One token out has no time between tokens, which keeps any bound.
        found = latencies.get(one.metric, {}).get(one.statistic, 0.0)
        if one.statistic != EACH and found > one.seconds:
            return one.name
    return GOODPUT if goodput < asked.goodput else None


def _start_ups(start_ups_s: Sequence[float]) -> list[float]:
    """Start-up times in order, each once.

    Raises:
        InputError: There are none.
    """
    if not len(start_ups_s):
        raise InputError("start-up", "has no time", "give at least one, such as 120")
    return sorted({float(one) for one in start_ups_s})


def _check_count(profile: LoadProfile) -> None:
    """Refuses more requests than can be replayed."""
    count = sum(window.rate * window.duration_s for window in profile.windows)
    if count > _MOST_REQUESTS:
        raise InputError(
            "load profile",
            f"has about {count:,.0f} requests in {profile.hours:.3g} hours, and {_MOST_REQUESTS:,} "
            "are replayed at most",
            "name some of its hours, such as --hours 8:10",
        )


def _windows(plan: ReplicaSchedule) -> list[tuple[float, Load]]:
    """When the load of each window begins, seconds after the first, and the load that ends."""
    found = []
    for case, window in zip(plan.cases, plan.windows, strict=True):
        stages = (Stage(window.rate, window.duration_s),)
        load = replace(case.demanded, rate=None, stages=stages)
        found.append((window.start_s - plan.windows[0].start_s, load))
    return found


def _recorded(case: Case, trace: Path, profile: LoadProfile, part: bool) -> Workload:
    """The requests of a trace in the time of a load profile, from its first window on.

    Args:
        case: The server.
        trace: The trace.
        profile: Its load profile.
        part: Whether that is of a part of it.

    Raises:
        InputError: The trace cannot be used, or a part of requests that follow one another is.
    """
    workload = recorded_workload(case, trace)
    begin_s = profile.windows[0].start_s
    if workload.follows and (part or begin_s > 0):
        problem = "are a part of requests that follow one another"
        raise InputError("hours", problem, "take the trace from its first request to its last")
    end_s = begin_s + profile.hours * _HOUR
    kept = [one for one in workload.requests if begin_s <= one.arrival_s <= end_s]
    for one in kept:
        one.arrival_s -= begin_s
    return replace(workload, requests=kept)


def _timetable(
    profile: LoadProfile, replicas: Sequence[int], least: int
) -> list[tuple[float, int]]:
    """From when on how many servers there are to be, seconds after the first window begins.

    Between windows, where no request comes, there are the fewest.
    """
    begin_s, table = profile.windows[0].start_s, []
    for number, (window, after) in zip(
        replicas, itertools.zip_longest(profile.windows, profile.windows[1:]), strict=True
    ):
        table.append((window.start_s - begin_s, number))
        ends_s = window.start_s + window.duration_s
        if after is not None and after.start_s > ends_s + _SLACK * window.duration_s:
            table.append((ends_s - begin_s, least))
    # Windows that take as many are one.
    return [one for place, one in enumerate(table) if not place or one[1] != table[place - 1][1]]


def _most_waiting(
    arrival_s: Float[np.ndarray, " requests"], scheduled_s: Float[np.ndarray, " requests"]
) -> int:
    """Most requests that had come at once and had no step so far."""
    times = np.concatenate([arrival_s, scheduled_s])
    change = np.repeat([1, -1], [len(arrival_s), len(scheduled_s)])
    return int(np.cumsum(change[np.argsort(times, kind="stable")]).max())


def _notes(profile: LoadProfile, plan: ReplicaSchedule, workload: Workload) -> list[str]:
    """What is left open."""
    notes = list(profile.notes)
    late = np.flatnonzero(plan.replicas == 0)
    if late.size:
        where = f"that at {plan.windows[late[0]].start_s / _HOUR:.3g} h"
        notes.append(f"more servers would be needed in {late.size} windows, such as {where}")
    if any(one.prefix_tokens for one in workload.requests):
        notes.append("cached parts of recorded prompts are found at servers that are new, too")
    return notes
