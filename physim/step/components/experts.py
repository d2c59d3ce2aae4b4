"""Routed experts: the router's GEMM and the grouped GEMMs of a layer's experts.

``E (1 - (1 - k/E)^T)`` of ``E`` experts are visited by at least one of ``T`` tokens that choose
``k`` each on their own; their weights are what a small batch reads. `physim.step.routing` says how
many of a step's tokens do, and under which spread the measured time is taken. Where experts are
spread whole over GPUs, each has a share of ``E`` and of ``k``, and the tokens of all.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from physim import roofline
from physim.engines.engine import engine_named
from physim.engines.profile import shipped_engines
from physim.errors import InputError
from physim.grids.store import gpu_or_stand_in, grids_of, load_expert_grid, peers, tables
from physim.models.layers import Experts, padded
from physim.models.parallelism import Parallelism
from physim.service.server import EXPERT_LOADS
from physim.step.better_gpus import Missed, no_faster, no_faster_note
from physim.step.component import Component, Part, Placement
from physim.step.curves import TOKENS, rising, rising_log_seconds
from physim.step.gemms import linear_rows
from physim.step.padded_experts import BLOCK_ROWS, padded_seconds, padding_kernel
from physim.step.routing import full_at
from physim.step.rows import Row, SizeRow

# How many times the share of all experts' time a share of the experts may take at the most tokens;
# what was measured longer is not of that share. TensorRT-LLM's tables are within.
_TOO_LONG = 2.0
# Kernels of experts, those that an engine prefers where it has the choice first: of FlashInfer, of
# Marlin (which multiplies in 16 bit) and of Triton.
_KERNELS = ("flashinfer", "marlin", "triton", "min_latency", "cutlass", "deepgemm")
# What vLLM's Marlin experts take beside their two GEMMs, of which tables of a much larger layer
# leave 10 us for a token at tp 8: sorting by expert, the activation, the sum, and padding mxfp4's
# hidden size. Of 36 layers of gpt-oss-120b on H100 at tp 2 to 8 with 4 to 16 clients, rows of the
# fit: 0.65 ms. (On L40S, where that layer was measured itself, a token takes 28 us.)
_BESIDE_MARLIN_S = 18e-6


def _lower(placement: Placement) -> Iterator[Row]:
    # The router, and the projections to and from narrower experts.
    yield from linear_rows(placement, "experts", correction="experts", compute_correction=None)
    layers: Counter[Experts] = Counter()
    for group in placement.model.groups:
        if group.experts:
            layers[group.experts] += group.layers
    for experts, count in layers.items():
        yield _grouped_gemms(placement, experts, count)


def _grouped_gemms(placement: Placement, experts: Experts, layers: int) -> SizeRow:
    form, matrices = placement.multiplied(experts.form), experts.matrices
    hidden, width, per_token, count = _shape(placement, experts)
    return SizeRow(
        name="experts",
        part="experts",
        size="routed",
        count=layers,
        flops=2 * matrices * per_token * hidden * width,
        bytes=2 * roofline.BYTES_16_BIT * hidden,
        expert_bytes=matrices * hidden * width * form.bytes_per_weight,
        experts=count,
        experts_per_token=per_token,
        peak_flops=placement.peak_flops(form),
        sustained_share=placement.sustained_share(form),
        bandwidth=placement.gpu.memory_bandwidth,
        by_spread=no_faster(
            placement, _missed(experts), functools.partial(_log_seconds, experts=experts)
        ),
        correction="experts",
        compute_correction="experts_compute",
        is_matrix=True,
        is_bent=True,
    )


def _shape(placement: Placement, experts: Experts) -> tuple[float, float, float, float]:
    """The hidden size, and on one GPU the width, the experts of a token and all experts."""
    hidden = experts.hidden_size or placement.model.hidden_size
    ep, width = placement.layout.ep, experts.intermediate_size / placement.layout.expert_tp
    return hidden, width, experts.per_token / ep, experts.count / ep


def _log_seconds(placement: Placement, experts: Experts) -> np.ndarray:
    """Logarithm of the time of a layer of experts under each spread, at `TOKENS`."""
    form, shape = placement.multiplied(experts.form), _shape(placement, experts)
    hidden, _, per_token, count = shape
    peak, bandwidth = placement.peak_flops(form), placement.gpu.memory_bandwidth

    def bound_of(tokens: np.ndarray, *shape: float) -> np.ndarray:
        hidden, width, per_token, count = shape
        work = roofline.experts(
            *(tokens, hidden, width, count, per_token, form.bytes_per_weight),
            matrices=experts.matrices,
        )
        return np.asarray(roofline.seconds(work, peak, bandwidth))

    def bound_s(tokens: np.ndarray) -> np.ndarray:
        return bound_of(tokens, *shape)

    if padding_kernel(placement, experts):
        padded = np.maximum(padded_seconds(placement, experts), bound_s(TOKENS))
        return np.tile(np.log(padded), (len(EXPERT_LOADS), 1))
    grids, measured = _tables(placement, experts)
    kernel, taken = _kernel(measured)
    # Marlin's start is known of itself (`_BESIDE_MARLIN_S`).
    has_start = taken == form.expert_tables[0] and (kernel, taken) != ("marlin", "mxfp4")
    curves = []
    for spread in EXPERT_LOADS:
        load = measured[min(measured, key=lambda known: abs(known - spread))]

        def curve(table: str) -> np.ndarray:
            grid = load_expert_grid(grids, table)
            # As many tokens come to an expert of the measured layer, and one to its GPU at least:
            # the step waits for a rank that has any.
            near = grid.shapes[grid.nearest_row(*shape)]
            alike = per_token / count / (near[2] / near[3])
            tokens = np.maximum(TOKENS, 1.0 if placement.layout.ep == 1 else grid.tokens[0] / alike)
            at = np.maximum(alike * tokens, grid.tokens[0])
            nearest, bound = grid.nearest(*shape), bound_s(tokens)
            efficiency = nearest.resampled(tokens=at)
            if has_start:
                smallest = float(bound_of(grid.tokens[:1], *near)[0])
                start = start_s(np.exp(nearest.log_efficiency), smallest)
                seconds = started_s(efficiency, start, bound_of(at, *near), bound)
                efficiency = np.log(bound / seconds)
            return rising_log_seconds(efficiency, bound)

        own, all_table = curve(load), load.replace("_spread_", "_")
        if all_table != load and all_table in tables(grids):
            own = _share_of_all(own, curve(all_table), per_token / count)
        if (kernel, taken) == ("marlin", "mxfp4") and not _is_of(hidden, grids, load):
            own = np.log(_padding(placement, experts) * np.exp(own) + _BESIDE_MARLIN_S)
        curves.append(own)
    if min(measured) == 0.0:
        even = curves[0]
        curves = [
            np.maximum(rising(_chosen(even, curve, experts, spread)), np.log(bound_s(TOKENS)))
            for spread, curve in zip(EXPERT_LOADS, curves, strict=True)
        ]
    found = np.array(curves)
    if placement.layout == Parallelism():
        return found
    # What GPUs share takes each of them no longer than one that does it all: they were not measured
    # with the same kernel at every shape.
    whole = Placement(replace(placement.server, parallelism=Parallelism()))
    return np.minimum(found, _log_seconds(whole, experts))


def start_s(efficiency: np.ndarray, smallest_s: float) -> float:
    """What the kernels of a measured layer take to start, seconds.

    It is what the fewest tokens take beyond their work, at the best efficiency that they reach.

    Args:
        efficiency: Of the layer, from few tokens to many.
        smallest_s: Roofline time of the fewest.
    """
    return max(float(smallest_s * (1 / efficiency[0] - 1 / np.max(efficiency))), 0.0)


def started_s(
    log_efficiency: np.ndarray, start: float, measured_s: np.ndarray, bound_s: np.ndarray
) -> np.ndarray:
    """Time of a layer by a measured one: its start, and the rest in proportion to the rooflines.

    Args:
        log_efficiency: Logarithm of the measured layer's efficiency.
        start: What its kernels take to start, seconds.
        measured_s: Its roofline times, seconds.
        bound_s: Those of the layer, seconds.
    """
    work = measured_s / np.exp(log_efficiency) - start
    return np.asarray(start + np.maximum(work, 0.0) * bound_s / measured_s)


def _is_of(hidden: float, grids: str, table: str) -> bool:
    """Whether a table is of layers of that hidden size, and so has all that such a layer takes."""
    return any(measured == hidden for measured, *_ in load_expert_grid(grids, table).shapes)


def _padding(placement: Placement, experts: Experts) -> float:
    """How many times its weights a layer of experts is multiplied by in Marlin's kernel, padded."""
    if not experts.form.is_padded:
        return 1.0
    engine = engine_named(placement.server.profile.engine)
    multiples = engine.padding(placement.gpu.compute_capability, "marlin")
    shape = _shape(placement, experts)[:2]
    return math.prod(padded(shape, multiples)) / math.prod(shape)


def _share_of_all(share: np.ndarray, of_all: np.ndarray, visits: float) -> np.ndarray:
    """Logarithm of the time of a GPU's share of the experts, by what was measured of it and of all.

    Once all experts are visited only computing grows, by as much for a share of them as for that
    share of all. What SGLang's and vLLM's collectors measured of shares grows four to fifteen times
    as fast from there on, whatever the share, as if all that tokens visit were there.

    Args:
        share: Logarithm of what was measured of the share, at `TOKENS`,
        of_all: and of a layer with all experts, as the share has of it.
        visits: Share of the experts that a token visits.
    """
    if share[-1] < of_all[-1] + np.log(_TOO_LONG):
        return share
    grown = np.diff(np.exp(of_all), prepend=np.exp(of_all[0]))
    seconds = np.exp(share)
    for place in np.flatnonzero(full_at(visits) < TOKENS):
        seconds[place] = min(seconds[place], seconds[place - 1] + grown[place])
    return np.log(seconds)


def _missed(experts: Experts) -> Missed:
    """How many tables were missed for experts: a peer's in the place of the GPU's counts as one."""

    def missed(placement: Placement) -> int:
        if padding_kernel(placement, experts):
            return 0
        grids, measured = _tables(placement, experts)
        wanted, (_, taken) = placement.multiplied(experts.form).expert_tables, _kernel(measured)
        # Per-channel and block fp8 experts run through one kernel.
        is_other = not {wanted[0], taken} <= {"fp8", "fp8_block"}
        return is_other * wanted.index(taken) + (grids != placement.grids)

    return missed


def _chosen(
    even: np.ndarray, measured: np.ndarray, experts: Experts, exponent: float
) -> np.ndarray:
    """What tokens that choose on their own take, of rows whose tokens took turns.

    The collector's even load hands experts out in turn, so that ``T`` tokens visit ``k T`` of them
    until none is left, more than any choice would. Its kernel takes the time of the experts that
    are visited; once all are, what is left is that of the tokens, and where the load is uneven the
    wait for the fullest. (Below ``E / k`` tokens its uneven loads follow a law of their own.)

    Args:
        even: Logarithm of the time under the even load, at `TOKENS`.
        measured: That under the load.
        experts: The experts.
        exponent: The load's: of the power law by which experts are chosen.
    """

    def seconds_at(tokens: np.ndarray) -> np.ndarray:
        return np.interp(np.log(tokens), np.log(TOKENS), even)

    turns = experts.count / experts.per_token
    visited = roofline.visited_experts(TOKENS, experts.count, experts.per_token, exponent)
    uneven = np.maximum(measured - even, 0.0)
    return (
        even
        + seconds_at(visited / experts.per_token)
        - seconds_at(np.minimum(TOKENS, turns))
        + uneven
    )


def _tables(placement: Placement, experts: Experts) -> tuple[str, dict[float, str]]:
    """Whose tables stand for a layer of experts, and they by the spread they were measured under.

    Those of a peer are taken where it has a kernel that the engine likes better, or such a kernel
    in a shape that is nearer; those of another engine for a kernel that was asked for and that
    this one was not measured with.

    Raises:
        InputError: There is none.
    """
    asked, profile = placement.server.moe_kernel, placement.server.profile
    liked = (*profile.expert_kernels, *_KERNELS)
    kernels = dict.fromkeys((asked, *liked) if asked else liked)
    # What was measured of a share of the experts comes first where a GPU has one.
    shares = ("_spread", "") if placement.layout.ep > 1 else ("",)
    of_peers = (
        grids_of(one.key, profile.engine, profile.kernel_tables) for one in peers(placement.gpu)
    )
    alike = (placement.grids, *of_peers)
    others = tuple(grids_of(gpu_or_stand_in(placement.gpu.key), one) for one in shipped_engines())
    formats = placement.multiplied(experts.form).expert_tables

    def distance(found: tuple[str, dict[float, str]]) -> float:
        grids, measured = found
        table = next(iter(measured.values()))
        return load_expert_grid(grids, table).distance(*_shape(placement, experts))

    for measured, kernel, share in itertools.product(formats, kernels, shares):
        names = {
            spread: f"moe_{measured}_{kernel}{share}_{load}"
            for spread, load in EXPERT_LOADS.items()
        }
        for group in (alike, others) if kernel == asked else (alike,):
            known = (
                (grids, {spread: name for spread, name in names.items() if name in tables(grids)})
                for grids in group
            )
            found = [(grids, own) for grids, own in known if own]
            if found:
                return min(found, key=distance)
    raise InputError(
        f"grids of {placement.grids}", "hold no expert layers", "run `physim grids build`"
    )


def _assumptions(placement: Placement) -> list[str]:
    lines = []
    for experts in (group.experts for group in placement.model.groups if group.experts):
        if pads := padding_kernel(placement, experts):
            lines.append(
                f"experts run in {pads.kernel}'s blocks of {BLOCK_ROWS} rows, so that a step takes "
                f"as long as if its tokens chose all of them; {pads.instead} turns that off "
                "(--moe-kernel triton)"
            )
            continue
        grids, measured = _tables(placement, experts)
        kernel, taken = _kernel(measured)
        limit = no_faster_note(placement, _missed(experts))
        if grids != placement.grids:
            what = f"{kernel} kernel of such experts in {taken} on {placement.gpu.key}"
            lines.append(f"no measured {what}: efficiencies of {grids} are used{limit}")
        elif _missed(experts)(placement):
            what = f"expert kernel for {experts.form.name}"
            lines.append(f"no measured {what}: that of {taken} is used{limit}")
        if placement.server.expert_load < min(measured):
            lines.append(
                f"no measured experts under a load more even than {EXPERT_LOADS[min(measured)]}"
            )
    return list(dict.fromkeys(lines))


def _kernel(measured: dict[float, str]) -> tuple[str, str]:
    """The kernel and the format that tables of experts are of, by their names."""
    table = next(iter(measured.values()))
    kernel = next(kernel for kernel in _KERNELS if f"_{kernel}_" in table)
    return kernel, table.removeprefix("moe_").split(f"_{kernel}_")[0]


COMPONENT = Component(
    name="experts",
    parts=(Part("experts", "routed experts"),),
    lower=_lower,
    source="MoE tables of aiconfigurator-core 0.12.0",
    assumptions=_assumptions,
)
