"""Predictions: from a model, a GPU, a deployment and a load to latency and throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from physim.corrections import Corrections
from physim.fits import NO_FIT, load_corrections
from physim.inputs.deployment import Deployment, ResolvedDeployment
from physim.inputs.hardware import Hardware, load_hardware
from physim.inputs.models import load_model
from physim.serving.load import Load
from physim.serving.steady import Demand, Limits, SteadyState, steady_state
from physim.stacking import stack
from physim.step.lowering import StepOps, assumptions, lower
from physim.step.model import StepModel

if TYPE_CHECKING:
    import pandas as pd

    from physim.inputs.architecture import ModelArch


@dataclass(frozen=True)
class Case:
    """One thing to predict.

    Attributes:
        model: The model.
        gpu: The GPU.
        deployment: The engine, every limit known.
        load: The load.
    """

    model: ModelArch
    gpu: Hardware
    deployment: ResolvedDeployment
    load: Load

    @classmethod
    def of(cls, model: str | Path, gpu: str, deployment: Deployment, load: Load) -> Case:
        """A case by names.

        Raises:
            InputError: Any of its parts cannot be used, or they do not go together.
        """
        arch, hardware = load_model(model), load_hardware(gpu)
        resolved = deployment.resolved(arch, hardware)
        load.check_fits(resolved)
        return cls(arch, hardware, resolved, load)


@dataclass(frozen=True)
class Prediction:
    """What a server under a steady load is predicted to do. Means; seconds, tokens, 1/s.

    Attributes:
        model: The model's name.
        gpu: The GPU's key.
        tp: GPUs that share every layer.
        load: The load.
        fit: Name of the fit whose corrections were used.
        ttft_s: Time to first token; None above capacity, where the queue grows without end.
        itl_s: Time from one token to the next; None where a request has one output token.
        e2e_s: Time of a request; None above capacity.
        requests_per_s: Requests completed per second.
        output_tokens_per_s: Tokens generated per second.
        capacity_rps: Rate at which such requests are served when there are always more of them.
        saturated: Whether the load is above capacity.
        batch: Requests that decode in a step.
        running: Requests in the engine.
        kv_blocks: KV blocks of the engine.
        kv_use: Share of them that running requests hold.
        mixed_share: Share of steps that carry a prefill chunk.
        step_s: Time of a step.
        step_parts_s: Where it goes, by component; sums to ``step_s``.
        assumptions: Where physics stands in for a measurement, one line each.
    """

    model: str
    gpu: str
    tp: int
    load: Load
    fit: str
    ttft_s: float | None
    itl_s: float | None
    e2e_s: float | None
    requests_per_s: float
    output_tokens_per_s: float
    capacity_rps: float
    saturated: bool
    batch: float
    running: float
    kv_blocks: int
    kv_use: float
    mixed_share: float
    step_s: float
    step_parts_s: dict[str, float]
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The prediction as plain values, for JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["load"] = {name: getattr(self.load, name) for name in Load.__dataclass_fields__}
        return {**fields, "assumptions": list(self.assumptions)}

    def to_frame(self) -> pd.DataFrame:
        """The prediction as one row; the load's and the step's parts have columns of their own."""
        import pandas as pd

        row = self.to_dict()
        parts, load = row.pop("step_parts_s"), row.pop("load")
        row["assumptions"] = "; ".join(row["assumptions"])
        return pd.DataFrame([{**row, **load, **{f"step_{k}_s": v for k, v in parts.items()}}])

    def __repr__(self) -> str:
        load = self.load
        demand = f"{load.rate:g}/s" if load.rate else f"{load.concurrency:g} clients"
        head = (
            f"{self.model} on {self.tp} x {self.gpu}, {demand}, "
            f"{load.input_tokens:g} in ({load.cached_tokens:g} cached), {load.output_tokens:g} out"
        )
        if self.saturated:
            latency = f"above capacity ({self.capacity_rps:.3g}/s): the queue grows without end"
        else:
            latency = f"TTFT {_ms(self.ttft_s)}, ITL {_ms(self.itl_s)}, E2E {self.e2e_s:.3f} s"
        return f"<Prediction {head}: {latency}, {self.output_tokens_per_s:.0f} tokens/s>"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def predict(
    model: str | Path,
    *,
    gpu: str,
    input_tokens: float,
    output_tokens: float,
    rate: float | None = None,
    concurrency: float | None = None,
    cached_tokens: float = 0.0,
    arrival: str = "constant",
    fit: str | Path = NO_FIT,
    mixed: str = "additive",
    **deployment: Any,
) -> Prediction:
    """Predicts latency and throughput of a model on a GPU under a steady load.

    Args:
        model: Path of a ``config.json``, shipped name or hub id; see
            `physim.inputs.models.load_model`.
        gpu: Key of a GPU, such as ``h100_sxm``, or a JSON file.
        input_tokens: Mean prompt length, tokens.
        output_tokens: Mean generated length, tokens.
        rate: Arrivals per second (open loop).
        concurrency: Clients (closed loop); give either this or ``rate``.
        cached_tokens: Prompt tokens that are found in the prefix cache.
        arrival: ``constant`` or ``poisson``.
        fit: Name or path of a fit, or ``none`` for the bare physics.
        mixed: How steps of both prefill and decode are composed; see `StepModel`.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    load = Load(input_tokens, output_tokens, rate, concurrency, cached_tokens, arrival)
    case = Case.of(model, gpu, Deployment(**deployment), load)
    return predict_cases([case], load_corrections(fit), fit=str(fit), mixed=mixed)[0]


def step_model(
    model: str | Path,
    *,
    gpu: str,
    fit: str | Path = NO_FIT,
    mixed: str = "additive",
    **deployment: Any,
) -> StepModel:
    """The time of an engine step as a function of its batch, for use in a simulator.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, or ``none`` for the bare physics.
        mixed: How steps of both prefill and decode are composed; see `StepModel`.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    arch, hardware = load_model(model), load_hardware(gpu)
    resolved = Deployment(**deployment).resolved(arch, hardware)
    return StepModel(lower(arch, hardware, resolved), load_corrections(fit), mixed)


def predict_cases(
    cases: Sequence[Case],
    corrections: Corrections,
    *,
    fit: str = NO_FIT,
    mixed: str = "additive",
) -> list[Prediction]:
    """Predicts many cases in one vectorised call.

    Args:
        cases: Any mixture of models, GPUs, deployments and loads.
        corrections: Corrections of the components.
        fit: Their name, for the record.
        mixed: How steps of both prefill and decode are composed.
    """
    if not cases:
        return []
    # Padded to a power of two, so that few sizes are ever compiled.
    padded = [*cases, *[cases[-1]] * (2 ** math.ceil(math.log2(len(cases))) - len(cases))]
    ops = [lower(case.model, case.gpu, case.deployment) for case in padded]
    limits = [Limits.of(case.deployment) for case in padded]
    demands = [Demand.of(case.load) for case in padded]
    # After the loads the same requests without end, whose throughput is the capacity.
    unbounded = [replace(demand, rate=math.inf, concurrency=math.inf) for demand in demands]
    states: SteadyState = jax.tree.map(
        np.asarray,
        _solve(stack(ops * 2), corrections, stack(demands + unbounded), stack(limits * 2), mixed),
    )
    return [
        _prediction(case, _row(states, row), _row(states, len(padded) + row), fit)
        for row, case in enumerate(cases)
    ]


@jax.jit(static_argnames="mixed")
def _solve(
    ops: StepOps, corrections: Corrections, demands: Demand, limits: Limits, mixed: str
) -> SteadyState:
    def one(ops: StepOps, demand: Demand, limits: Limits) -> SteadyState:
        return steady_state(StepModel(ops, corrections, mixed), demand, limits)

    return jax.vmap(one)(ops, demands, limits)


def _row(states: SteadyState, row: int) -> SteadyState:
    picked: SteadyState = jax.tree.map(lambda leaf: leaf[row].tolist(), states)
    return picked


def _prediction(case: Case, state: SteadyState, unbounded: SteadyState, fit: str) -> Prediction:
    saturated, requests_per_s = state.saturated, state.throughput
    return Prediction(
        model=case.model.name,
        gpu=case.gpu.key,
        tp=case.deployment.tp,
        load=case.load,
        fit=fit,
        ttft_s=None if saturated else state.ttft,
        itl_s=None if case.load.output_tokens == 1 else state.itl,
        e2e_s=None if saturated else state.e2e,
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * case.load.output_tokens,
        # With every seat taken a server may be slower than with some free (where all-reduces are
        # slow, say); a load that is served then is no less within its capacity.
        capacity_rps=max(unbounded.throughput, requests_per_s),
        saturated=saturated,
        batch=state.batch,
        running=state.running,
        kv_blocks=case.deployment.kv_blocks,
        kv_use=state.kv_use,
        mixed_share=state.mixed_share,
        step_s=state.step.total,
        step_parts_s=state.step.parts,
        assumptions=tuple(assumptions(case.model, case.gpu, case.deployment)),
    )
