"""Models, GPUs and tp side by side under one load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.cases import Case
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.inputs.hardware import load_hardware
from physim.intervals import extrapolations
from physim.prediction import predict_cases
from physim.serving.load import Load

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("cost", "ttft", "itl", "e2e", "capacity")
_COLUMN = {
    "cost": "cost_per_million_tokens",
    "ttft": "ttft_s",
    "itl": "itl_s",
    "e2e": "e2e_s",
    "capacity": "capacity_rps",
}


@dataclass(frozen=True)
class Comparison:
    """Deployments under one load.

    Attributes:
        rows: For each deployment its latencies (seconds), throughput, capacity, and cost of a
            million generated tokens if a price is known; the best first, and what cannot serve the
            load last.
        refused: Others, each with the reason.
    """

    rows: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)


def compare(
    models: Sequence[str | Path],
    gpus: Sequence[str],
    tps: Sequence[int],
    load: Load,
    *,
    prices: Mapping[str, float] | None = None,
    order: str | None = None,
    fit: str | Path = DEFAULT_FIT,
    **deployment: Any,
) -> Comparison:
    """Predicts every combination of models, GPUs and tp under one load.

    Args:
        models: Models.
        gpus: GPUs.
        tps: GPUs that share every layer.
        load: The load.
        prices: Price of one GPU for an hour, by its key, in any currency.
        order: What the best has least of: ``cost``, ``ttft``, ``itl`` or ``e2e``; or ``capacity``,
            of which it has most. None for cost if there are prices, else E2E.
        fit: Name or path of a fit, ``default`` or ``none``.
        **deployment: More fields of `physim.Deployment`.

    Raises:
        InputError: Nothing is compared, or an option cannot be used. A combination that cannot be
            deployed is listed in ``refused``.
    """
    prices = dict(prices or {})
    order = order or ("cost" if prices else "e2e")
    if order not in ORDERS or (order == "cost" and not prices):
        remedy = f"known are {', '.join(ORDERS)}" if order not in ORDERS else "give --price"
        raise InputError("sort", f"{order!r} cannot be used", remedy)
    for gpu, price in prices.items():
        if not (math.isfinite(price) and price > 0):
            raise InputError(f"price of {gpu}", f"{price:g} is not positive", "correct it")
        if gpu not in gpus:
            raise InputError(f"price of {gpu}", "is of no GPU that is compared", "correct it")
    for gpu in gpus:
        load_hardware(gpu)
    cases: list[Case] = []
    refused: list[dict[str, Any]] = []
    for model in models:
        for gpu in gpus:
            for tp in tps:
                try:
                    cases.append(Case.of(model, gpu, Deployment(tp=tp, **deployment), load))
                except InputError as error:
                    refused.append(
                        {"model": str(model), "gpu": gpu, "tp": tp, "reason": str(error)}
                    )
    if not cases:
        raise InputError(
            "compare",
            "has nothing to compare",
            refused[0]["reason"] if refused else "name models, GPUs and tp",
        )
    fits = [load_fit(fit, case.gpu.key) for case in cases]
    predictions = predict_cases(cases, [one.corrections for one in fits], str(fit))
    rows: list[dict[str, Any]] = []
    for case, known, one in zip(cases, fits, predictions, strict=True):
        hourly = prices[case.gpu.key] * case.deployment.tp if case.gpu.key in prices else None
        rows.append(
            {
                "model": case.model.name,
                "gpu": case.gpu.key,
                "tp": case.deployment.tp,
                "ttft_s": one.ttft_s,
                "itl_s": one.itl_s,
                "e2e_s": one.e2e_s,
                "output_tokens_per_s": one.output_tokens_per_s,
                "capacity_rps": one.capacity_rps,
                "use": one.requests_per_s / one.capacity_rps,
                "cost_per_million_tokens": None
                if hourly is None
                else hourly / 3600 / one.output_tokens_per_s * 1e6,
                "extrapolations": list(extrapolations(case, one, known)),
            }
        )
    column, sign = _COLUMN[order], -1.0 if order == "capacity" else 1.0
    # What cannot serve the load comes last, however cheap.
    rows.sort(
        key=lambda row: (
            row["ttft_s"] is None,
            math.inf if row[column] is None else sign * row[column],
        )
    )
    return Comparison(rows, refused)
