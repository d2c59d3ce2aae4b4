"""The application: bodies to whoever answers them, and their answers back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from physim.errors import InputError
from physim.http.bounds import Bounds
from physim.http.replies import BUSY, DESCRIBED, MALFORMED, OK, VERBS, Reply, refusal

_LATE, _LARGE = 408, 413
_ABSENT, _OTHER_METHOD = 404, 405
_READ_PLACES = (DESCRIBED, "/health")
# Seconds after which who was refused may try again.
_AGAIN = {"Retry-After": "1"}
# Bodies that are so many times too large are not read.
_DRAINED = 16


@runtime_checkable
class Answering(Protocol):
    """Whoever answers bodies.

    Attributes:
        bounds: How much may be asked for.
        waiting: Requests that wait or are worked on.
    """

    bounds: Bounds
    waiting: int

    async def answer(self, place: str, body: bytes) -> Reply:
        """The answer to a body that was sent to a place."""
        ...

    def stop(self) -> None:
        """Ends what answers."""
        ...


def application(answering: Answering) -> Starlette:
    """The application.

    Args:
        answering: Whoever answers bodies; stopped as the application ends.
    """
    bounds = answering.bounds

    async def verb(request: Request) -> Response:
        try:
            async with asyncio.timeout(bounds.arriving_s):
                body = await _body(request, bounds.body_bytes)
        except TimeoutError:
            problem = f"takes more than {bounds.arriving_s:g} s to arrive"
            return _response(refusal(_LATE, InputError("body", problem, "send it faster")))
        except ClientDisconnect:
            return Response(status_code=MALFORMED)
        if body is None:
            problem = f"has more than {bounds.body_bytes} bytes"
            error = InputError("body", problem, "send less at a time")
            return _response(refusal(_LARGE, error), close=True)
        return _response(await answering.answer(request.url.path, body))

    async def description(_: Request) -> Response:
        return _response(await answering.answer(DESCRIBED, b""))

    async def health(_: Request) -> Response:
        return _response(Reply(OK, to_json({"status": "ok", "waiting": answering.waiting})))

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else MALFORMED
        place = request.url.path[:80]
        problem = "is not there" if status == _ABSENT else "cannot be used"
        remedy = f"POST to {', '.join(VERBS)}; GET {', '.join(_READ_PLACES)}"
        if status == _OTHER_METHOD:
            method = "POST" if place in VERBS else "GET"
            problem = f"takes {method}, not {request.method[:20]}"
            remedy = f"POST a JSON body; {DESCRIBED} describes it" if place in VERBS else "GET it"
        return _response(refusal(status, InputError(place, problem, remedy)))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        answering.stop()

    routes = [
        *(Route(place, verb, methods=["POST"]) for place in VERBS),
        Route(DESCRIBED, description),
        Route(_READ_PLACES[-1], health),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: refused}, lifespan=lifespan)


async def _body(request: Request, most: int) -> bytes | None:
    """A body; None if it has more bytes than are taken.

    What is somewhat too large is read to its end, since clients read no answer before.
    """
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told[:20]) > _DRAINED * most:
        return None
    found, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size > _DRAINED * most:
            return None
        if size <= most:
            found += piece
    return bytes(found) if size <= most else None


def _response(answer: Reply, close: bool = False) -> Response:
    headers = _AGAIN if answer.status == BUSY else {}
    if close:
        # What is left of the body is not waited for.
        headers = {**headers, "Connection": "close"}
    return Response(answer.body, answer.status, headers, "application/json")
