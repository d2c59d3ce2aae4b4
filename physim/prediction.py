"""Predictions of many cases, by the method that each load takes.

A load that stays is solved for its steady state; one that ends or changes is run through the
fluid's equations, or replayed request by request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from physim.cases import Case
from physim.corrections import Corrections
from physim.errors import InputError
from physim.fits import NO_FIT
from physim.results import Prediction
from physim.settled import settled

METHODS = ("fluid", "replay")


def predict_cases(
    cases: Sequence[Case],
    corrections: Corrections | Sequence[Corrections],
    fit: str = NO_FIT,
    mixed: str = "additive",
    method: str = "fluid",
    seed: int = 0,
) -> list[Prediction]:
    """Predicts many cases at once.

    Loads that stay take one vectorised call, those in stages one for each number of stages.

    Args:
        cases: Any mixture of models, GPUs, deployments and loads.
        corrections: Corrections of the components, for all cases or for each its own.
        fit: Their name, for the record.
        mixed: How steps of both prefill and decode are composed.
        method: ``fluid`` or ``replay``.
        seed: Seed of the replay's requests.

    Raises:
        InputError: The method is unknown, or cannot predict a case.
    """
    if method not in METHODS:
        raise InputError("method", f"{method!r} is unknown", f"known are {', '.join(METHODS)}")
    if not cases:
        return []
    if isinstance(corrections, Corrections):
        corrections = [corrections] * len(cases)
    predictions = settled(cases, corrections, fit, mixed)
    if method == "replay":
        from physim.replaying import replayed

        return [
            replayed(prediction, case, own, mixed, seed)
            for prediction, case, own in zip(predictions, cases, corrections, strict=True)
        ]
    changing = defaultdict(list)
    for row, case in enumerate(cases):
        # Of clients that send a number of requests, the beginning and the end are left out.
        if not case.load.endless and case.load.concurrency is None:
            key = len(case.load.schedule()), case.load.timeout_s is None
            changing[key].append(row)
    for rows in changing.values():
        from physim.courses import run_cases

        ran = run_cases(
            [predictions[row] for row in rows],
            [cases[row] for row in rows],
            [corrections[row] for row in rows],
            mixed,
        )
        for row, prediction in zip(rows, ran, strict=True):
            predictions[row] = prediction
    return predictions
