"""A picture of a table of step times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from physim.models.parallelism import on_gpus
from physim.plot.figures import literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from physim.tables.table import Table

_CONTEXTS = (100.0, 1000.0, 4000.0)
_BATCHES = (0.0, 32.0, 128.0)
_CONTEXT = 1000.0


def draw_table(table: Table) -> list[Axes]:
    """Draws a table's step times with its knots: steps that only decode, and steps with a prompt.

    Args:
        table: The table, of `physim.tables.load`.

    Returns:
        The two axes.
    """
    figure = new_figure(11, 4)
    decoding, prefilling = figure.subplots(1, 2)
    requests, contexts, tokens, _ = table.axes
    for context in (one for one in _CONTEXTS if one <= contexts[-1]):
        where = np.array([(number, context, 0.0, 0.0) for number in requests if number])
        label = f"{context:,g} tokens each"
        decoding.plot(where[:, 0], 1e3 * table.many(where), ".-", lw=1, label=label)
    for batch in (one for one in _BATCHES if one <= requests[-1]):
        where = np.array([(batch, _CONTEXT, number, 0.0) for number in tokens if number])
        label = f"{batch:g} requests decode"
        prefilling.plot(where[:, 2], 1e3 * table.many(where), ".-", lw=1, label=label)
    decoding.set_xlabel("requests that decode, at the knots")
    prefilling.set_xlabel("tokens of a prompt, at the knots")
    for axes in (decoding, prefilling):
        axes.set(ylabel="time of a step, ms", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    about = table.metadata
    error = about["interpolation_error_pct"]
    figure.suptitle(
        literal(
            f"{about['model']} on {on_gpus(about['gpu'], about['engine'])}; between knots 99% of "
            f"steps are within {error['p99']}%"
        ),
        fontsize=10,
    )
    return [decoding, prefilling]
