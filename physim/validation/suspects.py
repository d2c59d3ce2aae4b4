"""What would explain a row that is far off: the correction that has to move least for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from physim.corrections.fields import CORRECTIONS
from physim.errors import InputError
from physim.inputs.case import Case
from physim.questions.elasticities import explain

# A correction that a metric follows less than this is not asked.
_LEAST = 0.02


@dataclass(frozen=True)
class Suspect:
    """A correction that alone would explain an error.

    Attributes:
        name: Its name, of `physim.corrections.fields.CORRECTIONS`.
        factor: By how much what it multiplies would have to be longer.
    """

    name: str
    factor: float


def suspect(case: Case, metric: str, ratio: float) -> Suspect | None:
    """The correction that explains an error by the least move, in widths of its prior.

    Taken straight in the logarithms, and of clients as if they sent requests without end.

    Args:
        case: The case; its load stays, or is of clients.
        metric: ``ttft``, ``itl`` or ``e2e``.
        ratio: What was observed over what is predicted.

    Returns:
        None where the load has no steady state, or nothing moves the metric.
    """
    load = replace(case.demanded, requests=None, warm_up_s=0.0)
    try:
        found = explain(case.under(load), fit="none")
    except InputError:
        return None
    moves = {
        name: math.log(ratio) / found.values[name][metric]
        for name in CORRECTIONS
        if abs(found.values[name][metric]) >= _LEAST
    }
    if not moves:
        return None
    least = min(moves, key=lambda name: abs(moves[name]) / CORRECTIONS[name].prior)
    return Suspect(least, math.exp(moves[least]))
