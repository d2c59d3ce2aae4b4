"""Figures and files of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from physim import data
from physim.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"ttft": "C1", "itl": "C0", "e2e": "C2", "cycle": "C4"}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "plot", "needs matplotlib", "run pip install 'physim-llm[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def axes_or_new(axes: Axes | None, width: float = 6.5, height: float = 4.0) -> Axes:
    """The axes that were given, or those of a new figure."""
    return new_figure(width, height).subplots() if axes is None else axes


def check_name(path: Path) -> None:
    """Refuses a name that is no picture's, before anything is computed for it.

    Raises:
        InputError: It ends in neither ``.png`` nor ``.svg``.
    """
    if path.suffix not in (".png", ".svg"):
        raise InputError(str(path), "is no name of a picture", "end it in .png or .svg")


def save(drawn: Axes | Sequence[Axes], path: Path) -> None:
    """Writes a picture; the file appears whole or not at all.

    Args:
        drawn: Axes, or several of one figure.
        path: A PNG or SVG, by its name.

    Raises:
        InputError: The name has another ending, or the file cannot be written.
    """
    check_name(path)
    figure = (drawn[0] if isinstance(drawn, Sequence) else drawn).get_figure(root=True)
    assert figure is not None
    with data.replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
