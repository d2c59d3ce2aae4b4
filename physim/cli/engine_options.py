"""Options of the engine and of its layout, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import typer

from physim.cli.bundles import CommandOption
from physim.inputs.engine_request import EngineRequest
from physim.models.parallelism import Parallelism
from physim.options import Option, options_of

_READ_AS = "Read the model as this architecture class, such as LlamaForCausalLM."


def _shown(option: Option, *flags: str) -> CommandOption:
    told = typer.Option(*flags, help=option.help, rich_help_panel=option.panel)
    return CommandOption(option.kind, option.default, told)


LAYOUT: Mapping[str, CommandOption] = {
    # Commands take tp in a way of their own.
    name: _shown(option)
    for name, option in options_of(Parallelism).items()
    if name != "tp"
}
ENGINE: Mapping[str, CommandOption] = {
    **{name: _shown(option) for name, option in options_of(EngineRequest).items()},
    "read_as": _shown(Option(str | None, None, _READ_AS, "Engine", "none"), "--as"),
}
# What measured rows record of a server, where nothing that is not given is known.
RECORDED: Mapping[str, CommandOption] = {
    name: _shown(replace(option, kind=option.kind | None, default=None))
    for record in (Parallelism, EngineRequest)
    for name, option in options_of(record).items()
    if option.column != "none"
}
