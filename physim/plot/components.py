"""A picture of one component of a step: its roofline, its measured time, and the fit's."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import equinox as eqx
import numpy as np
from jaxtyping import Float

from physim.corrections.fields import Corrections
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, ServerOptions
from physim.options import named_options
from physim.plot.figures import axes_or_new, literal, plain_ticks
from physim.prediction.arrays import step_model_of
from physim.step.batch import Batch
from physim.step.drafting import PART as DRAFT
from physim.step.host import PART as HOST
from physim.step.lowering import PARTS, rows_of
from physim.step.many_batches import named_seconds
from physim.step.model import StepModel
from physim.step.rows import UNMEASURED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.step.lowering import StepOps

_POINTS = 60

Sizes = Float[np.ndarray, " points"]
Steps = Callable[[StepModel, Sizes], Batch]


def _decoding(context: float) -> Steps:
    return lambda model, requests: model.batch(decode_requests=requests, context=context)


def _prompt(cached: float) -> Steps:
    return lambda model, tokens: model.batch(
        prefill_requests=np.ones_like(tokens), chunk=tokens, cached=cached
    )


def _verifying(model: StepModel, requests: Sizes) -> Batch:
    tokens = 1.0 + np.asarray(model.ops.draft_tokens or 0.0)
    return model.batch(decode_requests=requests, context=1000.0, query_tokens=tokens)


@dataclass(frozen=True)
class _Sweep:
    """What a part's size is, and the steps that have it."""

    label: str
    most: float
    lines: tuple[tuple[str, Steps], ...]


_TOKENS = _Sweep("tokens of the step", 8192, (("", _prompt(0)),))
_REQUESTS = _Sweep("requests that decode", 512, (("", _decoding(1000)),))
_CONTEXTS = _Sweep(
    "requests that decode",
    512,
    tuple((f"{context:,} tokens each", _decoding(context)) for context in (500, 4000)),
)
_PROMPTS = _Sweep(
    "new tokens of a prompt",
    8192,
    (("nothing cached", _prompt(0)), ("4,096 tokens cached", _prompt(4096))),
)
_EITHER = _Sweep(
    "requests or tokens of the step",
    512,
    (("only decode", _decoding(1000)), ("with prefill", _prompt(0))),
)
# What the picture of a part goes along; that of any other goes along tokens.
_SWEEPS = {
    "decode_attention": _CONTEXTS,
    "prefill_attention": _PROMPTS,
    "lm_head": _REQUESTS,
    "sampling": _REQUESTS,
    "step_overhead": _EITHER,
    DRAFT.name: _Sweep("requests that decode", 512, (("", _verifying),)),
    HOST.name: _REQUESTS,
}
_MOST_ON_HOST = 64
# Letters of a line of a title.
_TITLE = 64


@named_options
def draw_component(
    model: str | Path | Case,
    component: str,
    *,
    fit: str | Path = DEFAULT_FIT,
    axes: Axes | None = None,
    **options: Unpack[ServerOptions],
) -> Axes:
    """Draws the time of a part of a step, milliseconds over all layers, against its size.

    Dashed is the roofline: FLOP at the peak, or bytes at the bandwidth. Grey is the time that was
    measured in a microbenchmark, brought to the model's shapes (or what stands in for it: see the
    physics); the fit's is in color. Of ``host`` the CPU's time, the GPU's and the step's are drawn.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it.
        component: Of `physim.step.lowering.PART_NAMES`.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: Where; None for a new figure.
        **options: GPU and deployment; see `ServerOptions`.

    Raises:
        InputError: Some input cannot be used, or the model has no such component there.
    """
    if component not in PARTS:
        known = ", ".join(PARTS)
        raise InputError("component", f"{component!r} is unknown", f"use one of {known}")
    case, part = Case.from_options(model, **options), PARTS[component]
    fitted = step_model_of(case, load_fit(fit).on(case).corrections)
    bare = StepModel(fitted.ops, Corrections())
    ideal = StepModel(_at_roofline(fitted.ops), Corrections())
    sweep = _SWEEPS.get(component, _TOKENS)
    sizes = np.geomspace(1, _MOST_ON_HOST if part is HOST else sweep.most, _POINTS)
    axes = axes_or_new(axes, 5.0, 3.4)
    operations = rows_of(case.server)
    measured = any(row.log_seconds is not None for row in operations if row.part == component)
    # What is no work on a GPU is drawn from zero.
    is_work = part is not HOST and sweep is not _EITHER
    for number, (name, steps) in enumerate(sweep.lines):
        batches = steps(fitted, sizes)
        if part is HOST:
            _draw_host(axes, sizes, fitted, batches)
            continue
        times = [1e3 * named_seconds(one, batches)[component] for one in (ideal, bare, fitted)]
        if not np.any(times[-1] > 0):
            raise InputError("component", f"{case.what} has no {component}", "name another")
        if measured:
            axes.plot(sizes, times[0], "--", color="0.3", lw=1, label=_first("roofline", number))
        if not np.allclose(times[1], times[2], rtol=1e-3):
            axes.plot(sizes, times[1], color="0.6", lw=3, label=_first("nothing fitted", number))
        axes.plot(sizes, times[2], color=f"C{number}", label=", ".join(filter(None, ("fit", name))))
    axes.set(xscale="log", xlabel=sweep.label, ylabel="ms a step")
    if is_work:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    plain_ticks(axes)
    axes.set_title(textwrap.fill(literal(f"{part.label}: {case.what}"), _TITLE), fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return axes


def _draw_host(axes: Axes, sizes: Sizes, model: StepModel, steps: Batch) -> None:
    parts = named_seconds(model, steps)
    gpu = np.sum([seconds for name, seconds in parts.items() if name != HOST.name], axis=0)
    axes.plot(sizes, 1e3 * gpu, color="0.6", label="GPU")
    cpu = np.asarray(sum(model.ops.host.seconds(model.corrections, sizes)))
    axes.plot(sizes, 1e3 * cpu, "--", color="C1", label="CPU")
    axes.plot(sizes, 1e3 * (gpu + parts[HOST.name]), color="C0", label="the step")


def _at_roofline(ops: StepOps) -> StepOps:
    """The same work on kernels that nothing was measured of, so that their roofline is left.

    The GPU's power limit, which is below it, was measured too.
    """

    def curves(some: StepOps) -> list[Any]:
        sizes = some.over_sizes
        return [
            sizes.log_seconds,
            sizes.by_spread,
            some.decode.log_seconds,
            some.prefill.log_seconds,
        ]

    ideal: StepOps = eqx.tree_at(
        curves, ops, [np.full_like(curve, UNMEASURED) for curve in curves(ops)]
    )
    at_limit = ideal.over_sizes.at_limit
    return eqx.tree_at(lambda some: some.over_sizes.at_limit, ideal, np.ones_like(at_limit))


def _first(label: str, number: int) -> str | None:
    """A label for the first of several lines."""
    return label if number == 0 else None
