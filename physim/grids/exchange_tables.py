"""Measured exchanges of tokens between data-parallel ranks and experts in ``aiconfigurator-core``.

Their time is relative to the bytes that leave a rank and to what the fewest tokens take. So a table
of four or eight ranks holds for more of them: they send more, and start as soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from physim import roofline
from physim.engines.engine import MEASURED_DEEPEP, MEASURED_NVLINK_EXCHANGE
from physim.engines.profile import DEFAULT_ENGINE
from physim.grids.measurements import Rows
from physim.models.formats import NVFP4
from physim.service.hardware import Hardware
from physim.types import Number

if TYPE_CHECKING:
    import pandas as pd

# DeepEP was measured within a host: a tray of an NVL72, or a board of eight.
_RANKS, _RANKS_OF_A_TRAY = 8, 4
_BOARD = 8
# Multiprocessors that DeepEP's kernels of high throughput take unless they are told (Buffer.num_sms
# in deep_ep/buffer.py).
_SMS = 20
_KEYS = ["ep_size", "hidden_size", "topk", "num_tokens"]

Reader = Callable[["pd.DataFrame", Hardware], Iterator[Rows]]
# Copies of a token that leave a rank, from the experts that it visits and the ranks.
Copies = Callable[[Number, Number], Number]


def readers(engine: str) -> Iterator[tuple[str, Reader]]:
    """What reads each file of an engine's exchanges.

    Args:
        engine: The engine.
    """
    if engine == DEFAULT_ENGINE:
        yield f"comm/{engine}/*/moe_a2a_perf.parquet", _of_the_default
        # The default engine's own rows of low latency hold launches (on GB300 274 us for a token,
        # of which DeepEP's kernels take 35), and the steps that only decode are CUDA graphs.
        yield f"comm/{MEASURED_DEEPEP}/*/wideep_deepep_ll_perf.parquet", _low_latency
    if engine == MEASURED_DEEPEP:
        yield f"comm/{engine}/*/wideep_deepep_normal_perf.parquet", _high_throughput
    if engine == MEASURED_NVLINK_EXCHANGE:
        yield f"comm/{engine}/*/*_alltoall_perf.parquet", _nvlink


def _of_the_default(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    # Tokens are those of each rank, and times are in microseconds: 8,192 tokens would else be
    # beyond the links.
    own = rows[rows["comm_backend"] == "deepep_ht"]
    keys = [*_KEYS, "num_experts"]
    both = own.groupby(keys, as_index=False)["latency"].sum()
    yield _deepep("all_to_all_ht", both.assign(us=both["latency"]), gpu, roofline.copies_for_ranks)


def _high_throughput(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    usual = rows[(rows["dispatch_sms"] == _SMS) & (rows["combine_sms"] == _SMS)]
    parts = ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us")
    usual = usual.assign(us=usual[[*parts, "combine_notify_us"]].sum(axis=1))
    yield _deepep("all_to_all_ht", _as_others(usual, gpu), gpu, roofline.copies_for_ranks)


def _low_latency(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    both = rows.assign(us=rows["dispatch_avg_t_us"] + rows["combine_avg_t_us"])
    yield _deepep("all_to_all_ll", _as_others(both, gpu), gpu, roofline.copies_for_experts)


def _as_others(rows: pd.DataFrame, gpu: Hardware) -> pd.DataFrame:
    """Rows within a host in the columns of other tables."""
    within = rows[rows["node_num"] == 1].rename(
        columns={"num_topk": "topk", "num_token": "num_tokens"}
    )
    # Of few experts or choices there are few rows, which are of no model that is spread out.
    of_models = within[within["topk"].isin((6, 8)) & (within["hidden_size"] >= 3072)]
    in_tray = gpu.node_gpus is not None and gpu.node_gpus > _BOARD
    return of_models.assign(ep_size=_RANKS_OF_A_TRAY if in_tray else _RANKS)


def _deepep(table: str, rows: pd.DataFrame, gpu: Hardware, copies: Copies) -> Rows:
    """Rows of both of DeepEP's kernels; how many experts there are hardly matters."""
    mean = rows.groupby(_KEYS, as_index=False)["us"].mean()
    frame = mean.assign(latency=mean["us"] * 1e-3, kernel_source="deepep")
    ranks, hidden, top_k, tokens = (frame[name].to_numpy(float) for name in _KEYS)
    sent = roofline.all_to_all(tokens, hidden, copies(top_k, ranks))
    axes = {"topk": top_k, "hidden_size": hidden, "tokens": tokens}
    return Rows(table, frame, axes, sent / gpu.link_bandwidth, starts_by="hidden_size")


def _nvlink(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    one_sided = rows[(rows["kernel_source"] == "NVLinkOneSided") & (rows["moe_dtype"] == "nvfp4")]
    renamed = one_sided.rename(columns={"moe_ep_size": "ep_size"})
    # The way to the experts and back.
    frame = renamed.groupby(_KEYS, as_index=False)["latency"].sum()
    frame = frame.assign(kernel_source="NVLinkOneSided")
    ranks, hidden, top_k, tokens = (frame[name].to_numpy(float) for name in _KEYS)
    copies = roofline.copies_for_ranks(top_k, ranks)
    sent = roofline.all_to_all(tokens, hidden, copies, NVFP4.activation_bytes)
    axes = {"ranks": ranks, "tokens": tokens}
    yield Rows("all_to_all_nvlink", frame, axes, sent / gpu.link_bandwidth, starts_by="ranks")
