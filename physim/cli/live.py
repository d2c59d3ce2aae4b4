"""``physim app``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from physim.cli.comma_lists import names_in
from physim.cli.subject_options import FitName, Model
from physim.errors import InputError


def live(
    model: Model,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs to choose from; by default all measured ones.")
    ] = None,
    fit: FitName = "default",
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 2718,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in a browser.")
    ] = True,
) -> None:
    """Open a form with the full model behind its controls (extra `app`).

    It has every layout and engine, distributions of lengths, and a price. For example:

    physim app Qwen3-14B --gpus h100_sxm,a100_sxm
    """
    from physim.corrections.files import load_fit
    from physim.service.hardware import load_hardware

    for name in ("marimo", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise InputError("physim app", f"needs {name}", "pip install 'physim-llm[app]'")
    load_fit(fit)
    keys = [load_hardware(gpu).key for gpu in names_in(gpus or "")]
    place = importlib.util.find_spec("physim.page.live")
    assert place is not None
    assert place.origin is not None
    words = [sys.executable, "-m", "marimo", "run", place.origin, "--port", str(port)]
    words += [] if open_browser else ["--headless"]
    words += ["--", "--model", model, "--fit", fit, *(["--gpus", ",".join(keys)] if keys else [])]
    raise typer.Exit(subprocess.run(words, check=False).returncode)
