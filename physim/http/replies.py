"""What is answered to a body: a status and JSON, whatever the body holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from physim.errors import InputError
from physim.http.bounds import Bounds

_log = logging.getLogger(__name__)

MALFORMED, UNUSABLE, BUSY, FAULTY = 400, 422, 503, 500
OK = 200


class Reply(NamedTuple):
    """An answer.

    Attributes:
        status: Of HTTP.
        body: JSON.
    """

    status: int
    body: bytes


def refusal(status: int, error: InputError) -> Reply:
    """An answer that says what is wrong.

    Args:
        status: Of HTTP.
        error: What is wrong.
    """
    said = {"field": error.where, "problem": error.what, "remedy": error.remedy}
    return Reply(status, to_json(said))


def reply(place: str, body: bytes, bounds: Bounds) -> Reply:
    """The answer to a body.

    Args:
        place: Where it was sent, a key of `VERBS`, or where the description is.
        body: The body.
        bounds: How much may be asked for.
    """
    try:
        if place == DESCRIBED:
            from physim.http.schema import description

            return Reply(OK, to_json(description()))
        content = _read(body)
    except InputError as error:
        return refusal(MALFORMED, error)
    try:
        # What is infinite or no number has no place in JSON.
        return Reply(OK, to_json(VERBS[place](content, bounds), inf_nan_mode="null"))
    except InputError as error:
        return refusal(UNUSABLE, error)
    except MemoryError:
        return refusal(BUSY, InputError("body", "asks for too much memory", "ask for less"))
    except Exception:
        # A mistake of physim's own: its place is in the log, and not the client's to know.
        _log.exception("%s failed", place)
        mistake = InputError("physim", "has a mistake that this body finds", "please report both")
        return refusal(FAULTY, mistake)


def _read(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        InputError: It is none.
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InputError("body", f"is no JSON: {str(error)[:200]}", "send a JSON object") from error
    if not isinstance(content, dict):
        raise InputError("body", "is no JSON object", 'send one, such as {"model": ...}')
    return content


def _predicted(content: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    from physim.http.verbs import predicted

    return predicted(content, bounds)


def _recommended(content: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    from physim.http.verbs import recommended

    return recommended(content, bounds)


def _timed(content: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    from physim.http.verbs import timed

    return timed(content, bounds)


DESCRIBED = "/openapi.json"
VERBS: Mapping[str, Callable[[Mapping[str, Any], Bounds], dict[str, Any]]] = {
    "/predict": _predicted,
    "/recommend": _recommended,
    "/step": _timed,
}
