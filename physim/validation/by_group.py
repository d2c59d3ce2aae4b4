"""Errors by group of rows: where predictions hold, where not, and how many rows have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from physim.errors import InputError
from physim.validation.evaluation import METRICS, Evaluation, summary_of

# Upper ends of the ranges of clients that are told apart.
_CLIENTS = (8, 64, 512)


def _clients(row: Mapping[str, Any]) -> str:
    clients = row["concurrency"]
    if clients is None:
        return "open loop"
    upper = next((end for end in _CLIENTS if clients <= end), None)
    return f"more than {_CLIENTS[-1]}" if upper is None else f"up to {upper}"


GROUPS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "model": lambda row: str(row["model"]),
    "gpu": lambda row: str(row["hardware"]),
    "backend": lambda row: str(row["engine"]),
    "version": lambda row: f"{row['engine']} {row['engine_version'] or ''}".strip(),
    "layout": lambda row: str(row["layout"]),
    "concurrency": _clients,
    "population": lambda row: str(row.get("population", "refused")),
    "batch": lambda row: str(row.get("batch", "refused")),
}
"""What rows can be grouped by: the name of a row's group by each."""


def group_of(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """What the group of a row is called.

    Args:
        row: A row of an `Evaluation`.
        names: Of `GROUPS`.
    """
    return ", ".join(GROUPS[name](row) for name in names)


def check_names(names: Sequence[str]) -> None:
    """Refuses names that rows cannot be grouped by.

    Raises:
        InputError: A name is not of `GROUPS`.
    """
    for name in names:
        if name not in GROUPS:
            raise InputError(
                f"by: {name!r}", "is nothing to group by", f"use {', '.join(GROUPS)}, by commas"
            )


def by_group(found: Evaluation, names: Sequence[str]) -> list[dict[str, Any]]:
    """Errors of each group of an evaluation's rows.

    Args:
        found: Predictions beside what was measured.
        names: Of `GROUPS`; rows of a group agree in all of them.

    Returns:
        For each group its names; ``rows``, how many were asked for; ``predicted_pct``, the share of
        them that have a prediction, so that refusing hard rows is seen; and by metric the number
        and the statistics of errors that `summary_of` gives.

    Raises:
        InputError: A name is unknown.
    """
    check_names(names)
    asked: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in (*found.rows, *found.skipped):
        asked.setdefault(tuple(GROUPS[name](row) for name in names), []).append(row)
    groups = []
    for key in sorted(asked):
        predicted = [row for row in asked[key] if "metrics" in row]
        groups.append(
            {
                **dict(zip(names, key, strict=True)),
                "rows": len(asked[key]),
                "predicted_pct": 100 * len(predicted) / len(asked[key]),
                **{metric: summary_of(predicted, metric) for metric in METRICS},
            }
        )
    return groups
