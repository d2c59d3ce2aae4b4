"""Options of the engine and of its layout, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from physim.cli.bundles import CommandOption, shown
from physim.inputs.engine_request import EngineRequest
from physim.models.parallelism import Parallelism
from physim.options import Option, options_of

_READ_AS = "Read the model as this architecture class, such as LlamaForCausalLM."

LAYOUT: Mapping[str, CommandOption] = {
    # Commands take tp in a way of their own.
    name: shown(option)
    for name, option in options_of(Parallelism).items()
    if name != "tp"
}
ENGINE: Mapping[str, CommandOption] = {
    **{name: shown(option) for name, option in options_of(EngineRequest).items()},
    "read_as": shown(Option(str | None, None, _READ_AS, "Engine", "--as")),
}
# What measured rows record of a server, where nothing that is not given is known.
RECORDED: Mapping[str, CommandOption] = {
    name: shown(replace(option, kind=option.kind | None, default=None))
    for record in (Parallelism, EngineRequest)
    for name, option in options_of(record).items()
    if option.column != "none"
}
