"""Predictions: from a model, a GPU, a deployment and a load to latency and throughput.

A load that stays is solved for its steady state; one that ends or changes is run through the
fluid's equations, or replayed request by request.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from physim.corrections import Corrections
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, NO_FIT, load_fit
from physim.inputs.deployment import Deployment, ResolvedDeployment
from physim.inputs.hardware import Hardware, load_hardware
from physim.inputs.models import load_model
from physim.serving.demand import Demand, Limits
from physim.serving.lengths import Tokens
from physim.serving.load import Load, Stage
from physim.serving.percentiles import PERCENTILES, steady_percentiles
from physim.serving.steady import SteadyState, steady_state
from physim.stacking import stack
from physim.step.lowering import StepOps, assumptions, lower
from physim.step.model import StepModel

if TYPE_CHECKING:
    import pandas as pd

    from physim.inputs.architecture import ModelArch

Entry = TypeVar("Entry")

METHODS = ("fluid", "replay")
# Requests that are replayed of a load without end.
REPLAYED = 5000


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
class Part:
    """Latencies of the requests of one stage, or of all. Seconds.

    Attributes:
        rate: Arrivals per second; None in a closed loop and for a trace.
        duration_s: How long they arrive; None without end.
        arrived: Requests; None without end, and so for the next.
        completed: Of them, those that were answered before their client gave up.
        latencies: ``ttft``, ``itl`` and ``e2e``, each with ``mean``, ``p50``, ``p90`` and ``p99``,
            of completed requests; ITL is a request's mean time between tokens. Without a value
            where there is none.
    """

    rate: float | None
    duration_s: float | None
    arrived: float | None
    completed: float | None
    latencies: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Timeline:
    """An engine over time.

    Attributes:
        time_s: Times, seconds.
        waiting: Requests that wait.
        running: Requests in the engine.
        kv_use: Share of the KV blocks that they hold.
        arrival_s: When some requests arrive,
        ttft_s: and their time to first token.
    """

    time_s: list[float]
    waiting: list[float]
    running: list[float]
    kv_use: list[float]
    arrival_s: list[float]
    ttft_s: list[float]


@dataclass(frozen=True)
class Prediction:
    """What a server under a load is predicted to do. Means; seconds, tokens, 1/s.

    Of a load that ends or changes, latencies and throughput are those of its requests, and the
    engine's state (``capacity_rps`` to ``step_parts_s``) is that of its busiest stage, were it to
    stay.

    Attributes:
        model: The model's name.
        gpu: The GPU's key.
        tp: GPUs that share every layer.
        load: The load; None for a trace.
        fit: Name of the fit whose corrections were used.
        method: ``fluid`` or ``replay``.
        ttft_s: Time to first token; None where the queue grows without end.
        itl_s: Time from one token to the next; None where a request has one output token.
        e2e_s: Time of a request; None where the queue grows without end.
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
        whole: Latencies with percentiles.
        stages: The same for each stage, if there are several.
        timeline: The engine over time; None for a load that stays.
        assumptions: Where physics stands in for a measurement, one line each.
        intervals: Where a measurement of ``ttft_s``, ``itl_s``, ``e2e_s`` and ``capacity_rps`` lies
            in nine of ten cases; empty without a fit that knows. Infinite where the load may be
            above capacity.
        extrapolations: In what the case is beyond the runs that the fit knows, one line each.
    """

    model: str
    gpu: str
    tp: int
    load: Load | None
    fit: str
    method: str
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
    whole: Part
    stages: tuple[Part, ...]
    timeline: Timeline | None = field(repr=False)
    assumptions: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    extrapolations: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The prediction as plain values, for JSON."""
        content = asdict(self)
        if self.load is not None:
            content["load"]["stages"] = [asdict(stage) for stage in self.load.stages]
        # JSON knows no infinity.
        content["intervals"] = {
            name: [low, high if math.isfinite(high) else None]
            for name, (low, high) in self.intervals.items()
        }
        for name in ("stages", "assumptions", "extrapolations"):
            content[name] = list(content[name])
        return content

    def to_frame(self) -> pd.DataFrame:
        """A row for the whole load and one for each stage; what has parts has columns of its own.

        ``stage`` is -1 for the whole load.
        """
        import pandas as pd

        row = self.to_dict()
        for name in ("timeline", "stages", "whole", "load"):
            row.pop(name)
        for name in ("assumptions", "extrapolations"):
            row[name] = "; ".join(row[name])
        for name, (low, high) in row.pop("intervals").items():
            row |= {f"{name}_low": low, f"{name}_high": high}
        row |= {f"step_{name}_s": value for name, value in row.pop("step_parts_s").items()}
        if self.load is not None:
            load = {f.name: getattr(self.load, f.name) for f in fields(Load)}
            row |= {k: v for k, v in load.items() if isinstance(v, int | float | str)}
        rows = []
        for number, part in enumerate((self.whole, *self.stages), start=-1):
            latencies = {
                f"{metric}_{name}_s": value
                for metric, values in part.latencies.items()
                for name, value in values.items()
            }
            counts = {"rate": part.rate, "arrived": part.arrived, "completed": part.completed}
            rows.append({**row, "stage": number, **counts, **latencies})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        demand = self.load.describe() if self.load is not None else "a trace"
        if self.load is not None:
            load = self.load
            demand += (
                f", {load.mean_input:g} in ({load.cached_tokens:g} cached), "
                f"{load.mean_output:g} out"
            )
        if self.ttft_s is None or self.e2e_s is None:
            latency = f"above capacity ({self.capacity_rps:.3g}/s): the queue grows without end"
        else:
            latency = f"TTFT {_ms(self.ttft_s)}, ITL {_ms(self.itl_s)}, E2E {self.e2e_s:.3f} s"
        head = f"{self.model} on {self.tp} x {self.gpu}, {demand}"
        return f"<Prediction {head}: {latency}, {self.output_tokens_per_s:.0f} tokens/s>"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def predict(
    model: str | Path,
    *,
    gpu: str,
    input_tokens: Tokens,
    output_tokens: Tokens,
    rate: float | None = None,
    concurrency: float | None = None,
    stages: Sequence[Stage | tuple[float, float]] = (),
    requests: int | None = None,
    cached_tokens: float = 0.0,
    prefixes: int = 1,
    arrival: str = "constant",
    burstiness: float = 1.0,
    timeout_s: float | None = None,
    method: str = "fluid",
    seed: int = 0,
    fit: str | Path = DEFAULT_FIT,
    mixed: str = "additive",
    **deployment: Any,
) -> Prediction:
    """Predicts latency and throughput of a model on a GPU under a load.

    Args:
        model: Path of a ``config.json``, shipped name or hub id; see
            `physim.inputs.models.load_model`.
        gpu: Key of a GPU, such as ``h100_sxm``, or a JSON file.
        input_tokens: Prompt length, tokens: a number, or `physim.Lengths`.
        output_tokens: Generated length, tokens: a number, or `physim.Lengths`.
        rate: Arrivals per second (open loop).
        concurrency: Clients (closed loop).
        stages: Rates that follow one another, each with its duration in seconds. Give one of
            ``rate``, ``concurrency`` and ``stages``.
        requests: How many requests there are; None without end.
        cached_tokens: Prompt tokens that are found in the prefix cache.
        prefixes: Different cached prefixes.
        arrival: ``constant``, ``poisson`` or ``gamma``.
        burstiness: Shape of gamma arrivals; 1 is Poisson, less is burstier.
        timeout_s: Time after which clients give up; None for never.
        method: ``fluid``, or ``replay`` for a request-by-request simulation.
        seed: Seed of the replay's requests.
        fit: Name or path of a fit, ``default`` for the shipped one or what of it carries over to
            this GPU, or ``none`` for the bare physics.
        mixed: How steps of both prefill and decode are composed; see `StepModel`.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    load = Load(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        rate=rate,
        concurrency=concurrency,
        cached_tokens=cached_tokens,
        arrival=arrival,
        burstiness=burstiness,
        stages=tuple(s if isinstance(s, Stage) else Stage(*s) for s in stages),
        requests=requests,
        prefixes=prefixes,
        timeout_s=timeout_s,
    )
    case = Case.of(model, gpu, Deployment(**deployment), load)
    from physim.intervals import predict_with_interval

    return predict_with_interval(case, load_fit(fit, case.gpu.key), mixed, method, seed)


def predict_trace(
    model: str | Path,
    trace: str | Path,
    *,
    gpu: str,
    timeout_s: float | None = None,
    fit: str | Path = DEFAULT_FIT,
    **deployment: Any,
) -> Prediction:
    """Replays a recorded trace on a model on a GPU.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        trace: CSV of requests; see `physim.serving.workload.read_trace`.
        gpu: Key of a GPU, or a JSON file.
        timeout_s: Time after which clients give up; None for never.
        fit: Name or path of a fit, ``default`` for the shipped one or what of it carries over to
            this GPU, or ``none`` for the bare physics.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    from physim.replaying import replay_trace

    known = load_fit(fit, load_hardware(gpu).key)
    return replay_trace(
        model,
        Path(trace),
        gpu,
        Deployment(**deployment),
        known.corrections,
        known.name,
        timeout_s,
    )


def step_model(
    model: str | Path,
    *,
    gpu: str,
    fit: str | Path = DEFAULT_FIT,
    mixed: str = "additive",
    **deployment: Any,
) -> StepModel:
    """The time of an engine step as a function of its batch, for use in a simulator.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, ``default`` for the shipped one or what of it carries over to
            this GPU, or ``none`` for the bare physics.
        mixed: How steps of both prefill and decode are composed; see `StepModel`.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    arch, hardware = load_model(model), load_hardware(gpu)
    resolved = Deployment(**deployment).resolved(arch, hardware)
    corrections = load_fit(fit, hardware.key).corrections
    return StepModel(lower(arch, hardware, resolved), corrections, mixed)


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
    predictions = _steady(cases, corrections, fit, mixed)
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


def padded(entries: Sequence[Entry]) -> list[Entry]:
    """The entries and some more, up to a power of two, so that few sizes are ever compiled."""
    return [*entries, *[entries[-1]] * (2 ** math.ceil(math.log2(len(entries))) - len(entries))]


def arrays(cases: Sequence[Case]) -> tuple[StepOps, Demand, Limits]:
    """The cases as numbers, stacked; of a load in stages, the busiest."""
    ops = [lower(case.model, case.gpu, case.deployment) for case in cases]
    demands = [Demand.of(case.load, case.deployment.block_size) for case in cases]
    return stack(ops), stack(demands), stack([Limits.of(case.deployment) for case in cases])


def _steady(
    cases: Sequence[Case], corrections: Sequence[Corrections], fit: str, mixed: str
) -> list[Prediction]:
    """What the cases' loads settle to."""
    ops, demands, limits = arrays(padded(cases))
    every = stack(padded(corrections))
    solved, percentiles = jax.tree.map(np.asarray, _solve(ops, every, demands, limits, mixed))
    rows = len(percentiles)
    return [
        _prediction(case, _row(solved, row), _row(solved, rows + row), percentiles[row], fit)
        for row, case in enumerate(cases)
    ]


@jax.jit(static_argnames="mixed")
def _solve(
    ops: StepOps, corrections: Corrections, demands: Demand, limits: Limits, mixed: str
) -> tuple[SteadyState, Any]:
    """Steady states of the loads, then of the same requests without end; percentiles of the first.

    The throughput of requests without end is the capacity.
    """

    def one(ops: StepOps, corrections: Corrections, demand: Demand, limits: Limits) -> SteadyState:
        return steady_state(StepModel(ops, corrections, mixed), demand, limits)

    endless = jnp.full_like(demands.rate, jnp.inf)
    unbounded = eqx.tree_at(lambda d: (d.rate, d.concurrency), demands, (endless, endless))
    both = jax.tree.map(
        lambda *x: jnp.concatenate(x),
        (ops, corrections, demands, limits),
        (ops, corrections, unbounded, limits),
    )
    states: SteadyState = jax.vmap(one)(*both)
    count = demands.rate.shape[0]
    offered = jax.tree.map(lambda x: x[:count], states)
    return states, jax.vmap(steady_percentiles)(offered.chances, offered.itl, demands)


def _row(states: SteadyState, row: int) -> SteadyState:
    picked: SteadyState = jax.tree.map(lambda leaf: leaf[row].tolist(), states)
    return picked


def _prediction(
    case: Case, state: SteadyState, unbounded: SteadyState, percentiles: Any, fit: str
) -> Prediction:
    load, saturated, requests_per_s = case.load, state.saturated, state.throughput
    single = load.mean_output == 1
    means = {
        "ttft": None if saturated else state.ttft,
        "itl": None if single else state.itl,
        "e2e": None if saturated else state.e2e,
    }
    latencies = {
        metric: {"mean": mean} | {f"p{q}": float(v) for q, v in zip(PERCENTILES, row, strict=True)}
        for (metric, mean), row in zip(means.items(), percentiles, strict=True)
        if mean is not None
    }
    return Prediction(
        model=case.model.name,
        gpu=case.gpu.key,
        tp=case.deployment.tp,
        load=load,
        fit=fit,
        method="fluid",
        ttft_s=means["ttft"],
        itl_s=means["itl"],
        e2e_s=means["e2e"],
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * load.mean_output,
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
        whole=Part(load.rate, None, None, None, latencies),
        stages=(),
        timeline=None,
        assumptions=tuple(assumptions(case.model, case.gpu, case.deployment)),
    )


def with_course(
    prediction: Prediction,
    method: str,
    whole: Part,
    stages: Sequence[Part],
    timeline: Timeline,
    requests_per_s: float,
    output_tokens_per_s: float,
) -> Prediction:
    """A prediction for a load that ends: the latencies are those of its requests."""
    means = {metric: values["mean"] for metric, values in whole.latencies.items()}
    return replace(
        prediction,
        method=method,
        ttft_s=means.get("ttft"),
        itl_s=means.get("itl"),
        e2e_s=means.get("e2e"),
        requests_per_s=requests_per_s,
        output_tokens_per_s=output_tokens_per_s,
        whole=whole,
        stages=tuple(stages) if len(stages) > 1 else (),
        timeline=timeline,
    )
