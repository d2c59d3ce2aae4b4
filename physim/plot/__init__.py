"""Pictures. Every function draws on matplotlib Axes, its own or those that it is given.

They return the Axes, whose ``figure`` a notebook shows; nothing global is touched. `save` writes
one to a file.
"""

from physim.plot.fits import (
    draw_corrections,
    draw_errors,
    draw_fit,
    draw_fold_errors,
    draw_folds,
    draw_losses,
    draw_observed,
)
from physim.plot.loads import draw_load, draw_timeline
from physim.plot.sheet import save
from physim.plot.steps import draw_breakdown, draw_elasticities, draw_roofline

__all__ = [
    "draw_breakdown",
    "draw_corrections",
    "draw_elasticities",
    "draw_errors",
    "draw_fit",
    "draw_fold_errors",
    "draw_folds",
    "draw_load",
    "draw_losses",
    "draw_observed",
    "draw_roofline",
    "draw_timeline",
    "save",
]
