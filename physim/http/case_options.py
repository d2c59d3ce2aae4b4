"""Options of a case as a body has them, made what Python takes; names of files are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from physim.corrections.files import DEFAULT_FIT, shipped_fits
from physim.errors import InputError
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.fleet import pool_options
from physim.inputs.lengths import Lengths, Tokens
from physim.inputs.request_lengths import RequestLengths
from physim.models.architecture import ModelArch
from physim.models.families import read_architecture
from physim.models.lookup import is_shipped
from physim.service.hardware import is_shipped_gpu
from physim.service.phases import DECODE, PREFILL


def options_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a body has, as Python takes them.

    Args:
        body: What was checked as one of `physim.http.bodies`.

    Raises:
        InputError: An option cannot be used.
    """
    options = {name: value for name, value in body.items() if value is not None}
    options["model"] = _model_of(options["model"], options)
    for name, read in _READ.items():
        if name in options:
            options[name] = read(name, options[name])
    for phase in (PREFILL, DECODE):
        if phase in options:
            own = options[phase] = pool_options(phase, options[phase])
            for name in _NAMES:
                if own.get(name) is not None:
                    _NAMES[name](f"{phase}: {name}", own[name])
    for name, check in _NAMES.items():
        if name in options:
            check(name, options[name])
    return options


def _model_of(model: str | Mapping[str, Any], options: dict[str, Any]) -> str | ModelArch:
    """A shipped model, or the shape that is given; takes ``read_as`` if so."""
    if not isinstance(model, str):
        return read_architecture(model, "config.json", options.pop("read_as", None))
    _check_model("model", model)
    return model


def _check_model(field: str, name: Any) -> None:
    if not isinstance(name, str) or not is_shipped(name):
        problem = f"{repr(name)[:80]} does not ship with physim"
        raise InputError(field, problem, "use a name of physim show models, or give a config.json")


def check_gpu(field: str, name: Any) -> None:
    """Refuses a GPU that does not ship with physim.

    Args:
        field: What names it, for the message.
        name: Its name.

    Raises:
        InputError: It is none.
    """
    if not isinstance(name, str) or not is_shipped_gpu(name):
        problem = f"{repr(name)[:80]} does not ship with physim"
        raise InputError(field, problem, "use a name of physim show gpus")


def _check_fit(field: str, name: Any) -> None:
    known = (DEFAULT_FIT, *shipped_fits())
    if name not in known:
        problem = f"{repr(name)[:80]} does not ship with physim"
        raise InputError(field, problem, f"use one of {', '.join(known)}")


_NAMES: Mapping[str, Callable[[str, Any], None]] = {
    "gpu": check_gpu,
    "fit": _check_fit,
    "draft_model": _check_model,
}


def _tokens_of(field: str, value: float | Mapping[str, Any]) -> Tokens:
    if isinstance(value, int | float):
        return value
    return Lengths.from_dict(value, field)


def _stages_of(field: str, value: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    del field
    return tuple(tuple(stage) for stage in value)


def _requests_of(field: str, value: Mapping[str, Any]) -> RequestLengths:
    del field
    return RequestLengths.from_columns(**value)


def _arrivals_of(field: str, value: Mapping[str, Any]) -> ArrivalDispersion:
    del field
    return ArrivalDispersion.from_arrivals(value["arrival_s"])


_READ: Mapping[str, Callable[[str, Any], Any]] = {
    "input_tokens": _tokens_of,
    "output_tokens": _tokens_of,
    "turns": _tokens_of,
    "stages": _stages_of,
    "lengths": _requests_of,
    "dispersion": _arrivals_of,
}
