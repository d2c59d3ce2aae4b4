"""A picture of latencies by the length of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from physim.errors import InputError
from physim.plot.figures import COLORS, axes_or_new, literal, plain_ticks, readable_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.prediction.results import Prediction

# Groups of as many requests each, by prompt: the fluid draws 64 in each of a load that stays.
_GROUPS = 8
_PERCENTS = (10.0, 50.0, 90.0)
_BAND = "10% to 90%"
# Prompts, or times, that differ by this factor are drawn on a logarithmic axis.
_WIDE = 8.0


def draw_by_length(prediction: Prediction, axes: Axes | None = None) -> Axes:
    """Draws TTFT over prompt length: the median, and a band from the tenth to the 90th percentile.

    Each point is of an eighth of the requests, at their mean prompt; prompts of one length are a
    single point.

    Args:
        prediction: Of any load, by the fluid or the replay.
        axes: Where to draw; None for a new figure.

    Raises:
        InputError: The queue grows without end, or matplotlib is not installed.
    """
    if "ttft" not in prediction.whole.latencies:
        raise InputError(
            "plot", "TTFT has no value where the queue grows without end", "lower the load"
        )
    requests = prediction.whole.requests
    chosen = requests.parted([place / _GROUPS for place in range(1, _GROUPS)])
    tokens = np.array([requests.mean_tokens(one) for one in chosen])
    found = np.array([requests.percentiles("ttft", own, _PERCENTS) for own in chosen])
    scale, unit = readable_seconds(found.ravel().tolist())
    low, middle, high = scale * found.T
    own, color = axes_or_new(axes), COLORS["ttft"]
    if len(chosen) == 1:
        ends = [middle - low, high - middle]
        own.errorbar(tokens, middle, ends, color=color, capsize=4, label=_BAND)
    else:
        own.fill_between(tokens, low, high, color=color, alpha=0.25, lw=0, label=_BAND)
    own.plot(tokens, middle, "o-", color=color, markersize=4, label="median")
    own.set(xlabel="tokens of the prompt", ylabel=f"TTFT ({unit})")
    own.set_xscale("log" if tokens[-1] > _WIDE * tokens[0] else "linear")
    if high.max() > _WIDE * low.min():
        own.set_yscale("log")
    else:
        own.set_ylim(bottom=0)
    own.grid(alpha=0.3)
    own.legend(fontsize=8)
    plain_ticks(own)
    how = "" if prediction.method == "fluid" else ", replayed"
    what = prediction.load.describe() if prediction.load is not None else "a trace"
    own.set_title(f"{literal(f'{prediction.model} on {prediction.gpus}')}\n{what}{how}", fontsize=9)
    return own
