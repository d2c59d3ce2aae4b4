"""Options of a load, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

_PANEL = "Load"
# How lengths are written.
_LENGTHS = "248, normal:248:50, exponential:128 or file:PATH."

_input = typer.Option("--input", help=f"Prompt tokens: {_LENGTHS}", rich_help_panel=_PANEL)
_output = typer.Option("--output", help="Generated tokens, likewise.", rich_help_panel=_PANEL)

Input = Annotated[str, _input]
OptionalInput = Annotated[str | None, _input]
Output = Annotated[str, _output]
OptionalOutput = Annotated[str | None, _output]
Stages = Annotated[
    list[str] | None,
    typer.Option(help="RATE:SECONDS of a load in stages; repeat it.", rich_help_panel=_PANEL),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Arrivals per second (open loop).", rich_help_panel=_PANEL),
]
Concurrency = Annotated[
    float | None,
    typer.Option(help="Clients that wait for their answer (closed loop).", rich_help_panel=_PANEL),
]
Cached = Annotated[
    float,
    typer.Option(help="Prompt tokens found in the prefix cache.", rich_help_panel=_PANEL),
]
Prefixes = Annotated[int, typer.Option(help="Different cached prefixes.", rich_help_panel=_PANEL)]
Arrival = Annotated[str, typer.Option(help="constant, poisson or gamma.", rich_help_panel=_PANEL)]
Burstiness = Annotated[
    float, typer.Option(help="Shape of gamma arrivals; 1 is Poisson.", rich_help_panel=_PANEL)
]


def load_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The load among a command's options, its ``locals()``, as a case takes it.

    Raises:
        InputError: A length is missing or cannot be read, or a stage cannot.
    """
    from physim.errors import InputError
    from physim.inputs.lengths import Lengths
    from physim.inputs.load import Stage

    if options["input_tokens"] is None or options["output_tokens"] is None:
        raise InputError("--input and --output", "are missing", "give both")
    return {
        "input_tokens": Lengths.parse(options["input_tokens"], "--input"),
        "output_tokens": Lengths.parse(options["output_tokens"], "--output"),
        "rate": options.get("rate"),
        "concurrency": options.get("concurrency"),
        "stages": tuple(Stage.parse(text) for text in options.get("stage") or ()),
        "cached_tokens": options["cached"],
        "prefixes": options["prefixes"],
        "arrival": options["arrival"],
        "burstiness": options["burstiness"],
    }
