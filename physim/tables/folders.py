"""Folders of tables: one for each model, GPU and tp, whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from physim import data
from physim.cases import Case
from physim.corrections import Corrections, flat
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.inputs.hardware import load_hardware
from physim.inputs.models import config_path
from physim.serving.load import Load, Stage
from physim.step.lowering import lower
from physim.step.model import StepModel
from physim.tables.blis import write_blis
from physim.tables.build import LEAST_TOLERANCE, MOST_TOLERANCE, Reach, tabulate
from physim.tables.coefficients import alphas, blackbox, trained_physics
from physim.tables.files import FORMATS, METADATA, write
from physim.tables.region import operating_region

BLIS = "blis"
# The load of a projection where none is given: the "general" one of the seed's study.
GENERAL = Load(575, 248, stages=(Stage(8.0, 600.0), Stage(20.0, 600.0)), cached_tokens=560)


@dataclass(frozen=True)
class Made:
    """What became of one table.

    Attributes:
        name: Model, GPU and tp.
        folder: Where it is; None where there is none.
        reason: Why there is none, or that it was there already; empty for one that was made.
        error_pct: Interpolation error of 99% of batches, percent.
    """

    name: str
    folder: Path | None
    reason: str = ""
    error_pct: float | None = None


def write_table(
    model: str | Path,
    folder: Path,
    *,
    gpu: str,
    kind: str = "csv",
    tolerance: float = 0.01,
    fit: str | Path = DEFAULT_FIT,
    load: Load | None = None,
    force: bool = False,
    **deployment: Any,
) -> dict[str, Any]:
    """Writes the step times of a model on a GPU into a folder.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        folder: The folder to make.
        gpu: Key of a GPU, or a JSON file.
        kind: ``parquet``, ``csv`` or ``json`` for a table; ``blis`` for all that BLIS reads.
        tolerance: Interpolation error of 99% of batches, as a share of their time.
        fit: Name or path of a fit, ``default`` or ``none``.
        load: The load over which linear models are projected. Without one, a table comes without
            them, and BLIS's folder takes `GENERAL`.
        force: Whether a folder that is there is replaced.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Returns:
        The metadata.

    Raises:
        InputError: Some input cannot be used, or the folder is there and not empty.
    """
    _check(kind, tolerance)
    if load is None and kind == BLIS:
        load = GENERAL
    if force and folder.is_dir() and any(folder.iterdir()) and not (folder / METADATA).is_file():
        raise InputError(str(folder), "holds no table that could be replaced", "name another")
    engine = Deployment(**deployment)
    case = Case.of(model, gpu, engine, load or Load(1.0, 1.0, rate=1.0))
    known_fit = load_fit(fit, case.gpu.key)
    corrections = known_fit.corrections
    stepper = StepModel(lower(case.model, case.gpu, case.deployment), corrections)
    about: dict[str, Any] = {
        "physim_version": version("physim-llm"),
        "model": case.model.name,
        "gpu": case.gpu.key,
        "tp": case.deployment.tp,
        "engine": dataclasses.asdict(case.deployment),
        "fit": known_fit.name,
        "sha256": _hashes(model, case, corrections),
        "request": _request(kind, tolerance, fit, load, deployment),
    }
    with data.replacing_folder(folder, force) as temporary:
        if load is not None:
            about["coefficients"] = _coefficients(case, stepper, corrections)
        if kind == BLIS:
            about["kernel_profile"] = write_blis(
                temporary,
                case,
                config_path(model),
                stepper,
                corrections,
                about["coefficients"],
            )
            text = json.dumps({"schema_version": 1, **about}, indent=1) + "\n"
            (temporary / METADATA).write_text(text, encoding="utf-8")
            return about
        about["units"] = "columns that end in _us are microseconds"
        table = tabulate(stepper, Reach.of(case.deployment), tolerance, about)
        write(table, temporary, kind)
        return dict(table.metadata)


def write_tables(
    models: Sequence[str],
    gpus: Sequence[str],
    tps: Sequence[int],
    folder: Path,
    progress: Callable[[str], Any] = lambda _: None,
    **options: Any,
) -> Iterable[Made]:
    """Writes a folder for each combination, and yields what became of it.

    A folder that is there already is kept, so that what was interrupted goes on; folders appear
    whole or not at all.

    Args:
        models: Models.
        gpus: GPUs.
        tps: Tensor parallelism.
        folder: The folder of the folders.
        progress: Called before each with its name.
        **options: As for `write_table`.

    Raises:
        InputError: An option or a GPU cannot be used for any table, or the folder is a file.
    """
    kind, tolerance = options.get("kind", "csv"), options.get("tolerance", 0.01)
    _check(kind, tolerance)
    for gpu in gpus:
        load_hardware(gpu)
    if folder.exists() and not folder.is_dir():
        raise InputError(str(folder), "is a file", "name a folder")
    known = {"kind", "tolerance", "fit", "load", "force"}
    deployment = {name: value for name, value in options.items() if name not in known}
    fit = options.get("fit", DEFAULT_FIT)
    for model in models:
        for gpu in gpus:
            for tp in tps:
                name = f"{Path(model).stem if _is_path(model) else model} on {tp} x {gpu}"
                short = Path(model).parent.name if Path(model).name == "config.json" else model
                own = short.removesuffix(".json").replace("/", "--").lstrip(".-")
                place = folder / f"{own}_{gpu}_tp{tp}"
                progress(name)
                if (place / METADATA).is_file() and not options.get("force"):
                    wanted = _request(
                        kind, tolerance, fit, options.get("load"), {**deployment, "tp": tp}
                    )
                    if data.read_json(place / METADATA).get("request") == wanted:
                        yield Made(name, place, "is there already")
                    else:
                        other = f"{place} is there already with other settings; pass --force"
                        yield Made(name, None, other)
                    continue
                try:
                    found = write_table(model, place, gpu=gpu, tp=tp, **options)
                except InputError as error:
                    yield Made(name, None, str(error))
                    continue
                error_pct = found.get("interpolation_error_pct", {}).get("p99")
                yield Made(name, place, "", error_pct)


def _check(kind: str, tolerance: float) -> None:
    if kind not in (*FORMATS, BLIS):
        known = ", ".join((*FORMATS, BLIS))
        raise InputError("format", f"{kind!r} is unknown", f"known are {known}")
    if not LEAST_TOLERANCE <= tolerance <= MOST_TOLERANCE:
        raise InputError(
            "tolerance",
            f"{tolerance:g} is out of reach",
            f"use {LEAST_TOLERANCE:g} to {MOST_TOLERANCE:g}",
        )


def _request(
    kind: str, tolerance: float, fit: str | Path, load: Load | None, deployment: Mapping[str, Any]
) -> str:
    """A hash of what was asked for, by which an unfinished job knows what it has."""
    given = {name: value for name, value in sorted(deployment.items()) if value is not None}
    load = GENERAL if load is None and kind == BLIS else load
    return hashlib.sha256(repr((kind, tolerance, str(fit), load, given)).encode()).hexdigest()


def _is_path(model: str) -> bool:
    return model.endswith(".json") or Path(model).exists()


def _coefficients(case: Case, model: StepModel, corrections: Corrections) -> dict[str, Any]:
    """Linear models of the step over the case's load, and their errors."""
    region = operating_region(case, model, corrections)
    before, after, token = alphas(region, corrections, case.deployment)
    load = case.load
    return {
        "load": f"{load.describe()}, {load.mean_input:g} tokens in "
        f"({load.cached_tokens:g} cached), {load.mean_output:g} out",
        "alpha_us": {
            "before the queue": round(before, 3),
            "at the end": after,
            "each output token": token,
        },
        "blackbox": blackbox(region).to_dict(),
        "trained_physics": trained_physics(region, case.model, case.gpu, case.deployment).to_dict(),
        "mean_step_us": round(region.mean_step_s * 1e6, 3),
    }


def _hashes(model: str | Path, case: Case, corrections: Corrections) -> dict[str, str]:
    """Hashes of what a table was made of."""
    numbers = np.round(flat(corrections), 6).tobytes()
    return {
        "config": hashlib.sha256(config_path(model).read_bytes()).hexdigest(),
        "gpu": hashlib.sha256(repr(case.gpu).encode()).hexdigest(),
        "corrections": hashlib.sha256(numbers).hexdigest(),
    }
