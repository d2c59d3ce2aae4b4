"""Lengths and arrivals of a measured run that a trace holds, where its row names one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from physim.errors import InputError
from physim.inputs.arrivals import ArrivalDispersion, arrivals_named
from physim.inputs.request_lengths import RequestLengths
from physim.measured.schema import RunRow

# What a row says of lengths is a mean over the requests of a run, which a sample of a few thousand
# misses by one or two percent where lengths differ as much as those of conversations.
_TOLERANCE = 0.05


def lengths_named(text: str, folder: Path, prefix_caching: bool) -> RequestLengths:
    """The requests that a row names.

    Args:
        text: A preset, or the path of a file, from the folder on if it is relative.
        folder: The folder of the table that the row is in.
        prefix_caching: Whether prefixes were cached; if not, all prompts were computed whole.

    Raises:
        InputError: It is neither, or the file cannot be used.
    """
    found = RequestLengths.read(folder / text if Path(text).suffix else text)
    return found if prefix_caching else found.uncached()


def arrival_named(text: str, folder: Path) -> dict[str, Any]:
    """The fields ``arrival`` and ``dispersion`` of a load, of what a row says of arrivals.

    Args:
        text: ``constant``, ``poisson``, ``gamma`` or ``trace:PATH``.
        folder: The folder of the table that the row is in, from which on a relative path goes.

    Raises:
        InputError: The trace cannot be used.
    """
    kind, separator, path = text.partition(":")
    if not separator:
        return arrivals_named(text)
    return {"arrival": kind, "dispersion": ArrivalDispersion.read(folder / path)}


def check_traces(row: RunRow, place: str, folder: Path) -> None:
    """Refuses a row whose traces cannot be read, or whose means are not those of its trace.

    Outputs that end early, where requests reach ``max_model_len``, count as long as they get.

    Args:
        row: The row.
        place: Where it is, for messages.
        folder: The folder of its table.

    Raises:
        InputError: A trace cannot be used, or a mean is off by more than a twentieth.
    """
    field = "arrival"
    try:
        if row.concurrency is None:
            arrival_named(row.arrival, folder)
        field = "lengths"
        if row.lengths is None:
            return
        joint = lengths_named(row.lengths, folder, row.prefix_caching)
    except InputError as error:
        problem = f"{error.where} {error.what}"
        raise InputError(f"{place}: {field}", problem, error.remedy) from error
    inputs, _, outputs = joint.arrays
    ends = np.minimum(outputs, np.maximum(row.max_model_len - inputs, 1.0))
    for name, own in (("input_len_mean", inputs), ("output_len", ends)):
        said, mean = getattr(row, name), float(np.mean(own))
        if abs(said / mean - 1) > _TOLERANCE:
            problem = f"{said:g} is not the mean of lengths {row.lengths}, {mean:.4g}"
            raise InputError(f"{place}: {name}", problem, "correct it, or name the run's own trace")
