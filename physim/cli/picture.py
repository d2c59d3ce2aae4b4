"""The option ``--plot``, which many commands take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _checked(path: Path | None) -> Path | None:
    """Refuses what cannot be drawn before anything is computed for it."""
    if path is not None:
        from physim.plot.sheet import check

        check(path)
    return path


Plot = Annotated[
    Path | None, typer.Option(help="Draw it: a PNG or SVG (extra `plot`).", callback=_checked)
]


def write(draw: Callable[[], Axes | Sequence[Axes]], path: Path) -> None:
    """Draws a picture and writes it, and says so on a terminal while it lasts.

    Args:
        draw: What draws it.
        path: A PNG or SVG.
    """
    from physim.cli.progress import running
    from physim.plot import save

    with running("drawing"):
        save(draw(), path)
