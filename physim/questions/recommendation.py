"""The cheapest deployments of a model that keep to objectives under a load."""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

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
from physim.prediction.commands import serve_command
from physim.prediction.intervals import predict_with_intervals
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks
from physim.questions import candidates
from physim.questions.elasticities import explain
from physim.questions.objectives import EACH, THROUGHPUT, Objective, Requirements
from physim.questions.pareto import Tradeoff, tradeoff
from physim.questions.pools_apart import Split, best_split
from physim.questions.prices import hourly_price, hourly_prices, per_million_tokens
from physim.questions.schedule import Arrivals, ReplicaSchedule, server_hours_about
from physim.questions.servers import Servers
from physim.service.hardware import load_hardware

if TYPE_CHECKING:
    import pandas as pd

# What is known of ITL stands for TPOT, which has the same mean.
_OF_ITL = {"tpot": "itl"}
# Windows of a profile by which servers are ranked before all are looked at.
_PEAKS = 8
# What a server costs, minus what it leaves of the tightest bound, its place and their number.
_Entry = tuple[float, float, int, int]


@dataclass(frozen=True)
class Choice:
    """A deployment that keeps to the objectives.

    Attributes:
        case: One of its servers with its share of the load.
        replicas: Servers of which each has such a share.
        prediction: What is predicted of each.
        replayed: What a request-by-request replay of each gives, which keeps to the objectives.
        chances: Chance that an objective is met, by its name, from the prediction's intervals;
            ``throughput`` that the load is below capacity. Empty without a fit that knows.
        headroom: Least share of a bound that is left: of latencies, and of the saturation
            throughput.
        limited_by: What the latency with the least of it depends on most.
        cost: Price of a million generated tokens; None without prices.
        price: Price of an hour of all GPUs; None without prices.
        schedule: What each window of a load profile takes, if that is what is planned for; case and
            predictions are then of the window that leaves least room, and ``cost`` is with servers
            that run as scheduled.
    """

    case: Case
    replicas: int
    prediction: Prediction
    replayed: Prediction
    chances: Mapping[str, float]
    headroom: float
    limited_by: str
    cost: float | None
    price: float | None
    schedule: ReplicaSchedule | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all servers."""
        return self.replicas * self.case.server.parallelism.gpus

    @property
    def scheduled_price(self) -> float | None:
        """Price of all windows of a profile with the servers that each takes; None without one."""
        if self.price is None or self.schedule is None:
            return None
        return self.price / self.gpus * self.schedule.gpu_hours()

    def to_dict(self) -> dict[str, Any]:
        """The choice as plain values, for JSON."""
        layout, sizes = self.case.server.parallelism, self.case.server.sizes
        one = self.prediction
        return {
            "model": self.case.model.name,
            "gpu": self.case.server.gpu.key,
            **asdict(layout),
            "replicas": self.replicas,
            "gpus": self.gpus,
            "max_num_seqs": sizes.max_num_seqs,
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "draft_tokens": self.case.server.draft_tokens,
            "ttft_s": one.ttft_s,
            "itl_s": one.itl_s,
            "e2e_s": one.e2e_s,
            "replayed": {
                name: getattr(self.replayed, name) for name in ("ttft_s", "itl_s", "e2e_s")
            },
            "intervals": {name: list(pair) for name, pair in one.intervals.items()},
            "requests_per_s": self.replicas * one.requests_per_s,
            "output_tokens_per_s": self.replicas * one.output_tokens_per_s,
            "saturation_rps": self.replicas * one.saturation_rps,
            "headroom": self.headroom,
            "chances": dict(self.chances),
            "limited_by": self.limited_by,
            "cost_per_million_tokens": self.cost,
            "cost_per_hour": self.price,
            "command": serve_command(self.case),
            "extrapolations": list(one.extrapolations),
        } | ({} if self.schedule is None else self._over_time(self.schedule))

    def _over_time(self, schedule: ReplicaSchedule) -> dict[str, Any]:
        return {
            "gpu_hours": schedule.gpu_hours(self.replicas),
            "gpu_hours_scaled": schedule.gpu_hours(),
            "cost_scaled": self.scheduled_price,
            "windows": schedule.to_frame().to_dict("records"),
        }

    def __repr__(self) -> str:
        servers = f"{self.replicas} x ({self.case.what})"
        price = "" if self.price is None else f", {self.price:.4g} an hour"
        if self.scheduled_price is not None:
            price = f", {self.scheduled_price:.4g} as scheduled"
        return shown(
            self,
            f"{servers}: each {self.prediction.figures}",
            f"{self.headroom:.1%} of the tightest bound left, limited by {self.limited_by}{price}",
        )


@dataclass(frozen=True)
class Recommendation:
    """Deployments that keep to objectives, the cheapest first.

    Attributes:
        choices: The best of each model, GPU, layout and number of servers.
        asked: What is asked.
        servers: All servers that were searched, each with every number of replicas.
        refused: How many more cannot be, by the reason.
        split: The best pools with prefill and decode apart; None where none keeps to the objectives
            or was asked for.
    """

    choices: Sequence[Choice]
    asked: Requirements
    servers: Servers = field(repr=False)
    refused: Mapping[str, int] = field(repr=False)
    split: Split | None = None

    @functools.cached_property
    def tradeoff(self) -> Tradeoff:
        """What the servers trade: tokens of a GPU against tokens of a user."""
        return tradeoff(self.servers, self.asked)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "choices": [one.to_dict() for one in self.choices],
            "objectives": {one.name: one.seconds for one in self.asked.objectives},
            "searched": len(self.servers.cases),
            "refused": dict(self.refused),
            "split": None if self.split is None else self.split.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """The choices as a table."""
        import pandas as pd

        return pd.DataFrame([one.to_dict() for one in self.choices])

    def __repr__(self) -> str:
        asked = ", ".join(f"{one.name} {1e3 * one.seconds:g} ms" for one in self.asked.objectives)
        searched = f"{len(self.servers.cases):,} servers searched for {asked}"
        if not self.choices:
            return shown(self, f"nothing that keeps to the objectives; {searched}")
        rows: list[tuple[str, ...]] = [
            ("servers", "GPUs", "TTFT ms", "ITL ms", "E2E s", "room", "cost")
        ]
        for one in self.choices:
            found = one.prediction
            rows.append(
                (
                    f"{one.replicas} x {one.case.service.where}",
                    str(one.gpus),
                    *(
                        "-" if value is None else f"{scale * value:.4g}"
                        for value, scale in (
                            (found.ttft_s, 1e3),
                            (found.itl_s, 1e3),
                            (found.e2e_s, 1.0),
                        )
                    ),
                    f"{one.headroom:.0%}",
                    "-" if one.cost is None else f"{one.cost:.3g}",
                )
            )
        return shown(self, f"{self.choices[0].case.model.name}: {searched}", *aligned(rows))


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
            searched. Arrivals are ``poisson`` unless another kind is given; beside a profile they
            are all of a load that may be.

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
    if profile is None and "concurrency" not in given:
        given.setdefault("arrival", "poisson")
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
    left = np.min([plan.headroom(asked, np.maximum(replicas, 1)) for plan in plans], axis=0)
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
    """A server with its share of a load that so many share evenly.

    Args:
        case: The server with the whole load.
        replicas: How many servers share it.
    """
    load = case.demanded
    if load.concurrency is not None:
        return case.under(replace(load, concurrency=load.concurrency / replicas))
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
