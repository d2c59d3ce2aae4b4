"""Tokens of data-parallel ranks on their way to the experts of all, and back.

Before experts every rank gathers the tokens of all; behind them each gets the sums of its own, a
reduce-scatter (vLLM's ``allgather_reducescatter``, which it takes by default). Or DeepEP's kernels
send each token to the ranks that have its experts, and what they made of it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.grids.store import load_grid, with_table
from physim.models.layers import Experts
from physim.models.parallelism import ALL2ALL
from physim.step.better_gpus import no_faster
from physim.step.component import Component, Part, Placement
from physim.step.components.all_reduce import SKEW_S
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.host_memory import exchange_bandwidth, through_host
from physim.step.nodes import between_nodes, spanning_notes
from physim.step.rows import Row, SizeRow
from physim.types import Number

_MODES = dict(zip(ALL2ALL[1:], ("all_to_all_ht", "all_to_all_ll"), strict=True))


def _lower(placement: Placement) -> Iterator[Row]:
    ranks = placement.layout.dp
    if ranks == 1:
        return
    layers: Counter[Experts] = Counter()
    for group in placement.model.groups:
        if group.experts:
            layers[group.experts] += group.layers
    gathers = placement.server.all2all == ALL2ALL[0]
    for experts, count in layers.items():
        width = experts.hidden_size or placement.model.hidden_size
        # Numbers are cast to what the experts multiply before they are sent, and come back in 16
        # bit.
        sent_bytes = placement.multiplied(experts.form).activation_bytes
        if gathers:
            ways = (("all_gather", sent_bytes), ("reduce_scatter", roofline.BYTES_16_BIT))
            seconds = sum(_seconds(placement, name, width * size) for name, size in ways)
            moved = roofline.all_gather(width * (sent_bytes + roofline.BYTES_16_BIT), ranks)
        else:
            seconds = _all_to_all_seconds(placement, width, experts.per_token)
            moved = _sent(placement, 1.0, width, experts.per_token) / ranks
        yield SizeRow(
            name="expert_exchange",
            part="expert_exchange",
            size="routed",
            count=count,
            bytes=float(moved),
            bandwidth=exchange_bandwidth(placement.gpu),
            log_seconds=np.log(2 * SKEW_S + seconds),
            correction="all_reduce",
        )


def _sent(placement: Placement, tokens: Number, width: int, per_token: int) -> Number:
    """Bytes that a rank sends of so many tokens of its own."""
    return roofline.all_to_all(tokens, width, per_token, placement.layout.ep)


def _all_to_all_seconds(placement: Placement, width: int, per_token: int) -> np.ndarray:
    """Time of DeepEP's two kernels, at `TOKENS` of all ranks."""
    name = _MODES[placement.server.all2all]

    def log_seconds(placement: Placement) -> np.ndarray:
        grid = load_grid(with_table(placement.grids, name), name)
        # Fewer tokens than were measured take as long as the fewest.
        own = np.maximum(TOKENS / placement.layout.dp, grid.knots("tokens")[0])
        curve = grid.sliced(topk=float(per_token), hidden_size=float(width)).resampled(tokens=own)
        sent = np.asarray(_sent(placement, own, width, per_token)) / placement.gpu.link_bandwidth
        return rising_log_seconds(curve, sent)

    def missed(placement: Placement) -> int:
        return with_table(placement.grids, name) != placement.grids

    # Between nodes at most as much as all have.
    moved = TOKENS * width * (1 + roofline.BYTES_16_BIT)
    across = between_nodes(placement, placement.layout.ep, moved)
    sent = _sent(placement, TOKENS / placement.layout.dp, width, per_token)
    # Ranks send to all others at once, there and back.
    hosted = through_host(placement, 2, sent)
    return np.asarray(
        np.maximum(np.exp(no_faster(placement, missed, log_seconds)), hosted) + across
    )


def _seconds(placement: Placement, name: str, token_bytes: float) -> np.ndarray:
    """Time of one collective of all ranks' tokens, at `TOKENS`."""
    ranks, message = placement.layout.dp, TOKENS * token_bytes

    def log_seconds(placement: Placement) -> np.ndarray:
        curve = load_grid(placement.grids, name).sliced(gpus=ranks).resampled(message_bytes=message)
        sent = np.asarray(roofline.all_gather(message, ranks)) / placement.gpu.link_bandwidth
        return rising_log_seconds(curve, sent)

    hosted = through_host(placement, ranks - 1, roofline.all_gather(message, ranks))
    within = np.maximum(np.exp(no_faster(placement, lambda _: 0, log_seconds)), hosted)
    return np.asarray(within + between_nodes(placement, placement.layout.stage_gpus, message))


COMPONENT = Component(
    name="expert_exchange",
    parts=(Part("expert_exchange", "tokens to experts and back"),),
    lower=_lower,
    assumptions=lambda placement: spanning_notes(placement, "dp", placement.layout.stage_gpus),
    source="NCCL tables of aiconfigurator-core 0.12.0",
)
