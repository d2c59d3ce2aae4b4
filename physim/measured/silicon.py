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
    import pandas as pd

    from physim.models.architecture import ModelArch
    from physim.service.hardware import Hardware

PACKAGE = "aiconfigurator_core"
# The mode of rows whose prompts are computed on other GPUs than their answers.
_DISAGGREGATED = "disagg"
_INFERENCEX, _DATABASE = "InferenceX", "database"
# Copies of a measurement differ in the digits that they are rounded to. Repeats of one
# configuration agree to 2 to 4% in TTFT, in the median.
_COPIED_TTFT, _COPIED_E2E = 1e-4, 1e-3
_REQUESTS_PER_CLIENT = 10
# Lengths of InferenceX: even between these shares of what is stated.
_SHORTEST, _LONGEST = 0.8, 1.0
_DEGREES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
# Rows that count more GPUs in an engine are of several, of different layouts.
_MOST_GPUS = 8
# Keys and values of one byte are the least that the engines of these rows keep.
_LEAST_KV_BYTES = 1.0
# No kernel of NVIDIA's own tables reaches more than this share of the datasheet's FLOP/s.
_MOST_OF_PEAK = 0.85


def _engine(name: str) -> str:
    known = shipped_engines()
    if name not in known:
        problem = f"{name[:40]} is unknown; use one of {', '.join(known)}"
        raise disagreement("", problem, "correct it")
    return name


class _Point(Record):
    id: Text
    mode: Literal["agg"]
    silicon_data_source: Text
    backend: Annotated[Text, AfterValidator(_engine)]
    backend_version: Text | None
    model_path: Text
    precision: Text | None
    system: Text
    isl: Whole
    osl: Whole
    batch_size: Length
    tp_size: Count | None
    pp_size: Count | None
    attention_dp_size: Count | None
    moe_tp_size: Count | None
    moe_ep_size: Count | None
    silicon_ttft_ms: Positive
    silicon_tpot_ms: Positive


def read(path: Path | None = None) -> pd.DataFrame:
    """The rows that are not disaggregated, in the common form.

    Rows of models that physim does not know are left out, and those whose layout cannot be told. A
    measurement that comes several times is one row. What rows do not state of their servers is in
    ``bench_data/public_runs.json``.

    ``left_out`` says why a row is left out of fits and errors, and is empty where it is not: it is
    known to be broken; its requests need more FLOP/s than GEMMs reach, or its tokens come faster
    than weights and KV cache are read; or it is of a series with such a row.
    ``part`` says what it is for: see `physim.measured.split`.

    Args:
        path: The CSV; that of the installed package if None.

    Raises:
        InputError: The package ``aiconfigurator-core`` is not installed, or the CSV cannot be read,
            lacks a column, or holds a value that is missing, out of range or in contradiction with
            another.
    """
    import pandas as pd

    if path is None:
        try:
            path = Path(str(resources.files(PACKAGE))) / "systems" / "silicon_sample.csv"
        except ModuleNotFoundError as error:
            remedy = "pip install aiconfigurator-core pyarrow"
            raise InputError("silicon rows", "need aiconfigurator-core", remedy) from error
    rows, places = [], []
    for place, cells in read_cells(path):
        if cells.get("mode") != _DISAGGREGATED:
            point = records.checked(_Point, cells, place)
            try:
                row = _row(point)
            except InputError as error:
                raise InputError(f"{place}: {error.where}", error.what, error.remedy) from None
            if row is not None:
                rows.append(row)
                places.append(place)
    if not rows:
        raise InputError(str(path), "has no row of a model that physim knows", "pass another")
    stated = [row | asdict(row.pop("stated_layout")) for row in rows]
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
    form = point.precision or ""
    named = {"model_path": point.model_path, "precision": form, **_origin(point)}
    model, stated = told("model", named), _layout(point)
    if model is None or stated is None:
        return None
    varied = named["origin"] == _INFERENCEX
    clients = _clients(point)
    ttft, tpot = point.silicon_ttft_ms * 1e-3, point.silicon_tpot_ms * 1e-3
    stated_in, stated_out = float(point.isl), float(point.osl)
    mean, spread = (1.0, 0.0)
    if varied:
        mean = (_SHORTEST + _LONGEST) / 2
        spread = (_LONGEST - _SHORTEST) / math.sqrt(12)
    prompt, output = mean * stated_in, mean * stated_out
    e2e = ttft + tpot * decode_steps(output)
    rate = clients / e2e
    arch, gpu = load_model(model), load_hardware(point.system)
    version = point.backend_version
    known = named | {
        "engine": point.backend,
        "version": _kind_of_version(version),
        "engine_version": version,
        "hardware": gpu.key,
        "gpu_multiplies": dict(gpu.peak_flops),
        "request_tokens": point.isl + point.osl,
        "tp": stated.tp,
        "dp": stated.dp,
        "ep": stated.ep,
        "first_wave_tokens": clients * point.isl,
        "clients": int(clients),
        "prompt": point.isl,
        "output": point.osl,
    }
    layout = _as_run(stated, told("layout", known))
    odd = _contradiction(arch, gpu, layout, rate, prompt, output, tpot)
    drafts = told("draft_tokens", known)
    return {
        "stated_layout": stated,
        "measured": known.get("measured"),
        "experiment": point.id,
        "stage": 0,
        "model": model,
        "hardware": point.system,
        **asdict(layout),
        "weight_dtype": form or "bf16",
        "engine": point.backend,
        "engine_version": settled("engine_version", known) if known["version"] else version,
        "kv_cache_dtype": settled("kv_cache_dtype", known),
        "moe_kernel": told("moe_kernel", known),
        "moe_activations": told("moe_activations", known),
        "sampling": settled("sampling", known),
        "receive_every": settled("receive_every", known),
        "captured_tokens": told("captured_tokens", known),
        "max_model_len": settled("max_model_len", known),
        "max_num_seqs": told("max_num_seqs", known) or int(clients),
        "max_num_batched_tokens": settled("max_num_batched_tokens", known),
        # With drafts as the engine has it beside them.
        "async_scheduling": None if drafts else settled("async_scheduling", known),
        "gpu_memory_utilization": settled("gpu_memory_utilization", known),
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "constant",
        "concurrency": clients,
        "requests": int(clients) * _REQUESTS_PER_CLIENT,
        "warm_up_s": settled("warm_up_s", known),
        "rate_rps": rate,
        "duration_s": _REQUESTS_PER_CLIENT * e2e,
        "input_len_mean": prompt,
        "input_len_std": spread * stated_in,
        "output_len": output,
        "output_len_std": spread * stated_out,
        "ttft_mean": ttft,
        "e2e_mean": e2e,
        # All public rows with drafts ran the model's own layers (MTP).
        "draft": MTP if drafts else None,
        "draft_tokens": drafts,
        "draft_acceptance": told("draft_acceptance", known) if drafts else None,
        # Steps that verify drafts yield several tokens.
        "left_out": told("left_out", known) or ("" if drafts else odd),
        "contradicts": bool(odd) and not drafts,
    }


def _as_run(stated: Parallelism, layout: str | None) -> Parallelism:
    """The layout that a row was run in: as it states, or as the script of the day had it."""
    gpus = stated.tp * stated.dp
    if layout is None:
        return stated
    return {
        "spread_experts": replace(stated, ep=gpus),
        "tensor_parallel_attention": Parallelism(tp=gpus, ep=gpus),
        "data_parallel_attention": Parallelism(dp=gpus, ep=gpus),
    }[layout]


def _origin(point: _Point) -> dict[str, Any]:
    """Where a row comes from, when it was measured and in which image."""
    source = point.silicon_data_source
    taken = re.match(r"source_file=([^;]*)", source)
    file = Path(taken[1]).name if taken else ""
    database = source.startswith("db-dump") or file.startswith("2026")
    measured = re.search(r"measured=(\d{4}-\d\d-\d\d)", source)
    image = re.search(r"[:/]([^;:/]*)$", source)
    known = {"source": _DATABASE if database else file}
    known |= {"gateway": "Dynamo"} if "dynamo_version=" in source else {}
    known |= {"image": image[1]} if image else {}
    known |= {"origin": settled("origin", known)}
    return known | ({"measured": date.fromisoformat(measured[1])} if measured else {})


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


def _clients(point: _Point) -> float:
    """Clients of a row: what its source says, or the requests of all ranks."""
    said = re.search(r"silicon_concurrency=([^;]*)", point.silicon_data_source)
    if said is None:
        return point.batch_size * (point.attention_dp_size or 1)
    if not re.fullmatch(r"[1-9]\d{0,8}", said[1]):
        raise InputError("silicon_data_source", "says no number of clients", "correct it")
    return float(said[1])


def _contradiction(
    arch: ModelArch,
    gpu: Hardware,
    layout: Parallelism,
    rate: float,
    prompt: float,
    output: float,
    tpot: float,
) -> str:
    """Why a row cannot be what it says; empty if it can."""
    form = arch.weight_format
    peak = gpu.peak(form.compute) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has bfloat16: load_hardware
    flops = rate * 2 * (arch.active_parameters - arch.embedding_parameters) * (prompt + output)
    flops /= layout.stage_gpus
    if flops > _MOST_OF_PEAK * peak:
        return f"needs {flops / peak:.0%} of the peak FLOP/s"
    # By Little's law so many requests decode, each with its prompt and half of its answer.
    decoding = rate * tpot * decode_steps(output) / layout.dp
    context = prompt + output / 2
    cache = decoding * sum(
        layers
        * mixer.token_bytes(layout.tp, _LEAST_KV_BYTES)
        * min(context, mixer.window or context)
        for mixer, layers in arch.attention_layers.items()
    )
    # Of routed experts a step reads those of one token at least.
    weights = sum(form.bytes_per_weight * own for form, own in arch.visited_weights.items())
    weights /= layout.stage_gpus
    read_s = (weights + cache) / gpu.memory_bandwidth
    if tpot < read_s:
        return f"its tokens come in {tpot / read_s:.0%} of the time that reading memory takes"
    return ""
