"""Options of a load, which several commands take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from physim.cli.bundles import CommandOption, shown
from physim.inputs.load_request import LoadRequest
from physim.options import options_of

if TYPE_CHECKING:
    from physim.inputs.request_lengths import RequestLengths

_DECLARED = options_of(LoadRequest)
_LENGTHS = ("input_tokens", "output_tokens", "lengths")
_WAYS = ("rate", "concurrency", "stages")
_FILE = "workload"
# Only `physim predict` takes these, beside a trace.
_OF_PREDICT = ("requests", "timeout_s", "warm_up_s")

LOAD: Mapping[str, CommandOption] = {name: shown(option) for name, option in _DECLARED.items()}
# Ways in which requests come, of which commands take some.
RATE, CLIENTS, STAGES = ({name: LOAD[name]} for name in _WAYS)
WORKLOAD = {
    _FILE: CommandOption(
        str | None,
        None,
        typer.Option(
            help="inference-perf's configuration or BLIS's workload, instead of rate and lengths.",
            rich_help_panel="Load",
        ),
    )
}
ONE_RATE = {
    "rate": shown(
        replace(
            _DECLARED["rate"],
            kind=float,
            default=inspect.Parameter.empty,
            help="Arrivals per second.",
        )
    )
}


def beside_lengths(
    arrivals: str | None = None, left_out: Sequence[str] = ()
) -> Mapping[str, CommandOption]:
    """Options of a load but for how long requests are and how many come.

    Args:
        arrivals: What the command's help says of arrivals, where it does not take all.
        left_out: Options that the command does not take.
    """
    names = [name for name in LOAD if name not in (*_LENGTHS, *_WAYS, *_OF_PREDICT, *left_out)]
    found = {name: LOAD[name] for name in names}
    if arrivals is None:
        return found
    return {**found, "arrival": shown(replace(_DECLARED["arrival"], help=arrivals))}


def load_bundle(*ways: Mapping[str, CommandOption]) -> Mapping[str, CommandOption]:
    """Options of a load.

    Args:
        *ways: Ways in which requests come: `RATE`, `CLIENTS`, `STAGES` or `ONE_RATE`.
    """
    found = {name: LOAD[name] for name in _LENGTHS}
    for way in ways:
        found |= way
    return {**found, **beside_lengths()}


def says_a_load(given: Mapping[str, Any]) -> bool:
    """Whether a bundle of options says how many requests come, or how long they are.

    Args:
        given: What its options are given; a rate of zero is one.
    """
    # Typer gives an option that may be repeated, and is not there, as an empty list.
    return any(given.get(name) not in (None, []) for name in (*_LENGTHS, *_WAYS, _FILE))


def is_given(options: Mapping[str, Any]) -> bool:
    """Whether any of a load's options is other than its default."""
    known = {**LOAD, **WORKLOAD}
    # Typer makes defaults what it makes of words.
    return any(
        value not in (None, []) and str(value) != str(known[name].default)
        for name, value in options.items()
    )


def load_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The load that a bundle of options is given, as a case takes it.

    A workload of stages is that of its highest rate where a command takes no stages.

    Raises:
        InputError: Lengths are missing, given twice or cannot be read; or a stage, a workload, or a
            trace of arrivals, cannot.
    """
    given = dict(given)
    workload = given.pop(_FILE, None)
    if workload is not None:
        return _of_file(workload, given)
    from physim.inputs.arrivals import arrivals_named
    from physim.inputs.lengths import Lengths, cached_part
    from physim.inputs.stages import Stage

    requests = _lengths(given)
    prompt = requests.get("input_tokens")
    return {
        **{name: value for name, value in given.items() if name not in _LENGTHS},
        **requests,
        "cached_tokens": cached_part(given["cached_tokens"], "--cached", prompt),
        "turns": Lengths.parse(str(given["turns"]), "--turns"),
        **arrivals_named(given["arrival"]),
        "stages": tuple(Stage.parse(text) for text in given.get("stages", ())),
    }


def _of_file(workload: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The load of a file and what is given beside it."""
    from physim.errors import InputError
    from physim.inputs.lengths import Lengths, cached_part
    from physim.inputs.load_file import read_load, staying

    load = read_load(workload)
    found: dict[str, Any] = dict(load if "stages" in given else staying(load))
    # Lengths of requests have their cached parts.
    said = [*found, "cached_tokens"] if "lengths" in found else found
    for name in (*_LENGTHS, *_WAYS, *said):
        default = _DECLARED[name].default
        # Where commands take text, so is the default that they give.
        if given.get(name) not in (None, [], default, str(default)):
            problem = "is given by --workload already"
            raise InputError(_DECLARED[name].flag, problem, "leave one of the two out")
    return {
        **{name: value for name, value in given.items() if name not in (*_LENGTHS, *_WAYS)},
        "cached_tokens": cached_part(given["cached_tokens"], "--cached", found.get("input_tokens")),
        "turns": Lengths.parse(str(given["turns"]), "--turns"),
        **found,
    }


def _lengths(given: Mapping[str, Any]) -> dict[str, Any]:
    from physim.errors import InputError
    from physim.inputs.lengths import Lengths

    texts = {"--input": given["input_tokens"], "--output": given["output_tokens"]}
    missing = [name for name, text in texts.items() if text is None]
    joint = requests_named(given["lengths"], given["cached_tokens"])
    if joint is not None and len(missing) == len(texts):
        return {"lengths": joint}
    if missing:
        problem = "is missing" if len(missing) == 1 else "are missing"
        raise InputError(" and ".join(missing), problem, "give both, or --lengths")
    own = [Lengths.parse(text, name) for name, text in texts.items()]
    if joint is None:
        return dict(zip(("input_tokens", "output_tokens"), own, strict=True))
    means = []
    for (name, text), tokens in zip(texts.items(), own, strict=True):
        if isinstance(tokens, Lengths):
            problem = "is a distribution, which --lengths is too"
            raise InputError(f"{name} {text!r}", problem, "give the mean alone")
        means.append(tokens)
    return {"lengths": joint.with_means(*means)}


def requests_named(name: str | None, cached: str | float) -> RequestLengths | None:
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
    if str(cached) not in ("0", "0.0"):
        raise InputError("--cached", "is given by --lengths already", "leave one of the two out")
    return RequestLengths.read(name)


def check_seed(seed: int | None, draws: bool, adding: str) -> None:
    """Refuses a seed where no request is drawn.

    Args:
        seed: The seed, if one is given.
        draws: Whether requests are drawn.
        adding: The options with which they are.

    Raises:
        InputError: It is given and draws nothing.
    """
    from physim.errors import InputError

    if seed is not None and not draws:
        remedy = f"add {adding}, or leave it out"
        raise InputError("--seed", "is for replays that draw their requests", remedy)
