"""Folders of exported files, whole or not at all."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Unpack

from physim import data
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.exports import llmservingsim, sglang_simulator
from physim.exports.blis import blackbox_form, loaded, said, table_form, trained_physics_form
from physim.exports.blis_documents import NAMES, coefficient_set, deployment, scenario
from physim.exports.blis_trace import prefixes_of, trace_rows, write_trace
from physim.exports.block_yaml import as_yaml
from physim.exports.dynamo import FIRST_TOKENS, mocker_profile, planner_arrays, write_dynamo
from physim.exports.form_error import Form, form_error, walk_of
from physim.exports.llm_d import (
    config_map,
    fake_server,
    fake_server_yaml,
    iteration_of,
    peak_prefill_tokens_per_s,
    prefill_us_per_token,
    router_yaml,
    transfer_us_per_token,
)
from physim.exports.sglang_simulator import (
    predictor_seconds,
    replay_table,
    step_table,
    write_sglang,
)
from physim.exports.subject import SHARES, Subject, case_at
from physim.inputs.case import CaseOptions
from physim.prediction.replayed import replay_load
from physim.tables.blis import left_out, write_blis
from physim.tables.build import Reach, check_tolerance, tabulate
from physim.tables.files import write
from physim.tables.outside_steps import outside_steps
from physim.tables.writer import linear_coefficients

METADATA = "metadata.json"


def export_dynamo(
    model: str | Path,
    folder: Path,
    *,
    apart: bool = False,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[CaseOptions],
) -> dict[str, Any]:
    """Writes the profile of Dynamo's mocker and the folders of its planner.

    Args:
        model: A path of a ``config.json``, shipped name or hub id.
        folder: The folder to make.
        apart: Whether prefill and decode run on servers of their own. Then prompts take what they
            take alone; else what they add to a step that decodes.
        fit: Name or path of a fit, ``default`` or ``none``.
        force: Whether a folder that is there is replaced.
        **options: GPU, deployment and load without a rate; see `CaseOptions`.

    Returns:
        The metadata: where the files are from, and how far they are off.

    Raises:
        InputError: Some input cannot be used, or the folder is there and not empty.
    """
    _check(folder, force)
    subject = Subject.from_options(model, fit, **options)
    profile = mocker_profile(subject, apart)
    about = {
        **subject.about(),
        "prefill": "alone" if apart else "increment over a decode step",
        "note": FIRST_TOKENS,
        "error": form_error(subject, profile.seconds, walk_of(subject)).to_dict(),
    }
    with data.replacing_folder(folder, force) as temporary:
        write_dynamo(temporary, profile, planner_arrays(subject), about)
        _write_json(temporary / METADATA, about)
    return about


def export_llm_d(
    model: str | Path,
    folder: Path,
    *,
    namespace: str = "default",
    link_bytes_per_s: float | None = None,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[CaseOptions],
) -> dict[str, Any]:
    """Writes what llm-d's autoscaler, router and fake vLLM take.

    Args:
        model: A path of a ``config.json``, shipped name or hub id.
        folder: The folder to make.
        namespace: Namespace of the model's servers.
        link_bytes_per_s: What carries KV from each GPU to another server; None leaves its costs
            out.
        fit: Name or path of a fit, ``default`` or ``none``.
        force: Whether a folder that is there is replaced.
        **options: GPU, deployment and load without a rate; see `CaseOptions`.

    Returns:
        The metadata: where the files are from, their numbers, and how far they are off.

    Raises:
        InputError: Some input cannot be used, or the folder is there and not empty.
    """
    _check(folder, force)
    subject = Subject.from_options(model, fit, **options)
    transfer = (
        None if link_bytes_per_s is None else transfer_us_per_token(subject, link_bytes_per_s)
    )
    walk = walk_of(subject)
    iteration, fake, own = iteration_of(walk), fake_server(subject), subject.about()
    peak, prefill = peak_prefill_tokens_per_s(subject), prefill_us_per_token(subject)
    about = {
        **own,
        "iteration_ms": vars(iteration).copy(),
        "error": form_error(subject, iteration.seconds, walk).to_dict(),
        "peak_prefill_tokens_per_s": peak,
        "prefill_us_per_token": prefill,
        "transfer_us_per_token": transfer,
        "fake_server": vars(fake).copy(),
    }
    files = {
        "wva-queueing-model-config.yaml": config_map(subject, iteration, namespace, own),
        "router.yaml": router_yaml(peak, prefill, transfer, own),
        "llm-d-inference-sim.yaml": fake_server_yaml(fake, transfer, own),
    }
    with data.replacing_folder(folder, force) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")
        _write_json(temporary / METADATA, about)
    return about


def export_blis(
    model: str | Path,
    folder: Path,
    *,
    tolerance: float = 0.01,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[CaseOptions],
) -> dict[str, Any]:
    """Writes what BLIS reads: the files of August and today's documents, beside a table.

    Coefficients are projected over the steps of three loads, at 20, 60 and 90% of what the server
    can do; a replay at 60% is there as a trace. A file that has no place for the model is left out,
    and the metadata says why.

    Args:
        model: A path of a ``config.json``, shipped name or hub id.
        folder: The folder to make.
        tolerance: Interpolation error of 99% of the table's steps, as a share of their time.
        fit: Name or path of a fit, ``default`` or ``none``.
        force: Whether a folder that is there is replaced.
        **options: GPU, deployment and load without a rate; see `CaseOptions`.

    Returns:
        The metadata: where the files are from, and how far each form is off.

    Raises:
        InputError: Some input cannot be used, or the folder is there and not empty.
    """
    check_tolerance(tolerance)
    _check(folder, force)
    subject = Subject.from_options(model, fit, **options)
    case, corrections, known = loaded(subject), subject.corrections, load_fit(fit)
    coefficients = linear_coefficients(case, subject.steps, corrections)
    table = tabulate(subject.steps, Reach.from_server(case.server), tolerance)
    lacking, walk, own = left_out(case), walk_of(subject), subject.about()
    forms = {
        "table": table_form(table, subject),
        "blackbox": blackbox_form(coefficients["blackbox"]["beta"]),
    }
    if not lacking:
        beta = coefficients["trained_physics"]["beta"]
        forms["trained physics"] = trained_physics_form(beta, subject)
    about = {
        **own,
        **table.metadata,
        "units": "columns that end in _us are microseconds",
        "outside_steps": outside_steps(case.server, corrections),
        "coefficients": coefficients,
        "errors": {name: form_error(subject, form, walk).to_dict() for name, form in forms.items()},
        "left_out": lacking,
        "names": NAMES,
    }
    rate = SHARES[1] * subject.middle.saturation_rps
    result = replay_load(case_at(subject.case, rate), corrections, seed=0)
    prefixes = prefixes_of(result, int(subject.case.demanded.cached_tokens))
    trace = trace_rows(result.to_frame(), prefixes, case.model.name)
    with data.replacing_folder(folder, force) as temporary:
        write_trace(temporary / "trace.csv", trace, case, said(own))
        about["kernel_profile"] = write_blis(temporary, case, subject.steps, coefficients)
        documents = {
            "host-overheads.yaml": [coefficient_set(case, known.on(case))],
            "scenario.yaml": [scenario(case), deployment(case)],
        }
        for name, content in documents.items():
            (temporary / name).write_text(as_yaml(content, said(own)), encoding="utf-8")
        table.metadata = about
        write(table, temporary, "json")
    return about


def export_sglang_simulator(
    model: str | Path,
    folder: Path,
    *,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[CaseOptions],
) -> dict[str, Any]:
    """Writes a replay table for SGLang's simulator, and a predictor with a table of physim's.

    Args:
        model: A path of a ``config.json``, shipped name or hub id.
        folder: The folder to make.
        fit: Name or path of a fit, ``default`` or ``none``.
        force: Whether a folder that is there is replaced.
        **options: GPU, deployment and load without a rate; see `CaseOptions`.

    Returns:
        The metadata: where the files are from, and how far both are off.

    Raises:
        InputError: Some input cannot be used, or the folder is there and not empty.
    """
    _check(folder, force)
    subject = Subject.from_options(model, fit, **options)
    sglang_simulator.check_subject(subject)
    replay, table, walk = replay_table(subject), step_table(subject), walk_of(subject)
    forms: dict[str, Form] = {
        "replay_table": replay.seconds_of,
        "predictor": functools.partial(predictor_seconds, table, replay.cached),
    }
    about = {
        **subject.about(),
        "max_total_tokens": subject.case.server.kv.tokens,
        "batches": len(replay.batches),
        "errors": {name: form_error(subject, form, walk).to_dict() for name, form in forms.items()},
    }
    with data.replacing_folder(folder, force) as temporary:
        write_sglang(temporary, subject, replay, table, about)
        _write_json(temporary / METADATA, about)
    return about


def export_llmservingsim(
    model: str | Path,
    folder: Path,
    *,
    fit: str | Path = DEFAULT_FIT,
    force: bool = False,
    **options: Unpack[CaseOptions],
) -> dict[str, Any]:
    """Writes the profile of a model's layers for LLMServingSim.

    Args:
        model: A path of a ``config.json``, shipped name or hub id.
        folder: The folder to make, whose ``perf`` goes where the simulator keeps its profiles.
        fit: Name or path of a fit, ``default`` or ``none``.
        force: Whether a folder that is there is replaced.
        **options: GPU, deployment and load without a rate; see `CaseOptions`.

    Returns:
        The metadata: where the files are from, and how far they are off with physim's all-reduces.

    Raises:
        InputError: Some input cannot be used, the files have no place for it, or the folder is
            there and not empty.
    """
    _check(folder, force)
    subject = Subject.from_options(model, fit, **options)
    llmservingsim.check_subject(subject)
    profile = llmservingsim.layer_profile(subject)
    place = Path("perf") / llmservingsim.folder_of(subject.case.server)
    form = llmservingsim.with_all_reduces(subject, profile)
    about = {
        **subject.about(),
        "folder": str(place),
        "error": form_error(subject, form, walk_of(subject)).to_dict(),
    }
    with data.replacing_folder(folder, force) as temporary:
        llmservingsim.write_profile(temporary / place, subject, profile, about)
        _write_json(temporary / METADATA, about)
    return about


def _check(folder: Path, force: bool) -> None:
    """Refuses to replace what no export made."""
    if force and folder.is_dir() and any(folder.iterdir()) and not (folder / METADATA).is_file():
        raise InputError(str(folder), "holds no export that could be replaced", "name another")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
