"""Errors on measured campaigns, with no fit and with the default fit.

    python benchmarks/campaigns.py ../shared/ground_truth [--page docs/accuracy.md]

The folder has ``trainval.csv`` and ``seed16.csv`` of the inference-sim project and
``ml_energy_part.csv`` of ML.ENERGY's leaderboard. With ``--page`` the table is written between the
two comments of the page that name it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import fill

import physim
from physim.measured import ml_energy

METRICS = {"itl_mean": "ITL", "ttft_mean": "TTFT", "e2e_mean": "E2E"}
FITS = {"none": "no fit", "default": "default fit"}


@dataclass(frozen=True)
class Campaign:
    """Rows of a table that are told apart, and when their clients gave up."""

    title: str
    table: str
    where: str
    timeout_s: float | None = None


_MIXTURES = "model.str.contains('A3B') or model.str.contains('gpt-oss')"
CAMPAIGNS = (
    Campaign(
        "trainval, five dense models in bf16",
        "trainval.csv",
        "stage >= 0 and weight_dtype == 'bf16'",
    ),
    Campaign(
        "trainval, Llama-4 Scout in fp8", "trainval.csv", "stage >= 0 and weight_dtype == 'fp8'"
    ),
    Campaign(
        "seed16, below capacity",
        "seed16.csv",
        "stage >= 0 and not experiment.str.contains('reasoning')",
    ),
    Campaign(
        "seed16, four runs above capacity",
        "seed16.csv",
        "stage == 0 and experiment.str.contains('reasoning')",
        timeout_s=300.0,
    ),
    Campaign("ML.ENERGY, dense models", "ml_energy.csv", f"not ({_MIXTURES})"),
    Campaign("ML.ENERGY, mixtures of experts", "ml_energy.csv", _MIXTURES),
)


def table(folder: Path) -> Iterator[str]:
    """Errors of each campaign, in Markdown: mean (median, bias)."""
    titles = [f"{metric}, {fit}" for metric in METRICS.values() for fit in FITS.values()]
    yield f"| percent | rows | {' | '.join(titles)} |"
    yield f"| {' | '.join(['---'] * (2 + len(titles)))} |"
    for campaign in CAMPAIGNS:
        found = {
            fit: physim.evaluate(
                [folder / campaign.table], fit, campaign.where, timeout_s=campaign.timeout_s
            )
            for fit in FITS
        }
        cells = [_cell(one.rows, metric) for metric in METRICS for one in found.values()]
        one = found["none"]
        count = (
            f"{len(one.rows)} of {len(one.rows) + len(one.skipped)}"
            if one.skipped
            else len(one.rows)
        )
        yield f"| {campaign.title} | {count} | {' | '.join(cells)} |"


def _cell(rows: list[dict[str, Any]], metric: str) -> str:
    errors = [row["metrics"][metric]["error_pct"] for row in rows if metric in row["metrics"]]
    if not errors:
        return "-"
    mean, median = (kind(map(abs, errors)) for kind in (statistics.fmean, statistics.median))
    return f"{mean:.1f} ({median:.1f}, {statistics.fmean(errors):+.1f})"


def main() -> None:
    """Prints the table, or writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for campaign in CAMPAIGNS:
            source = asked.folder / campaign.table
            if source.is_file():
                (Path(work) / campaign.table).write_bytes(source.read_bytes())
        converted = ml_energy.read(asked.folder / "ml_energy_part.csv")
        converted.to_csv(Path(work) / "ml_energy.csv", index=False)
        text = "\n".join(table(Path(work)))
    if asked.page is None:
        print(text)
    else:
        fill(asked.page, "campaigns", text)


if __name__ == "__main__":
    main()
