"""Options that say what is asked of latencies."""

from __future__ import annotations

from typing import Annotated

import typer

Slo = Annotated[
    list[str],
    typer.Option(
        metavar="BOUND",
        help="An upper bound, such as ttft_p99=500ms: ttft, itl, tpot or e2e; mean, p50, p90, "
        "p95 or p99. ttft=500ms bounds each request. May be repeated.",
    ),
]
Goodput = Annotated[
    float,
    typer.Option(help="Share of requests that must meet every bound on a request."),
]
