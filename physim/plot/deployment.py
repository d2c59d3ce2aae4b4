"""All pictures of a deployment under a load on one sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from physim.corrections.files import DEFAULT_FIT
from physim.inputs.case import Case, CaseOptions
from physim.options import named_options
from physim.plot.figures import new_figure
from physim.plot.loads import draw_load
from physim.plot.steps import draw_breakdown, draw_roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@named_options
def draw_deployment(
    model: str | Path | Case,
    *,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> list[Axes]:
    """Draws latencies against the load, where a step's time goes, and the roofline.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it. The rate or the number of clients is marked.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, deployment and load; see `CaseOptions`.

    Returns:
        The six axes: TTFT, ITL and E2E, then the time of a step against the batch and against the
        context, and the roofline.
    """
    case = Case.from_options(model, **options)
    figure = new_figure(15, 8.5)
    above, below = figure.subplots(2, 3)
    load = case.demanded
    mark = load.rate if load.concurrency is None else load.concurrency
    return [
        *draw_load(case, mark=mark, axes=list(above), fit=fit),
        draw_breakdown(case, against="batch", axes=below[0], fit=fit),
        draw_breakdown(case, against="context", axes=below[1], fit=fit),
        draw_roofline(case, axes=below[2], fit=fit),
    ]
