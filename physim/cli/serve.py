"""``physim serve``."""

from __future__ import annotations

import importlib.util
import os
from typing import Annotated

import typer

from physim.cli.console import print_line
from physim.errors import InputError


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 127.0.0.1 is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any.")] = 8642,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes that answer; by default one per core."),
    ] = None,
) -> None:
    """Serve predictions over HTTP: /predict, /recommend and /step on JSON (extra `serve`).

    Names are as in Python; /openapi.json describes them. For example:

    physim serve --port 8642
    """
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise InputError("serve", f"needs {name}", "pip install 'physim-llm[serve]'")
    from physim.http.serving import listening, serve_on

    place = listening(host, port)
    print_line(f"serving on http://{host}:{place.getsockname()[1]}; Ctrl-C ends it", err=True)
    serve_on(place, workers or os.cpu_count() or 1)
