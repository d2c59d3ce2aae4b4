"""Rows of measured runs as what is predicted of them, and what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.deployment import Deployment
from physim.inputs.fleet import Fleet
from physim.inputs.fleet_request import FleetRequest
from physim.inputs.lengths import Lengths, Tokens
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.measured.recorded_traffic import arrival_named, lengths_named
from physim.measured.runs_csv import TableRow
from physim.measured.schema import DEGREES, ENGINE_COLUMNS, SHARED, RunRow
from physim.models.parallelism import Parallelism
from physim.options import options_of
from physim.service.phases import decode_steps

WHOLE_RUN = -1
# What rows say of several servers.
_FLEET = tuple(name for name, one in options_of(FleetRequest).items() if one.column != "none")

# Least number of different prompts where groups have one prompt each, which evict one another where
# those of 23 groups would not. Of the seven runs of this kind (the ``reasoning`` ones of
# trainval.csv and seed16.csv) CodeLlama-34B's TTFT of 120 s, with 26,683 KV blocks, is that of
# prompts computed whole (126 s; 40 s where they are found), which takes more than 206 different
# ones beside 128 requests. Qwen2.5-7B's of 31 ms, with 65,368 blocks, is nearer to found (25 ms)
# than to whole (48), which takes fewer than 417. With 23 the mean error of TTFT of the seven is
# 33%, with all computed whole 17%, and with 300 it is 11%. Why there are so many is not known.
_ALONE = 300
# Of the requests that came in a stage, and no more than a check where the row names a trace.
_OF_REQUESTS = (
    *("input_len_mean", "input_len_std", "cached_len_mean", "output_len", "output_len_std"),
)


def measured(row: RunRow) -> dict[str, float]:
    """Mean TTFT, ITL and E2E of a row, seconds: those of them that it has.

    ITL is what is left of E2E without TTFT for each token but the first: the generated tokens are
    known, while the client's count and its chunks may differ. Only a row without them gives its
    own.
    """
    ttft, e2e, itl = row.ttft_mean, row.e2e_mean, row.itl_mean
    if ttft is not None and e2e is not None and row.output_len > 1:
        itl = (e2e - ttft) / decode_steps(row.output_len)
    seen = {"ttft": ttft, "e2e": e2e, "itl": itl}
    return {metric: value for metric, value in seen.items() if value is not None}


def _lengths(mean: float, spread: float | None) -> Tokens:
    return Lengths.normal(mean, spread) if spread else mean


def _requests(row: RunRow, folder: Path, block_size: int) -> dict[str, Any]:
    """What a load says of its requests: those of a trace, or means and spreads."""
    if row.lengths is not None:
        return {"lengths": lengths_named(row.lengths, folder, row.prefix_caching)}
    return {
        "input_tokens": _lengths(row.input_len_mean, row.input_len_std),
        "output_tokens": _lengths(row.output_len, row.output_len_std),
        "cached_tokens": cached_tokens(row, block_size),
    }


def case_of(run: Sequence[TableRow], timeout_s: float | None) -> Case:
    """A run's rows as a case: its stages in order, or its overall row if it has no other.

    Args:
        run: Its rows.
        timeout_s: Time after which its clients gave up, seconds; None for never.

    Raises:
        InputError: What must be the same in all stages is not, or the case cannot be predicted.
    """
    stages = [one.row for one in stages_of(run)]
    row, folder = stages[0], stages_of(run)[0].table.parent
    _check_shared(stages)
    # What a row does not say is as a deployment has it by default, but for how tokens are drawn.
    said = {name: getattr(row, name) for name in ENGINE_COLUMNS}
    options = {name: value for name, value in said.items() if value is not None}
    options = {"sampling": "unknown", **options}
    deployment = Deployment(Parallelism(**degrees_of(row)), **options)
    clients = row.concurrency
    open_loop = () if clients else stages
    load = Load(
        **_requests(row, folder, deployment.block_size),
        **({} if clients else arrival_named(row.arrival, folder)),
        concurrency=clients,
        requests=row.requests if clients else None,
        warm_up_s=row.warm_up_s or 0.0,
        burstiness=1.0 if clients else row.burstiness or 1.0,
        stages=tuple(Stage(stage.rate_rps, stage.duration_s) for stage in open_loop),
        prefixes=different_prompts(row),
        timeout_s=timeout_s,
    )
    given = {name: getattr(row, name) for name in _FLEET}
    fleet = {name: value for name, value in given.items() if value is not None}
    if not fleet:
        return Case.from_parts(row.model, row.hardware, deployment, load)
    shared = {"gpu": row.hardware, **degrees_of(row), **options}
    return Case.of_fleet(row.model, shared, Fleet(**fleet), load)


def _check_shared(stages: Sequence[RunRow]) -> None:
    """Refuses stages of different servers or requests."""
    differ = _OF_REQUESTS if stages[0].lengths is not None else ()
    for column in (name for name in SHARED if name not in differ):
        values = {getattr(stage, column) for stage in stages}
        if len(values) > 1:
            raise InputError(
                f"{stages[0].experiment}: {column}",
                f"differs between stages ({', '.join(sorted(map(str, values)))})",
                "give each its own experiment",
            )


def lasting(case: Case, row: RunRow) -> Case:
    """The case of a row's run under the load of the row's own stage, as if that lasted.

    Args:
        case: The run's.
        row: One of its stages.
    """
    load = case.demanded
    if load.concurrency is None:
        load = replace(load, stages=(), rate=row.rate_rps)
    return case.under(load)


def degrees_of(row: RunRow) -> dict[str, int]:
    """Degrees of parallelism of a row: ``tp``, and ``pp``, ``dp`` and ``ep`` where it has them."""
    degrees = {name: getattr(row, name) for name in DEGREES}
    return {name: degree for name, degree in degrees.items() if degree is not None}


def stages_of(run: Sequence[TableRow]) -> list[TableRow]:
    """The rows of a run's stages in order, or its overall row if it has no other."""
    stages = [one for one in run if one.row.stage != WHOLE_RUN] or list(run)
    return sorted(stages, key=lambda one: one.row.stage)


def cached_tokens(row: RunRow, block_size: int) -> float:
    """Prompt tokens of a row's requests that are in the prefix cache.

    The prompts of a shared-prefix load are sent again and again, so after the first round every
    full block is a hit, unless it was evicted, but for the one that holds the last token: vLLM
    computes at least that one anew, since its logits are needed.
    """
    if row.prefix_caching and row.cached_len_mean is not None:
        return row.cached_len_mean
    if not row.prefix_caching or row.prompt_groups < 1:
        return 0.0
    return (row.input_len_mean - 1) // block_size * block_size


def different_prompts(row: RunRow) -> int:
    """Different prompts that a row's requests have in turn; one where none is sent again."""
    different = row.prompt_groups * (row.prompts_per_group or 1)
    return max(different, _ALONE if different and row.prompts_per_group == 1 else 1)
