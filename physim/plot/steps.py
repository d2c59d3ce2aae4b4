"""Pictures of steps: operations on the roofline, where time goes, and what it depends on."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from physim import roofline
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.inputs.case import Case, ServerOptions
from physim.options import named_options
from physim.plot.figures import axes_or_new, literal, new_figure, plain_ticks
from physim.prediction.arrays import rank_model_of
from physim.step.lowering import PART_NAMES, PARTS, rows_of
from physim.step.many_batches import named_seconds, part_seconds
from physim.step.rows import DecodeRow, PrefillRow, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from physim.questions.elasticities import Elasticities
    from physim.questions.speculation import Speculation
    from physim.step.model import StepModel

# Parts of a step that are drawn apart; the rest is one.
_PARTS = 7
_POINTS = 60
_MARKERS = "os^Dvp*"
# Characters of a line of a label.
_LABEL = 34
# Colors of the palette, and those of parts beyond them.
_PALETTE = 10
_FURTHER = ("#aec7e8", "#ffbb78", "#98df8a", "#ff9896", "#c5b0d5", "#c49c94", "#f7b6d2", "#dbdb8d")
# What the palette has no good color for.
_COLORS = {"all_reduce": "#e7ba52", "step_overhead": "0.4", "host": "0.1"}


@named_options
def draw_roofline(
    model: str | Path | Case,
    *,
    batches: Sequence[float] = (1, 16, 128),
    chunk: float = 2048,
    context: float = 1000,
    fit: str | Path = DEFAULT_FIT,
    axes: Axes | None = None,
    **options: Unpack[ServerOptions],
) -> Axes:
    """Draws the GPU's roofline and, on it, the model's operations in some steps.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it.
        batches: Decode steps of so many requests.
        chunk: And a step with one prompt of so many tokens.
        context: Tokens that decoding requests attend to.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: Where; None for a new figure.
        **options: GPU and deployment; see `ServerOptions`.
    """
    case = Case.from_options(model, **options)
    stepper = rank_model_of(case, load_fit(fit).on(case).corrections)
    hardware = case.server.gpu
    axes = axes_or_new(axes, 6.5, 4.5)
    from matplotlib.lines import Line2D

    bandwidth = hardware.memory_bandwidth
    intensity = np.geomspace(0.5, 2e4, 200)
    # The formats that its weights are multiplied in, and 16 bit.
    multiplied = {form.compute for form in case.model.weight_formats} | {"bfloat16"}
    for name, peak in hardware.peak_flops:
        if name not in multiplied:
            continue
        roof = np.minimum(peak, intensity * bandwidth)
        axes.plot(intensity, roof / 1e12, color="0.4", lw=1)
        axes.annotate(name, (intensity[-1], peak / 1e12), ha="right", va="bottom", fontsize=7)
    steps = [(f"{batch:g} decode", batch, 0.0) for batch in batches]
    steps.append((f"{chunk:g} prefill", 0.0, chunk))
    # A marker for each part whose operations compute.
    markers: dict[str, str] = {}
    colors: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    for color, (label, batch, new) in enumerate(steps):
        colors[label] = Line2D([], [], marker="s", ms=8, color=f"C{color}", lw=0)
        for part, (flops, moved, seconds) in _work(case, stepper, batch, new, context).items():
            marker = markers.setdefault(part, _MARKERS[len(markers) % len(_MARKERS)])
            rate = flops / seconds / 1e12
            axes.plot([flops / moved], [rate], marker, color=f"C{color}", ms=6)
            shapes[PARTS[part].label] = Line2D([], [], marker=marker, color="0.4", lw=0)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="FLOP for each byte moved",
        ylabel="TFLOP/s of one GPU",
    )
    axes.set_title(literal(case.what), fontsize=9)
    plain_ticks(axes)
    axes.grid(alpha=0.3)
    # What computes much for each byte is near the roof, and leaves this corner.
    shown = colors | shapes
    axes.legend(list(shown.values()), list(shown), fontsize=7, loc="lower right")
    return axes


def _work(
    case: Case, model: StepModel, batch: float, new: float, context: float
) -> dict[str, tuple[float, float, float]]:
    """FLOP, bytes and seconds of the parts of a step that compute, on one GPU."""
    step = model.batch(
        decode_requests=batch, context=context, prefill_requests=min(new, 1.0), chunk=new
    )
    seconds = {name: float(own[0]) for name, own in named_seconds(model, step).items()}
    sizes = {name: float(size) for name, size in model.sizes(step).items()}
    work: dict[str, tuple[float, float]] = {}
    for row in rows_of(case.server):
        flops, moved = _of_row(row, sizes, batch, new, context)
        if flops > 0 and row.part != "output":
            before = work.get(row.part, (0.0, 0.0))
            work[row.part] = before[0] + row.count * flops, before[1] + row.count * moved
    return {part: (*own, seconds[part]) for part, own in work.items() if seconds[part] > 0}


def _of_row(
    row: Row, sizes: dict[str, float], batch: float, new: float, context: float
) -> tuple[float, float]:
    """FLOP and bytes of one of an operation."""
    if isinstance(row, DecodeRow):
        seen = batch * min(context, row.window or context)
        return row.pair_flops * seen, row.pair_bytes * seen + row.request_bytes * batch
    if isinstance(row, PrefillRow):
        pairs = roofline.causal_pairs(new, min(new, row.window or new))
        return row.pair_flops * pairs, row.token_bytes * new
    size = sizes[row.size]
    visited = roofline.active_experts(size, row.experts, row.experts_per_token)
    return row.flops * size, row.bytes * size + row.fixed_bytes + row.expert_bytes * visited


@named_options
def draw_breakdown(
    model: str | Path | Case,
    *,
    against: str = "batch",
    batch: float = 32,
    context: float = 1000,
    fit: str | Path = DEFAULT_FIT,
    axes: Axes | None = None,
    **options: Unpack[ServerOptions],
) -> Axes:
    """Draws where the time of a decode step goes, against its batch or its context.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it.
        against: ``batch`` or ``context``.
        batch: Requests, where the context varies.
        context: Tokens that each attends to, where the batch varies.
        fit: Name or path of a fit, ``default`` or ``none``.
        axes: Where; None for a new figure.
        **options: GPU and deployment; see `ServerOptions`.

    Raises:
        ValueError: ``against`` is neither.
    """
    if against not in ("batch", "context"):
        raise ValueError(f"against is {against!r}, not batch or context")
    case = Case.from_options(model, **options)
    stepper = rank_model_of(case, load_fit(fit).on(case).corrections)
    sizes, kv_tokens = case.server.sizes, case.server.kv.tokens
    if against == "batch":
        most = max(min(sizes.max_num_seqs, kv_tokens / context), 2.0)
        x = np.geomspace(1, most, _POINTS)
        steps = stepper.batch(decode_requests=x, context=context)
        label = f"requests that decode, {context:g} tokens each"
    else:
        most = max(min(sizes.max_model_len, kv_tokens / batch), 32.0)
        x = np.geomspace(16, most, _POINTS)
        steps = stepper.batch(decode_requests=batch, context=x)
        label = f"context of each of {batch:g} requests, tokens"
    seconds = part_seconds(stepper, steps) * 1e3
    shown = np.sort(np.argsort(-seconds.mean(axis=0))[:_PARTS])
    rest = seconds.sum(axis=1) - seconds[:, shown].sum(axis=1)
    axes = axes_or_new(axes)
    names = [PARTS[PART_NAMES[part]].label for part in shown]
    # A part has one color in all pictures.
    colors = [*map(_color, shown.tolist()), "0.6"]
    axes.stackplot(x, *seconds[:, shown].T, rest, labels=[*names, "other"], colors=colors)
    axes.set(xscale="log", xlabel=label, ylabel="time of a step, ms", xlim=(x[0], x[-1]))
    axes.set_title(literal(case.what), fontsize=9)
    plain_ticks(axes)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", fontsize=8)
    return axes


def _color(part: int) -> str:
    """The color of a part in all pictures, which no other part has."""
    plain = f"C{part}" if part < _PALETTE else _FURTHER[(part - _PALETTE) % len(_FURTHER)]
    return _COLORS.get(PART_NAMES[part], plain)


def draw_explanation(found: Elasticities) -> tuple[Axes, Axes]:
    """Draws what the time to first token is spent on, above what all depends on.

    Args:
        found: What `physim.explain` found.
    """
    rows = 0.42 * len(found.notable())
    heights = [0.5, 1.2 + rows]
    if found.speculation is not None:
        heights.insert(1, 1.8)
    figure = new_figure(7.5, 1.5 + sum(heights))
    first, *drafts, others = figure.subplots(len(heights), height_ratios=heights)
    drawn = draw_first_token(found, first), draw_elasticities(found, others)
    if found.speculation is not None:
        draw_speculation(found.speculation, drafts[0])
    others.set_title("")
    return drawn


def draw_speculation(found: Speculation, axes: Axes | None = None) -> Axes:
    """Draws the time from token to token with drafts and without, by the batch.

    Args:
        found: What `physim.questions.speculation.speculation` found.
        axes: Where; None for a new figure.
    """
    axes = axes_or_new(axes, 7.5, 3.0)
    length = f"{found.draft_tokens} draft tokens, {found.accepted_length:.3g} tokens a step"
    for seconds, label in ((found.plain_s, "a token a step"), (found.drafted_s, length)):
        axes.plot(found.requests, 1e3 * seconds, label=label)
    if 1 < found.stops_at < found.requests[-1]:
        axes.axvline(found.stops_at, color="0.6", ls="--", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_ticks(axes)
    axes.set_xlabel("requests that decode")
    axes.set_ylabel("ms a token")
    axes.set_title(found.verdict, fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return axes


def draw_first_token(found: Elasticities, axes: Axes | None = None) -> Axes:
    """Draws what the time to first token is spent on, in the order of time.

    Args:
        found: What `physim.explain` found.
        axes: Where; None for a new figure.
    """
    from physim.prediction.results import FIRST_TOKEN_PARTS

    axes = axes_or_new(axes, 7.5, 1.8)
    shown = {part: 1e3 * seconds for part, seconds in found.ttft_parts_s.items() if seconds}
    start = 0.0
    for place, (part, name) in enumerate(FIRST_TOKEN_PARTS.items()):
        if width := shown.get(part):
            axes.barh(0, width, left=start, label=f"{name} {width:.3g}", color=f"C{place}")
            start += width
    axes.set_yticks([])
    axes.set_xlabel("time to first token, ms")
    # The title is above the lines of the legend, two parts in each.
    axes.set_title(
        literal(f"{found.case.what}, {found.case.demanded.describe()}"),
        fontsize=9,
        pad=10 + 14 * math.ceil(len(shown) / 2),
    )
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, frameon=False)
    return axes


def draw_elasticities(found: Elasticities, axes: Axes | None = None) -> Axes:
    """Draws what latencies and capacity depend on, a bar for each metric and part.

    Args:
        found: The elasticities.
        axes: Where; None for a new figure.
    """
    from physim.questions.elasticities import METRICS

    shown = list(reversed(found.notable().items()))
    axes = axes_or_new(axes, 6.2, 1.2 + 0.5 * len(shown))
    height = 0.8 / len(METRICS)
    for number, metric in enumerate(reversed(METRICS)):
        axes.barh(
            [place + number * height for place in range(len(shown))],
            [row[metric] for _, row in shown],
            height,
            label=metric.upper() if metric != "saturation" else "saturation throughput",
            color={"ttft": "C1", "itl": "C0", "e2e": "C2", "saturation": "0.5"}[metric],
        )
    axes.set_yticks(
        [place + 0.3 for place in range(len(shown))],
        [textwrap.fill(part, _LABEL) for part, _ in shown],
        fontsize=9,
    )
    axes.margins(y=0.01)
    axes.axvline(0, color="0.3", lw=0.8)
    axes.set_xlabel("change in percent, for one percent more")
    # The legend is above, where no bar is.
    axes.set_title(
        literal(f"{found.case.what}, {found.case.demanded.describe()}"), fontsize=9, pad=24
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        fontsize=8,
        loc="lower center",
        bbox_to_anchor=(0.4, 1.0),
        ncols=4,
        frameon=False,
    )
    axes.grid(axis="x", alpha=0.3)
    return axes
