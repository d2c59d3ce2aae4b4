"""What bodies may hold: a type for each, derived from what Python's functions declare."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from physim import api
from physim.errors import InputError
from physim.inputs.case import CaseOptions, LoadAndEngineOptions, ServerOptions, check_names
from physim.inputs.engine_request import EngineRequest
from physim.inputs.fleet_request import FleetRequest
from physim.inputs.load_request import LoadRequest
from physim.models.parallelism import Parallelism
from physim.options import options_of
from physim.questions.recommendation import recommend
from physim.step.batch import Batch

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_Content = dict[str, Any]
# What pydantic calls the types of a choice.
_KINDS = ("float", "int", "str", "bool", "list", "dict")


@with_config(_STRICT)
class LengthsBody(TypedDict):
    """`physim.Lengths`; an ``empirical`` distribution has ``values``, and no mean of its own."""

    kind: str
    mean: NotRequired[float]
    std: NotRequired[float]
    values: NotRequired[list[float]]


@with_config(_STRICT)
class RequestLengthsBody(TypedDict):
    """Requests as the columns of `physim.RequestLengths.from_columns`."""

    input_tokens: list[float]
    output_tokens: list[float]
    cached_tokens: NotRequired[list[float] | None]
    recorded: NotRequired[bool]


@with_config(_STRICT)
class ArrivalsBody(TypedDict):
    """Recorded arrivals, seconds, as `physim.ArrivalDispersion.from_arrivals` takes them."""

    arrival_s: list[float]


_Tokens = float | LengthsBody
_Stage = Annotated[list[float], Field(min_length=2, max_length=2)]
# Steps that batches describe: numbers that all share, or one for each.
_Figure = Annotated[float, Field(ge=0, le=1e9)]
_Column = _Figure | list[_Figure]
# Options whose values JSON has no type for, and what those are that a client may name: no files.
_FORMS: Mapping[str, tuple[Any, str]] = {
    "model": (
        str | _Content,
        "Name of a model that ships with physim, or the fields of a config.json.",
    ),
    "gpu": (str, "Key of a GPU that ships with physim, such as h100_sxm."),
    "fit": (str, "Name of a fit that ships with physim, default or none."),
    "quantization": (str | None, "What the engine makes of 16-bit weights as it starts: fp8."),
    "read_as": (str | None, "Architecture class whose layout a model is read by."),
    "mixed": (str, "How steps of both prefill and decode are composed."),
    "input_tokens": (_Tokens, "Prompt tokens: a number, or a distribution."),
    "output_tokens": (_Tokens, "Generated tokens, likewise."),
    "turns": (_Tokens, "Turns of a conversation, likewise; see physim.Load."),
    "stages": (list[_Stage], "Pairs of a rate, 1/s, and how long it lasts, seconds."),
    "lengths": (RequestLengthsBody | None, "Prompts and outputs as they go together."),
    "dispersion": (ArrivalsBody | None, "Recorded arrivals, for arrival trace."),
    "arrival": (str, "How requests come: constant, poisson, gamma, or trace for dispersion."),
    "prefill": (_Content | None, "Options that servers of prompts have of their own."),
    "decode": (_Content | None, "Options that servers that generate have of their own."),
    "draft_acceptance": (
        float | list[float] | None,
        "Chance that a draft is accepted, mean length, or chances by position.",
    ),
    "draft_model": (str | None, "Name of a shipped model that drafts."),
    "slo": (list[str], "Objectives, such as ttft_p99=500ms."),
}


def _told(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument."""
    _, _, said = (inspect.getdoc(function) or "").partition("Args:\n")
    said, _, _ = said.partition("\n\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", said, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _declared(name: str, hint: Any, told: str, required: bool = False) -> Any:
    """A field of a body as one that is declared elsewhere."""
    hint, told = _FORMS.get(name, (hint, told))
    hint = Annotated[hint, Field(description=told)]
    return Required[hint] if required else hint


def _options(names: type) -> dict[str, Any]:
    """Fields of a body for the options of a case, all of which may be left out but the GPU."""
    told = {
        name: one.help
        for record in (EngineRequest, LoadRequest, FleetRequest, Parallelism)
        for name, one in options_of(record).items()
    }
    hints = get_type_hints(names)
    return {name: _declared(name, hint, told.get(name, "")) for name, hint in hints.items()}


def _arguments(function: Callable[..., Any], left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields of a body for the arguments of a function; those without a default are required."""
    told, found = _told(function), {}
    hints = get_type_hints(function)
    for name, own in inspect.signature(function).parameters.items():
        if name in left_out or name not in hints:  # The options of a case are `_options`.
            continue
        required = own.default is inspect.Parameter.empty
        found[name] = _declared(name, hints[name], told.get(name, ""), required)
    return found


def _body(name: str, **fields: Any) -> Any:
    """A type of body."""
    return with_config(_STRICT)(TypedDict(name, fields, total=False))  # type: ignore[operator]


_batch = dict.fromkeys(inspect.signature(Batch.summarised).parameters, _Column)
del _batch["windows"]
_Batches: Any = _body(
    "Batches",
    **{name: _declared(name, _Column, _told(Batch.summarised).get(name, "")) for name in _batch},
)
PredictBody: Any = _body("Case", **_arguments(api.predict), **_options(CaseOptions))
CasesBody: Any = _body("Cases", cases=Required[Annotated[list[PredictBody], Field(min_length=1)]])
RecommendBody: Any = _body(
    "Recommend",
    **_arguments(recommend, ("profile",)),
    **_options(LoadAndEngineOptions),
)
StepBody: Any = _body(
    "Step",
    **_arguments(api.step_model),
    **_options(ServerOptions),
    batches=Required[
        Annotated[_Batches, Field(description="What each step carries; see physim.Batch.")]
    ],
    parts=Annotated[bool, Field(description="Whether the parts of each step are wanted.")],
)


@functools.cache
def adapter_of(body: Any) -> Any:
    """The `pydantic.TypeAdapter` of a type of bodies.

    Args:
        body: The type.
    """
    return TypeAdapter(body)


def checked(body: Any, content: Any) -> dict[str, Any]:
    """What a body holds.

    Args:
        body: What it should be.
        content: The body, read.

    Raises:
        InputError: It is something else; the message names the field.
    """
    try:
        return adapter_of(body).validate_python(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    # Of a choice of types, what comes closest is wrong furthest inside.
    first = max(errors, key=lambda one: len(one["loc"]))
    where = _place(first["loc"])
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        check_names([str(first["loc"][0])[:80]], list(body.__annotations__))
    said = first["msg"][:1].lower() + first["msg"][1:]
    raise InputError(where[:200] or "body", said, "correct it; /openapi.json says what there is")


def _place(way: tuple[str | int, ...]) -> str:
    """The field that is reached by some keys; of a choice of types the field itself."""
    found = ""
    for key in way:
        if isinstance(key, int):
            found += f"[{key}]"
        elif key.isidentifier() and not key[:1].isupper() and key not in _KINDS:
            found += f".{key}"
    return found.lstrip(".")
