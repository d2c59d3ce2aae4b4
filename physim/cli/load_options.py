"""Options of a load, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

_PANEL = "Load"
# How lengths are written.
_LENGTHS = "248, normal:248:50, exponential:128, lognormal:248:300, gamma:248:200 or file:PATH."

_input = typer.Option("--input", help=f"Prompt tokens: {_LENGTHS}", rich_help_panel=_PANEL)
_output = typer.Option("--output", help="Generated tokens, likewise.", rich_help_panel=_PANEL)

Input = Annotated[str | None, _input]
Output = Annotated[str | None, _output]
Requests = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        help="Prompts and outputs as they go together, instead of both: a CSV or trace of "
        "requests, azure-conversation-2023, mooncake-conversation or sharegpt.",
        rich_help_panel=_PANEL,
    ),
]
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
ARRIVALS = "constant, poisson, gamma, or trace:PATH for arrivals as a trace has them."
Arrival = Annotated[str, typer.Option(help=ARRIVALS, rich_help_panel=_PANEL)]
Burstiness = Annotated[
    float, typer.Option(help="Shape of gamma arrivals; 1 is Poisson.", rich_help_panel=_PANEL)
]


def load_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The load among a command's options, its ``locals()``, as a case takes it.

    Raises:
        InputError: Lengths are missing, given twice or cannot be read; or a stage, or a trace of
            arrivals, cannot.
    """
    from physim.inputs.arrivals import arrivals_named
    from physim.inputs.load import Stage

    return {
        **_lengths(options),
        **arrivals_named(options["arrival"]),
        "rate": options.get("rate"),
        "concurrency": options.get("concurrency"),
        "stages": tuple(Stage.parse(text) for text in options.get("stage") or ()),
        "prefixes": options["prefixes"],
        "burstiness": options["burstiness"],
    }


def _lengths(options: Mapping[str, Any]) -> dict[str, Any]:
    from physim.errors import InputError
    from physim.inputs.lengths import Lengths
    from physim.inputs.request_lengths import RequestLengths

    texts = {"--input": options["input_tokens"], "--output": options["output_tokens"]}
    if options["lengths"] is None:
        if None in texts.values():
            raise InputError("--input and --output", "are missing", "give both, or --lengths")
        inputs, outputs = (Lengths.parse(text, name) for name, text in texts.items())
        own = {"input_tokens": inputs, "output_tokens": outputs}
        return own | {"cached_tokens": options["cached"]}
    for name, text in {**texts, "--cached": options["cached"] or None}.items():
        if text is not None:
            raise InputError(name, "is said by --lengths too", "leave one of the two out")
    return {"lengths": RequestLengths.read(options["lengths"])}
