"""NVIDIA's measured kernel tables in ``aiconfigurator-core``, as coordinates, roofline and time.

The package (Apache-2.0) holds one Parquet file for each GPU, kind of operation and engine. Where a
file holds several kernels for one number format, each becomes a table of its own, so that an
engine's choice stays visible and can be changed by name. Of engines but the default one what
differs from it is read (`physim.engines.engine.KernelTables`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from physim import roofline
from physim.engines.engine import MEASURED_CUBLAS_FP8, ExpertTable, engine_named
from physim.engines.profile import DEFAULT_ENGINE, shipped_engines
from physim.errors import InputError
from physim.grids import exchange_tables
from physim.grids.measurements import Measurements, Rows
from physim.grids.mixer_tables import MIXER_READERS
from physim.models.formats import FP8, KV_BYTES, WeightFormat
from physim.service.hardware import Hardware
from physim.types import Number

if TYPE_CHECKING:
    import pandas as pd

PACKAGE = "aiconfigurator-core"
PACKAGE_VERSION = "0.12.0"
# The package that held the tables of older engines, in which every engine had a folder.
OLDER_PACKAGE = "aiconfigurator==0.10.0"
# Tables of attention by the format of the KV cache: what their names end in.
_KV_CACHES = (("", "bfloat16"), ("_fp8_kv", "fp8"))
_SHAPE = ["batch_size", "num_heads", "num_key_value_heads", "head_dim"]
EXPERT_SHAPE = ("hidden_size", "width", "topk", "num_experts")
# Tables that are alike in all engines: how much less a window takes.
_ALIKE = "_window"
# Share of rows from which on they are what an engine does.
_MOST = 0.3
# Sizes of a shape that make no curve.
_FEW = 3
# Rows that say what the smallest call takes, and the time of a kernel that moves next to nothing
# (`physim.step.components.elementwise`), ms.
_SMALLEST, _KERNEL_MS = 20, 2e-3


@dataclass(frozen=True)
class Older:
    """Tables of an older engine, in an unpacked wheel of `OLDER_PACKAGE`.

    Attributes:
        folder: Where the wheel was unpacked.
        version: The engine's version.
    """

    folder: Path
    version: str


# From a pattern of the files of tables to the file that is taken.
PathOf = Callable[[str], Path | None]


def read_measurements(
    gpu: Hardware, engine: str = DEFAULT_ENGINE, older: Older | None = None
) -> Iterator[Measurements]:
    """Every table that the package has for a GPU and an engine.

    Args:
        gpu: The GPU.
        engine: The engine; of others than the default the tables that differ from its.
        older: Where tables of an older version are, if they are to be read.

    Raises:
        InputError: The package is not installed, or has no tables for this GPU.
    """
    root = (_package_data() if older is None else _older_data(older)) / gpu.key
    folder = root if older is None else root / engine / older.version
    if not folder.is_dir():
        what = f"{PACKAGE} has no tables for it"
        if older is not None:
            what = f"{OLDER_PACKAGE} has no tables of {engine} {older.version} for it"
        raise InputError(f"GPU {gpu.key!r}", what, "name one that it has measured")

    def path_of(pattern: str) -> Path | None:
        measured = Path(pattern).parts[1]
        if older is None:
            known = engine_named(measured).kernels if measured in shipped_engines() else None
            return _newest(root, pattern, known.complete_version if known else "")
        path = root / measured / older.version / Path(pattern).name
        return path if path.is_file() else None

    for kind, read in _readers(engine, gpu, path_of):
        path = path_of(kind)
        if path:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            for rows in read(_read_parquet(path), gpu):
                if engine != DEFAULT_ENGINE and _ALIKE in rows.table:
                    continue
                yield Measurements(
                    rows.table,
                    {name: np.asarray(values, float) for name, values in rows.coordinates.items()},
                    np.asarray(rows.roofline_s, float),
                    rows.frame["latency"].to_numpy(float) * 1e-3,
                    str(path.relative_to(root.parent.parent)),
                    digest,
                    tuple(sorted(rows.frame["kernel_source"].unique())),
                    rows.other_gemms,
                    rows.around_s,
                    rows.starts_by,
                )


def _gemm(rows: pd.DataFrame, gpu: Hardware, engine: str) -> Iterator[Rows]:
    kernels = engine_named(engine).kernels
    for name, form in kernels.gemms:
        if name != "fp8" or not kernels.has_cublas_fp8(gpu.compute_capability):
            # An older table has times of no token.
            picked = rows[(rows["gemm_dtype"] == name) & (rows["m"] > 0)]
            yield from _gemm_rows(name, picked, gpu, form)


def _cublas_fp8(rows: pd.DataFrame, gpu: Hardware, path_of: PathOf) -> Iterator[Rows]:
    """GEMMs in fp8 of cuBLAS without the cast of what is multiplied, which is timed with each.

    The collector (collect_gemm.py) gives its layers no scale of activations, so that each looks for
    one and casts with it. collect_computescale.py timed the two by themselves, likewise in graphs
    of five: 8.5 us for a token of 8,192 numbers on the H200, of the 9.3 us that the smallest of
    these GEMMs take more than those in 16 bit.
    """
    rows = rows[rows["gemm_dtype"] == "fp8"]
    for file in ("computescale_perf", "scale_matrix_perf"):
        path = path_of(f"quantize/{MEASURED_CUBLAS_FP8}/*/{file}.parquet")
        if path is None:
            return
        casts = _read_parquet(path).groupby(["m", "k"], as_index=False)["latency"].mean()
        rows = rows.merge(casts, on=["m", "k"], suffixes=("", "_cast"))
        rows = rows.assign(latency=rows["latency"] - rows["latency_cast"])
        rows = rows.drop(columns="latency_cast")
    yield from _gemm_rows("fp8", rows[rows["latency"] > 0], gpu, FP8)


def _gemm_rows(
    name: str, picked: pd.DataFrame, gpu: Hardware, form: WeightFormat
) -> Iterator[Rows]:
    peak, size = gpu.peak(form.compute), form.bytes_per_weight
    if peak is None or picked.empty:
        return
    m, n, k = (picked[axis].to_numpy(float) for axis in "mnk")
    bound = roofline.seconds(roofline.gemm(m, n, k, size, size), peak, gpu.memory_bandwidth)
    yield Rows(f"gemm_{name}", picked, {"tokens": m, "n": n, "k": k}, bound)


# Columns of the attention tables, in the units of NVIDIA's collector/vllm/collect_attn.py: requests
# (`batch_size`), query and KV heads of one GPU, `latency` in ms of one layer. In the generation
# table `step` is the tokens cached before the new one; in the context table `isl` is the tokens of
# each prompt, with nothing cached. On an fp8 cache queries are cast to fp8 as well, outside of what
# is timed, so that fp8 tensor cores may multiply them. `window_size` is the tokens that a token
# attends to, itself included, 0 for all. Windowed rows are taken relative to the time of full
# attention (brought to their roofline), not to the roofline: windows were measured of few head
# widths, between which that ratio is smooth.


def _decode(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    # A kernel's time depends on requests and KV heads through their product: a sequence for each
    # KV head, with a group of query heads that share it.
    for suffix, dtype, picked, windowed in _by_kv_cache(rows.assign(tokens=rows["step"] + 1)):
        kv, group = picked["num_key_value_heads"].to_numpy(float), _group(picked)
        sequences = picked["batch_size"].to_numpy(float) * kv
        dim, context = picked["head_dim"].to_numpy(float), picked["tokens"].to_numpy(float)
        work = roofline.decode_attention(sequences, context, group, 1.0, dim, KV_BYTES[dtype])
        axes = {"sequences": sequences, "context": context, "group": group, "head_dim": dim}
        bound = _attention_seconds(work, gpu, dtype)
        yield Rows(f"decode_attention{suffix}", picked, axes, bound)
        # Beyond its window a kernel takes as long for any context: 2% median spread on all GPUs.
        seen = windowed.assign(tokens=np.minimum(windowed["tokens"], windowed["window_size"]))
        seen = seen.merge(picked[[*_SHAPE, "tokens", "latency"]], on=[*_SHAPE, "tokens"])
        if not seen.empty:
            axes = _window_axes(seen, "num_key_value_heads")
            bound = seen["latency_y"].to_numpy(float) * 1e-3
            yield Rows(f"decode_attention_window{suffix}", _timed(seen), axes, bound)


def _prefill(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    # Likewise by query heads, of which each attends on its own.
    for suffix, dtype, picked, windowed in _by_kv_cache(rows.assign(tokens=rows["isl"])):
        group, dim = _group(picked), picked["head_dim"].to_numpy(float)
        sequences = picked["batch_size"].to_numpy(float) * picked["num_heads"].to_numpy(float)
        tokens = picked["tokens"].to_numpy(float)
        work = roofline.prefill_attention(sequences, tokens, 1.0, 1.0 / group, dim, KV_BYTES[dtype])
        axes = {"sequences": sequences, "tokens": tokens, "group": group, "head_dim": dim}
        bound = _attention_seconds(work, gpu, dtype)
        yield Rows(f"prefill_attention{suffix}", picked, axes, bound)
        # Other lengths were measured of few shapes, and would be knots that are mostly gaps.
        even = windowed[np.log2(windowed["tokens"]) % 1 == 0]
        even = even.merge(picked[[*_SHAPE, "tokens", "latency"]], on=[*_SHAPE, "tokens"])
        if not even.empty:
            axes = _window_axes(even, "num_heads")
            tokens, kv_heads = even["tokens"].to_numpy(float), 1 / axes["group"]
            shape = (axes["sequences"], tokens, 1.0, kv_heads, axes["head_dim"], KV_BYTES[dtype])
            own, whole = (
                _attention_seconds(roofline.prefill_attention(*shape, window), gpu, dtype)
                for window in (axes["window"], np.inf)
            )
            bound = even["latency_y"].to_numpy(float) * 1e-3 * own / whole
            yield Rows(f"prefill_attention_window{suffix}", _timed(even), axes, bound)


def _moe(rows: pd.DataFrame, gpu: Hardware, engine: str, measured_with: str = "") -> Iterator[Rows]:
    kernels = engine_named(engine).kernels.experts
    own = {name: one for name, one in kernels.items() if one.measured_with == measured_with}
    rows = rows.assign(width=rows["inter_size"] / rows["moe_tp_size"])
    # A GPU with a share of the experts sees as much of each token: it has fewer of both.
    spread = rows["moe_ep_size"] > 1
    ranks = rows[spread]["moe_ep_size"]
    of_a_rank = {name: rows[spread][name] / ranks for name in ("topk", "num_experts")}
    yield from _expert_tables(rows[~spread], gpu, own, "")
    yield from _expert_tables(rows[spread].assign(**of_a_rank), gpu, own, "_spread")


def _expert_tables(
    rows: pd.DataFrame, gpu: Hardware, kernels: Mapping[str, ExpertTable], suffix: str
) -> Iterator[Rows]:
    for name, table in kernels.items():
        form = table.form if gpu.peak(table.form.compute) else table.form.stored
        peak, size = gpu.peak(form.compute), form.bytes_per_weight
        of_kernel = rows["moe_dtype"].isin(table.names)
        of_kernel &= rows["kernel_source"].str.contains(table.kernels)
        for load in sorted(rows["distribution"].unique()):
            picked = rows[of_kernel & (rows["distribution"] == load)]
            # Of a few shapes a single size was measured.
            picked = picked[picked.groupby([*EXPERT_SHAPE])["latency"].transform("size") > _FEW]
            if peak is None or picked.empty:
                continue
            hidden, width, top_k, count = (picked[c].to_numpy(float) for c in EXPERT_SHAPE)
            tokens = picked["num_tokens"].to_numpy(float)
            work = roofline.experts(tokens, hidden, width, count, top_k, size)
            bound = roofline.seconds(work, peak, gpu.memory_bandwidth)
            axes = dict(zip(EXPERT_SHAPE, (hidden, width, top_k, count), strict=True))
            yield Rows(f"{name}{suffix}_{load}", picked, axes | {"tokens": tokens}, bound)


def _all_reduce(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    rows = rows[~rows["kernel_source"].str.endswith("_eager")]
    # Sizes are of elements, not bytes: the collector sums tensors of so many (NVIDIA's
    # collect_all_reduce.py), which NCCL's own table, counted likewise, confirms within a tenth.
    message = rows["message_size"].to_numpy(float) * roofline.BYTES_16_BIT
    gpus = rows["num_gpus"].to_numpy(float)
    bound = roofline.all_reduce(message, gpus) / gpu.link_bandwidth
    yield Rows("all_reduce", rows, {"gpus": gpus, "message_bytes": message}, bound)


def _nccl(rows: pd.DataFrame, gpu: Hardware) -> Iterator[Rows]:
    rows = rows[rows["nccl_dtype"] == "half"]
    for name in ("all_gather", "reduce_scatter"):
        picked = rows[rows["op_name"] == name]
        # Of all GPUs' elements together: 512 MiB on eight H200 would else be beyond their links.
        message = picked["message_size"].to_numpy(float) * roofline.BYTES_16_BIT
        gpus = picked["num_gpus"].to_numpy(float)
        bound = roofline.all_gather(message, gpus) / gpu.link_bandwidth
        if not picked.empty:
            yield Rows(name, picked, {"gpus": gpus, "message_bytes": message}, bound)


def _readers(
    engine: str, gpu: Hardware, path_of: PathOf
) -> Iterator[tuple[str, exchange_tables.Reader]]:
    """What reads each file of an engine."""
    kernels, usual = engine_named(engine).kernels, engine_named(DEFAULT_ENGINE).kernels
    yield f"gemm/{engine}/*/gemm_perf.parquet", functools.partial(_gemm, engine=engine)
    # Where the default engine runs cuBLAS's too, they are in its tables.
    in_usual = engine != DEFAULT_ENGINE and usual.has_cublas_fp8(gpu.compute_capability)
    if kernels.has_cublas_fp8(gpu.compute_capability) and not in_usual:
        cublas = functools.partial(_cublas_fp8, path_of=path_of)
        yield f"gemm/{MEASURED_CUBLAS_FP8}/*/gemm_perf.parquet", cublas
    yield f"attention/{engine}/*/generation_attention_perf.parquet", _decode
    yield f"attention/{engine}/*/context_attention_perf.parquet", _prefill
    for other in sorted({one.measured_with for one in kernels.experts.values()}):
        moe = functools.partial(_moe, engine=engine, measured_with=other)
        yield f"moe/{other or engine}/*/moe_perf.parquet", moe
    yield f"comm/{engine}/*/custom_allreduce_perf.parquet", _all_reduce
    if engine == DEFAULT_ENGINE:
        yield "comm/nccl/*/nccl_perf.parquet", _nccl
    yield from exchange_tables.readers(engine)
    for (folder, file), read in MIXER_READERS.items():
        if kernels.mixers is None or folder in kernels.mixers:
            yield f"{folder}/{engine}/{file}", read


def _by_kv_cache(
    rows: pd.DataFrame,
) -> Iterator[tuple[str, str, pd.DataFrame, pd.DataFrame]]:
    """Rows of each KV cache without and with a window, of the backend that measured most of them.

    Rows whose tokens just fill their window are left out: they still are full attention.
    """
    rows = rows.assign(latency=rows["latency"] - _launch_ms(rows))
    # Some engines multiply prompts in 8 bit for an fp8 cache where others cast to 16.
    in_16_bit, fp8 = rows["attn_dtype"] == "bfloat16", rows["kv_cache_dtype"] == "fp8"
    casts = in_16_bit[fp8].mean() > _MOST
    rows = rows[np.where(fp8 & (not casts), ~in_16_bit, in_16_bit)]
    rows = rows[rows["num_heads"] >= rows["num_key_value_heads"]]
    if "window_size" not in rows:
        rows = rows.assign(window_size=0)
    for suffix, dtype in _KV_CACHES:
        picked = rows[rows["kv_cache_dtype"] == dtype]
        full = _of_one_backend(picked[picked["window_size"] == 0])
        windowed = picked[picked["window_size"] > 0]
        windowed = windowed[windowed["tokens"] != windowed["window_size"]]
        if not full.empty:
            yield suffix, dtype, full, _of_one_backend(windowed)


def _launch_ms(rows: pd.DataFrame) -> float:
    """Time to launch a CUDA graph, which each attention time holds once and a step but once, ms.

    The collector times graphs of one call (``repeat_n=1`` in collect_attn.py; of GEMMs five). What
    the smallest rows take beyond two small kernels, of attention and of the write to the cache, is
    the launch: 6.0 us on the H100, 3.3 on the L40S.
    """
    return float(rows["latency"].nsmallest(_SMALLEST).median()) - 2 * _KERNEL_MS


def _of_one_backend(rows: pd.DataFrame) -> pd.DataFrame:
    backend = rows["kernel_source"].str.replace(r"_(fa\d|fi\w+)$", "", regex=True)
    return rows[backend.isin(backend.mode()[:1])]


def _window_axes(rows: pd.DataFrame, heads: str) -> dict[str, np.ndarray]:
    window, tokens = (rows[c].to_numpy(float) for c in ("window_size", "tokens"))
    return {
        "sequences": (rows["batch_size"] * rows[heads]).to_numpy(float),
        "share": tokens / window,
        "window": window,
        "group": _group(rows),
        "head_dim": rows["head_dim"].to_numpy(float),
    }


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    """Windowed rows, joined with those of full attention, with their own time."""
    return rows.rename(columns={"latency_x": "latency"})


def _group(rows: pd.DataFrame) -> np.ndarray:
    return (rows["num_heads"] / rows["num_key_value_heads"]).to_numpy(float)


def _attention_seconds(work: roofline.Work, gpu: Hardware, kv_cache_dtype: str) -> Number:
    peak = gpu.peak(kv_cache_dtype) or gpu.peak("bfloat16")
    assert peak is not None  # every Hardware has it: load_hardware
    return roofline.seconds(work, peak, gpu.memory_bandwidth)


def _package_data() -> Path:
    try:
        package = resources.files("aiconfigurator_core")
    except ModuleNotFoundError as error:
        raise InputError(
            "physim grids build",
            f"needs {PACKAGE}",
            f"pip install {PACKAGE}=={PACKAGE_VERSION} pyarrow",
        ) from error
    return Path(str(package)) / "systems" / "data"


def _older_data(older: Older) -> Path:
    found = older.folder / "aiconfigurator" / "systems" / "data"
    if not found.is_dir():
        raise InputError(
            str(older.folder),
            "is no unpacked wheel of aiconfigurator",
            f"pip download --no-deps {OLDER_PACKAGE}, unzip it, and name that folder",
        )
    return found


def _newest(root: Path, pattern: str, complete: str) -> Path | None:
    """The file of the version whose tables are complete, or else of the newest."""

    def version(path: Path) -> tuple[bool, tuple[int, ...]]:
        parts = path.parent.name.split(".")
        return path.parent.name == complete, tuple(int(part) for part in parts if part.isdigit())

    found = sorted(root.glob(pattern), key=version)
    return found[-1] if found else None


def _read_parquet(path: Path) -> pd.DataFrame:
    """A table, in the words of today's."""
    import pandas as pd

    rows = pd.read_parquet(path)
    for column in rows.columns[rows.columns.str.endswith("_dtype")]:
        rows[column] = rows[column].replace("float16", "bfloat16")
    if "moe_dtype" in rows:
        # Cutlass's had no name of its own while there was no other.
        cutlass = rows["kernel_source"].eq("moe_torch_flow") & ~rows["moe_dtype"].str.contains("mx")
        rows["kernel_source"] = rows["kernel_source"].mask(cutlass, "moe_torch_flow_cutlass")
    return rows
