"""Pictures. Every function draws on matplotlib Axes, its own or those that it is given.

They return the Axes, whose ``figure`` a notebook shows; nothing global is touched. `save` writes
one to a file.
"""

from physim.plot.comparison import draw_comparison
from physim.plot.components import draw_component
from physim.plot.deployment import draw_deployment
from physim.plot.figures import save
from physim.plot.fits import (
    draw_corrections,
    draw_errors,
    draw_evaluation,
    draw_fit,
    draw_fold_errors,
    draw_folds,
    draw_losses,
    draw_observed,
)
from physim.plot.grids import draw_surface
from physim.plot.groups import draw_groups
from physim.plot.lengths import draw_by_length
from physim.plot.loads import draw_load, draw_timeline
from physim.plot.measured_steps import draw_measured_steps
from physim.plot.pareto import draw_pareto
from physim.plot.pools import draw_pools
from physim.plot.scaling import draw_scaling
from physim.plot.schedules import draw_schedule
from physim.plot.steps import (
    draw_breakdown,
    draw_elasticities,
    draw_explanation,
    draw_first_token,
    draw_roofline,
)
from physim.plot.tables import draw_table
from physim.plot.way import draw_way

__all__ = [
    "draw_breakdown",
    "draw_by_length",
    "draw_comparison",
    "draw_component",
    "draw_corrections",
    "draw_deployment",
    "draw_elasticities",
    "draw_errors",
    "draw_evaluation",
    "draw_explanation",
    "draw_first_token",
    "draw_fit",
    "draw_fold_errors",
    "draw_folds",
    "draw_groups",
    "draw_load",
    "draw_losses",
    "draw_measured_steps",
    "draw_observed",
    "draw_pareto",
    "draw_pools",
    "draw_roofline",
    "draw_scaling",
    "draw_schedule",
    "draw_surface",
    "draw_table",
    "draw_timeline",
    "draw_way",
    "save",
]
