"""Models, GPUs, layouts and fleets side by side under one load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.attempts import attempts, check_lists, check_shared, choices, layout_axes
from physim.inputs.case import Case, SharedOptions
from physim.inputs.fleet_request import FleetOptions
from physim.options import named_options
from physim.prediction.intervals import extrapolations
from physim.prediction.many import predict_cases
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks
from physim.questions.prices import hourly_price, hourly_prices, per_million_tokens
from physim.service.hardware import load_hardware
from physim.service.service import Service

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("cost", "ttft", "itl", "e2e", "saturation")
_COLUMN = {
    "cost": "cost_per_million_tokens",
    "ttft": "ttft_s",
    "itl": "itl_s",
    "e2e": "e2e_s",
    "saturation": "saturation_rps",
}


@dataclass(frozen=True)
class Comparison:
    """Deployments under one load.

    Attributes:
        rows: For each deployment its latencies (seconds), throughput, capacity, and cost of a
            million generated tokens if a price is known; the best first, and what cannot serve the
            load last. ``layout`` and ``where`` say which servers it is of, ``gpus`` how many GPUs
            it has; degrees are those of its servers, None where pools apart differ in them.
        refused: Others, each with the reason.
    """

    rows: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]

    def common_extrapolations(self) -> set[str]:
        """In what all deployments are beyond the runs that the fit knows, a line each."""
        return set.intersection(*(set(row["extrapolations"]) for row in self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Rows and others, as JSON holds them."""
        return {"rows": self.rows, "refused": self.refused}

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("model", "on", "TTFT ms", "ITL ms", "E2E s", "requests/s", "cost")
        ]
        for row in self.rows:
            cost = row.get("cost_per_million_tokens")
            figures = ((row["ttft_s"], 1e3), (row["itl_s"], 1e3), (row["e2e_s"], 1.0))
            rows.append(
                (
                    str(row["model"]).split("/")[-1],
                    f"{row['gpu']} {row['layout']}",
                    *("-" if value is None else f"{scale * value:.4g}" for value, scale in figures),
                    f"{row['saturation_rps']:.4g}",
                    "-" if cost is None else f"{cost:.3g}",
                )
            )
        said = f"{len(self.rows)} deployments, {len(self.refused)} refused"
        return shown(self, said, *(aligned(rows) if self.rows else ()))


@told_in_notebooks("comparing")
@named_options
def compare(
    models: Sequence[str | Path | Case],
    gpus: Sequence[str] = (),
    tps: Sequence[int] = (1,),
    *,
    pps: Sequence[int] = (1,),
    dps: Sequence[int] = (1,),
    eps: Sequence[int] = (1,),
    fleets: Sequence[FleetOptions] = ({},),
    prices: Mapping[str, float] | None = None,
    order: str | None = None,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[SharedOptions],
) -> Comparison:
    """Predicts cases side by side, or all combinations of models, GPUs, layouts and fleets.

    Args:
        models: Cases; or models, with GPUs and the rest of the cases beside them.
        gpus: GPUs.
        tps: Degrees ``tp`` of `physim.Parallelism`,
        pps: ``pp``,
        dps: ``dp``,
        eps: and ``ep``, in every combination.
        fleets: Services of such servers, each by the options of a fleet (`CaseOptions`) that it
            has, such as ``{"replicas": 4}``; no options for one server. What pools apart have of
            their own stands in the place of a layout.
        prices: Price of one GPU for an hour, by its key, in any currency.
        order: What the best has least of: ``cost``, ``ttft``, ``itl`` or ``e2e``; or
            ``saturation``, of which it has most. None for cost if there are prices, else E2E.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: The engine, the load and what all fleets have; see `CaseOptions`.

    Raises:
        InputError: Nothing is compared, or an option cannot be used. A combination that cannot be
            deployed is listed in ``refused``.
    """
    check_lists(models=models, gpus=gpus, fleets=fleets)
    prices = hourly_prices(prices)
    order = order or ("cost" if prices else "e2e")
    if order not in ORDERS or (order == "cost" and not prices):
        remedy = f"use one of {', '.join(ORDERS)}" if order not in ORDERS else "give --price"
        raise InputError("sort", f"{order!r} cannot be used", remedy)
    check_shared(options)
    tried = layout_axes(tps, pps, dps, eps)
    for gpu in gpus:
        load_hardware(gpu)
    cases = [model for model in models if isinstance(model, Case)]
    refused: list[dict[str, Any]] = []
    apart: list[Service] = []
    named = [one for one in models if not isinstance(one, Case)]
    wanted = choices(model=named, gpu=gpus, **tried, fleet=fleets)
    for attempt in attempts(wanted, options, _with_fleet):
        if attempt.case is None:
            choice = _with_fleet({**attempt.choice, "model": str(attempt.choice["model"])})
            refused.append({**choice, "reason": str(attempt.refusal)})
        # Pools that have layouts of their own are the same whatever else is tried.
        elif (service := attempt.case.service) not in apart:
            cases.append(attempt.case)
            apart += [service] if len(service.pools) > 1 else []
    if not cases:
        raise InputError(
            "compare",
            "has nothing to compare",
            refused[0]["reason"] if refused else "name models, GPUs and layouts",
        )
    compared = {key for case in cases for key in case.service.gpu_keys}
    for gpu in prices:
        if gpu not in compared:
            raise InputError(f"price of {gpu}", "is of no GPU that is compared", "correct it")
    fits = [load_fit(fit).on(case) for case in cases]
    predictions = predict_cases(cases, [one.corrections for one in fits], str(fit))
    rows: list[dict[str, Any]] = []
    for case, known, one in zip(cases, fits, predictions, strict=True):
        service = case.service
        tokens_per_s = one.output_tokens_per_s
        rows.append(
            {
                "model": case.model.name,
                "gpu": " + ".join(service.gpu_keys),
                **_degrees(service),
                "layout": service.layout,
                "where": service.where,
                "servers": sum(pool.replicas for pool in service.pools),
                "gpus": service.gpus,
                "ttft_s": one.ttft_s,
                "itl_s": one.itl_s,
                "e2e_s": one.e2e_s,
                "output_tokens_per_s": tokens_per_s,
                "output_tokens_per_s_per_gpu": tokens_per_s / service.gpus,
                "saturation_rps": one.saturation_rps,
                "use": one.requests_per_s / one.saturation_rps,
                "cost_per_million_tokens": per_million_tokens(
                    hourly_price(prices, service), tokens_per_s
                ),
                "extrapolations": list(extrapolations(case, one, known)),
            }
        )
    column, sign = _COLUMN[order], -1.0 if order == "saturation" else 1.0
    # What cannot serve the load comes last, however cheap.
    rows.sort(
        key=lambda row: (
            row["ttft_s"] is None,
            math.inf if row[column] is None else sign * row[column],
        )
    )
    return Comparison(rows, refused)


def _with_fleet(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice with the options of its fleet among the others."""
    fleet = choice.pop("fleet", {})
    return {**choice, **fleet}


def _degrees(service: Service) -> dict[str, int | None]:
    """The degrees of all servers; None for those in which they differ."""
    degrees = [asdict(pool.server.parallelism) for pool in service.pools]
    alike = {name: {one[name] for one in degrees} for name in degrees[0]}
    return {name: values.pop() if len(values) == 1 else None for name, values in alike.items()}
