"""``physim sweep``."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from physim.cli.console import print_line, stdout


def sweep(
    grid: Annotated[Path, typer.Argument(help="YAML: for each option a value, a list or a range.")],
    out: Annotated[Path, typer.Option(help="Folder for the Parquet files.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished parts and add the missing ones.")
    ] = False,
    backend: Annotated[str, typer.Option(help="loky (this machine), dask or ray.")] = "loky",
    jobs: Annotated[
        int | None, typer.Option(help="Parts at once; by default one per core.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of the cluster's scheduler.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Cases in a part.")] = 256,
) -> None:
    """Predict a whole grid of cases, on all cores or on a cluster.

    It writes a folder of Parquet files, one for each part of the grid. For example:

    physim sweep grid.yaml --out results --resume
    """
    import physim
    from physim.cli.progress import running

    parts = "no parts"
    with running("predicting") as say:

        def progress(done: int, of: int) -> None:
            nonlocal parts
            parts = f"{done} of {of} parts"
            say(parts)

        try:
            # What joblib says of tasks that are cancelled is said below.
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                count = physim.sweep(
                    grid,
                    out,
                    resume=resume,
                    backend=backend,
                    jobs=jobs,
                    address=address,
                    size=size,
                    progress=progress,
                )
        except KeyboardInterrupt:
            print_line(f"stopped with {parts} in {out}; go on with --resume", err=True)
            raise
    stdout().print(f"{count:,} case{'s' if count != 1 else ''} in {out}")
    problems = _problems(out)
    if problems:
        reason, most = problems.most_common(1)[0]
        stdout().print(
            f"{problems.total():,} of them have no prediction, {most:,} since: {reason}",
            style="yellow",
        )


def _problems(out: Path) -> Counter[str]:
    """Why cases have no prediction, and how many."""
    import pandas as pd

    problems = pd.read_parquet(out, columns=["problem"])["problem"]
    return Counter(problems[problems != ""])
