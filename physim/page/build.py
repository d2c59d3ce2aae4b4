"""Tables of a model's servers for a page, and how far they are off."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float, Int

from physim.corrections.files import DEFAULT_FIT, Fit, load_fit
from physim.errors import InputError
from physim.inputs.attempts import attempts, check_shared, choices, layout_axes, refuse_fleets
from physim.inputs.case import Case, LoadAndEngineOptions
from physim.inputs.request_lengths import RequestLengths
from physim.models.parallelism import on_gpus
from physim.options import named_options
from physim.page.interpolation import Table
from physim.page.tables import (
    FULL,
    PARTS,
    SATURATION,
    VALUES,
    Axes,
    Axis,
    Numbers,
    Packed,
    Tables,
)
from physim.page.widths import LOADS, Widths, under
from physim.prediction.intervals import predict_with_intervals
from physim.progress import told_in_notebooks
from physim.questions.prices import hourly_prices
from physim.questions.servers import Latencies, Servers
from physim.service.hardware import load_hardware

# What a page offers where nothing is said.
GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm")
# Limits of the engine that a page offers where none are given.
_SEQS = (32, 128, 256, 1024)
_BUDGETS = (2048, 8192)
# How far points of a table are apart at most: octaves of the lengths, logits of the load.
_INPUT_STEP, _OUTPUT_STEP = 0.5, 1.75
# Loads from half a percent of the saturation throughput to 98.5%.
_LOADS = Axis(-5.4, 0.8, 13)
# Up to this share of the saturation throughput errors are told apart from those above it.
KNEE = 0.8
CHECKED, _CHECKED_WIDTHS = 512, 64


@dataclass(frozen=True)
class PageRequest:
    """What a page is asked for.

    Attributes:
        model: The model, as it was named.
        fit: The fit, as it was named.
        lengths: Requests that are made as long as is chosen; None for those that are alike.
        options: The rest of the load, and the engine.
    """

    model: str | Path
    fit: str | Path
    lengths: RequestLengths | None
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Predicted:
    """All that a page knows.

    Attributes:
        asked: What was asked for.
        servers: The servers, each under some load.
        groups: One server of those that differ in limits alone.
        group_of: The place among them of each server's.
        tables: Predictions of the servers, as exact as the page has them.
        widths: How wide the intervals of the groups are; None without a fit that knows.
        packed: Tables and widths, as the page holds them.
        errors: How far the tables are off up to `KNEE` and above it: by name the median, the 95th
            percentile and the most; of ``interval`` by how much the ends of ITL's are.
        prices: Of one GPU for an hour, by its key.
        refused: Servers that cannot be, one line each.
        fit: The fit.
    """

    asked: PageRequest
    servers: Sequence[Case]
    groups: Sequence[Case]
    group_of: Sequence[int]
    tables: Tables
    widths: Widths | None
    packed: Packed
    errors: Mapping[str, Mapping[str, list[float]]]
    prices: Mapping[str, float]
    refused: Sequence[str]
    fit: Fit


@told_in_notebooks("predicting tables of a page")
@named_options
def predicted(
    model: str | Path,
    *,
    gpus: Sequence[str] = GPUS,
    tps: Sequence[int] = (1, 2, 4, 8),
    pps: Sequence[int] = (1,),
    dps: Sequence[int] = (1,),
    eps: Sequence[int] = (1,),
    inputs: tuple[float, float] = (128, 16384),
    outputs: tuple[float, float] = (16, 2048),
    prices: Mapping[str, float] | None = None,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[LoadAndEngineOptions],
) -> Predicted:
    """Tables of all that a page offers of a model.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        gpus: GPUs to choose from.
        tps: Degrees ``tp`` of `physim.Parallelism` to choose from,
        pps: ``pp``,
        dps: ``dp``,
        eps: and ``ep``, in every combination.
        inputs: Prompt lengths from and to, tokens.
        outputs: Generated lengths from and to, tokens.
        prices: Price of one GPU for an hour, by its key, in any currency.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: The rest of the load, and the engine; see `CaseOptions`. Limits that are given
            are not offered. Of ``lengths`` those that a page offers are the means.

    Raises:
        InputError: Some input cannot be used, or no server can be.
    """
    check_shared(options)
    refuse_fleets(options, "a page")
    tried = layout_axes(tps, pps, dps, eps)
    for name, (first, last), least in (("input", inputs, 1), ("output", outputs, 2)):
        if not (math.isfinite(last) and least <= first < last):
            raise InputError(
                f"--{name} {first:g}:{last:g}", f"is no range from {least} on", "give FROM:TO"
            )
    for name in ("rate", "concurrency", "input_tokens", "output_tokens"):
        if options.get(name) is not None:
            raise InputError(name, "is varied by the page", "leave it out")
    if options.get("turns") not in (None, 1):
        raise InputError("turns", "of conversations have no page", "leave them out")
    hourly = hourly_prices(prices)
    keys = [load_hardware(gpu).key for gpu in gpus]
    for gpu in hourly:
        if gpu not in keys:
            raise InputError(f"price of {gpu}", "is of no GPU of the page", "add it to the GPUs")
    given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    requests: RequestLengths | None = given.pop("lengths", None)
    joint = None if requests is None else requests.condensed()
    ends = [(math.log2(first), math.log2(last)) for first, last in (inputs, outputs)]
    axes = Axes.between(ends[0], ends[1], (_INPUT_STEP, _OUTPUT_STEP), _LOADS)
    known = load_fit(fit)
    servers, refused = _servers(model, keys, tried, axes, joint, given)
    groups = {_group(case): case for case in servers}
    group_of = [[*groups].index(_group(case)) for case in servers]
    exact = _tables(servers, joint, axes, known)
    halves = ((last - first) / 2 for first, last in ends)
    width_axes = Axes.between(ends[0], ends[1], tuple(halves), LOADS)
    widths = (
        Widths.predicted(servers, joint, group_of, exact, width_axes, known)
        if known.scatter
        else None
    )
    packed = Packed.from_named(exact.named | ({} if widths is None else widths.named_apart))
    tables = Tables.from_named(axes, packed.unpacked())
    found = Predicted(
        PageRequest(model, fit, joint, given),
        servers,
        [*groups.values()],
        group_of,
        tables,
        widths,
        packed,
        {},
        hourly,
        refused,
        known,
    )
    return replace(found, errors=_errors(found))


def _group(case: Case) -> tuple[str, object]:
    """What servers that differ in limits alone have in common."""
    return case.server.gpu.key, case.server.parallelism


def _servers(
    model: str | Path,
    gpus: Sequence[str],
    tried: Mapping[str, Sequence[int]],
    axes: Axes,
    joint: RequestLengths | None,
    options: Mapping[str, Any],
) -> tuple[list[Case], list[str]]:
    """Every server that can be, under a load that fits, and why others cannot be."""
    offered = {"max_num_seqs": _SEQS, "max_num_batched_tokens": _BUDGETS}
    limits = {k: [options[k]] if k in options else values for k, values in offered.items()}
    inputs, outputs = (float(2.0 ** axis.points[0]) for axis in (axes.inputs, axes.outputs))
    shortest: dict[str, Any] = {"input_tokens": inputs, "output_tokens": outputs}
    if joint is not None:
        shortest = {"lengths": joint.with_means(inputs, outputs)}
    found, refused = [], {}
    common = {**options, **shortest, "model": model, "rate": 1.0}
    for attempt in attempts(choices(gpu=gpus, **tried, **limits), common):
        if attempt.case is not None:
            found.append(attempt.case)
        if attempt.refusal is not None:
            refused[on_gpus(attempt.choice["gpu"], attempt.choice)] = attempt.refusal
    if not found:
        nothing = InputError("page", "has nothing to show", "name GPUs and layouts")
        raise next(iter(refused.values()), nothing)
    return found, [f"{where}: {error}" for where, error in refused.items()]


def _lengths(
    servers: Sequence[Case], joint: RequestLengths | None, inputs: Axis, outputs: Axis
) -> tuple[list[Case], tuple[Int[np.ndarray, " n"], ...]]:
    """Servers at all lengths that fit, and where these are: server, input and output."""
    cases, places = [], []
    for row, i, o in itertools.product(
        range(len(servers)), range(inputs.count), range(outputs.count)
    ):
        with contextlib.suppress(InputError):
            lengths = 2.0 ** inputs.points[i], 2.0 ** outputs.points[o]
            cases.append(under(servers[row], joint, *lengths, rate=1.0))
            places.append((row, i, o))
    return cases, tuple(np.array(places).T)


def _tables(first: Sequence[Case], joint: RequestLengths | None, axes: Axes, known: Fit) -> Tables:
    """Predicts servers at all lengths and loads."""
    cases, index = _lengths(first, joint, axes.inputs, axes.fine)
    saturation = np.full((len(first), axes.inputs.count, axes.fine.count), np.nan)
    saturation[index] = np.log(Servers(cases, known).saturation)
    cases, index = _lengths(first, joint, axes.inputs, axes.outputs)
    servers = Servers(cases, known)
    which, shares = (
        grid.ravel() for grid in np.meshgrid(np.arange(len(cases)), axes.shares, indexing="ij")
    )
    found = servers.under_rates(which, shares * servers.saturation[which])

    above = servers.under_rates(np.arange(len(cases)), 2 * servers.saturation)

    def table(value: Table, *loads: int) -> Table:
        rest = (*loads, *value.shape[1:])
        full = np.full((len(first), axes.inputs.count, axes.outputs.count, *rest), np.nan)
        full[index] = value.reshape(len(cases), *rest)
        return full

    loads = axes.loads.count
    values = {name: table(np.log(value), loads) for name, value in _values(found).items()}
    logs = {name: np.log(value) for name, value in _values(above).items() if name in FULL}
    full = {name: table(value) for name, value in {**logs, PARTS: _parts(above)}.items()}
    return Tables(axes, saturation, values, table(_parts(found), loads), full)


def _parts(found: Latencies) -> Float[np.ndarray, "n parts"]:
    """Shares of the time of a step."""
    shares: Float[np.ndarray, "n parts"] = found.step_parts / found.step_parts.sum(
        axis=1, keepdims=True
    )
    return shares


def _values(found: Latencies) -> dict[str, Float[np.ndarray, " n"]]:
    """What a table holds of servers, in the order of `VALUES`."""
    p99 = {f"{name}_p99": own[:, -1] for name, own in found.percentiles.items()}
    every = {
        **found.means,
        **p99,
        "step": found.step_parts.sum(axis=1),
        "batch": found.batch,
        "kv_use": found.kv_use,
    }
    # A pipeline's queue may grow without end below its saturation throughput.
    endless = np.isinf(found.means["ttft"])
    waits = ("ttft", "ttft_p99", "e2e", "e2e_p99")
    return {
        name: np.where(endless, np.nan, every[name]) if name in waits else every[name]
        for name in VALUES
    }


def _errors(found: Predicted) -> dict[str, dict[str, list[float]]]:
    """How far tables are off between their points, at some of which servers are predicted."""
    rng, axes, known = np.random.default_rng(0), found.tables.axes, found.fit
    joint = found.asked.lengths
    rows = rng.integers(len(found.servers), size=CHECKED)
    inputs, outputs, shares = (
        rng.uniform(axis.points[0], axis.points[-1], CHECKED)
        for axis in (axes.inputs, axes.outputs, axes.loads)
    )
    inputs, outputs, shares = np.rint(2**inputs), np.rint(2**outputs), 1 / (1 + np.exp(-shares))
    fits = ~np.isnan(found.tables.saturation_of(rows, inputs, outputs))
    rows, inputs, outputs, shares = (own[fits] for own in (rows, inputs, outputs, shares))
    cases = [
        under(found.servers[row], joint, prompt, output, 1.0)
        for row, prompt, output in zip(rows.tolist(), inputs, outputs, strict=True)
    ]
    every = Servers(cases, known)
    rates = shares * every.saturation
    right = {
        SATURATION: every.saturation,
        **_values(every.under_rates(np.arange(len(cases)), rates)),
    }
    off = {
        name: np.abs(value / right[name] - 1)
        for name, value in found.tables.look_up(rows, inputs, outputs, rates).items()
    }
    found_errors = _by_side(off, shares)
    if found.widths is not None:
        some = slice(_CHECKED_WIDTHS)
        groups = np.array(found.group_of)[rows[some]]
        ends = found.widths.ends(
            found.tables, groups, rows[some], inputs[some], outputs[some], rates[some]
        )
        bounded = [
            under(case, joint, inputs[place], outputs[place], rates[place])
            for place, case in enumerate(cases[some])
        ]
        exact = predict_with_intervals(bounded, [known.on(case) for case in bounded])
        right_ends = np.array([one.intervals["itl_s"] for one in exact]).T
        apart = {"interval": np.max(np.abs(np.array(ends["itl"]) / right_ends - 1), axis=0)}
        for side, own in _by_side(apart, shares[some]).items():
            found_errors[side] |= own
    return found_errors


def _by_side(off: Mapping[str, Numbers], shares: Numbers) -> dict[str, dict[str, list[float]]]:
    """The median, the 95th percentile and the most of errors, up to `KNEE` and above it."""
    return {
        side: {
            name: np.nanquantile(own[where], [0.5, 0.95, 1.0]).tolist()
            for name, own in off.items()
            if not np.isnan(own[where]).all()
        }
        for side, where in (("below", shares <= KNEE), ("above", shares > KNEE))
    }
