"""What limits a deployment: by how much latencies and capacity follow each of its parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float

from physim.batching.limits import Limits
from physim.corrections.fields import CORRECTIONS, Corrections
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.fluid.steady import SteadyState
from physim.inputs.case import Case, CaseOptions
from physim.inputs.load import Load
from physim.options import named_options
from physim.prediction.arrays import CaseArrays, row_of, stack
from physim.prediction.results import FIRST_TOKEN_PARTS
from physim.prediction.steady import solved
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks
from physim.questions.speculation import Speculation, speculation
from physim.service.server import Server
from physim.step.lowering import StepOps, lower, stack_ops

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("ttft", "itl", "e2e", "saturation")
# Rates of the hardware. The other parts are what corrections multiply, by their names.
RATES = {
    "memory_bandwidth": "memory bandwidth",
    "peak_flops": "FLOP/s",
    "link_bandwidth": "link bandwidth",
}
# What a server has beside them: room for requests and for prefixes that others had, by tiers.
ROOM = {
    "kv_blocks": "blocks of the KV cache",
    "kv_host_blocks": "blocks of it in host memory",
    "kv_host_bandwidth": "bandwidth from host memory",
    "kv_disk_blocks": "blocks of it on disk",
    "kv_disk_bandwidth": "bandwidth from disk",
}
# An elasticity of less is as good as none.
_NOTABLE = 0.005
# By so much a part is moved, up and down: metrics have seven digits.
_MOVED = 0.002
# Slopes towards more and less that differ by more than this share of the steeper are those of a
# bend.
_BENT = 0.2
# Of 57 to 73 cases that are moved, and as many as are solved at once for other questions too, so
# that it is compiled once for all.
_SOLVED_AT_ONCE = 32

# What a case is with more of some part, by the logarithm of how much more.
_Way = Callable[[float], tuple[CaseArrays, Corrections]]


@dataclass(frozen=True)
class Elasticities:
    """By how many percent each metric follows one percent more of each part.

    Attributes:
        values: For each part, of `RATES`, of `ROOM` and then of `CORRECTIONS`, that of each of
            `METRICS`.
        metrics: The metrics themselves: seconds, and requests per second.
        ttft_parts_s: What the time to first token is spent on, by
            `physim.prediction.results.FIRST_TOKEN_PARTS`.
        hit_rate: Share of the prompt tokens that are found in the prefix cache.
        host_hit_rate: Share of them that come up from the host's memory.
        case: What was asked about.
        fit: Name of the fit.
        speculation: Where its drafts pay; None where it has none.
    """

    values: Mapping[str, Mapping[str, float]]
    metrics: Mapping[str, float]
    ttft_parts_s: Mapping[str, float]
    hit_rate: float
    case: Case
    fit: str
    speculation: Speculation | None = None
    host_hit_rate: float = 0.0

    def notable(self, metrics: Sequence[str] = METRICS) -> dict[str, Mapping[str, float]]:
        """The values of parts on which a metric depends, by what the parts are in words.

        Args:
            metrics: The metrics, of `METRICS`.
        """
        words = RATES | ROOM | {name: one.meaning for name, one in CORRECTIONS.items()}
        return {
            words[part]: row
            for part, row in self.values.items()
            if any(abs(row[metric]) >= _NOTABLE for metric in metrics)
        }

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "model": self.case.model.name,
            "gpu": self.case.server.gpu.key,
            **dataclasses.asdict(self.case.server.parallelism),
            "load": dataclasses.asdict(self.case.demanded),
            "fit": self.fit,
            "metrics": dict(self.metrics),
            "ttft_parts_s": dict(self.ttft_parts_s),
            **({"speculation": self.speculation.to_dict()} if self.speculation else {}),
            "hit_rate": self.hit_rate,
            "host_hit_rate": self.host_hit_rate,
            "elasticities": {name: dict(row) for name, row in self.values.items()},
        }

    def __repr__(self) -> str:
        ranked = sorted(
            ((name, row) for name, row in self.values.items() if _most(row) >= _NOTABLE),
            key=lambda one: -_most(one[1]),
        )
        rows: list[tuple[str, ...]] = [("% for 1% more of", *METRICS)]
        rows += [
            (name.replace("_", " "), *(f"{row[metric]:+.2f}" for metric in METRICS))
            for name, row in ranked
        ]
        return shown(self, f"{self.case.what}, {self.case.demanded.describe()}", *aligned(rows))

    def to_frame(self) -> pd.DataFrame:
        """A row for each part, with the elasticity of each metric."""
        import pandas as pd

        return pd.DataFrame([{"part": name, **row} for name, row in self.values.items()])


def _most(row: Mapping[str, float]) -> float:
    """The largest elasticity of a part, its sign left out."""
    return max(abs(row[metric]) for metric in METRICS)


@told_in_notebooks("differentiating")
@named_options
def explain(
    model: str | Path | Case,
    *,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> Elasticities:
    """What latencies and capacity under a load depend on, and how strongly.

    An elasticity is the derivative of a metric's logarithm by that of a part: with -0.6 of ITL for
    memory bandwidth, 1% more of it makes ITL 0.6% shorter. They are differences of predictions with
    a little more and a little less of each part; those of rates leave each kernel the efficiency
    that was measured.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, deployment and a load that stays, a rate or clients; see `CaseOptions`.

    Raises:
        InputError: Some input cannot be used, the load ends, or it is above capacity.
    """
    case = Case.from_options(model, **options)
    check_stays(case.demanded)
    known = load_fit(fit).on(case)
    unmoved = row_of(CaseArrays.from_cases([case]), 0), known.corrections
    ways = _ways(case, *unmoved)
    moved = [way(log) for way in ways.values() for log in (_MOVED, -_MOVED)]
    systems, corrections = map(stack, zip(unmoved, *moved, strict=True))
    offered, unending, _ = solved(systems, corrections, _SOLVED_AT_ONCE)
    with np.errstate(divide="ignore"):
        found = [offered.ttft, offered.itl, offered.e2e, unending.throughput]
        logs = np.log(np.stack(found, axis=-1).astype(float))
    if not np.all(np.isfinite(logs[0])):
        raise above(float(np.exp(logs[0, METRICS.index("saturation")])))
    rows = dict(zip(ways, _slopes(logs[0], logs[1::2], logs[2::2]), strict=True))
    state: SteadyState = row_of(offered, 0)
    return Elasticities(
        {
            name: {metric: float(x) for metric, x in zip(METRICS, row, strict=True)}
            for name, row in rows.items()
        },
        {metric: float(np.exp(log)) for metric, log in zip(METRICS, logs[0], strict=True)},
        {name: float(getattr(state.first_token, name)) for name in FIRST_TOKEN_PARTS},
        float(state.hit_rate),
        case,
        known.name,
        speculation(case, known.corrections) if case.server.draft else None,
        host_hit_rate=float(state.host_hit_rate or 0.0),
    )


def check_stays(load: Load) -> None:
    """Refuses a load that ends or changes.

    Raises:
        InputError: It does.
    """
    if not load.endless or load.stages:
        raise InputError("load", "ends or changes", "give an open-ended rate or number of clients")


def above(most_rps: float) -> InputError:
    """What is said of a load above the saturation throughput, requests per second."""
    problem = f"is above the saturation throughput of {most_rps:.3g} requests/s"
    return InputError("load", problem, "give a lighter one")


def _ways(case: Case, system: CaseArrays, corrections: Corrections) -> dict[str, _Way]:
    """Ways to have more of each part of a case: what it then is, by the logarithm of how much more.

    Args:
        case: The case,
        system: as numbers.
        corrections: Its corrections.
    """

    def rate(name: str) -> _Way:
        return lambda log: (replace(system, ops=_with_more(case.server, name, log)), corrections)

    def room(name: str) -> _Way:
        return lambda log: (replace(system, limits=_roomier(system.limits, name, log)), corrections)

    def correction(name: str) -> _Way:
        return lambda log: (
            system,
            replace(corrections, **{name: getattr(corrections, name) + log}),
        )

    # Of the tiers that the server has.
    rooms = list(ROOM)[: 2 * len(case.server.kv.tiers) - 1]
    return (
        {name: rate(name) for name in RATES}
        | {name: room(name) for name in rooms}
        | {name: correction(name) for name in CORRECTIONS}
    )


def _with_more(server: Server, rate: str, log: float) -> StepOps:
    """The lowered model with more of a rate of its GPU, of `RATES`, by a logarithm."""
    gpu, factor = server.gpu, math.exp(log)
    if rate == "peak_flops":
        peaks = tuple((name, peak * factor) for name, peak in gpu.peak_flops)
        gpu = replace(gpu, peak_flops=peaks)
    else:
        gpu = replace(gpu, **{rate: getattr(gpu, rate) * factor})
    return row_of(stack_ops([lower(replace(server, gpu=gpu))]), 0)


def _roomier(limits: Limits, room: str, log: float) -> Limits:
    """The limits with more of what `ROOM` names, by a logarithm."""
    factor, place = math.exp(log), list(ROOM).index(room)
    if place == 0:
        return replace(limits, kv_blocks=limits.kv_blocks * factor)
    assert limits.lower is not None
    below, is_faster = divmod(place - 1, 2)
    tiers = list(limits.lower.tiers)
    tier = tiers[below]
    tiers[below] = (
        replace(tier, token_s=tier.token_s / factor)
        if is_faster
        else replace(tier, blocks=tier.blocks * factor)
    )
    return replace(limits, lower=replace(limits.lower, tiers=tuple(tiers)))


def _slopes(
    base: Float[np.ndarray, " metrics"],
    up: Float[np.ndarray, "ways metrics"],
    down: Float[np.ndarray, "ways metrics"],
) -> Float[np.ndarray, "ways metrics"]:
    """Slopes from what was moved up and down; where it bends, or down is all there is, of one side.

    At a bend, as where experts' loads cannot be more even than they are, it is the slope towards
    more.
    """
    with np.errstate(invalid="ignore"):
        above, below = (up - base) / _MOVED, (base - down) / _MOVED
        bends = np.abs(above - below) > _BENT * np.maximum(np.abs(above), np.abs(below))
    above = np.where(np.isfinite(above), above, below)
    below = np.where(np.isfinite(below) & ~bends, below, above)
    return (above + below) / 2
