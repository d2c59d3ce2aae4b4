"""The commands by name, each loaded when it is called for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Of every command, in the order of the help: its module, with a function of the module's name, or
# an `app` of commands of its own.
_MODULES = {
    "demo": "demo",
    "predict": "predict",
    "capacity": "capacity",
    "compare": "compare",
    "recommend": "recommend",
    "scale": "scale",
    "explain": "explain",
    "report": "report",
    "page": "page",
    "app": "live",
    "evaluate": "evaluate",
    "fit": "fit",
    "crossval": "crossval",
    "table": "table",
    "sweep": "sweep",
    "serve": "serve",
    "doctor": "doctor",
    "export": "export",
    "data": "data",
    "show": "show",
    "grids": "grids",
}


class Commands(TyperGroup):
    """A group of commands that imports only what is called: most have a hundred options to read."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Loaded()  # type: ignore[assignment]  # nobody adds to it


class _Loaded(Mapping[str, TyperCommand | TyperGroup]):
    """Commands by name."""

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@functools.cache
def _command(name: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(f"physim.cli.{_MODULES[name]}")
    # Typer makes commands of functions only inside a group.
    group = typer.Typer(rich_markup_mode="rich", add_completion=False)
    group.callback()(lambda: None)
    if hasattr(module, "app"):
        group.add_typer(module.app, name=name)
    else:
        group.command(name)(getattr(module, _MODULES[name]))
    made: TyperCommand | TyperGroup = typer.main.get_command(group).commands[name]  # type: ignore[attr-defined]
    return made
