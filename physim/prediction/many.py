"""Predictions of many cases, by the method that each load takes.

A load that stays and one of clients are solved for their steady state; an open loop that ends or
changes is run through the fluid's equations, or replayed request by request.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from physim.corrections.fields import Corrections
from physim.corrections.files import NO_FIT
from physim.errors import InputError
from physim.inputs.case import Case
from physim.prediction.results import Prediction
from physim.prediction.steady import steady

METHODS = ("fluid", "replay")


def predict_cases(
    cases: Sequence[Case],
    corrections: Corrections | Sequence[Corrections],
    fit: str = NO_FIT,
    method: str = "fluid",
    seed: int = 0,
) -> list[Prediction]:
    """Predicts many cases at once.

    Loads that stay take one vectorised call, those in stages one for each number of stages.

    Args:
        cases: Any mixture of models, GPUs, deployments and loads.
        corrections: Corrections of the components, for all cases or for each its own.
        fit: Their name, for the record.
        method: ``fluid`` or ``replay``.
        seed: Seed of the replay's requests.

    Raises:
        InputError: The method is unknown, or cannot predict a case, or finds no number for it; or
            there are not as many corrections as cases.
    """
    if not isinstance(corrections, Corrections) and len(corrections) != len(cases):
        raise InputError(
            "corrections",
            f"are {len(corrections)} for {len(cases)} cases",
            "give one for all, or one for each",
        )
    found = _predicted(cases, corrections, fit, method, seed)
    for case, prediction in zip(cases, found, strict=True):
        _check_numbers(case, prediction)
    return found


def check_method(method: str, seed: int) -> None:
    """Refuses a method that there is not, and a seed that no replay takes.

    Args:
        method: ``fluid`` or ``replay``.
        seed: Seed of the replay's requests.

    Raises:
        InputError: One of them cannot be used.
    """
    if method not in METHODS:
        raise InputError("method", f"{method!r} is unknown", f"use one of {', '.join(METHODS)}")
    if method == "replay":
        from physim.replay.workload import check_seed

        check_seed(seed)


def _check_numbers(case: Case, prediction: Prediction) -> None:
    """Refuses a prediction that holds what is no number, which is a mistake of the model."""
    parts = (prediction.whole, *prediction.stages)
    numbers = {
        name: getattr(prediction, name)
        for name in ("ttft_s", "itl_s", "e2e_s", "requests_per_s", "saturation_rps")
    }
    numbers |= {
        f"{name} {statistic}": value
        for part in parts
        for name, latency in part.latencies.items()
        for statistic, value in latency.items()
    }
    numbers["step_s"] = math.fsum(pool.step_s for pool in prediction.pools)
    wrong = [name for name, value in numbers.items() if value is not None and math.isnan(value)]
    if wrong:
        where = f"{case.what}, {case.demanded.describe()}"
        raise InputError(
            where,
            f"the model finds no number for {wrong[0]}",
            "please report this with the case; try --method replay",
        )


def _predicted(
    cases: Sequence[Case],
    corrections: Corrections | Sequence[Corrections],
    fit: str,
    method: str,
    seed: int,
) -> list[Prediction]:
    check_method(method, seed)
    if isinstance(corrections, Corrections):
        corrections = [corrections] * len(cases)
    apart = [row for row, case in enumerate(cases) if not case.service.is_single]
    if not apart:
        return _of_servers(cases, corrections, fit, method, seed)
    from physim.prediction.fleets import predict_fleets

    def of_servers(some: Sequence[Case], own: Sequence[Corrections]) -> list[Prediction]:
        return _of_servers(some, own, fit, "fluid", seed)

    fleets = [cases[row] for row in apart]
    if method == "replay":
        fleets = [replace(case, load=case.demanded.staying()) for case in fleets]
    own = [corrections[row] for row in apart]
    found = dict(zip(apart, predict_fleets(fleets, own, of_servers), strict=True))
    if method == "replay":
        from physim.prediction.replayed import replayed

        # What was predicted is how the load would stay.
        found = {
            row: replayed(
                replace(one, load=cases[row].demanded), cases[row], corrections[row], seed
            )
            for row, one in found.items()
        }
    else:
        for row, one in found.items():
            notes = cases[row].service.router_notes
            found[row] = replace(one, assumptions=(*one.assumptions, *notes))
    single = [row for row in range(len(cases)) if row not in found]
    others = [cases[row] for row in single], [corrections[row] for row in single]
    found.update(zip(single, _of_servers(*others, fit, method, seed), strict=True))
    return [found[row] for row in range(len(cases))]


def _of_servers(
    cases: Sequence[Case],
    corrections: Sequence[Corrections],
    fit: str,
    method: str,
    seed: int,
) -> list[Prediction]:
    """Predictions of cases of one server each."""
    predictions: dict[int, Prediction] = {}
    for rows in _alike([case.structure for case in cases]):
        own = [cases[row] for row in rows], [corrections[row] for row in rows]
        predictions.update(zip(rows, steady(*own, fit), strict=True))
    found = [predictions[row] for row in range(len(cases))]
    if method == "replay":
        from physim.prediction.replayed import replayed

        return [
            replayed(prediction, case, own, seed)
            for prediction, case, own in zip(found, cases, corrections, strict=True)
        ]
    over_time = {
        row: one for row, case in enumerate(cases) if (one := _over_time(case, found[row]))
    }
    ending = list(over_time)
    for some in _alike([_shape(case) for case in over_time.values()]):
        from physim.prediction.transient import run_cases

        rows = [ending[place] for place in some]
        ran = run_cases(
            [found[row] for row in rows],
            [over_time[row] for row in rows],
            [corrections[row] for row in rows],
        )
        for row, prediction in zip(rows, ran, strict=True):
            # Stretches of recorded arrivals are no stages of the load's.
            stages = () if over_time[row] is not cases[row] else prediction.stages
            found[row] = replace(prediction, stages=stages)
    return found


def _over_time(case: Case, prediction: Prediction) -> Case | None:
    """The case if its load ends or changes, recorded arrivals in stretches; None if it stays.

    Args:
        case: The case.
        prediction: Its steady state.
    """
    load = case.demanded
    # The steady state knows of clients that send a number of requests.
    if load.concurrency is not None:
        return None
    if load.dispersion is not None and not load.stages:
        life_s = load.mean_output * (prediction.itl_s or prediction.pool.step_s)
        return replace(case, load=load.in_stretches(life_s))
    return None if load.endless else case


def _shape(case: Case) -> Hashable:
    """What loads that end must have in common to be run together."""
    load = case.demanded
    stages = load.schedule()
    return len(stages), load.timeout_s is None, type(stages[0]), case.structure


def _alike(keys: Sequence[Hashable]) -> list[list[int]]:
    """Places of equal keys, together."""
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())
