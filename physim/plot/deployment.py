"""All pictures of a deployment under a load on one sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.fits import DEFAULT_FIT
from physim.plot.loads import draw_load
from physim.plot.sheet import new_figure
from physim.plot.steps import draw_breakdown, draw_roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.serving.load import Load


def draw_deployment(
    model: str | Path,
    load: Load,
    *,
    gpu: str,
    fit: str | Path = DEFAULT_FIT,
    **deployment: Any,
) -> list[Axes]:
    """Draws latencies against the load, where a step's time goes, and the roofline.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        load: A rate or a number of clients, which is marked.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, ``default`` or ``none``.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Returns:
        The six axes: TTFT, ITL and E2E, then the time of a step against the batch and against the
        context, and the roofline.
    """
    where: dict[str, Any] = {"gpu": gpu, "fit": fit, **deployment}
    figure = new_figure(15, 8.5)
    above, below = figure.subplots(2, 3)
    mark = load.rate if load.concurrency is None else load.concurrency
    return [
        *draw_load(model, load, mark=mark, axes=list(above), **where),
        draw_breakdown(model, against="batch", axes=below[0], **where),
        draw_breakdown(model, against="context", axes=below[1], **where),
        draw_roofline(model, axes=below[2], **where),
    ]
