"""Options of a load, each declared once: light, since commands read them as they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from physim.inputs.stages import Stage
from physim.options import option

if TYPE_CHECKING:
    from physim.inputs.arrivals import ArrivalDispersion
    from physim.inputs.lengths import Tokens
    from physim.inputs.request_lengths import RequestLengths
else:
    # They need numpy. Commands, which start without it, take text for them.
    ArrivalDispersion = RequestLengths = Tokens = Any

_PANEL = "Load"
# How lengths are written.
_LENGTHS = "248, normal:248:50, exponential:128, lognormal:248:300, gamma:248:200 or file:PATH."


@dataclass(frozen=True)
class LoadRequest:
    """What is asked for of a load; `physim.Load` says what each is, and checks it."""

    # Both are filled in from `lengths` where those are given.
    input_tokens: Tokens = option(
        None, f"Prompt tokens: {_LENGTHS}", panel=_PANEL, flag="--input", kind=str | None
    )
    output_tokens: Tokens = option(
        None, "Generated tokens, likewise.", panel=_PANEL, flag="--output", kind=str | None
    )
    rate: float | None = option(None, "Arrivals per second (open loop).", panel=_PANEL)
    concurrency: float | None = option(
        None, "Clients that wait for their answer (closed loop).", panel=_PANEL
    )
    cached_tokens: float = option(
        0.0,
        "Prompt tokens found in the prefix cache if it has room, or their share of the mean "
        "prompt, such as 60%.",
        panel=_PANEL,
        flag="--cached",
        kind=str,
    )
    prefixes: int = option(1, "How many different prefixes of --cached tokens.", panel=_PANEL)
    popularity: str = option(
        "in-turn",
        "How requests choose a prefix: in-turn, uniform or zipf:EXPONENT.",
        panel=_PANEL,
    )
    arrival: str = option(
        "poisson",
        "poisson, constant, gamma, or trace:PATH for a trace's gaps, scaled to --rate.",
        panel=_PANEL,
    )
    burstiness: float = option(1.0, "Shape of gamma arrivals; 1 is Poisson.", panel=_PANEL)
    stages: tuple[Stage, ...] = option(
        (),
        "RATE:SECONDS of a load in stages; repeat it.",
        panel=_PANEL,
        flag="--stage",
        kind=list[str],
    )
    requests: int | None = option(
        None, "Requests in all, at one rate or from clients.", panel=_PANEL
    )
    timeout_s: float | None = option(
        None, "Seconds after which clients give up.", panel=_PANEL, flag="--timeout"
    )
    warm_up_s: float = option(
        0.0,
        "Seconds that the first requests of clients wait while the engine warms up.",
        panel=_PANEL,
        flag="--warm-up",
    )
    lengths: RequestLengths | None = option(
        None,
        "Prompts and outputs of real requests, kept together: a CSV or trace, "
        "azure-conversation-2023, mooncake-conversation or sharegpt. --input and --output, if "
        "given, scale them to these means.",
        panel=_PANEL,
        kind=str | None,
    )
    turns: Tokens = option(
        1.0,
        "Turns per conversation, a number or a distribution as for --input. Each prompt repeats "
        "all before it and adds --input minus --cached tokens; --cached is the prefix that all "
        "conversations share. --rate counts turns.",
        panel=_PANEL,
        kind=str,
    )
    think_s: float = option(
        0.0,
        "Mean pause from an answer to the user's next turn or request, seconds (exponential).",
        panel=_PANEL,
        flag="--think",
    )
    # Commands read it from the path of arrival trace:PATH.
    dispersion: ArrivalDispersion | None = None


class LoadOptions(TypedDict, total=False):
    """A load by names: the fields of `physim.Load`."""

    input_tokens: Tokens | str
    output_tokens: Tokens | str
    rate: float | None
    concurrency: float | None
    cached_tokens: float
    prefixes: int
    popularity: str
    arrival: str
    burstiness: float
    stages: Sequence[Stage | tuple[float, float]]
    requests: int | None
    timeout_s: float | None
    warm_up_s: float
    lengths: RequestLengths | None
    turns: Tokens | str
    think_s: float
    dispersion: ArrivalDispersion | None
