"""Rows of what stands for attention, of a measured layer whose work has several terms.

The time of a layer was measured as a whole. Where it decodes, what sees a window takes the share of
its roofline up to that window and as much beyond; what sees all takes the rest. Where it prefills,
every term has the efficiency of all together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from physim import roofline
from physim.grids.efficiency import Grid
from physim.grids.store import load_grid, tables, with_table
from physim.mixers.mixer import DecodeTerm, Measured, Mixer
from physim.step.better_gpus import Missed, no_faster
from physim.step.component import Placement
from physim.step.curves import CHUNK, CONTEXT, REQUESTS, rising_log_seconds
from physim.step.rows import DecodeRow, PrefillRow, Row


def lowered(placement: Placement, kinds: Collection[str]) -> Iterator[Row]:
    """The rows of decoding and of prefill of each attention of some kinds.

    Args:
        placement: The model on its GPU.
        kinds: The kinds, all of which were measured as whole layers (`Mixer.measured`).

    Raises:
        InputError: A grid file is damaged.
    """
    for mixer, layers, measured in _of_kinds(placement, kinds):
        yield from _decode_rows(placement, mixer, layers, measured)
        yield from _prefill_rows(placement, mixer, layers, measured)


def stand_in_notes(placement: Placement, kinds: Collection[str]) -> list[str]:
    """Where another GPU's layers stand for this one's, a line each.

    Args:
        placement: The model on its GPU.
        kinds: The kinds of attention, as for `lowered`.
    """
    lines = []
    for mixer, _, measured in _of_kinds(placement, kinds):
        # Decoding was measured wherever prefill was.
        prefill, decode = (
            with_table(placement.grids, f"{measured.tables}_{phase}")
            for phase in ("prefill", "decode")
        )
        if prefill != placement.grids:
            what = mixer.kind.replace("_", " ") + (" of prompts" if prefill != decode else "")
            lines.append(
                f"no measured {what} on {placement.gpu.key}: efficiencies of {prefill} are used"
            )
    return list(dict.fromkeys(lines))


def _of_kinds(
    placement: Placement, kinds: Collection[str]
) -> Iterator[tuple[Mixer, int, Measured]]:
    """Each attention of some kinds, how many layers have it, and what was measured of it."""
    for mixer, layers in placement.model.attention_layers.items():
        if mixer.kind in kinds:
            measured = mixer.measured(placement.tp)
            assert measured is not None  # these kinds were measured as a whole
            yield mixer, layers, measured


def _grid(placement: Placement, measured: Measured, phase: str) -> Grid:
    """The grid of an attention at its shape, that of the KV cache's format if there is one."""
    name = f"{measured.tables}_{phase}"
    gpu, on_fp8 = with_table(placement.grids, name), f"{name}_fp8_kv"
    is_fp8 = placement.server.kv_cache_dtype != "bfloat16"
    grid = load_grid(gpu, on_fp8 if is_fp8 and on_fp8 in tables(gpu) else name)
    return grid.sliced(**measured.shape)


def _missed(measured: Measured, phase: str) -> Missed:
    """Whether the table of a kind of attention was missed: another GPU's is taken."""
    return lambda placement: (
        with_table(placement.grids, f"{measured.tables}_{phase}") != placement.grids
    )


def _decode_rows(
    placement: Placement, mixer: Mixer, layers: int, measured: Measured
) -> Iterator[Row]:
    tp, kv_bytes, rates = _rates(placement)
    requests = REQUESTS[:, None]

    def log_seconds(placement: Placement) -> np.ndarray:
        work = mixer.decode_work(tp, kv_bytes, requests, CONTEXT[None, :])
        whole = np.asarray(roofline.seconds(work, *_rates(placement)[-1]))
        grid = _grid(placement, measured, "decode")
        return rising_log_seconds(_over(grid, "context", CONTEXT), whole, grid.start_s)

    seconds = np.exp(no_faster(placement, _missed(measured, "decode"), log_seconds))
    terms = mixer.decode_terms(tp, kv_bytes)
    before = np.zeros_like(seconds)
    for place, term in enumerate(terms):
        seen = requests * np.minimum(CONTEXT, term.window or np.inf)
        bound = np.maximum(term.pair_flops * seen / rates[0], term.pair_bytes * seen / rates[1])
        if place == len(terms) - 1:
            own = np.maximum(seconds - before, bound)
        else:
            share = seconds * _share(terms, place, requests, rates)
            reach = np.interp(np.log(term.window or np.inf), np.log(CONTEXT), range(len(CONTEXT)))
            held = np.minimum(np.arange(len(CONTEXT)), int(np.ceil(reach)))
            own = np.maximum(share[:, held], bound)
        before = before + own
        yield DecodeRow(
            name=f"decode_{mixer.kind}",
            part="decode_attention",
            count=layers,
            window=term.window,
            pair_flops=term.pair_flops,
            pair_bytes=term.pair_bytes,
            request_bytes=mixer.request_bytes(tp) if place == 0 else 0.0,
            peak_flops=rates[0],
            bandwidth=rates[1],
            log_seconds=np.log(np.maximum.accumulate(own, axis=1)),
            correction="decode_attention",
            exponent="decode_context",
        )


def _share(
    terms: Sequence[DecodeTerm], place: int, requests: np.ndarray, rates: tuple[float, float]
) -> np.ndarray:
    """Share of one term in the roofline time of all."""
    times = []
    for term in terms:
        seen = requests * np.minimum(CONTEXT, term.window or np.inf)
        times.append(np.maximum(term.pair_flops / rates[0], term.pair_bytes / rates[1]) * seen)
    share: np.ndarray = times[place] / np.sum(times, axis=0)
    return share


def _prefill_rows(
    placement: Placement, mixer: Mixer, layers: int, measured: Measured
) -> Iterator[Row]:
    tp, kv_bytes, rates = _rates(placement)

    def log_seconds(placement: Placement) -> np.ndarray:
        work = mixer.prefill_work(tp, kv_bytes, REQUESTS[:, None], CHUNK[None, :])
        whole = np.asarray(roofline.seconds(work, *_rates(placement)[-1]))
        grid = _grid(placement, measured, "prefill")
        return rising_log_seconds(_over(grid, "tokens", CHUNK), whole, grid.start_s)

    seconds = np.exp(no_faster(placement, _missed(measured, "prefill"), log_seconds))
    terms = mixer.prefill_terms(tp, kv_bytes)
    times = []
    for term in terms:
        pairs = roofline.causal_pairs(CHUNK, np.minimum(CHUNK, term.window or np.inf))
        times.append(
            np.maximum(term.pair_flops * pairs / rates[0], term.token_bytes * CHUNK / rates[1])
        )
    for term, own in zip(terms, times, strict=True):
        yield PrefillRow(
            name=f"prefill_{mixer.kind}",
            part="prefill_attention",
            count=layers,
            window=term.window,
            pair_flops=term.pair_flops,
            token_bytes=term.token_bytes,
            cached_bytes=term.cached_bytes,
            peak_flops=rates[0],
            bandwidth=rates[1],
            log_seconds=np.log(seconds * own / np.sum(times, axis=0)),
            correction="prefill_attention",
            cached_correction="cached_attention",
        )


def _over(grid: Grid, axis: str, knots: np.ndarray) -> np.ndarray:
    """Logarithm of the efficiency over requests and tokens; a state's is the same for any."""
    names = [name for name, _ in grid.axes]
    if axis not in names:
        return np.tile(grid.resampled(requests=REQUESTS)[:, None], (1, len(knots)))
    return grid.resampled(**{"requests": REQUESTS, axis: knots})


def _rates(placement: Placement) -> tuple[int, float, tuple[float, float]]:
    peak = placement.gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has it: load_hardware
    return (
        placement.tp,
        placement.server.kv_cache_bytes,
        (peak, placement.gpu.memory_bandwidth),
    )
