"""NVIDIA's measured serving points whose prompts are computed on other GPUs than their answers.

They are in the table that `physim.measured.silicon` reads, and have the same clients. A row is read
if it says how many engines there are of both kinds; most give degrees of parallelism that are those
of all of them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from physim import records
from physim.errors import InputError
from physim.inputs.fleet import REPLICAS, pool_text
from physim.measured import silicon
from physim.measured.row_physics import excess_flops, excess_speed
from physim.measured.row_rules import settled, told
from physim.models.drafts import MTP
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.records import Count, Length, Whole, read_cells
from physim.service.hardware import load_hardware
from physim.service.phases import DECODE, PHASES, PREFILL

if TYPE_CHECKING:
    import pandas as pd

_WITHOUT_WORKERS = "does not say how many engines there are"
_UNKNOWN_MODEL = "is of a model that physim does not know"
_WITH_STAGES = "has engines of several stages of layers"
_OTHER_GPUS = "has experts on other GPUs than attention"
_OF_ENGINES = (
    *("num_workers", "tp_size", "pp_size", "attention_dp_size"),
    *("moe_tp_size", "moe_ep_size"),
)
# Options of a pool that rules may set, beside its layout and its replicas.
_OF_A_POOL = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "moe_kernel",
    "receive_every",
    "all2all",
)


class _Point(silicon.Point):
    mode: Literal["disagg"]
    prefill_num_workers: Whole | None
    prefill_tp_size: Whole
    prefill_pp_size: Count | None
    prefill_attention_dp_size: Count | None
    prefill_moe_tp_size: Count | None
    prefill_moe_ep_size: Count | None
    decode_batch_size: Length | None
    decode_num_workers: Whole | None
    decode_tp_size: Whole
    decode_pp_size: Count | None
    decode_attention_dp_size: Count | None
    decode_moe_tp_size: Count | None
    decode_moe_ep_size: Count | None


@dataclass(frozen=True)
class _Engines:
    """The engines of one phase: how many, and the layout of one as the row states it."""

    replicas: int
    layout: Parallelism

    def text(self, layout: Parallelism, options: Mapping[str, object]) -> str:
        """Them as a cell of a table says it."""
        degrees = {name: None if degree == 1 else degree for name, degree in asdict(layout).items()}
        return pool_text(degrees | {"tp": layout.tp, REPLICAS: self.replicas} | dict(options))


@dataclass(frozen=True)
class PoolRows:
    """Rows whose prompts are computed apart.

    Attributes:
        frame: Those that are read, in the common form.
        passed_over: How many are not, by why.
    """

    frame: pd.DataFrame
    passed_over: Mapping[str, int]


def read(path: Path | None = None) -> PoolRows:
    """The rows that are disaggregated and say how many engines there are of both kinds.

    Columns are as `physim.measured.silicon.read` has them, with the engines in ``prefill`` and
    ``decode`` (see `physim.inputs.fleet.pool_text`); the other columns say what both share. Decode
    slots (``max_num_seqs``) are named where the recipe of the day is known: the batch size that a
    row states is that of its clients. ``draft_hidden`` says of a row without drafts that it may
    have had some: neither it nor any other row of its servers tells.

    Args:
        path: The CSV; that of the installed package if None.

    Raises:
        InputError: As of `physim.measured.silicon.read`.
    """
    path = path or silicon.table()
    found: dict[str, dict[str, Any]] = {}
    passed_over: Counter[str] = Counter()
    for place, cells in read_cells(path):
        if cells.get("mode") != silicon.DISAGGREGATED:
            continue
        point = records.checked(_Point, cells, place)
        try:
            row = _row(point)
        except InputError as error:
            raise InputError(f"{place}: {error.where}", error.what, error.remedy) from None
        if isinstance(row, str):
            passed_over[row] += 1
        else:
            found[place] = row
    if not found:
        raise InputError(str(path), "has no disaggregated row that can be read", "pass another")
    return PoolRows(silicon.as_table(found), dict(passed_over))


def _row(point: _Point) -> dict[str, Any] | str:
    """A row in the common form, or why it is passed over."""
    pools = {phase: _engines(point, phase) for phase in PHASES}
    stated = {phase: pool for phase, pool in pools.items() if isinstance(pool, _Engines)}
    for pool in pools.values():
        if isinstance(pool, str):
            return pool
    known = silicon.facts(point, _facts(point, stated))
    model = told("model", known)
    if model is None:
        return _UNKNOWN_MODEL
    clients = silicon.clients_of(point, known["clients"])
    known["clients"] = int(clients)
    arch, gpu = load_model(model), load_hardware(point.system)
    known |= silicon.hardware_facts(gpu)
    load = silicon.load_columns(point, known, clients)
    texts, layouts = {}, {}
    for phase, pool in stated.items():
        own = known | {"phase": phase, "tp": pool.layout.tp, "dp": pool.layout.dp}
        own["ep"] = pool.layout.ep
        layouts[phase] = silicon.as_run(pool.layout, told("layout", own))
        options = {name: told(name, own) for name in _OF_A_POOL}
        shared = {name: told(name, known) for name in _OF_A_POOL}
        differ = {name: value for name, value in options.items() if value != shared[name]}
        texts[phase] = pool.text(layouts[phase], differ)
    prompt, output = load["input_len_mean"], load["output_len"]
    rates = {phase: load["rate_rps"] / pool.replicas for phase, pool in stated.items()}
    tpot = (load["e2e_mean"] - load["ttft_mean"]) / (output - 1)
    odd = excess_flops(arch, gpu, layouts[PREFILL], rates[PREFILL], prompt)
    odd = odd or excess_flops(arch, gpu, layouts[DECODE], rates[DECODE], output)
    odd = odd or excess_speed(arch, gpu, layouts[DECODE], rates[DECODE], prompt, output, tpot)
    drafts = told("draft_tokens", known)
    return {
        "stated": {phase: pool.text(pool.layout, {}) for phase, pool in stated.items()},
        "measured": known.get("measured"),
        "experiment": point.id,
        "stage": 0,
        "model": model,
        "hardware": point.system,
        "tp": 1,
        **texts,
        "weight_dtype": known["precision"] or "bf16",
        "engine": point.backend,
        "engine_version": silicon.engine_version(known),
        "kv_cache_dtype": settled("kv_cache_dtype", known),
        "sampling": settled("sampling", known),
        "receive_every": settled("receive_every", known),
        "stream_interval": settled("stream_interval", known),
        "max_model_len": settled("max_model_len", known),
        "max_num_seqs": int(clients),
        "max_num_batched_tokens": settled("max_num_batched_tokens", known),
        "async_scheduling": None if drafts else settled("async_scheduling", known),
        "gpu_memory_utilization": settled("gpu_memory_utilization", known),
        **load,
        "draft": MTP if drafts else None,
        "draft_tokens": drafts or None,
        "draft_acceptance": told("draft_acceptance", known) if drafts else None,
        "draft_hidden": drafts is None,
        "left_out": told("left_out", known) or ("" if drafts else odd),
        "contradicts": bool(odd) and not drafts,
    }


def _engines(point: _Point, phase: str) -> _Engines | str:
    """The engines of a phase, or why the row is passed over."""
    own = {name: getattr(point, f"{phase}_{name}") for name in _OF_ENGINES}
    if own["num_workers"] is None:
        return _WITHOUT_WORKERS
    if own["pp_size"] not in (None, 1):
        return _WITH_STAGES
    tp, dp = own["tp_size"], own["attention_dp_size"] or 1
    # 0 where a row says nothing of experts; 1 of both where there are none.
    moe_tp, ep = own["moe_tp_size"] or 1, own["moe_ep_size"] or 1
    if moe_tp * ep not in (1, tp * dp):
        return _OTHER_GPUS
    return _Engines(own["num_workers"], Parallelism(tp=tp, dp=dp, ep=ep))


def _facts(point: _Point, stated: Mapping[str, _Engines]) -> dict[str, Any]:
    """What is known of a row beside what others state, by the names of conditions."""
    decode = stated[DECODE]
    together = (point.decode_batch_size or 1) * decode.replicas * decode.layout.dp
    config = silicon.stated_number(point, "config_id")
    return {
        "serving": "disaggregated",
        "clients": together,
        "prefill_workers": stated[PREFILL].replicas,
        "decode_workers": decode.replicas,
        **({} if config is None else {"config": config}),
    }
