"""What limits a deployment: by how much latencies and capacity follow each of its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.fields import CORRECTIONS, flat, labels, unflat
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.fluid.first_token import FirstToken
from physim.fluid.steady import steady_state
from physim.inputs.case import Case, CaseOptions
from physim.inputs.load import Load
from physim.kept import kept
from physim.options import named_options
from physim.prediction.arrays import CaseArrays, row_of
from physim.prediction.results import FIRST_TOKEN_PARTS
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks
from physim.questions.speculation import Speculation, speculation
from physim.service.hardware import Hardware
from physim.step.lowering import StepOps, lower
from physim.types import AnyArray, Number

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
# By so much a rate is moved, up and down, to see what lowering makes of it.
_MOVED = 1e-3


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
    memory bandwidth, 1% more of it makes ITL 0.6% shorter. Those of rates leave each kernel the
    efficiency that was measured.

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
    numbers, names = flat(known.corrections), np.array(labels())
    system = row_of(CaseArrays.from_cases([case]), 0)
    system = dataclasses.replace(system, ops=_lowered(case, case.server.gpu))
    still, none = jax.tree.map(np.zeros_like, system.ops), np.zeros_like(numbers)
    unmoved, along = np.zeros(len(ROOM)), np.eye(len(ROOM))
    # Of the tiers that the server has.
    room = dict(zip(ROOM, along[: 2 * len(case.server.kv.tiers) - 1], strict=False))
    directions = [(_tangent(case, name), none, unmoved) for name in RATES]
    directions += [(still, none, axis) for axis in room.values()]
    directions += [(still, 1.0 * (names == name), unmoved) for name in CORRECTIONS]
    logs, slopes, first_token, hit_rates = jax.tree.map(
        np.asarray,
        _slopes(system, numbers, jax.tree.map(lambda *leaves: np.stack(leaves), *directions)),
    )
    if not np.all(np.isfinite(logs)):
        capacity = float(np.exp(logs[METRICS.index("saturation")]))
        raise above(capacity)
    rows = dict(zip((*RATES, *room, *CORRECTIONS), slopes, strict=True))
    hit_rate, host_hit_rate = hit_rates
    return Elasticities(
        {
            name: {metric: float(x) for metric, x in zip(METRICS, row, strict=True)}
            for name, row in rows.items()
        },
        {metric: float(np.exp(log)) for metric, log in zip(METRICS, logs, strict=True)},
        {name: float(getattr(first_token, name)) for name in FIRST_TOKEN_PARTS},
        float(hit_rate),
        case,
        known.name,
        speculation(case, known.corrections) if case.server.draft else None,
        host_hit_rate=float(host_hit_rate),
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


def _lowered(case: Case, gpu: Hardware) -> StepOps:
    ops: StepOps = jax.tree.map(
        lambda leaf: np.asarray(leaf, float), lower(replace(case.server, gpu=gpu))
    )
    return ops


def _tangent(case: Case, rate: str) -> StepOps:
    """How the lowered model moves with the logarithm of a rate of the GPU, by differences."""

    def lowered_at(factor: float) -> StepOps:
        gpu = case.server.gpu
        if rate == "peak_flops":
            peaks = tuple((name, peak * factor) for name, peak in gpu.peak_flops)
            return _lowered(case, dataclasses.replace(gpu, peak_flops=peaks))
        return _lowered(case, dataclasses.replace(gpu, **{rate: getattr(gpu, rate) * factor}))

    up, down = lowered_at(float(np.exp(_MOVED))), lowered_at(float(np.exp(-_MOVED)))
    tangent: StepOps = jax.tree.map(_slope, up, down)
    return tangent


def _slope(up: Number, down: Number) -> Number:
    """The slope of numbers that were moved up and down; one that did not move may be infinite."""
    return np.where(up == down, 0.0, np.nan_to_num(up) - np.nan_to_num(down)) / (2 * _MOVED)


@kept
def _slopes(
    system: CaseArrays,
    corrections: Float[AnyArray, " n"],
    directions: tuple[StepOps, Float[AnyArray, "directions n"], Float[AnyArray, "directions room"]],
) -> tuple[
    Float[AnyArray, " metrics"],
    Float[AnyArray, "directions metrics"],
    FirstToken,
    Float[AnyArray, " 2"],
]:
    """Logarithms of the metrics, their slopes in some directions, parts of TTFT, and hit rates.

    Args:
        system: The case.
        corrections: Its corrections.
        directions: Directions in the lowered model, in the corrections and in the logarithms of
            `ROOM`.
    """
    demand = system.demand
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), demand, demand.unending())

    def logs(
        point: tuple[StepOps, Float[AnyArray, " n"], Float[AnyArray, " room"]],
    ) -> tuple[Float[AnyArray, " metrics"], tuple[FirstToken, Float[AnyArray, " 2"]]]:
        model = dataclasses.replace(system, ops=point[0]).model(unflat(point[1]))
        blocks, *others = jnp.exp(point[2])
        limits = dataclasses.replace(system.limits, kv_blocks=system.limits.kv_blocks * blocks)
        if limits.lower is not None:
            tiers = tuple(
                dataclasses.replace(tier, blocks=tier.blocks * more, token_s=tier.token_s / faster)
                for tier, more, faster in zip(
                    limits.lower.tiers, others[::2], others[1::2], strict=False
                )
            )
            lower = dataclasses.replace(limits.lower, tiers=tiers)
            limits = dataclasses.replace(limits, lower=lower)
        states = jax.vmap(lambda one: steady_state(model, one, limits))(both)
        loaded = [states.ttft[0], states.itl[0], states.e2e[0]]
        first_token: FirstToken = jax.tree.map(lambda part: part[0], states.first_token)
        found = jnp.log(jnp.stack([*loaded, states.throughput[1]]))
        loaded = states.host_hit_rate
        loaded = jnp.zeros_like(states.hit_rate) if loaded is None else loaded
        return found, (first_token, jnp.stack([states.hit_rate[0], loaded[0]]))

    point = jax.tree.map(jnp.asarray, (system.ops, corrections, jnp.zeros(len(ROOM))))
    found, slopes, (first_token, hit_rates) = jax.vmap(
        lambda along: jax.jvp(logs, (point,), (along,), has_aux=True), out_axes=(None, 0, None)
    )(directions)
    return found, slopes, first_token, hit_rates
