"""Options of a load, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from physim.inputs.request_lengths import RequestLengths

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
        help="Prompts and outputs as they go together: a CSV or trace of requests, "
        "azure-conversation-2023, mooncake-conversation or sharegpt; --input and --output are "
        "then their means, or left out.",
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

    texts = {"--input": options["input_tokens"], "--output": options["output_tokens"]}
    missing = [name for name, text in texts.items() if text is None]
    joint = requests_named(options["lengths"], options["cached"])
    if joint is not None and len(missing) == len(texts):
        return {"lengths": joint}
    if missing:
        problem = "is missing" if len(missing) == 1 else "are missing"
        raise InputError(" and ".join(missing), problem, "give both, or --lengths")
    own = [Lengths.parse(text, name) for name, text in texts.items()]
    if joint is None:
        named = dict(zip(("input_tokens", "output_tokens"), own, strict=True))
        return named | {"cached_tokens": options["cached"]}
    means = []
    for (name, text), tokens in zip(texts.items(), own, strict=True):
        if isinstance(tokens, Lengths):
            problem = "is a distribution, which --lengths is too"
            raise InputError(f"{name} {text!r}", problem, "give the mean alone")
        means.append(tokens)
    return {"lengths": joint.with_means(*means)}


def requests_named(name: str | None, cached: float) -> RequestLengths | None:
    """The requests of ``--lengths``, if it is given.

    Args:
        name: A preset or a file.
        cached: What ``--cached`` says.

    Raises:
        InputError: It cannot be read, or cached parts are given twice.
    """
    from physim.errors import InputError
    from physim.inputs.request_lengths import RequestLengths

    if name is None:
        return None
    if cached:
        raise InputError("--cached", "is said by --lengths too", "leave one of the two out")
    return RequestLengths.read(name)
