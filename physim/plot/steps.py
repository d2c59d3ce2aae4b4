"""Pictures of steps: operations on the roofline, where time goes, and what it depends on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from physim import roofline
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.inputs.hardware import load_hardware
from physim.inputs.models import load_model
from physim.plot.sheet import axes_or_new, plain_ticks
from physim.step.lowering import GEMM_NAMES, lower
from physim.step.many import named_seconds, part_seconds
from physim.step.model import PART_NAMES, StepModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from physim.inputs.architecture import ModelArch
    from physim.inputs.deployment import ResolvedDeployment
    from physim.inputs.hardware import Hardware
    from physim.questions.elasticities import Elasticities

# Parts of a step that are drawn apart; the rest is one.
_PARTS = 7
_POINTS = 60
# What the palette has no good color for.
_COLORS = {"all_reduce": "C9", "step_overhead": "0.4", "host": "0.1"}


def draw_roofline(
    model: str | Path,
    *,
    gpu: str,
    batches: Sequence[float] = (1, 16, 128),
    chunk: float = 2048,
    context: float = 1000,
    fit: str | Path = DEFAULT_FIT,
    axes: Axes | None = None,
    **deployment: Any,
) -> Axes:
    """Draws the GPU's roofline and, on it, the model's operations in some steps.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpu: Key of a GPU, or a JSON file.
        batches: Decode steps of so many requests.
        chunk: And a step with one prompt of so many tokens.
        context: Tokens that decoding requests attend to.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: Where; None for a new figure.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.
    """
    arch, hardware, engine, stepper = deployed(model, gpu, fit, deployment)
    axes = axes_or_new(axes, 6.5, 4.5)
    from matplotlib.lines import Line2D

    bandwidth = hardware.memory_bandwidth
    intensity = np.geomspace(0.5, 2e4, 200)
    for name, peak in hardware.peak_flops:
        roof = np.minimum(peak, intensity * bandwidth)
        axes.plot(intensity, roof / 1e12, color="0.4", lw=1)
        axes.annotate(name, (intensity[-1], peak / 1e12), ha="right", va="bottom", fontsize=7)
    steps = [(f"{batch:g} decode", batch, 0.0) for batch in batches]
    steps.append((f"{chunk:g} prefill", 0.0, chunk))
    markers = {"mlp": "o", "attention projections": "s", "experts": "D", "attention": "^"}
    colors: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    for color, (label, batch, new) in enumerate(steps):
        colors[label] = Line2D([], [], marker="s", ms=8, color=f"C{color}", lw=0)
        for kind, (flops, moved, seconds) in _work(stepper, batch, new, context).items():
            if seconds > 0:
                axes.plot(
                    [flops / moved],
                    [flops / seconds / 1e12],
                    markers[kind],
                    color=f"C{color}",
                    ms=6,
                )
                shapes[kind] = Line2D([], [], marker=markers[kind], color="0.4", lw=0)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="FLOP for each byte moved",
        ylabel="TFLOP/s of one GPU",
    )
    axes.set_title(f"{arch.name} on {engine.tp} x {hardware.key}", fontsize=9)
    plain_ticks(axes)
    axes.grid(alpha=0.3)
    # Nothing is above the roof.
    shown = colors | shapes
    axes.legend(list(shown.values()), list(shown), fontsize=7, loc="upper left")
    return axes


def deployed(
    model: str | Path, gpu: str, fit: str | Path, deployment: Mapping[str, Any]
) -> tuple[ModelArch, Hardware, ResolvedDeployment, StepModel]:
    """A model, a GPU, the engine and its step times, by names.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, ``default`` or ``none``.
        deployment: Fields of `physim.Deployment`.
    """
    arch, hardware = load_model(model), load_hardware(gpu)
    engine = Deployment(**deployment).resolved(arch, hardware)
    corrections = load_fit(fit, hardware.key).corrections
    return arch, hardware, engine, StepModel(lower(arch, hardware, engine), corrections)


def _work(
    model: StepModel, batch: float, new: float, context: float
) -> dict[str, tuple[float, float, float]]:
    """FLOP, bytes and seconds of the operations of a step, on one GPU."""
    ops, tokens = model.ops, batch + new
    sums = np.array([[batch, batch * context, min(new, 1.0), new, new**2, 0.0, 0.0]])
    seconds = {name: float(own[0]) for name, own in named_seconds(model, sums).items()}
    gemms, attention, experts = ops.gemms, ops.attention, ops.experts
    flops, moved = (
        np.asarray(gemms.count) * np.asarray(each)
        for each in roofline.gemm(
            tokens, gemms.n, gemms.k, gemms.weight_bytes, gemms.activation_bytes
        )
    )

    def of(names: tuple[str, ...]) -> tuple[float, float]:
        chosen = np.isin(GEMM_NAMES, names)
        return float(flops[chosen].sum()), float(moved[chosen].sum())

    shape = (attention.heads, attention.kv_heads, attention.dim)
    if new:
        attended = roofline.prefill_attention(1.0, new, *shape)
    else:
        attended = roofline.decode_attention(batch, context, *shape, attention.kv_bytes)
    routed = roofline.experts(
        tokens,
        experts.hidden,
        experts.width,
        experts.count,
        experts.per_token,
        experts.weight_bytes,
    )
    layers, sparse = float(attention.layers), float(experts.layers)
    return {
        "mlp": (*of(("gate_up", "down", "shared_gate_up", "shared_down")), seconds["mlp"]),
        "attention projections": (
            *of(("qkv", "attention_output")),
            seconds["qkv"] + seconds["attention_output"],
        ),
        "experts": (
            sparse * float(routed[0]),
            max(sparse * float(routed[1]), 1.0),
            seconds["experts"],
        ),
        "attention": (
            layers * float(attended[0]),
            layers * float(attended[1]),
            seconds["prefill_attention"] + seconds["decode_attention"],
        ),
    }


def draw_breakdown(
    model: str | Path,
    *,
    gpu: str,
    against: str = "batch",
    batch: float = 32,
    context: float = 1000,
    fit: str | Path = DEFAULT_FIT,
    axes: Axes | None = None,
    **deployment: Any,
) -> Axes:
    """Draws where the time of a decode step goes, against its batch or its context.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpu: Key of a GPU, or a JSON file.
        against: ``batch`` or ``context``.
        batch: Requests, where the context varies.
        context: Tokens that each attends to, where the batch varies.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: Where; None for a new figure.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        ValueError: ``against`` is neither.
    """
    if against not in ("batch", "context"):
        raise ValueError(f"against is {against!r}, not batch or context")
    arch, hardware, engine, stepper = deployed(model, gpu, fit, deployment)
    held = engine.kv_blocks * engine.block_size
    sums = np.zeros((_POINTS, 7))
    if against == "batch":
        most = max(min(engine.max_num_seqs, held / context), 2.0)
        sums[:, 0] = x = np.geomspace(1, most, _POINTS)
        sums[:, 1], label = x * context, f"requests that decode, {context:g} tokens each"
    else:
        x = np.geomspace(16, max(min(engine.max_model_len, held / batch), 32.0), _POINTS)
        sums[:, 0], sums[:, 1] = batch, batch * x
        label = f"context of each of {batch:g} requests, tokens"
    seconds = part_seconds(stepper, sums) * 1e3
    shown = np.sort(np.argsort(-seconds.mean(axis=0))[:_PARTS])
    rest = seconds.sum(axis=1) - seconds[:, shown].sum(axis=1)
    axes = axes_or_new(axes)
    names = [PART_NAMES[part].replace("_", " ") for part in shown]
    # A part has one color in all pictures.
    colors = [*(_COLORS.get(PART_NAMES[part], f"C{part}") for part in shown), "0.6"]
    axes.stackplot(x, *seconds[:, shown].T, rest, labels=[*names, "other"], colors=colors)
    axes.set(xscale="log", xlabel=label, ylabel="time of a step, ms", xlim=(x[0], x[-1]))
    axes.set_title(f"{arch.name} on {engine.tp} x {hardware.key}", fontsize=9)
    plain_ticks(axes)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", fontsize=8)
    return axes


def draw_elasticities(found: Elasticities, axes: Axes | None = None) -> Axes:
    """Draws what latencies and capacity depend on, a bar for each metric and part.

    Args:
        found: The elasticities.
        axes: Where; None for a new figure.
    """
    from physim.questions.elasticities import METRICS

    axes = axes_or_new(axes, 7.0, 5.0)
    shown = list(reversed(found.notable().items()))
    height = 0.8 / len(METRICS)
    for number, metric in enumerate(reversed(METRICS)):
        axes.barh(
            [place + number * height for place in range(len(shown))],
            [row[metric] for _, row in shown],
            height,
            label=metric.upper() if metric != "capacity" else metric,
            color={"ttft": "C1", "itl": "C0", "e2e": "C2", "capacity": "0.5"}[metric],
        )
    axes.set_yticks([place + 0.3 for place in range(len(shown))], [part for part, _ in shown])
    axes.axvline(0, color="0.3", lw=0.8)
    axes.set_xlabel("change of each, percent, with one percent more of")
    deployment = found.case.deployment
    axes.set_title(
        f"{found.case.model.name} on {deployment.tp} x {found.case.gpu.key}, "
        f"{found.case.load.describe()}",
        fontsize=9,
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=8)
    return axes
