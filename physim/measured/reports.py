"""Reports of load generators as measured runs."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim.errors import InputError
from physim.inputs.hardware import load_hardware
from physim.inputs.model_lookup import load_model
from physim.measured.formats import FORMATS
from physim.measured.stage_report import Server, rows

if TYPE_CHECKING:
    import pandas as pd


def read_report(
    kind: str,
    path: str | Path,
    *,
    model: str,
    gpu: str,
    output_tokens: float | None = None,
    experiment: str | None = None,
    **server: Any,
) -> pd.DataFrame:
    """Reads a load generator's report into rows that `physim.fit` and `physim.evaluate` take.

    Args:
        kind: One of `physim.measured.formats.FORMATS`.
        path: The report's file, or inference-perf's folder.
        model: Name or hub id of the model.
        gpu: Key of the GPU.
        output_tokens: Tokens generated, if all requests had as many: clients that tokenise the
            text again count too few.
        experiment: Name of the run; the report's if None.
        **server: What else a report does not say: fields of
            `physim.measured.stage_report.Server`, such as ``tp`` and ``max_num_seqs``.

    Returns:
        A row for each load stage, times in seconds and lengths in tokens; ``note`` says what was
        odd in the report, and what was made of it. Write it with ``to_csv(path, index=False)``.

    Raises:
        InputError: The kind, model or GPU is unknown, or the report is none of this kind.
    """
    import pandas as pd

    if output_tokens is not None and not 1 <= output_tokens < math.inf:
        raise InputError("output", f"{output_tokens} is below 1 or no number", "correct it")
    if kind not in FORMATS:
        raise InputError("format", f"{kind!r} is unknown", f"use one of {', '.join(FORMATS)}")
    load_model(model)
    about = Server(experiment or Path(path).stem, model, load_hardware(gpu).key, **server)
    reader = importlib.import_module(f"physim.measured.{kind.replace('-', '_')}")
    return pd.DataFrame(rows(about, reader.read(Path(path), output_tokens), str(path)))
