"""Pictures of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from physim import data
from physim.errors import InputError

if TYPE_CHECKING:
    from physim.prediction import Prediction


def draw_timeline(prediction: Prediction, path: Path) -> None:
    """Draws an engine over time: the queue, the batch, the KV cache and TTFT.

    Args:
        prediction: Of a load that ends.
        path: Where to write, a PNG or SVG by its name; the file appears whole or not at all.

    Raises:
        InputError: The load does not end, matplotlib is not installed, the name has another ending,
            or the file cannot be written.
    """
    timeline = prediction.timeline
    if timeline is None:
        raise InputError(
            "plot", "needs a load that ends", "give stages, or a number of requests to a rate"
        )
    if path.suffix not in (".png", ".svg"):
        raise InputError(str(path), "is no name of a picture", "end it in .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "plot", "needs matplotlib", "run pip install 'physim-llm[plot]'"
        ) from error
    figure = Figure(figsize=(7, 7), layout="constrained")
    queue, batch, cache, first = figure.subplots(4, sharex=True)
    queue.fill_between(timeline.time_s, timeline.waiting, color="C3", alpha=0.4, linewidth=0)
    queue.plot(timeline.time_s, timeline.waiting, color="C3", linewidth=1)
    queue.set_ylabel("waiting\n(requests)")
    batch.plot(timeline.time_s, timeline.running, color="C0", linewidth=1)
    batch.set_ylabel("running\n(requests)")
    cache.plot(timeline.time_s, [100 * use for use in timeline.kv_use], color="C2", linewidth=1)
    cache.set_ylabel("KV cache\n(% of blocks)")
    first.plot(timeline.arrival_s, timeline.ttft_s, ".", color="C1", markersize=3)
    first.set_ylabel("TTFT (s), by\ntime of arrival")
    first.set_xlabel("time (s)")
    for axes in (queue, batch, cache, first):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    where = f"{prediction.model} on {prediction.tp} x {prediction.gpu}, {prediction.method}"
    what = prediction.load.describe() if prediction.load is not None else "a trace"
    figure.suptitle(f"{where}\n{what}", fontsize=10)
    with data.replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
