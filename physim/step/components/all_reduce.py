"""All-reduces of hidden states under tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from physim import roofline
from physim.grids.store import load_grid
from physim.step.better_gpus import no_faster
from physim.step.component import Component, Part, Placement
from physim.step.curves import LEAST_MESSAGE_BYTES, MESSAGE_BYTES, rising_log_seconds
from physim.step.host_memory import exchange_bandwidth, through_host
from physim.step.nodes import between_nodes, spanning_notes
from physim.step.rows import Row, SizeRow

# GPUs come to an all-reduce some microseconds apart, and the first waits for the last; measured
# alone they are in step. From trainval.csv and seed16.csv: bf16 models at tp 2 and 4 take so much
# longer for each, beside tp 1 (2 to 5 us; an order of magnitude).
SKEW_S = 3e-6


def _lower(placement: Placement) -> Iterator[Row]:
    tp, bandwidth = placement.tp, exchange_bandwidth(placement.gpu)
    if tp == 1:
        return
    message = np.maximum(MESSAGE_BYTES, LEAST_MESSAGE_BYTES)
    # A ring: a reduce-scatter and an all-gather.
    hosted = through_host(placement, 2 * (tp - 1), 2 * roofline.all_gather(message, tp))
    within = np.maximum(np.exp(no_faster(placement, lambda _: 0, _log_seconds)), hosted)
    # Between nodes sums are scattered and gathered again.
    across = 2 * between_nodes(placement, tp, message)
    yield SizeRow(
        name="all_reduce",
        part="all_reduce",
        size="message_bytes",
        # After attention and after the MLP of each layer, and after the sharded embedding.
        count=2.0 * placement.model.reduced_layers + 1.0,
        bytes=float(roofline.all_reduce(1.0, tp)),
        bandwidth=bandwidth,
        log_seconds=np.log(SKEW_S + within + across),
        correction="all_reduce",
        is_bent=True,
    )
    spanning = sum(
        layers
        for mixer, layers in placement.model.attention_layers.items()
        if mixer.norm_spans_heads
    )
    if spanning:
        # Two 32-bit sums of squares a token: as long as the smallest message takes.
        yield SizeRow(
            name="norm_all_reduce",
            part="all_reduce",
            count=spanning,
            bytes=8.0,
            fixed_seconds=SKEW_S + float(within[0] + 2 * between_nodes(placement, tp, 8.0)),
            bandwidth=bandwidth,
            correction="all_reduce",
        )


def _log_seconds(placement: Placement) -> np.ndarray:
    """Logarithm of the time of an all-reduce within a node, at `MESSAGE_BYTES`."""
    message = np.maximum(MESSAGE_BYTES, LEAST_MESSAGE_BYTES)
    curve = load_grid(placement.grids, "all_reduce").sliced(gpus=placement.tp)
    sent = np.asarray(roofline.all_reduce(message, placement.tp)) / placement.gpu.link_bandwidth
    return rising_log_seconds(curve.resampled(message_bytes=message), sent)


COMPONENT = Component(
    name="all_reduce",
    parts=(Part("all_reduce", "all-reduces"),),
    lower=_lower,
    assumptions=lambda placement: spanning_notes(placement, "tp", placement.tp),
    source="custom all-reduce table of aiconfigurator-core 0.12.0",
)
