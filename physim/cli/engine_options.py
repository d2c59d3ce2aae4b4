"""Options of the engine and of its layout, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from physim.cli.bundles import CommandOption, shown
from physim.inputs.engine_request import EngineRequest
from physim.models.parallelism import Parallelism
from physim.options import Option, options_of

_QUANTIZATION = "Quantise 16-bit weights as the server starts: fp8."
_READ_AS = "Read the model as this architecture class, such as LlamaForCausalLM."


def _optional(option: Option) -> Option:
    """An option that need not be given."""
    return replace(option, kind=option.kind | None, default=None)


def layout_lists(
    default: str | None = "1", panel: str | None = None, **defaults: str
) -> Mapping[str, CommandOption]:
    """Options that list the degrees of parallelism to try, such as ``--tps``, by commas.

    Args:
        default: What they are if not given; None where the command then has its own.
        panel: The group of options that they are listed in; that of the degrees if not given.
        **defaults: Defaults of some of them.
    """
    return {
        (name := f"{degree}s"): shown(
            Option(
                str | None,
                defaults.get(name, default),
                f"{option.help.removesuffix('.')}; comma-separated.",
                panel or option.panel,
                f"--{name}",
            )
        )
        for degree, option in options_of(Parallelism).items()
    }


LAYOUT: Mapping[str, CommandOption] = {
    # Commands take tp in a way of their own.
    name: shown(option)
    for name, option in options_of(Parallelism).items()
    if name != "tp"
}
# Degrees of one layout, where lists of them may be given instead.
ONE_LAYOUT: Mapping[str, CommandOption] = {
    name: shown(_optional(option)) for name, option in options_of(Parallelism).items()
}
ENGINE: Mapping[str, CommandOption] = {
    **{name: shown(option) for name, option in options_of(EngineRequest).items()},
    "read_as": shown(Option(str | None, None, _READ_AS, "Engine", "--as")),
    "quantization": shown(Option(str | None, None, _QUANTIZATION, "Engine", "--quantization")),
}
# What measured rows record of a server, where nothing that is not given is known.
RECORDED: Mapping[str, CommandOption] = {
    name: shown(_optional(option))
    for record in (Parallelism, EngineRequest)
    for name, option in options_of(record).items()
    if option.column != "none"
}
