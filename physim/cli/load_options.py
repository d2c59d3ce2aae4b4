"""Options of a load, which several commands take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from physim.cli.bundles import CommandOption

if TYPE_CHECKING:
    from physim.inputs.request_lengths import RequestLengths

_PANEL = "Load"
# How lengths are written.
_LENGTHS = "248, normal:248:50, exponential:128, lognormal:248:300, gamma:248:200 or file:PATH."

_ARRIVALS = "constant, poisson, gamma, or trace:PATH for arrivals as a trace has them."


def _option(kind: Any, default: Any, told: str, *flags: str) -> CommandOption:
    return CommandOption(kind, default, typer.Option(*flags, help=told, rich_help_panel=_PANEL))


# Ways in which requests come, of which commands take some.
RATE = {"rate": _option(float | None, None, "Arrivals per second (open loop).")}
CLIENTS = {
    "concurrency": _option(float | None, None, "Clients that wait for their answer (closed loop).")
}
STAGES = {"stage": _option(list[str] | None, None, "RATE:SECONDS of a load in stages; repeat it.")}
ONE_RATE = {"rate": _option(float, inspect.Parameter.empty, "Arrivals per second.")}
JOINT = {
    "lengths": _option(
        str | None,
        None,
        "Prompts and outputs as they go together: a CSV or trace of requests, "
        "azure-conversation-2023, mooncake-conversation or sharegpt; --input and --output are "
        "then their means, or left out.",
    )
}
CACHE = {
    "cached": _option(float, 0.0, "Prompt tokens found in the prefix cache."),
    "prefixes": _option(int, 1, "Different cached prefixes."),
}


def arrivals(default: str | None, told: str = _ARRIVALS) -> Mapping[str, CommandOption]:
    """Options of how requests come.

    Args:
        default: How they do where nothing is said; None where the command decides.
        told: What there is.
    """
    told = told if default is not None else f"poisson unless given; {told}"
    return {
        "arrival": _option(str if default is not None else str | None, default, told),
        "burstiness": _option(float, 1.0, "Shape of gamma arrivals; 1 is Poisson."),
    }


def load_bundle(
    *ways: Mapping[str, CommandOption], arrival: str | None = "constant"
) -> Mapping[str, CommandOption]:
    """Options of a load.

    Args:
        *ways: Ways in which requests come: `RATE`, `CLIENTS`, `STAGES` or `ONE_RATE`.
        arrival: How requests come where nothing is said; None where the command decides.
    """
    found = {
        "input_tokens": _option(str | None, None, f"Prompt tokens: {_LENGTHS}", "--input"),
        "output_tokens": _option(str | None, None, "Generated tokens, likewise.", "--output"),
        **JOINT,
    }
    for way in ways:
        found |= way
    return {**found, **CACHE, **arrivals(arrival)}


def says_a_load(given: Mapping[str, Any]) -> bool:
    """Whether a bundle of options says how many requests come, or how long they are.

    Args:
        given: What its options are given; a rate of zero is one.
    """
    names = ("input_tokens", "output_tokens", "lengths", "rate", "concurrency", "stage")
    # Typer gives an option that may be repeated, and is not there, as an empty list.
    return any(given.get(name) not in (None, []) for name in names)


def load_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The load that a bundle of options is given, as a case takes it.

    Raises:
        InputError: Lengths are missing, given twice or cannot be read; or a stage, or a trace of
            arrivals, cannot.
    """
    from physim.inputs.arrivals import arrivals_named
    from physim.inputs.load import Stage

    return {
        **_lengths(given),
        **arrivals_named(given["arrival"]),
        "rate": given.get("rate"),
        "concurrency": given.get("concurrency"),
        "stages": tuple(Stage.parse(text) for text in given.get("stage") or ()),
        "prefixes": given["prefixes"],
        "burstiness": given["burstiness"],
    }


def _lengths(given: Mapping[str, Any]) -> dict[str, Any]:
    from physim.errors import InputError
    from physim.inputs.lengths import Lengths

    texts = {"--input": given["input_tokens"], "--output": given["output_tokens"]}
    missing = [name for name, text in texts.items() if text is None]
    joint = requests_named(given["lengths"], given["cached"])
    if joint is not None and len(missing) == len(texts):
        return {"lengths": joint}
    if missing:
        problem = "is missing" if len(missing) == 1 else "are missing"
        raise InputError(" and ".join(missing), problem, "give both, or --lengths")
    own = [Lengths.parse(text, name) for name, text in texts.items()]
    if joint is None:
        named = dict(zip(("input_tokens", "output_tokens"), own, strict=True))
        return named | {"cached_tokens": given["cached"]}
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
