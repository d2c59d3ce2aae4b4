"""Folders of tables: one for each model, GPU and layout, whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from physim import data
from physim.batching.demand import Demand
from physim.corrections.fields import Corrections, flat
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.attempts import attempts, check_shared, choices, layout_axes, refuse_fleets
from physim.inputs.case import Case, CaseOptions, LoadAndEngineOptions
from physim.models.lookup import config_path
from physim.models.parallelism import Parallelism, on_gpus, telling
from physim.prediction.arrays import rank_model_of
from physim.prediction.steady import steady
from physim.service.hardware import load_hardware
from physim.step.lowering import assumptions
from physim.step.model import StepModel
from physim.tables.blis import left_out, write_blis
from physim.tables.build import Reach, check_tolerance, tabulate
from physim.tables.files import FORMATS, METADATA, write
from physim.tables.linear_models import (
    alphas,
    blackbox,
    blackbox_errors,
    trained_physics,
    trained_physics_errors,
)
from physim.tables.operating_region import operating_region
from physim.tables.outside_steps import outside_steps

BLIS = "blis"
# Rates, in shares of the load's, at which linear models are held against its steps too.
_OTHER_RATES = (0.5, 2.0)


@dataclass(frozen=True)
class Made:
    """What became of one table.

    Attributes:
        name: Model, GPU and layout.
        folder: Where it is; None where there is none.
        reason: Why there is none, or that it was there already; empty for one that was made.
        error_pct: Interpolation error of 99% of batches, percent.
        warnings: Which of its numbers mean little, and why, one line each.
    """

    name: str
    folder: Path | None
    reason: str = ""
    error_pct: float | None = None
    warnings: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {**vars(self), "folder": None if self.folder is None else str(self.folder)}


def write_table(
    model: str | Path | Case,
    folder: Path,
    *,
    kind: str = "csv",
    tolerance: float = 0.01,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[CaseOptions],
) -> dict[str, Any]:
    """Writes the step times of a model on a GPU into a folder.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it. Linear models are projected over its load. Without one, a table comes
            without them; BLIS's folder needs one.
        folder: The folder to make.
        kind: ``parquet``, ``csv`` or ``json`` for a table; ``blis`` for all that BLIS reads.
        tolerance: Interpolation error of 99% of batches, as a share of their time.
        fit: Name or path of a fit, ``default`` or ``none``.
        force: Whether a folder that is there is replaced.
        **options: GPU, deployment and load; see `CaseOptions`.

    Returns:
        The metadata.

    Raises:
        InputError: Some input cannot be used, or the folder is there and not empty.
    """
    _check(kind, tolerance)
    case = _checked(Case.from_options(model, **options), kind)
    if force and folder.is_dir() and any(folder.iterdir()) and not (folder / METADATA).is_file():
        raise InputError(str(folder), "holds no table that could be replaced", "name another")
    known_fit = load_fit(fit).on(case)
    corrections = known_fit.corrections
    layout = case.server.parallelism
    stepper = rank_model_of(case, corrections)
    about: dict[str, Any] = {
        "physim_version": version("physim-llm"),
        "model": case.model.name,
        "gpu": case.server.gpu.key,
        "gpus": layout.gpus,
        "tp": layout.tp,
        "engine": case.server.to_dict(),
        "fit": known_fit.name,
        "sha256": _hashes(case, corrections),
        "request": _request(kind, tolerance, fit, case),
        "outside_steps": outside_steps(case.server, corrections),
        "assumptions": [*assumptions(case.server), *_of_ranks(layout)],
    }
    with data.replacing_folder(folder, force) as temporary:
        # They are projected over the steps of one batch alone.
        if case.load is not None and layout.dp == layout.pp == 1:
            about["coefficients"] = linear_coefficients(case, stepper, corrections)
        if kind == BLIS:
            about["left_out"] = left_out(case)
            about["kernel_profile"] = write_blis(temporary, case, stepper, about["coefficients"])
            text = json.dumps({"schema_version": 1, **about}, indent=1) + "\n"
            (temporary / METADATA).write_text(text, encoding="utf-8")
            return about
        about["units"] = "columns that end in _us are microseconds"
        table = tabulate(stepper, Reach.from_server(case.server), tolerance, about)
        write(table, temporary, kind)
        return dict(table.metadata)


def write_tables(
    models: Sequence[str],
    gpus: Sequence[str],
    tps: Sequence[int],
    folder: Path,
    progress: Callable[[str], Any] = lambda _: None,
    *,
    pps: Sequence[int] = (1,),
    dps: Sequence[int] = (1,),
    eps: Sequence[int] = (1,),
    kind: str = "csv",
    tolerance: float = 0.01,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[LoadAndEngineOptions],
) -> Iterable[Made]:
    """Writes a folder for each combination, and yields what became of it.

    A folder that is there already is kept, so that what was interrupted goes on; folders appear
    whole or not at all.

    Args:
        models: Models.
        gpus: GPUs.
        tps: Degrees ``tp`` of `physim.Parallelism`; the others follow below.
        folder: The folder of the folders.
        progress: Called before each with its name.
        pps: Degrees ``pp`` of `physim.Parallelism`,
        dps: ``dp``,
        eps: and ``ep``, in every combination.
        kind: As for `write_table`, and so are the next three.
        tolerance: Interpolation error.
        fit: Name or path of a fit.
        force: Whether folders that are there are replaced.
        **options: The engine and the load; see `CaseOptions`.

    Raises:
        InputError: An option or a GPU cannot be used for any table, or the folder is a file.
    """
    _check(kind, tolerance)
    check_shared(options)
    refuse_fleets(options, "a table")
    tried = layout_axes(tps, pps, dps, eps)
    for gpu in gpus:
        load_hardware(gpu)
    if folder.exists() and not folder.is_dir():
        raise InputError(str(folder), "is a file", "name a folder")
    for attempt in attempts(choices(model=models, gpu=gpus, **tried), options):
        model, gpu = attempt.choice["model"], attempt.choice["gpu"]
        where = on_gpus(gpu, attempt.choice)
        name = f"{Path(model).stem if _is_path(model) else model} on {where}"
        short = Path(model).parent.name if Path(model).name == "config.json" else model
        own = short.removesuffix(".json").replace("/", "--").lstrip(".-")
        degrees = (f"{what}{degree}" for what, degree in telling(attempt.choice).items())
        place = folder / "_".join([own, gpu, *degrees])
        progress(name)
        if attempt.case is None:
            yield Made(name, None, str(attempt.refusal))
            continue
        try:
            case = _checked(attempt.case, kind)
            if (place / METADATA).is_file() and not force:
                yield _kept(name, place, _request(kind, tolerance, fit, case))
                continue
            found = write_table(case, place, kind=kind, tolerance=tolerance, fit=fit, force=force)
        except InputError as error:
            yield Made(name, None, str(error))
            continue
        error_pct = found.get("interpolation_error_pct", {}).get("p99")
        warnings = found.get("coefficients", {}).get("warnings", ())
        yield Made(name, place, "", error_pct, warnings)


def _checked(case: Case, kind: str) -> Case:
    """The case, which for BLIS has a load and no layout that BLIS cannot simulate.

    Raises:
        InputError: It has none, or such a layout.
    """
    if case.server.draft is not None:
        raise InputError(
            "draft", "has no place in a table, whose steps give a token", "leave it out"
        )
    layout = case.server.parallelism
    for name in ("pp", "dp") if kind == BLIS else ():
        if getattr(layout, name) > 1:
            raise InputError(
                name,
                f"{getattr(layout, name)} is not what BLIS can simulate",
                "use 1, or another format than blis",
            )
    if kind == BLIS and case.load is None:
        raise InputError(
            "load",
            "is missing: BLIS's coefficients hold for one load",
            "give the lengths of prompts and outputs, and a rate or stages",
        )
    return case


def _kept(name: str, place: Path, wanted: str) -> Made:
    """What to say of a table that is there already."""
    if data.read_json(place / METADATA).get("request") == wanted:
        return Made(name, place, "is there already")
    return Made(name, None, f"{place} already exists with other settings; pass --force")


def _check(kind: str, tolerance: float) -> None:
    if kind not in (*FORMATS, BLIS):
        known = ", ".join((*FORMATS, BLIS))
        raise InputError("format", f"{kind!r} is unknown", f"use one of {known}")
    check_tolerance(tolerance)


def _of_ranks(layout: Parallelism) -> list[str]:
    """What a table takes data-parallel ranks for, if there are several."""
    if layout.dp == 1:
        return []
    others = "the other rank has" if layout.dp == 2 else f"the {layout.dp - 1} other ranks have"
    return [f"a batch is that of one data-parallel rank, and {others} the same"]


def _request(kind: str, tolerance: float, fit: str | Path, case: Case) -> str:
    """A hash of what was asked for, by which an unfinished job knows what it has."""
    # What sessions show of a load and of a server is not all of it.
    load = None if case.load is None else asdict(case.load)
    asked = (kind, tolerance, str(fit), load, asdict(case.server))
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def _is_path(model: str) -> bool:
    return model.endswith(".json") or Path(model).exists()


def linear_coefficients(case: Case, model: StepModel, corrections: Corrections) -> dict[str, Any]:
    """Linear models of the step over the case's load, and their errors.

    Args:
        case: What is served, under an open load.
        model: Step times.
        corrections: Corrections of the components.

    Raises:
        InputError: The load is a closed loop, or of conversations.
    """
    region = operating_region(case, model, corrections)
    before, after, token = alphas(region, corrections, case.server)
    load = case.demanded
    line, physics = blackbox(region), trained_physics(region, case.server)
    elsewhere = {}
    for factor in _OTHER_RATES:
        other = operating_region(case.under(load.faster(factor)), model, corrections)
        elsewhere[f"{factor:g}"] = {
            "blackbox": blackbox_errors(line, other),
            "trained_physics": trained_physics_errors(physics, other, case.server),
        }
    return {
        "load": f"{load.describe()}, {load.mean_input:g} tokens in "
        f"({load.cached_tokens:g} cached), {load.mean_output:g} out",
        "alpha_us": {
            "before the queue": round(before, 3),
            "at the end": after,
            "each output token": token,
        },
        "blackbox": line.to_dict(),
        "trained_physics": physics.to_dict(),
        "error_pct_at_times_the_rate": elsewhere,
        "mean_step_us": round(region.mean_step_s * 1e6, 3),
        "warnings": _above_capacity(case, corrections),
    }


def _above_capacity(case: Case, corrections: Corrections) -> list[str]:
    """A line, if the load's busiest stage is more than the engine can serve."""
    (found,) = steady([case], [corrections], "")
    if not found.saturated:
        return []
    rate = Demand.from_load(case.demanded, case.server.kv.block_size).rate
    return [
        f"the load of {rate:.3g} req/s is above capacity ({found.saturation_rps:.3g} req/s): most "
        "steps run as many requests as the engine takes, so coefficients and alphas say little of "
        "smaller batches, and TTFT is mostly the queue"
    ]


def _hashes(case: Case, corrections: Corrections) -> dict[str, str]:
    """Hashes of what a table was made of."""
    numbers = np.round(flat(corrections), 6).tobytes()
    return {
        "config": hashlib.sha256(config_path(case.model.name).read_bytes()).hexdigest(),
        "gpu": hashlib.sha256(repr(case.server.gpu).encode()).hexdigest(),
        "corrections": hashlib.sha256(numbers).hexdigest(),
    }
