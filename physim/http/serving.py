"""Serves until it is told to stop."""

from __future__ import annotations

import socket

import uvicorn

from physim.errors import InputError
from physim.http.app import application
from physim.http.bounds import Bounds
from physim.http.workers import Workers

# Connections beside those that wait for a worker, and seconds that idle ones are kept.
_CONNECTIONS, _IDLE_S = 512, 30
# Seconds in which requests are finished as the server stops.
_STOPPING_S = 10


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens for clients.

    Args:
        host: Name or address to listen on.
        port: Port to listen on; 0 for any that is free.

    Raises:
        InputError: It cannot listen there.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        place = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        where = f"{host}:{port}"
        said = error.strerror or str(error)
        raise InputError(where, said, "choose another --host or --port") from error
    # Without it the end of an answer waits for the client's word that it has the beginning.
    place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return place


def serve_on(place: socket.socket, workers: int, bounds: Bounds | None = None) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        place: The socket to listen on, which is closed at the end.
        workers: Processes that answer.
        bounds: How much a client may ask for; None for what is usual.
    """
    bounds = bounds or Bounds()
    config = uvicorn.Config(
        application(Workers(workers, bounds)),
        log_level="warning",
        access_log=False,
        limit_concurrency=bounds.waiting + _CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOPPING_S,
        server_header=False,
        lifespan="on",
    )
    with place:
        uvicorn.Server(config).run(sockets=[place])
