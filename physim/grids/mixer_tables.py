"""Measured layers of latent, sparse, compressed and recurrent attention in ``aiconfigurator-core``.

Their tables hold the time of a whole layer's attention: projections, norms, rotary embedding, the
write to the cache and attention itself. The projections are GEMMs with rows of their own, so that
their time is taken off when the grid is built; what is left is the attention's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from physim import roofline
from physim.engines.engine import engine_named
from physim.grids.measurements import Gemms, Rows
from physim.mixers.compressed import CompressedAttention
from physim.mixers.latent import LatentAttention
from physim.mixers.recurrent import GATED_DELTA, KIMI_DELTA, LinearAttention
from physim.models.architecture import ModelArch
from physim.models.families import read_architecture
from physim.models.formats import KV_BYTES
from physim.models.layers import LayerGroup
from physim.service.hardware import Hardware
from physim.types import Number

if TYPE_CHECKING:
    import pandas as pd

# Rows in which the launch of kernels took longer than they did: the smallest takes more than this,
# and those within so many times of the smallest tenth say nothing of the GPU. Nor do the others of
# a table with fewer left than this share (sparse latent attention on GB200 and GB300).
_LAUNCH_BOUND_MS, _NEAR_THE_SMALLEST, _LEAST_SHARE = 0.5, 2.0, 0.5
# Of latent attention other models were measured on some GPUs, in layers that hold other things too.
_LATENT_MODEL = "deepseek-ai/DeepSeek-V3"
_FP8_KV = "_fp8_kv"
# The parts of a step that hold the projections of a layer's attention.
_PROJECTIONS = ("qkv", "attention_output")
# Kernels about the projections of latent attention: two norms, rotary embedding, the write to the
# cache, two products with the queries' and values' matrices, attention and its reduction, 2 us
# each. About as much is left on B200 and GB300 (14 us); the layers of other GPUs were run without
# compiling what is between the projections (50 to 60 us on H100, H200, B300 and GB200).
_AROUND_LATENT_S = 8 * 2e-6
# About twice as many are about sparse latent attention, whose indexer has a norm, a rotary
# embedding, a cast, a write to its own cache, scores and a choice besides. Its layers were run
# without compiling, too: 104 to 127 us are left on B200 however little there is to do.
_AROUND_SPARSE_LATENT_S = 16 * 2e-6
# Of prompts the rows that launches set are left out: what is left of the others is work.
_AROUND_S = {
    ("latent", "decode"): _AROUND_LATENT_S,
    ("latent", "prefill"): _AROUND_LATENT_S,
    ("sparse_latent", "decode"): _AROUND_SPARSE_LATENT_S,
}


def read_latent(frame: pd.DataFrame, gpu: Hardware, phase: str) -> Iterator[Rows]:
    """Latent attention (``mla_*_module_perf``), by heads of one GPU, requests and tokens."""
    engine = engine_named(str(frame["framework"].iloc[0]).lower())
    if gpu.key in engine.kernels.uncompiled_mixers:
        return
    yield from _modules(frame[frame["model"] == _LATENT_MODEL], gpu, phase, "latent")


def read_sparse_latent(frame: pd.DataFrame, gpu: Hardware, phase: str) -> Iterator[Rows]:
    """Latent attention with an indexer (``dsa_*_module_perf``), by the indexer's heads as well."""
    yield from _modules(frame, gpu, phase, "sparse_latent")


def read_block_sparse(frame: pd.DataFrame, gpu: Hardware, phase: str) -> Iterator[Rows]:
    """MiniMax-M3's attention to chosen blocks (``msa_*_module_perf``)."""
    yield from _modules(frame, gpu, phase, "block_sparse")


def read_compressed(frame: pd.DataFrame, gpu: Hardware, phase: str) -> Iterator[Rows]:
    """DeepSeek-V4's attention (``dsv4_*_module_perf``), a table for each ratio of compression."""
    for ratio, own in frame.groupby("compress_ratio"):
        yield from _modules(own, gpu, phase, f"compressed_{ratio}")


def _modules(frame: pd.DataFrame, gpu: Hardware, phase: str, name: str) -> Iterator[Rows]:
    frame = frame[(frame["gemm_type"] == _gemm_type(frame)) & (frame["mla_dtype"] == "bfloat16")]
    if phase == "prefill":
        frame = _on_the_gpu(frame[frame["step"] == 0])
    for dtype, suffix in (("bfloat16", ""), ("fp8", _FP8_KV)):
        own = frame[frame["kv_cache_dtype"] == dtype]
        if not own.empty:
            # Of DeepSeek-V4 the cache is always of 8 bit.
            table = f"{name}_{phase}{'' if name.startswith('compressed') else suffix}"
            rows = _module_rows(own, gpu, phase, table, KV_BYTES[dtype])
            around_s = _AROUND_S.get((name, phase))
            if around_s is not None:
                rows = replace(rows, around_s=around_s + _absorbed_s(rows, own, gpu))
            yield rows


def _absorbed_s(rows: Rows, frame: pd.DataFrame, gpu: Hardware) -> np.ndarray:
    """Time in which the matrices between heads and latents are read, seconds."""
    mixer = _group(str(frame["model"].iloc[0]), rows.table).attention
    assert isinstance(mixer, LatentAttention)  # as every layer of such a table
    absorbed = mixer.latent * (mixer.nope_dim + mixer.value_dim) * roofline.BYTES_16_BIT
    return rows.coordinates["heads"] * absorbed / gpu.memory_bandwidth


def _module_rows(
    frame: pd.DataFrame, gpu: Hardware, phase: str, table: str, kv_bytes: float
) -> Rows:
    # More heads than the model has were measured as well: of no GPU.
    most = frame["model"].map(lambda model: _heads(model, table))
    frame = frame[frame["num_heads"] <= most]
    requests = frame["batch_size"].to_numpy(float)
    tokens = frame["isl"].to_numpy(float)
    if phase == "decode":
        tokens = frame["step"].to_numpy(float) + (1 - frame["step"].min())
    heads = frame["num_heads"].to_numpy(float)
    bound, gemms = np.zeros(len(frame)), list[list[np.ndarray]]()
    index_heads, all_heads = np.zeros(len(frame)), np.zeros(len(frame))
    frame = frame.reset_index(drop=True)
    for model, local in frame[["model", "num_heads"]].drop_duplicates().itertuples(index=False):
        chosen = (frame["model"] == model) & (frame["num_heads"] == local)
        group = _group(model, table)
        mixer = group.attention
        assert mixer is not None  # chosen for its attention: _group
        tp = mixer.heads / local
        rows = np.flatnonzero(chosen)
        work = mixer.decode_work if phase == "decode" else mixer.prefill_work
        bound[rows] = _seconds(work(tp, kv_bytes, requests[rows], tokens[rows]), gpu)
        all_heads[rows] = mixer.heads
        index_heads[rows] = mixer.indexer.heads if mixer.indexer else 1
        in_step = requests[rows] * (1.0 if phase == "decode" else tokens[rows])
        shapes = [one.on_gpu(tp) for one in group.linears if one.part in _PROJECTIONS]
        for place, (n, k) in enumerate(shapes):
            if place == len(gemms):
                gemms.append([np.zeros(len(frame)), np.ones(len(frame)), np.ones(len(frame))])
            for column, value in zip(gemms[place], (in_step, n, k), strict=True):
                column[rows] = value
    axes = {"heads": heads, "requests": requests}
    axes["context" if phase == "decode" else "tokens"] = tokens
    if table.startswith("sparse_latent"):
        axes = {"index_heads": index_heads, **axes}
    if table.startswith("compressed"):
        axes = {"all_heads": all_heads, **axes}
    extra: tuple[Gemms, ...] = tuple((m, n, k) for m, n, k in gemms)
    starts_by = "heads" if phase == "decode" else ""
    return Rows(table, frame, axes, bound, extra, starts_by=starts_by)


def read_gated_delta(frame: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    """The gated delta rule with its convolution (``gdn_perf``)."""
    yield from _recurrent(frame, gpu, "gated_delta", GATED_DELTA)


def read_kimi_delta(frame: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    """Kimi delta attention with its convolution (``kda_perf``)."""
    yield from _recurrent(frame, gpu, "kimi_delta", KIMI_DELTA)


def _recurrent(frame: pd.DataFrame, gpu: Hardware, name: str, kind: str) -> Iterator[Rows]:
    keys = ["num_k_heads", "num_v_heads", "batch_size", "seq_len"]
    for phase, label in (("context", "prefill"), ("generation", "decode")):
        own = frame[frame["phase"] == phase].copy()
        is_conv = own["kernel_source"].str.contains("conv1d")
        # Each kernel's fastest variant is what an engine chooses, and a convolution whose launch
        # took longer than it did counts from there.
        conv = own[is_conv].groupby(keys, as_index=False)["latency"].min()
        if not conv.empty and conv["latency"].min() > 0.1:
            conv["latency"] -= conv["latency"].min()
        rule = own[~is_conv].groupby(keys, as_index=False)["latency"].min()
        both = rule.merge(conv, on=keys, suffixes=("", "_conv"))
        both["latency"] += both["latency_conv"]
        kernels = " + ".join(sorted(own["kernel_source"].unique()))
        both = both.assign(kernel_source=kernels)
        if both.empty:
            continue
        heads = both["num_v_heads"].to_numpy(float)
        requests, tokens = (both[c].to_numpy(float) for c in ("batch_size", "seq_len"))
        mixer = LinearAttention(kind, 1, 1, 128, 128, 4)
        work = (
            roofline.state_update(requests, heads, *mixer.matrix)
            if label == "decode"
            else roofline.state_scan(requests, tokens, heads, *mixer.matrix)
        )
        axes = {"heads": heads, "requests": requests}
        if label == "prefill":
            axes["tokens"] = tokens
        starts_by = "heads" if label == "decode" else ""
        yield Rows(f"{name}_{label}", both, axes, _seconds(work, gpu), starts_by=starts_by)


def _gemm_type(frame: pd.DataFrame) -> str:
    """The format of projections whose own times are known: 16 bit where there is a choice."""
    kinds = set(frame["gemm_type"])
    return "bfloat16" if "bfloat16" in kinds else str(sorted(kinds)[0])


def _on_the_gpu(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the rows in which launching the kernels took longer than running them."""
    least = frame["latency"].quantile(0.1)
    if frame["latency"].min() < _LAUNCH_BOUND_MS:
        return frame
    longer = frame["latency"] > _NEAR_THE_SMALLEST * least
    return frame[longer] if longer.mean() > _LEAST_SHARE else frame[:0]


def _seconds(work: roofline.Work, gpu: Hardware) -> Number:
    peak = gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has it: load_hardware
    return roofline.seconds(work, peak, gpu.memory_bandwidth)


def _group(model: str, table: str) -> LayerGroup:
    """The layers of a model whose attention a table is of."""
    groups = [group for group in _model(model).groups if group.attention is not None]
    if table.startswith("compressed"):
        ratio = int(table.split("_")[1])
        groups = [
            group
            for group in groups
            if isinstance(group.attention, CompressedAttention) and group.attention.ratio == ratio
        ]
    return groups[-1]


def _heads(model: str, table: str) -> int:
    attention = _group(model, table).attention
    assert attention is not None  # chosen for its attention: _group
    return attention.heads


@functools.lru_cache
def _model(name: str) -> ModelArch:
    package = Path(str(resources.files("aiconfigurator_core")))
    path = package / "model_configs" / f"{name.replace('/', '--')}_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # The layers' shapes are asked for, in 16 bit.
    return read_architecture({**config, "quantization_config": None, "expert_dtype": None}, name)


# By the folder and the pattern of the files in an engine's folder within.
MIXER_READERS: dict[tuple[str, str], Callable[[pd.DataFrame, Hardware], Iterator[Rows]]] = {
    (folder, f"*/{prefix}_{theirs}_module_perf.parquet"): functools.partial(read, phase=phase)
    for folder, prefix, read in (
        ("mla", "mla", read_latent),
        ("sparse_attention", "dsa", read_sparse_latent),
        ("msa", "msa", read_block_sparse),
        ("sparse_attention", "dsv4_csa", read_compressed),
        ("sparse_attention", "dsv4_hca", read_compressed),
    )
    for theirs, phase in (("context", "prefill"), ("generation", "decode"))
} | {
    ("linear_attention", "*/gdn_perf.parquet"): read_gated_delta,
    ("kda", "*/kda_perf.parquet"): read_kimi_delta,
}
