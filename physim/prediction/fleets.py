"""Predictions of services of several servers, from those of one server of each pool.

Servers that are alike have their share of the load; `physim.prediction.apart` has those whose
pools each run one phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from physim.corrections.fields import Corrections
from physim.inputs.case import Case
from physim.prediction.apart import Predict, predict_apart
from physim.prediction.results import Prediction, StageLatencies
from physim.service.routers import BY_PREFIX


def predict_fleets(
    cases: Sequence[Case], corrections: Sequence[Corrections], predict: Predict
) -> list[Prediction]:
    """Predictions of services of several servers.

    Args:
        cases: The cases.
        corrections: Corrections of each.
        predict: Predicts cases of one server.

    Raises:
        InputError: A load ends or changes, and prefill and decode are apart.
    """
    found: dict[int, Prediction] = {}
    alike = [row for row, case in enumerate(cases) if len(case.service.pools) == 1]
    own = [cases[row].of_pool(cases[row].service.pools[0]) for row in alike]
    for row, one in zip(alike, predict(own, [corrections[row] for row in alike]), strict=True):
        found[row] = _of_replicas(cases[row], one)
    apart = [row for row in range(len(cases)) if row not in found]
    some = [cases[row] for row in apart]
    passed = predict_apart(some, [corrections[row] for row in apart], predict)
    found.update(zip(apart, passed, strict=True))
    return [found[row] for row in range(len(cases))]


def _of_replicas(case: Case, one: Prediction) -> Prediction:
    """The prediction of all replicas, from that of one under its share of the load."""
    load, (pool,) = case.demanded, case.service.pools
    count = pool.replicas
    if load.concurrency is not None:
        count = min(count, math.floor(load.concurrency))
    timeline = one.timeline
    if timeline is not None:
        timeline = replace(
            timeline,
            waiting=[count * value for value in timeline.waiting],
            running=[count * value for value in timeline.running],
        )
    notes = one.assumptions
    if load.conversing and case.service.router not in BY_PREFIX:
        notes += (
            f"turns are taken to stay with a server, which a router {case.service.router} does not "
            "see to",
        )
    # One stage is all that there is.
    own = load.stages if len(load.stages) == len(one.stages) else (None,) * len(one.stages)
    stages = zip(own, one.stages, strict=True)
    return replace(
        one,
        load=load,
        requests_per_s=count * one.requests_per_s,
        output_tokens_per_s=count * one.output_tokens_per_s,
        pools=(one.pool.of_all(pool),),
        whole=_of_all(one.whole, count, load.rate),
        stages=tuple(
            _of_all(part, count, part.rate if stage is None else stage.rate)
            for stage, part in stages
        ),
        timeline=timeline,
        assumptions=notes,
    )


def _of_all(part: StageLatencies, count: int, rate: float | None) -> StageLatencies:
    """What the requests of all replicas have, from those of one."""
    arrived, completed = (
        None if value is None else count * value for value in (part.arrived, part.completed)
    )
    return replace(part, rate=rate, arrived=arrived, completed=completed)
