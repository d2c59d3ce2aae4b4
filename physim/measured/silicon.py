"""NVIDIA's measured serving points in ``aiconfigurator-core``, as measured runs.

Most come of InferenceX: clients that all start at once send ten requests each, of random prompts
whose lengths, like those of the answers, are spread evenly between 0.8 and 1 of what is stated.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace
from datetime import date
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator

from physim import records
from physim.engines.profile import shipped_engines
from physim.errors import InputError
from physim.measured.row_physics import excess_flops, excess_speed
from physim.measured.row_rules import settled, told
from physim.measured.schema import checked
from physim.measured.split import PARTS, part_of
from physim.models.drafts import MTP
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.records import Count, Length, Positive, Record, Text, Whole, disagreement, read_cells
from physim.service.hardware import load_hardware
from physim.service.phases import decode_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from physim.service.hardware import Hardware

PACKAGE = "aiconfigurator_core"
# The mode of rows whose prompts are computed on other GPUs than their answers.
DISAGGREGATED = "disagg"
# What rules call such rows; and InferenceX's, of which lengths are known to vary.
_INFERENCEX = ("InferenceX", "InferenceX, disaggregated")
_DATABASE = "database"
# The name of the number of clients in a row's source.
_CLIENTS = "silicon_concurrency"
# Copies of a measurement differ in the digits that they are rounded to. Repeats of one
# configuration agree to 2 to 4% in TTFT, in the median.
_COPIED_TTFT, _COPIED_E2E = 1e-4, 1e-3
_REQUESTS_PER_CLIENT = 10
_MS = 1e-3
# Lengths of InferenceX: even between these shares of what is stated.
_SHORTEST, _LONGEST = 0.8, 1.0
_DEGREES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
# Rows that count more GPUs in an engine are of several, of different layouts.
_MOST_GPUS = 8


def _engine(name: str) -> str:
    known = shipped_engines()
    if name not in known:
        problem = f"{name[:40]} is unknown; use one of {', '.join(known)}"
        raise disagreement("", problem, "correct it")
    return name


class Point(Record):
    """What every measured point states, whatever served it; times in milliseconds."""

    id: Text
    silicon_data_source: Text
    backend: Annotated[Text, AfterValidator(_engine)]
    backend_version: Text | None
    model_path: Text
    precision: Text | None
    system: Text
    isl: Whole
    osl: Whole
    silicon_ttft_ms: Positive
    silicon_tpot_ms: Positive


class _Point(Point):
    mode: Literal["agg"]
    batch_size: Length
    tp_size: Count | None
    pp_size: Count | None
    attention_dp_size: Count | None
    moe_tp_size: Count | None
    moe_ep_size: Count | None


def read(path: Path | None = None) -> pd.DataFrame:
    """The rows that are not disaggregated, in the common form.

    Rows of models that physim does not know are left out, and those whose layout cannot be told. A
    measurement that comes several times is one row. What rows do not state of their servers is in
    ``bench_data/public_runs.json``.

    ``left_out`` says why a row is left out of fits and errors, and is empty where it is not: it is
    known to be broken, or does not say how many clients there were; its requests need more FLOP/s
    than GEMMs reach, or its tokens come faster than weights and KV cache are read; or it is of a
    series with such a row.
    ``part`` says what it is for: see `physim.measured.split`.

    Args:
        path: The CSV; that of the installed package if None.

    Raises:
        InputError: The package ``aiconfigurator-core`` is not installed, or the CSV cannot be read,
            lacks a column, or holds a value that is missing, out of range or in contradiction with
            another.
    """
    path = path or table()
    found: dict[str, dict[str, Any]] = {}
    for place, cells in read_cells(path):
        if cells.get("mode") != DISAGGREGATED:
            point = records.checked(_Point, cells, place)
            try:
                row = _row(point)
            except InputError as error:
                raise InputError(f"{place}: {error.where}", error.what, error.remedy) from None
            if row is not None:
                found[place] = row
    if not found:
        raise InputError(str(path), "has no row of a model that physim knows", "pass another")
    return as_table(found)


def table() -> Path:
    """The CSV of the installed package.

    Raises:
        InputError: The package ``aiconfigurator-core`` is not installed.
    """
    try:
        return Path(str(resources.files(PACKAGE))) / "systems" / "silicon_sample.csv"
    except ModuleNotFoundError as error:
        remedy = "pip install aiconfigurator-core pyarrow"
        raise InputError("silicon rows", "need aiconfigurator-core", remedy) from error


def as_table(found: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """Rows with their parts, each measurement once, and why some are left out.

    Args:
        found: Rows in the common form by their places, with ``contradicts``, whether they cannot
            be what they say, and ``stated``, the columns as they state them where rules say
            otherwise.

    Raises:
        InputError: A row holds a value that is out of range or contradicts another.
    """
    import pandas as pd

    rows, places = list(found.values()), list(found)
    stated = [row | row.pop("stated") for row in rows]
    # The split goes by what rows state, as it did before rules said what they were.
    parts = [part_of(row) for row in checked(stated, places.__getitem__)]
    frame = pd.DataFrame(rows)
    return _distinct(frame.assign(left_out=_with_series(frame), part=parts))


def _with_series(frame: pd.DataFrame) -> list[str]:
    """Why rows are left out, with a reason for a series of which another row contradicts physics.

    A series is what one version of an engine was measured at with a model on a GPU. Where a row of
    it cannot be, the others were measured in the same way.
    """
    columns = ("model", "weight_dtype", "hardware", "engine", "engine_version")
    series = list(zip(*(frame[name] for name in columns), frame["output_len_std"] > 0, strict=True))
    odd = {
        own
        for own, contradicts in zip(series, frame.pop("contradicts"), strict=True)
        if contradicts
    }
    of_odd = "is of a series with a row that contradicts physics"
    reasons = zip(series, frame["left_out"], strict=True)
    return [reason or of_odd * (own in odd) for own, reason in reasons]


def _row(point: _Point) -> dict[str, Any] | None:
    """A row in the common form; None where the model is none that is known here."""
    known = facts(point, {})
    model, stated = told("model", known), _layout(point)
    if model is None or stated is None:
        return None
    clients = clients_of(point, point.batch_size * (point.attention_dp_size or 1))
    arch, gpu = load_model(model), load_hardware(point.system)
    known |= hardware_facts(gpu) | {
        "tp": stated.tp,
        "dp": stated.dp,
        "ep": stated.ep,
        "first_wave_tokens": clients * point.isl,
        "clients": int(clients),
    }
    layout, load = as_run(stated, told("layout", known)), load_columns(point, known, clients)
    rate, prompt, output = load["rate_rps"], load["input_len_mean"], load["output_len"]
    tpot = point.silicon_tpot_ms * _MS
    odd = excess_flops(arch, gpu, layout, rate, prompt + output)
    odd = odd or excess_speed(arch, gpu, layout, rate, prompt, output, tpot)
    drafts = told("draft_tokens", known)
    return {
        "stated": asdict(stated),
        "measured": known.get("measured"),
        "experiment": point.id,
        "stage": 0,
        "model": model,
        "hardware": point.system,
        **asdict(layout),
        "weight_dtype": known["precision"] or "bf16",
        "engine": point.backend,
        "engine_version": engine_version(known),
        "kv_cache_dtype": settled("kv_cache_dtype", known),
        "moe_kernel": told("moe_kernel", known),
        "moe_activations": told("moe_activations", known),
        "expert_load": told("expert_load", known),
        "sampling": settled("sampling", known),
        "receive_every": settled("receive_every", known),
        "stream_interval": settled("stream_interval", known),
        "mixed_chunk": settled("mixed_chunk", known),
        "captured_tokens": told("captured_tokens", known),
        "max_model_len": settled("max_model_len", known),
        "max_num_seqs": told("max_num_seqs", known) or int(clients),
        "max_num_batched_tokens": settled("max_num_batched_tokens", known),
        # With drafts as the engine has it beside them.
        "async_scheduling": None if drafts else settled("async_scheduling", known),
        "gpu_memory_utilization": settled("gpu_memory_utilization", known),
        **load,
        # All public rows with drafts ran the model's own layers (MTP).
        "draft": MTP if drafts else None,
        "draft_tokens": drafts,
        "draft_acceptance": told("draft_acceptance", known) if drafts else None,
        # Steps that verify drafts yield several tokens.
        "left_out": told("left_out", known) or ("" if drafts else odd),
        "contradicts": bool(odd) and not drafts,
    }


def facts(point: Point, others: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a row before its model is, by the names of conditions.

    Args:
        point: What the row states.
        others: What else is known.
    """
    source, version = point.silicon_data_source, point.backend_version
    taken = re.match(r"source_file=([^;]*)", source)
    file = Path(taken[1]).name if taken else ""
    database = source.startswith("db-dump") or file.startswith("2026")
    measured = re.search(r"measured=(\d{4}-\d\d-\d\d)", source)
    image = re.search(r"[:/]([^;:/]*)$", source)
    known: dict[str, Any] = {
        "model_path": point.model_path,
        "precision": point.precision or "",
        "source": _DATABASE if database else file,
        "engine": point.backend,
        "version": _kind_of_version(version),
        "engine_version": version,
        "prompt": point.isl,
        "output": point.osl,
        "request_tokens": point.isl + point.osl,
        "load": "unstated" if stated_number(point, _CLIENTS) is None else "",
        **others,
    }
    known |= {"gateway": "Dynamo"} if "dynamo_version=" in source else {}
    known |= {"image": image[1]} if image else {}
    known |= {"measured": date.fromisoformat(measured[1])} if measured else {}
    return known | {"origin": settled("origin", known)}


def hardware_facts(gpu: Hardware) -> dict[str, Any]:
    """What is known of a row's GPU, likewise."""
    return {"hardware": gpu.key, "gpu_multiplies": dict(gpu.peak_flops)}


def engine_version(known: Mapping[str, Any]) -> str:
    """The version of a row's engine: as it states, or as rules say where it names no number."""
    settles = settled if known["version"] else told
    return settles("engine_version", known) or known["engine_version"]


def load_columns(point: Point, known: Mapping[str, Any], clients: float) -> dict[str, Any]:
    """The columns of a row's load: clients that start at once and send ten requests each.

    Args:
        point: What the row states.
        known: All that is known of it.
        clients: How many there are.
    """
    mean, spread = (1.0, 0.0)
    if known["origin"] in _INFERENCEX:
        mean = (_SHORTEST + _LONGEST) / 2
        spread = (_LONGEST - _SHORTEST) / math.sqrt(12)
    stated_in, stated_out = float(point.isl), float(point.osl)
    output = mean * stated_out
    ttft, tpot = point.silicon_ttft_ms * _MS, point.silicon_tpot_ms * _MS
    e2e = ttft + tpot * decode_steps(output)
    return {
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "constant",
        "concurrency": clients,
        "requests": int(clients) * _REQUESTS_PER_CLIENT,
        "warm_up_s": settled("warm_up_s", known),
        "rate_rps": clients / e2e,
        "duration_s": _REQUESTS_PER_CLIENT * e2e,
        "input_len_mean": mean * stated_in,
        "input_len_std": spread * stated_in,
        "output_len": output,
        "output_len_std": spread * stated_out,
        "ttft_mean": ttft,
        "e2e_mean": e2e,
    }


def as_run(stated: Parallelism, layout: str | None) -> Parallelism:
    """The layout that a row was run in: as it states, or as the script of the day had it.

    Args:
        stated: What it states.
        layout: What rules say of it; None for nothing.
    """
    gpus = stated.tp * stated.dp
    if layout is None:
        return stated
    return {
        "spread_experts": replace(stated, ep=gpus),
        "shared_experts": replace(stated, ep=1),
        "tensor_parallel_attention": Parallelism(tp=gpus, ep=gpus),
        "data_parallel_attention": Parallelism(dp=gpus, ep=gpus),
    }[layout]


def _kind_of_version(said: str | None) -> str:
    """What a version is that says no number; empty for one that does."""
    if said is None:
        return "unstated"
    return "" if said[0].isdigit() else "build"


def _distinct(found: pd.DataFrame) -> pd.DataFrame:
    """Each measurement once: under several names, or as of DeepSeek-R1 and of V3, which are alike.

    Of those that are in several parts, the one that a fit may see stays: no other part has it then.
    """
    import numpy as np

    seen = found.sort_values("part", key=lambda part: part.map(PARTS.index), kind="stable")
    copies = []
    for _, alike in seen.groupby(["hardware", "engine", "concurrency", "input_len_mean"]):
        times = alike[["ttft_mean", "e2e_mean"]].to_numpy()
        for place in range(1, len(alike)):
            differs = np.abs(times[:place] / times[place] - 1)
            if (differs < (_COPIED_TTFT, _COPIED_E2E)).all(axis=1).any():
                copies.append(alike.index[place])
    return found.drop(index=copies).reset_index(drop=True)


def _layout(point: _Point) -> Parallelism | None:
    """How GPUs share a row's model; None where that cannot be told.

    InferenceX's rows give some degrees as products. On ``n`` GPUs whose experts are spread some say
    ``n x n`` for those of attention, and ``n`` for both of the experts'; others, of attention that
    is data parallel, say ``n`` for tensor and data parallelism, and their product for experts.
    """
    tp, dp, moe_tp, moe_ep = (getattr(point, name) or 1 for name in _DEGREES)
    if point.pp_size not in (None, 1):
        return None
    if moe_tp == moe_ep > 1 and max(tp, dp) == moe_tp**2:
        layout = (moe_tp, 1) if tp > dp else (1, moe_tp)
        return Parallelism(tp=layout[0], dp=layout[1], ep=moe_ep)
    if tp == dp > 1 and moe_ep == tp * dp:
        return Parallelism(dp=dp, ep=dp)
    # Where a row does not say how often attention is repeated, as often as it takes.
    dp = max(dp, moe_tp * moe_ep // tp)
    is_whole = tp & (tp - 1) == 0 and tp <= _MOST_GPUS
    return Parallelism(tp=tp, dp=dp, ep=moe_ep) if is_whole else None


def clients_of(point: Point, together: float) -> float:
    """Clients of a row: what its source says, or else the requests of all ranks.

    Args:
        point: What the row states.
        together: The requests of all ranks.

    Raises:
        InputError: The source says them, and no number.
    """
    said = stated_number(point, _CLIENTS)
    return together if said is None else float(said)


def stated_number(point: Point, name: str) -> int | None:
    """A number that a row's source states; None where it does not name it.

    Args:
        point: What the row states.
        name: Its name there.

    Raises:
        InputError: What the source states is no number.
    """
    said = re.search(rf"(?:^|[; ]){name}=([^;]*)", point.silicon_data_source)
    if said is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", said[1]):
        raise InputError("silicon_data_source", f"says no number for {name}", "correct it")
    return int(said[1])
