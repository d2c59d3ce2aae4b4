"""The cheapest deployments of a model that keep to objectives under a load."""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float, Int

from physim.corrections.calibration import TWO_SIDED_90
from physim.corrections.files import DEFAULT_FIT, Fit, load_fit
from physim.errors import InputError
from physim.grids.store import measured_gpus
from physim.inputs.attempts import check_lists, check_shared, layout_axes, refuse_fleets
from physim.inputs.case import Case, LoadAndEngineOptions
from physim.inputs.profile import LoadProfile, Window
from physim.models.architecture import ModelArch
from physim.models.lookup import load_model
from physim.options import named_options
from physim.prediction.intervals import predict_with_intervals
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction
from physim.progress import told_in_notebooks
from physim.questions import candidates
from physim.questions.choices import Choice, Recommendation
from physim.questions.elasticities import explain
from physim.questions.objectives import EACH, THROUGHPUT, Objective, Requirements
from physim.questions.pools_apart import best_split
from physim.questions.prices import hourly_price, hourly_prices, per_million_tokens
from physim.questions.schedule import Arrivals, ReplicaSchedule, server_hours_about
from physim.questions.servers import Servers, most_clients
from physim.service.hardware import load_hardware

# What is known of ITL stands for TPOT, which has the same mean.
_OF_ITL = {"tpot": "itl"}
# Windows of a profile by which servers are ranked before all are looked at.
_PEAKS = 8
# What a server costs, minus what it leaves of the tightest bound, its place and their number.
_Entry = tuple[float, float, int, int]


@told_in_notebooks("searching servers")
@named_options
def recommend(
    model: str | Path | ModelArch,
    *,
    slo: Sequence[str | Objective],
    gpus: Sequence[str] = (),
    tps: Sequence[int] = (),
    pps: Sequence[int] = (),
    dps: Sequence[int] = (),
    eps: Sequence[int] = (),
    prices: Mapping[str, float] | None = None,
    max_gpus: int = 8,
    goodput: float = 0.9,
    count: int = 5,
    profile: LoadProfile | None = None,
    apart: bool = False,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[LoadAndEngineOptions],
) -> Recommendation:
    """The cheapest deployments that keep to objectives, of all that can be made.

    Searched are GPUs, degrees of parallelism, limits of the engine, the checkpoint's formats that
    ship with physim, and numbers of servers that share the load evenly. What is predicted to keep
    to the objectives is replayed request by request, and gets a server more where it misses them.

    Args:
        model: Path of a ``config.json``, shipped name, hub id or shape.
        slo: Objectives; see `physim.capacity`.
        gpus: GPUs to choose from; those with a price if none are given, or all with measured
            kernels.
        tps: Degrees ``tp`` of `physim.Parallelism` to choose from,
        pps: ``pp``,
        dps: ``dp``,
        eps: and ``ep``. Of each that is not given powers of two are searched, and ``tp`` and ``dp``
            within a node of eight GPUs.
        prices: Price of one GPU for an hour, by its key, in any currency. Without prices the fewest
            GPUs are best.
        max_gpus: Most GPUs in all.
        goodput: Share of the requests that must keep to all that is asked of each.
        count: Deployments wanted.
        profile: A load over a day to plan for, instead of one that stays: objectives hold in every
            window of it, and what costs least is what does so with servers that run only in the
            windows that take them. See `physim.read_profile`.
        apart: Whether pools with prefill and decode apart are searched too, of the same GPUs, of up
            to 16 servers each and without expert or pipeline parallelism.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: The whole load and the engine; see `CaseOptions`. Limits that are given are not
            searched. Beside a profile ``arrival`` and ``burstiness`` are all of a load that may be.

    Raises:
        InputError: Some input cannot be used, or no deployment keeps to the objectives.
    """
    check_shared(options)
    refuse_fleets(options, "what is asked for", "leave it out: replicas are chosen")
    check_lists(gpus=gpus)
    tried = layout_axes(tps, pps, dps, eps)
    asked = Requirements.parse(slo, goodput)
    for name, number in (("max GPUs", max_gpus), ("count", count)):
        if number < 1:
            raise InputError(name, f"{number} is not positive", "correct it")
    hourly = hourly_prices(prices)
    keys = [load_hardware(gpu).key for gpu in gpus] or [*hourly] or [*measured_gpus()]
    lacking = [key for key in keys if hourly and key not in hourly]
    if lacking:
        raise InputError(f"price of {lacking[0]}", "is missing", "give it, or give none")
    given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    arrivals = Arrivals() if profile is None else Arrivals.taken_from(given)
    if apart and profile is not None:
        raise InputError("apart", "is searched for a load that stays", "leave the profile out")
    known = load_fit(fit)
    cases, refused = candidates.servers(model, keys, max_gpus, tried, given)
    loaded = [cases]
    if profile is not None:
        loaded = _under_all(cases, profile.peaks(_PEAKS), arrivals)
        cases = loaded[0]
    plans = [Servers(own, known) for own in loaded]
    gpus_of = np.array([case.server.parallelism.gpus for case in cases])
    most = max_gpus // gpus_of
    replicas = None
    for plan in plans:
        replicas = plan.fewest(asked, most, replicas)
        if not replicas.any():
            error = _never(plan, asked, most)
            split = best_split(model, keys, max_gpus, asked, known, given) if apart else None
            if split is None:
                raise error
            remedy = f"serve them apart: {split.describe()} keep to it on {split.gpus} GPUs"
            raise InputError(error.where, error.what, remedy)
    assert replicas is not None
    left = np.min([plan.headroom(asked, replicas) for plan in plans], axis=0)
    each = gpus_of * np.array([hourly.get(case.server.gpu.key, 1.0) for case in cases])
    search = _Search(cases, replicas, most, each, left)
    chosen = search.checked(asked, known, count, profile, arrivals)
    if not chosen:
        raise InputError(
            "objectives",
            "are narrowly missed by every deployment that was replayed",
            "relax them, or allow more GPUs (--max-gpus)",
        )
    choices = _choices(chosen, known, asked, hourly)
    split = None
    if apart:
        best = chosen[0].case.model.name
        # Of the formats that the checkpoint ships in, that of the best.
        source = model if load_model(model, given.get("read_as")).name == best else best
        split = best_split(source, keys, max_gpus, asked, known, given)
    return Recommendation(choices, asked, plans[0], refused, split)


def _under_all(
    servers: Sequence[Case], windows: Sequence[Window], arrivals: Arrivals
) -> list[list[Case]]:
    """Servers that take the requests of all windows, under each of the windows.

    Raises:
        InputError: There is none.
    """
    kept = []
    for server in servers:
        with contextlib.suppress(InputError):
            kept.append([arrivals.under(server, window) for window in windows])
    if not kept:
        for window in windows:
            arrivals.under(servers[0], window)  # one of them says why
    return [list(own) for own in zip(*kept, strict=True)]


@dataclass(frozen=True)
class _Chosen:
    """A server that keeps to what is asked when it is replayed.

    Attributes:
        case: The server under its share of the load.
        replicas: How many there are.
        replay: What the replay gives.
        schedule: What each window of a profile takes, if that is what is planned for.
    """

    case: Case
    replicas: int
    replay: Prediction
    schedule: ReplicaSchedule | None


@dataclass(frozen=True)
class _Search:
    """Servers to choose from.

    Attributes:
        cases: The servers under the whole load.
        replicas: The fewest of each that are predicted to keep to what is asked; 0 for none.
        most: How many of each are allowed.
        price: What one of each costs.
        left: What of the tightest bound each leaves.
    """

    cases: Sequence[Case]
    replicas: Int[np.ndarray, " n"]
    most: Int[np.ndarray, " n"]
    price: Float[np.ndarray, " n"]
    left: Float[np.ndarray, " n"]

    def checked(
        self,
        asked: Requirements,
        known: Fit,
        count: int,
        profile: LoadProfile | None,
        arrivals: Arrivals,
    ) -> list[_Chosen]:
        """The cheapest servers that keep to what is asked when they are replayed.

        Of those that cost the same what leaves most room comes first. What misses an objective is
        tried again with a server more; of a profile its telling windows are replayed, and what it
        costs is with servers that are off where a window does not take them.

        Args:
            asked: What is asked.
            known: The fit.
            count: How many are wanted, of different formats, GPUs, layouts or numbers of servers.
            profile: The load profile, if that is what is planned for.
            arrivals: How requests come in its windows.

        Raises:
            InputError: The requests of a window fit on no server.
        """

        def entry(place: int, number: int) -> _Entry:
            hours = float(number) if profile is None else server_hours_about(profile, number)
            return self._entry(place, number, hours)

        queue = [
            entry(place, number) for place, number in enumerate(self.replicas.tolist()) if number
        ]
        heapq.heapify(queue)
        found: list[_Chosen] = []
        tried, planned = set[Any](), dict[int, ReplicaSchedule]()
        plans, problem = dict[tuple[int, int], ReplicaSchedule](), None
        while queue and len(found) < count:
            _, _, place, number = heapq.heappop(queue)
            case, schedule = self.cases[place], plans.get((place, number))
            key = (case.model.name, case.server.gpu.key, case.server.parallelism, number)
            if schedule is None and key in tried:
                continue
            tried.add(key)
            loads, most = [case], int(self.most[place])
            if profile is not None and schedule is None:
                # It was in the queue by what it may take; it goes back by what it takes.
                try:
                    if place not in planned:
                        planned[place] = ReplicaSchedule.planned(
                            case, profile, asked, known, most, arrivals
                        )
                except InputError as error:
                    problem = error
                    continue
                schedule = planned[place]
                if schedule.most > number:
                    heapq.heappush(queue, entry(place, schedule.most))
                elif schedule.most:
                    schedule = plans[place, number] = schedule.raised_to(number)
                    heapq.heappush(queue, self._entry(place, number, schedule.server_hours))
                continue
            if schedule is not None:
                loads = [schedule.cases[row] for row in schedule.telling]
            shares = [shared(one, number) for one in loads]
            replays = predict_cases(shares, known.on(case).corrections, known.name, "replay")
            if all(asked.missed(replay) is None for replay in replays):
                found.append(_Chosen(shares[0], number, replays[0], schedule))
            elif number < most:
                heapq.heappush(queue, entry(place, number + 1))
        if problem is not None and not found:
            raise problem
        return found

    def _entry(self, place: int, number: int, hours: float) -> _Entry:
        """What a queue of the cheapest holds of a server and their number.

        Args:
            place: The server.
            number: How many there are.
            hours: Hours of servers that are paid for.
        """
        return self.price[place] * hours, -self.left[place], place, number


def _choices(
    chosen: Sequence[_Chosen],
    known: Fit,
    asked: Requirements,
    hourly: Mapping[str, float],
) -> list[Choice]:
    """Chosen servers with all that there is to say of them."""
    cases = [one.case for one in chosen]
    predictions = predict_with_intervals(cases, [known.on(case) for case in cases])
    found = []
    for own_choice, one in zip(chosen, predictions, strict=True):
        case, schedule = own_choice.case, own_choice.schedule
        tokens_per_s, hour = one.output_tokens_per_s, hourly_price(hourly, case.service)
        if schedule is not None:
            # Of a server that runs, mean over the windows.
            running = schedule.server_hours / schedule.hours
            tokens_per_s = schedule.tokens_per_s / running
        rooms = {own: own.seconds / _latency(own, one, asked) for own in asked.objectives}
        left = {own: 1 - 1 / room for own, room in rooms.items()}
        tightest = min(left, key=lambda own: left[own])
        found.append(
            Choice(
                case,
                own_choice.replicas,
                one,
                own_choice.replay,
                _chances(one, rooms),
                min(1 - one.requests_per_s / one.saturation_rps, *left.values()),
                _limit(case, known.name, tightest.metric),
                per_million_tokens(hour, tokens_per_s),
                None if hour is None else hour * own_choice.replicas,
                schedule,
            )
        )
    return found


def shared(case: Case, replicas: int) -> Case:
    """A server with its share of a load that so many share evenly: of clients, the most of any.

    Args:
        case: The server with the whole load.
        replicas: How many servers share it.
    """
    load = case.demanded
    if load.concurrency is not None:
        (clients,) = most_clients(
            np.array([float(load.concurrency)]), np.array([1 / replicas])
        ).tolist()
        requests = load.requests
        if requests is not None:
            requests = max(round(requests * clients / load.concurrency), 1)
        return case.under(replace(load, concurrency=clients, requests=requests))
    assert load.rate is not None
    return case.under(replace(load, rate=load.rate / replicas))


def _latency(objective: Objective, prediction: Prediction, asked: Requirements) -> float:
    """What an objective bounds: of one on each request, what so many must be within."""
    if objective.statistic != EACH:
        return objective.latency_s(prediction)
    of_each = getattr(prediction.whole.requests, f"{objective.metric}_s")
    return float(np.quantile(of_each, asked.goodput))


def _chances(prediction: Prediction, rooms: Mapping[Objective, float]) -> dict[str, float]:
    """The chance that each objective is met, where the prediction has intervals.

    Args:
        prediction: The prediction.
        rooms: How many times what is predicted each objective allows.
    """
    found = {
        one.name: _chance(prediction, f"{_OF_ITL.get(one.metric, one.metric)}_s", room)
        for one, room in rooms.items()
    }
    room = prediction.saturation_rps / prediction.requests_per_s
    found[THROUGHPUT] = _chance(prediction, "saturation_rps", room)
    return {name: chance for name, chance in found.items() if chance is not None}


def _chance(prediction: Prediction, name: str, room: float) -> float | None:
    """The chance that what is predicted is off by less than a factor."""
    interval, centre = prediction.intervals.get(name), getattr(prediction, name)
    if interval is None or centre is None:
        return None
    low, high = interval
    # Above, an interval has no end where the load may be above capacity.
    half = math.log(high / centre) if math.isfinite(high) else math.log(centre / low)
    return 0.5 * (1 + math.erf(math.log(room) / (half / TWO_SIDED_90) / math.sqrt(2)))


def _limit(case: Case, fit: str, metric: str) -> str:
    """What a latency depends on most."""
    found = explain(case, fit=fit)
    metric = _OF_ITL.get(metric, metric)
    return max(found.notable().items(), key=lambda item: abs(item[1][metric]))[0]


def _never(servers: Servers, asked: Requirements, most: Int[np.ndarray, " n"]) -> InputError:
    """The error where no server keeps to the objectives: what the nearest lacks."""
    found = servers.under(np.arange(len(most)), 1.0 / most)
    if not np.any(np.isfinite(found.means["e2e"])):
        best = float(np.max(most * servers.saturation))
        return InputError(
            "load",
            f"is above the capacity of all {len(most)} servers: {best:.3g} requests/s at best",
            "send less, or allow more GPUs (--max-gpus) or others",
        )
    for one in asked.objectives:
        best = float(np.min(found.bounded_by(one)))
        if one.statistic != EACH and best > one.seconds:
            return InputError(
                f"slo {one.name}={one.seconds * 1e3:g}ms",
                f"is missed by all {len(most)} servers: {best * 1e3:.3g} ms at best",
                "relax it, or allow more GPUs (--max-gpus) or others",
            )
    return InputError(
        "objectives",
        f"are met one by one, but not together, by any of {len(most)} servers",
        "relax one, or allow more GPUs (--max-gpus) or others",
    )
