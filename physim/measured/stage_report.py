"""Runs in the common form, from what a load generator reported and what the server was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim import data
from physim.errors import InputError
from physim.measured.recorded_traffic import check_traces
from physim.measured.schema import checked

if TYPE_CHECKING:
    import pandas as pd


# Share of the tokens that were asked for below which outputs ended by themselves.
_ENDED = 0.8
# Share of the most requests that may be under way, from which on these hold a rate back.
_HELD = 0.9
# What few reports say.
_RARE = ("requests", "cached_len_mean", "ttft_bins", "itl_bins", "e2e_bins")


@dataclass(frozen=True)
class StageReport:
    """What a load generator reports of one stage. Times in seconds, lengths in tokens.

    Attributes:
        stage: Its number.
        rate_rps: Arrivals per second; of clients those that were achieved.
        duration_s: How long requests were sent.
        arrival: ``constant``, ``poisson`` or ``gamma``.
        input_len_mean: Mean prompt.
        output_len: Mean number of tokens that were generated.
        ttft_mean: Mean time to first token.
        e2e_mean: Mean time of a request.
        n_success: Requests that were answered.
        n_failed: Requests that were not.
        note: What was odd in the report, and what was made of it.
        concurrency: Clients that sent the next request when the last was answered; None for a rate.
        requests: Requests that they sent; None where that is not known.
        output_len_std: Standard deviation of the tokens that were generated; None if not known.
        input_len_std: Standard deviation of the prompts; None if not known.
        burstiness: Shape of the times between ``gamma`` arrivals; None for others.
        draft_acceptance: Chances that all drafts up to each were accepted, by commas, or the mean
            length; None where nothing is said of drafts.
        cached_len_mean: Mean tokens of a prompt that were found in the prefix cache; None where
            groups of prompts say it.
        ttft_bins: How many requests had a TTFT up to each of some ends, as
            `physim.measured.histogram.bins_in` reads them; None where only means are known,
        itl_bins: likewise for times between tokens,
        e2e_bins: and for those of requests.
        model: What the load generator calls the model; None if it does not say.
    """

    stage: int
    rate_rps: float
    duration_s: float
    arrival: str
    input_len_mean: float
    output_len: float
    ttft_mean: float
    e2e_mean: float
    n_success: int
    n_failed: int
    note: str = ""
    concurrency: float | None = None
    requests: int | None = None
    output_len_std: float | None = None
    input_len_std: float | None = None
    burstiness: float | None = None
    draft_acceptance: str | None = None
    cached_len_mean: float | None = None
    ttft_bins: str | None = None
    itl_bins: str | None = None
    e2e_bins: str | None = None
    model: str | None = None

    @property
    def failures(self) -> str:
        """A note on requests that failed, else nothing."""
        if not self.n_failed:
            return ""
        return f"{self.n_failed:,} of {self.n_success + self.n_failed:,} requests failed"


def held_back(achieved_rps: float, latency_s: float, bound: float | None) -> bool:
    """Whether a bound on the requests under way held a rate back.

    By Little's law the achieved rate times a request's latency were under way, mean.

    Args:
        achieved_rps: Requests per second that were answered.
        latency_s: Mean time of a request, seconds.
        bound: Most requests under way; None or 0 for any number.
    """
    return achieved_rps * latency_s > _HELD * (bound or math.inf)


def cut_short(generated: float, asked: float) -> str:
    """A note where outputs are far shorter than was asked for, else nothing.

    Models end their answers by themselves unless the load generator has them ignore that.

    Args:
        generated: Mean tokens that were generated.
        asked: Mean tokens that requests asked for.
    """
    if generated >= _ENDED * asked:
        return ""
    return (
        f"outputs have {generated:.0f} tokens of the {asked:.0f} that were asked for: answers "
        "ended by themselves (no ignore_eos)"
    )


def rows(
    server: Mapping[str, Any], reports: Sequence[StageReport], where: str
) -> list[dict[str, Any]]:
    """Rows of the common form, checked.

    Args:
        server: What the report does not say, by columns of `physim.measured.schema.RunRow`: the
            model, the engine and the prompts.
        reports: The stages.
        where: Name of the report, for messages.

    Raises:
        InputError: A value is out of range or contradicts another, or the trace.
    """
    # What is known of the server counts before the report, which may say it too.
    found = [{**server, **asdict(report), **server} for report in reports]
    for row in found:
        # Columns of their own that few reports fill.
        for name in _RARE:
            if row[name] is None:
                del row[name]
    places = [f"{where}, stage {report.stage}" for report in reports]
    meant = checked(found, lambda number: places[number])
    for one, place in zip(meant, places, strict=True):
        check_traces(one, place, Path())
    return [row | one.model_dump(include={*row}) for row, one in zip(found, meant, strict=True)]


def write_rows(path: Path, frame: pd.DataFrame, append: bool = False) -> None:
    """Writes rows as CSV; the file appears whole or not at all.

    Args:
        path: The file.
        frame: The rows.
        append: Whether rows that are there already are kept before them.

    Raises:
        InputError: The file cannot be written, or what it holds is no table.
    """
    import pandas as pd

    data.check_writable(path)
    # Nobody else appends between the reading and the writing.
    with data.alone_in(path.parent):
        if append and path.is_file():
            try:
                # As text, for 0.10 is a version.
                frame = pd.concat([pd.read_csv(path, dtype=object), frame], ignore_index=True)
            except ValueError as error:
                raise InputError(
                    str(path), "is not a CSV table with a header", "pass one"
                ) from error
        with data.replacing(path) as temporary:
            frame.to_csv(temporary, index=False)
