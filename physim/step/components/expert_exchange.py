"""Tokens of data-parallel ranks on their way to the experts of all, and back.

Before experts every rank gathers the tokens of all; behind them each gets the sums of its own, a
reduce-scatter (vLLM's ``allgather_reducescatter``, which it takes by default).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.grids.store import load_grid
from physim.step.component import Component, Part, Placement
from physim.step.components.all_reduce import SKEW_S
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.nodes import between_nodes, spanning_notes
from physim.step.rows import Row, SizeRow


def _lower(placement: Placement) -> Iterator[Row]:
    ranks, link = placement.layout.dp, placement.gpu.link_bandwidth
    if ranks == 1:
        return
    layers: Counter[tuple[int, float]] = Counter()
    for group in placement.model.groups:
        if group.experts:
            width = group.experts.hidden_size or placement.model.hidden_size
            form = placement.multiplied(group.experts.form)
            layers[width, form.activation_bytes] += group.layers
    for (width, sent_bytes), count in layers.items():
        # Numbers are cast to what the experts multiply before they are sent, and come back in 16
        # bit.
        ways = (("all_gather", sent_bytes), ("reduce_scatter", roofline.BYTES_16_BIT))
        seconds = sum(_seconds(placement, name, width * size) for name, size in ways)
        yield SizeRow(
            name="expert_exchange",
            part="expert_exchange",
            size="routed",
            count=count,
            bytes=float(roofline.all_gather(width * (sent_bytes + roofline.BYTES_16_BIT), ranks)),
            bandwidth=link,
            log_seconds=np.log(2 * SKEW_S + seconds),
            correction="all_reduce",
        )


def _seconds(placement: Placement, name: str, token_bytes: float) -> np.ndarray:
    """Time of one collective of all ranks' tokens, at `TOKENS`."""
    ranks, message = placement.layout.dp, TOKENS * token_bytes
    curve = load_grid(placement.grids, name).at(gpus=ranks).resampled(message_bytes=message)
    sent = np.asarray(roofline.all_gather(message, ranks)) / placement.gpu.link_bandwidth
    across = between_nodes(placement, placement.layout.stage_gpus, message)
    return np.asarray(np.exp(rising_log_seconds(curve, sent)) + across)


COMPONENT = Component(
    name="expert_exchange",
    parts=(Part("expert_exchange", "tokens to experts and back"),),
    lower=_lower,
    assumptions=lambda placement: spanning_notes(placement, "dp", placement.layout.stage_gpus),
    source="NCCL tables of aiconfigurator-core 0.12.0",
)
