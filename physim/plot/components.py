"""A picture of one component of a step: its roofline, its measured time, and the fit's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from physim.corrections import Corrections
from physim.errors import InputError
from physim.fits import DEFAULT_FIT
from physim.plot.sheet import axes_or_new, plain_ticks
from physim.plot.steps import deployed
from physim.step.many import named_seconds, sums_of
from physim.step.model import PART_NAMES, StepModel, host_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.step.lowering import StepOps

_POINTS = 60
# What is no work on a GPU is drawn from zero.
_EVEN = ("step_overhead", "host")
# The logarithm of a time that no roofline is below.
_NO_TIME = -60.0

Sizes = Float[np.ndarray, " points"]
Sums = Float[np.ndarray, "points 7"]


def _decoding(context: float) -> Callable[[Sizes], Sums]:
    return lambda requests: _sums(requests, context, 0.0, 0.0)


def _prompt(cached: float) -> Callable[[Sizes], Sums]:
    return lambda tokens: _sums(0.0, 0.0, tokens, cached)


def _sums(*where: Sizes | float) -> Sums:
    return sums_of(np.stack(np.broadcast_arrays(*where), axis=1))


@dataclass(frozen=True)
class _Sweep:
    """What a component's size is, and the steps that have it."""

    label: str
    most: float
    lines: tuple[tuple[str, Callable[[Sizes], Sums]], ...]


_TOKENS = _Sweep("tokens of the step", 8192, (("", _prompt(0)),))
_CONTEXTS = tuple((f"{context:,} tokens each", _decoding(context)) for context in (500, 4000))
_REQUESTS = _Sweep("requests that decode", 512, (("", _decoding(1000)),))
_SWEEPS = {
    "prefill_attention": _Sweep(
        "new tokens of a prompt",
        8192,
        (("nothing cached", _prompt(0)), ("4,096 tokens cached", _prompt(4096))),
    ),
    "decode_attention": _Sweep("requests that decode", 512, _CONTEXTS),
    "output": _REQUESTS,
    "step_overhead": _Sweep(
        "requests or tokens of the step",
        512,
        (("only decode", _decoding(1000)), ("with prefill", _prompt(0))),
    ),
    "host": replace(_REQUESTS, most=64),
}


def draw_component(
    model: str | Path,
    component: str,
    *,
    gpu: str,
    fit: str | Path = DEFAULT_FIT,
    axes: Axes | None = None,
    **deployment: Any,
) -> Axes:
    """Draws a component's time in a step, milliseconds over all layers, against its size.

    Dashed is the roofline: FLOP at the peak, or bytes at the bandwidth. Grey is the time that was
    measured in a microbenchmark, brought to the model's shapes (or what stands in for it: see the
    physics); the fit's is in color. Of ``host`` the CPU's time, the GPU's and the step's are drawn.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        component: Of `physim.step.model.PART_NAMES`.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: Where; None for a new figure.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Raises:
        InputError: Some input cannot be used, or the model has no such component there.
    """
    if component not in PART_NAMES:
        known = ", ".join(PART_NAMES)
        raise InputError("component", f"{component!r} is unknown", f"known are {known}")
    arch, hardware, engine, fitted = deployed(model, gpu, fit, deployment)
    bare = StepModel(fitted.ops, Corrections())
    ideal = StepModel(_at_roofline(fitted.ops), Corrections())
    sweep = _SWEEPS.get(component, _TOKENS)
    sizes = np.geomspace(1, sweep.most, _POINTS)
    axes = axes_or_new(axes, 5.0, 3.4)
    for number, (name, sums) in enumerate(sweep.lines):
        rows = sums(sizes)
        if component == "host":
            _draw_host(axes, sizes, fitted, rows)
            continue
        times = [1e3 * named_seconds(one, rows)[component] for one in (ideal, bare, fitted)]
        if not np.any(times[-1] > 0):
            where = f"{arch.name} on {engine.tp} x {hardware.key}"
            raise InputError("component", f"{where} has no {component}", "name another")
        if component not in (*_EVEN, "elementwise"):
            axes.plot(sizes, times[0], "--", color="0.3", lw=1, label=_first("roofline", number))
        axes.plot(sizes, times[1], color="0.6", lw=3, label=_first("nothing fitted", number))
        axes.plot(sizes, times[2], color=f"C{number}", label=", ".join(filter(None, ("fit", name))))
    axes.set(xscale="log", xlabel=sweep.label, ylabel="ms a step")
    if component in _EVEN:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
    plain_ticks(axes)
    axes.set_title(
        f"{component.replace('_', ' ')}: {arch.name} on {engine.tp} x {hardware.key}", fontsize=9
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return axes


def _draw_host(axes: Axes, sizes: Sizes, model: StepModel, rows: Sums) -> None:
    parts = named_seconds(model, rows)
    gpu = np.sum([seconds for name, seconds in parts.items() if name != "host"], axis=0)
    axes.plot(sizes, 1e3 * gpu, color="0.6", label="GPU")
    cpu = np.asarray(host_seconds(model.corrections, sizes))
    axes.plot(sizes, 1e3 * cpu, "--", color="C1", label="CPU")
    axes.plot(sizes, 1e3 * (gpu + parts["host"]), color="C0", label="the step")


def _at_roofline(ops: StepOps) -> StepOps:
    """The same work on kernels that nothing was measured of, so that their roofline is left."""

    def curves(some: StepOps) -> list[Any]:
        return [
            some.gemms.log_seconds,
            some.experts.log_seconds,
            some.attention.log_decode_seconds,
            some.attention.log_prefill_seconds,
            some.collectives.log_seconds,
        ]

    found = curves(ops)
    return eqx.tree_at(curves, ops, [np.full_like(curve, _NO_TIME) for curve in found])


def _first(label: str, number: int) -> str | None:
    """A label for the first of several lines."""
    return label if number == 0 else None
