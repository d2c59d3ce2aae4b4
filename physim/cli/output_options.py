"""Options that name a file to write: refused, where it cannot be, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim import data
from physim.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def writable(path: Path | None) -> Path | None:
    """A file that can be written, or none.

    Raises:
        InputError: Its folder is not there, or cannot be written to.
    """
    if path is not None:
        data.check_writable(path)
    return path


def drawable(path: Path | None) -> Path | None:
    """A picture that can be drawn and written, or none.

    Raises:
        InputError: matplotlib is missing, the format is unknown, or the file cannot be written.
    """
    if path is not None:
        from physim.plot.figures import check

        check(path)
    return writable(path)


def html_file(path: Path) -> Path:
    """A page that can be written.

    Raises:
        InputError: It is called something else, or its folder cannot be written to.
    """
    if path.suffix not in (".html", ".htm"):
        raise InputError(str(path), "is not an HTML file", "end it in .html")
    data.check_writable(path)
    return path


Plot = Annotated[
    Path | None, typer.Option(help="Draw it: a PNG or SVG (extra `plot`).", callback=drawable)
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]

Out = Annotated[Path | None, typer.Option(help="Write it as JSON here.", callback=writable)]


def print_json(content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Prints a record as JSON.

    Args:
        content: The record, or several.
    """
    typer.echo(json.dumps(content, indent=1))


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
