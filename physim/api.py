"""The public verbs on one case: from names and numbers to an answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from physim.corrections.files import DEFAULT_FIT, Fit, load_fit
from physim.inputs.case import Case, CaseOptions, ServerOptions
from physim.models.architecture import ModelArch
from physim.options import named_options
from physim.prediction.arrays import rank_model_of
from physim.prediction.intervals import predict_with_interval
from physim.prediction.results import Prediction
from physim.progress import told_in_notebooks
from physim.step.model import StepModel

if TYPE_CHECKING:
    from physim.prediction.checked import Check


@told_in_notebooks("predicting")
@named_options
def predict(
    model: str | Path | ModelArch | Case,
    *,
    fit: str | Path | Fit = DEFAULT_FIT,
    method: str = "fluid",
    seed: int = 0,
    **options: Unpack[CaseOptions],
) -> Prediction:
    """Predicts latency and throughput of a model on a GPU under a load.

    Args:
        model: A case; or a path of a ``config.json``, shipped name, hub id or shape, with the rest
            of the case beside it.
        fit: Name or path of a fit, ``default`` for the shipped one, or ``none`` for the physics
            alone.
        method: ``fluid``, or ``replay`` for a request-by-request simulation.
        seed: Seed of the replay's requests.
        **options: GPU, deployment and load; see `CaseOptions`.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    case = Case.from_options(model, **options)
    return predict_with_interval(case, load_fit(fit).on(case), method, seed)


@told_in_notebooks("predicting and replaying")
@named_options
def check(
    model: str | Path | ModelArch | Case,
    *,
    fit: str | Path | Fit = DEFAULT_FIT,
    seed: int = 0,
    **options: Unpack[CaseOptions],
) -> Check:
    """Predicts with the fluid, and replays the same load beside it.

    Of a load that goes on without end 5,000 requests are replayed, or five times those that are
    under way at once, 40,000 at most. The first fifth and the last tenth of them are left out,
    while the engine fills up and empties.

    Args:
        model: A case; or a path of a ``config.json``, shipped name, hub id or shape, with the rest
            of the case beside it.
        fit: Name or path of a fit, ``default`` or ``none``; both use it.
        seed: Seed of the replay's requests.
        **options: GPU, deployment and load; see `CaseOptions`.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    from physim.prediction.checked import checked

    case = Case.from_options(model, **options)
    known = load_fit(fit).on(case)
    return checked(predict_with_interval(case, known), case, known.corrections, seed)


@told_in_notebooks("replaying a trace")
@named_options
def predict_trace(
    model: str | Path | ModelArch | Case,
    trace: str | Path,
    *,
    timeout_s: float | None = None,
    fit: str | Path | Fit = DEFAULT_FIT,
    method: str = "replay",
    **options: Unpack[ServerOptions],
) -> Prediction:
    """Replays a recorded trace on a model on a GPU, or predicts it by the fluid.

    Args:
        model: A case without a load; or a path of a ``config.json``, shipped name or hub id, with
            the rest of the case beside it.
        trace: A trace of requests; see `physim.replay.workload.read_trace`.
        timeout_s: Time after which clients give up; None for never.
        fit: Name or path of a fit, ``default`` or ``none``.
        method: ``replay``, request by request, or ``fluid``, which follows the trace's mean load
            minute by minute, and for turns that wait for answers is refused.
        **options: GPU and deployment; see `ServerOptions`.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    from physim.prediction.many import check_method

    check_method(method, 0)
    case = Case.from_options(model, **options)
    known = load_fit(fit).on(case)
    if method == "fluid":
        from physim.prediction.recorded import fluid_trace

        return fluid_trace(case, Path(trace), known, timeout_s)
    from physim.prediction.replayed_trace import replay_trace

    return replay_trace(case, Path(trace), known.corrections, known.name, timeout_s)


@named_options
def step_model(
    model: str | Path | ModelArch | Case,
    *,
    fit: str | Path | Fit = DEFAULT_FIT,
    **options: Unpack[ServerOptions],
) -> StepModel:
    """The time of an engine step as a function of its batch, for use in a simulator.

    It is differentiable: with ``model = physim.step_model("Qwen/Qwen3-14B", gpu="h100_sxm")``, what
    another of 32 requests adds to a step that decodes is
    ``jax.grad(lambda n: model(model.batch(decode_requests=n, context=2000.0)).latency)(32.0)``.

    Of jaxlib 0.10.2, derivatives and large batches under your own `jax.jit` need
    ``XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=`` in the environment: without it some sums
    of products come out wrong on a CPU (JAX's issue 39103). Whatever physim compiles has it.

    Args:
        model: A case; or a path of a ``config.json``, shipped name, hub id or shape, with the rest
            of the case beside it. A load is of no account.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU and deployment; see `ServerOptions`.

    Returns:
        The steps. With data parallelism a batch is that of one rank, and all have the same.

    Raises:
        InputError: Some input cannot be used; the message says which and what to do.
    """
    case = Case.from_options(model, **options)
    return rank_model_of(case, load_fit(fit).on(case).corrections)
