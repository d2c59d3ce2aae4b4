"""Measured rows that cannot be what they say: a rate in another unit, times of another GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.service.hardware import Hardware, load_hardware, shipped_gpus
from physim.service.service import Pool

# Requests that decode beyond the seats of a server by so much are no matter of rounding.
_CROWDED = 1.1
# With a TTFT below this share of the rest of a request, requests did not queue.
_NO_QUEUE = 0.25
# The default fit is this far off the ITL of hardly any server that it does not know.
_FAR = 1.4
# By how much the bandwidth of another GPU may miss the factor that is to be explained.
_NEAR = 1.2
_MOST_NAMED = 3


def doubts(rows: Sequence[Mapping[str, Any]], cases: Sequence[Case]) -> list[str]:
    """What measured rows make doubtful of themselves, a line for each doubt.

    By Little's law a server decodes as many requests as come while one decodes, and no server
    decodes more than it has seats (``max_num_seqs``) or computes more than its peak FLOP/s: a rate
    that says so, of requests that did not queue, is in another unit.
    Where ITL, which follows memory, is off by one factor in most rows of a GPU, another GPU whose
    memory is faster or slower by that factor may have been measured.

    Args:
        rows: Rows as `physim.evaluate` gives them, with what was observed and predicted.
        cases: The case of each, under the load of its stage.
    """
    return [*_rates(rows, cases), *_gpus(rows, cases)]


def _rates(rows: Sequence[Mapping[str, Any]], cases: Sequence[Case]) -> Iterator[str]:
    impossible = []
    for row, case in zip(rows, cases, strict=True):
        rate, metrics = case.demanded.rate, row["metrics"]
        whole, first = metrics.get("e2e_mean"), metrics.get("ttft_mean")
        if rate is None or not whole or not first or len(case.service.pools) > 1:
            continue
        (pool,) = case.service.pools
        seats = pool.server.sizes.max_num_seqs * pool.server.parallelism.dp * pool.replicas
        decodes_s = whole["observed"] - first["observed"]
        if first["observed"] > _NO_QUEUE * decodes_s:
            continue
        decoding, of_peak = rate * decodes_s, _share_of_peak(pool, case.demanded)
        if decoding > _CROWDED * seats:
            why = f"has {decoding:.0f} requests decoding (Little's law) in {seats} seats"
        elif of_peak > 1:
            why = f"takes {of_peak:.1f} times the peak FLOP/s of its GPUs, and nothing queues"
        else:
            continue
        impossible.append(f"at {rate:g}/s, {row['experiment']} stage {row['stage']} {why}")
    if impossible:
        yield (
            f"{len(impossible)} of {len(rows)} rows cannot have their rate: {impossible[0]}; "
            "is rate_rps per minute, or of several servers?"
        )


def _share_of_peak(pool: Pool, load: Load) -> float:
    """FLOP/s of the weights of a load's tokens over the most that the GPUs of a pool have."""
    server, tokens = pool.server, load.mean_input - load.cached_tokens + load.mean_output
    weights = server.model.active_parameters - server.model.embedding_parameters
    most = max(peak for _, peak in server.gpu.peak_flops)
    return (load.rate or 0.0) * tokens * 2 * weights / (most * pool.gpus)


def _gpus(rows: Sequence[Mapping[str, Any]], cases: Sequence[Case]) -> Iterator[str]:
    by_gpu: dict[Hardware, list[float]] = {}
    for row, case in zip(rows, cases, strict=True):
        itl = row["metrics"].get("itl_mean")
        if itl is not None:
            gpu = case.service.pools[-1].server.gpu
            by_gpu.setdefault(gpu, []).append(itl["observed"] / itl["predicted"])
    for said, ratios in by_gpu.items():
        factor = float(np.median(ratios))
        # Nearly all to one side.
        if max(factor, 1 / factor) < _FAR or (np.log(ratios) * np.log(factor) < 0).mean() > 0.1:
            continue
        others = {one: load_hardware(one).memory_bandwidth for one in shipped_gpus()}
        off = {
            one: abs(np.log(said.memory_bandwidth / bandwidth / factor))
            for one, bandwidth in others.items()
            if one != said.key
        }
        near = sorted((one for one in off if off[one] < np.log(_NEAR)), key=lambda one: off[one])
        if near:
            yield (
                f"ITL of rows on {said.key} is {factor:.2f} times what is predicted: another GPU? "
                f"memory as fast as that has {', '.join(near[:_MOST_NAMED])}"
            )
