"""The fluid beside the replay, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from physim.cli.console import stdout, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from physim.prediction.checked import Check, Compared

# What is shown of the engine: words, and a number's format.
_WORDS = {
    "requests_per_s": ("requests per second", "{:.3g}"),
    "output_tokens_per_s": ("tokens per second", "{:.0f}"),
    "running": ("requests that run", "{:.1f}"),
    "batch": ("requests that decode", "{:.1f}"),
    "kv_use": ("KV use", "{:.1%}"),
}

_CHANCE = "After ±, the chance of which requests came: the mean of many replays is within it (90%)."


def print_check(check: Check) -> None:
    """Prints latencies, throughput and the engine's state by the fluid and by the replay.

    Args:
        check: What is printed.
    """
    console = stdout()
    console.print()
    console.print(f"Beside a replay of {_replayed(check)}:")
    console.print(_latencies(check))
    if any(row.chance_pct is not None for row in check.rows):
        console.print(_CHANCE)
    console.print(_others(check))


def _replayed(check: Check) -> str:
    load = check.prediction.load
    if load is not None and load.endless:
        return (
            f"{check.replayed} requests, of which {check.compared} are compared: the first fifth "
            "and the last tenth are left out, while the engine fills up and empties"
        )
    lost = check.replayed - check.compared
    return f"all {check.replayed} requests" + (f", of which {lost} were given up" if lost else "")


def _latencies(check: Check) -> RenderableType:
    from physim.metrics import METRICS, STATISTICS

    rows: list[Sequence[RenderableType]] = []
    several = bool(check.prediction.stages)
    latencies = [row for row in check.rows if row.quantity in METRICS]
    name = ""
    for (part, metric), found in groupby(latencies, lambda row: (row.part, row.quantity)):
        own = list(found)
        title = part if several and part != name else ""
        name = part
        rows += [
            [title, METRICS[metric].label, "fluid", *(_time(row.fluid) for row in own)],
            ["", "", "replay", *(_time(row.replay) for row in own)],
            ["", "", "", *(_difference(row) for row in own)],
        ]
    return table_of(["", "", "", *STATISTICS], rows)


def _others(check: Check) -> RenderableType:
    rows = []
    for row in check.rows:
        if row.quantity in _WORDS:
            words, form = _WORDS[row.quantity]
            values = form.format(row.fluid), form.format(row.replay)
            rows.append([words, *values, _difference(row)])
    return table_of(["", "fluid", "replay", "difference"], rows)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _difference(row: Compared) -> str:
    if row.difference_pct is None:
        return "-"
    chance = "" if row.chance_pct is None else f" ±{row.chance_pct:.1f}"
    return f"{row.difference_pct:+.1f}%{chance}"
