"""Figures and files of pictures."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from physim import data
from physim.errors import InputError
from physim.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Decades below which the ticks of a logarithmic axis are even.
_NARROW = 0.6
COLORS = {"ttft": "C1", "itl": "C0", "tpot": "C0", "e2e": "C2", "cycle": "C4"}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    _check_installed()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def axes_or_new(axes: Axes | None, width: float = 6.5, height: float = 4.0) -> Axes:
    """The axes that were given, or those of a new figure."""
    return new_figure(width, height).subplots() if axes is None else axes


def literal(text: str) -> str:
    """Text for a title, a label or a legend, of which nothing is taken for a formula or left out.

    Whatever holds the name of a model, a GPU, a fit or a run is drawn through it.
    """
    shown = printable(text).replace("$", r"\$")
    # A legend leaves out what begins so.
    return f" {shown}" if shown.startswith("_") else shown


def plain_ticks(*drawn: Axes) -> None:
    """Writes the numbers of logarithmic axes out, as 0.5 and 200, where the data lie.

    Args:
        drawn: Axes on which everything is drawn.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    for axes in drawn:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() != "log":
                continue
            low, high = axis.get_view_interval()
            decades = np.log10(high / low)
            if decades < _NARROW:
                axis.set_major_locator(MaxNLocator(5))
            else:
                axis.set_major_locator(LogLocator(subs=_within_a_decade(decades)))
            axis.set_major_formatter(_written)
            axis.set_minor_formatter(NullFormatter())


def _written(x: float, _: float) -> str:
    """A number as 0.5, 200, 50k or 8M."""
    for least, scale, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if x >= least:
            return f"{x / scale:.3g}{unit}"
    return f"{x:g}"


def _within_a_decade(decades: float) -> tuple[float, ...]:
    """Ticks of each decade, the fewer the more there are."""
    if decades < 1.2:
        return (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    return (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)


def readable_seconds(times: Sequence[float]) -> tuple[float, str]:
    """How many of a unit a second has, and the unit: milliseconds where no time is a second long.

    Args:
        times: The times to draw, seconds; those that are not finite say nothing.
    """
    most = max((time for time in times if math.isfinite(time)), default=0.0)
    return (1.0, "s") if most >= 1.0 else (1e3, "ms")


def check(path: Path) -> None:
    """Refuses a picture that cannot be drawn, before anything is computed for it.

    Raises:
        InputError: The name ends in neither ``.png`` nor ``.svg``, or matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg"):
        raise InputError(str(path), "is not a PNG or SVG file", "end it in .png or .svg")
    _check_installed()


def _check_installed() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("plot", "needs matplotlib", "pip install matplotlib")


def save(drawn: Axes | Sequence[Axes], path: Path) -> None:
    """Writes a picture; the file appears whole or not at all.

    Args:
        drawn: Axes, or several of one figure.
        path: A PNG or SVG, by its name.

    Raises:
        InputError: The name has another ending, or the file cannot be written.
    """
    check(path)
    with data.replacing(path) as temporary:
        write_into(drawn, temporary, path.suffix.lower()[1:])


def write_into(
    drawn: Axes | Sequence[Axes], file: Path | io.StringIO, form: str, name: str = "physim"
) -> None:
    """Writes a picture, of which an SVG has no date, nor names made by chance.

    Args:
        drawn: Axes, or several of one figure.
        file: Where to.
        form: ``png`` or ``svg``.
        name: What sets the names within an SVG apart from those of others on a page.
    """
    import matplotlib as mpl

    figure = (drawn[0] if isinstance(drawn, Sequence) else drawn).get_figure(root=True)
    assert figure is not None
    undated = {"Date": None} if form == "svg" else {}
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format=form, dpi=150, metadata=undated)
