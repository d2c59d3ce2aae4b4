"""The public verbs: from names and numbers to a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from physim.cases import Case
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.inputs.hardware import load_hardware
from physim.inputs.models import load_model
from physim.intervals import predict_with_interval
from physim.results import Prediction
from physim.serving.lengths import Tokens
from physim.serving.load import Load, Stage
from physim.step.lowering import lower
from physim.step.model import StepModel


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
