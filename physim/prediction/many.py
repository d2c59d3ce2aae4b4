"""Predictions of many cases, by the method that each load takes.

A load that stays and one of clients are solved for their steady state; an open loop that ends or
changes is run through the fluid's equations, or replayed request by request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from physim.corrections.fields import Corrections
from physim.corrections.files import NO_FIT
from physim.errors import InputError
from physim.prediction.cases import Case
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
        InputError: The method is unknown, or cannot predict a case.
    """
    if method not in METHODS:
        raise InputError("method", f"{method!r} is unknown", f"use one of {', '.join(METHODS)}")
    if isinstance(corrections, Corrections):
        corrections = [corrections] * len(cases)
    predictions: dict[int, Prediction] = {}
    for rows in _alike([case.mixing for case in cases]):
        own = [cases[row] for row in rows], [corrections[row] for row in rows]
        predictions.update(zip(rows, steady(*own, fit), strict=True))
    found = [predictions[row] for row in range(len(cases))]
    if method == "replay":
        from physim.prediction.replayed import replayed

        return [
            replayed(prediction, case, own, seed)
            for prediction, case, own in zip(found, cases, corrections, strict=True)
        ]
    # The steady state knows of clients that send a number of requests.
    ending = [
        row
        for row, case in enumerate(cases)
        if not case.demanded.endless and case.demanded.concurrency is None
    ]
    for some in _alike([_shape(cases[row]) for row in ending]):
        from physim.prediction.transient import run_cases

        rows = [ending[place] for place in some]
        ran = run_cases(
            [found[row] for row in rows],
            [cases[row] for row in rows],
            [corrections[row] for row in rows],
        )
        for row, prediction in zip(rows, ran, strict=True):
            found[row] = prediction
    return found


def _shape(case: Case) -> Hashable:
    """What loads that end must have in common to be run together."""
    load = case.demanded
    return len(load.schedule()), load.timeout_s is None, case.mixing


def _alike(keys: Sequence[Hashable]) -> list[list[int]]:
    """Places of equal keys, together."""
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())
