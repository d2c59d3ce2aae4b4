"""Tokens of data-parallel ranks on their way to the experts of all, and back.

Before experts every rank gathers the tokens of all; behind them each gets the sums of its own, a
reduce-scatter (vLLM's ``allgather_reducescatter``, which it takes by default). Or kernels send each
token to the ranks that have its experts, and what they made of it back: DeepEP's, or those that
write into the memory of others over NVLink (TensorRT-LLM's default, FlashInfer's under vLLM).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from physim import roofline
from physim.engines.engine import MEASURED_NVLINK_EXCHANGE
from physim.grids.store import load_grid, tables, with_table
from physim.models.layers import Experts
from physim.models.parallelism import HIGH_THROUGHPUT, LOW_LATENCY, NVLINK_ONE_SIDED
from physim.step.better_gpus import no_faster
from physim.step.component import Component, Part, Placement
from physim.step.components.all_reduce import SKEW_S
from physim.step.curves import TOKENS, rising_log_seconds
from physim.step.host_memory import exchange_bandwidth, through_host
from physim.step.nodes import between_nodes, spanning_notes
from physim.step.rows import Row, SizeRow
from physim.types import Number


@dataclass(frozen=True)
class _Kernel:
    """Kernels that send tokens to their experts and back.

    Attributes:
        table: Their measured times.
        copies: Copies of a token that leave its GPU, from the experts that it visits and the ranks.
    """

    table: str
    copies: Callable[[Number, Number], Number]


_KERNELS = {
    HIGH_THROUGHPUT: _Kernel("all_to_all_ht", roofline.copies_for_ranks),
    LOW_LATENCY: _Kernel("all_to_all_ll", roofline.copies_for_experts),
    NVLINK_ONE_SIDED: _Kernel("all_to_all_nvlink", roofline.copies_for_ranks),
}
# Where exchanges over NVLink were measured.
_NVLINK_GRIDS = f"gb200/{MEASURED_NVLINK_EXCHANGE}"


def _lower(placement: Placement) -> Iterator[Row]:
    ranks = placement.layout.dp
    if ranks == 1:
        return
    layers: Counter[Experts] = Counter()
    for group in placement.model.groups:
        if group.experts:
            layers[group.experts] += group.layers
    kernel = _KERNELS.get(placement.server.all2all)
    for experts, count in layers.items():
        width = experts.hidden_size or placement.model.hidden_size
        # Numbers are cast to what the experts multiply before they are sent, and come back in 16
        # bit.
        sent_bytes = placement.multiplied(experts.form).activation_bytes
        if kernel is None:
            ways = (("all_gather", sent_bytes), ("reduce_scatter", roofline.BYTES_16_BIT))
            seconds = sum(_seconds(placement, name, width * size) for name, size in ways)
            moved = roofline.all_gather(width * (sent_bytes + roofline.BYTES_16_BIT), ranks)
        else:
            copies = kernel.copies(experts.per_token, placement.layout.ep)
            token_bytes = roofline.all_to_all(1.0, width, copies, sent_bytes)
            axes = {"topk": float(experts.per_token), "hidden_size": float(width)}
            seconds = _all_to_all_seconds(placement, kernel, axes, float(token_bytes))
            moved = token_bytes / ranks
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


def _all_to_all_seconds(
    placement: Placement, kernel: _Kernel, axes: Mapping[str, float], token_bytes: float
) -> np.ndarray:
    """Time of both ways, at `TOKENS` of all ranks.

    Args:
        placement: The model on its GPUs.
        kernel: What sends.
        axes: The size of the exchange, by the names that tables have for it.
        token_bytes: Bytes that leave a GPU for each of its own tokens.
    """
    own = TOKENS / placement.layout.dp
    at = {**axes, "ranks": float(placement.layout.ep)}

    def log_seconds(placement: Placement) -> np.ndarray:
        grid = load_grid(_grids(placement, kernel.table), kernel.table)
        sizes = {name: at[name] for name, _ in grid.axes if name != "tokens"}
        # Fewer tokens than were measured take as long as the fewest.
        tokens = np.maximum(own, grid.knots("tokens")[0])
        efficiency = grid.sliced(**sizes).resampled(tokens=tokens)
        wire = tokens * token_bytes / placement.gpu.link_bandwidth
        return rising_log_seconds(efficiency, wire, grid.start_s)

    def missed(placement: Placement) -> int:
        return _grids(placement, kernel.table) != placement.grids

    # Between nodes at most as much as all have.
    width = axes["hidden_size"]
    moved = TOKENS * width * (1 + roofline.BYTES_16_BIT)
    across = between_nodes(placement, placement.layout.ep, moved)
    # Ranks send to all others at once, there and back.
    hosted = through_host(placement, 2, own * token_bytes)
    return np.asarray(
        np.maximum(np.exp(no_faster(placement, missed, log_seconds)), hosted) + across
    )


def _grids(placement: Placement, table: str) -> str:
    """The grids that have a table, of the GPU or of what stands in for it."""
    found = with_table(placement.grids, table)
    return found if table in tables(found) else _NVLINK_GRIDS


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
    source="NCCL and all-to-all tables of aiconfigurator-core 0.12.0",
)
