"""MFU grids of a model's kernels in the layout of BLIS's ``bench_data``.

MFU is a kernel's FLOP over its time and the tensor cores' peak. GEMMs are those of the model's
layers at its tp; attention is that of its heads, all of them for prefill, the share of a GPU for
decoding.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from physim import roofline
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.kept import kept
from physim.mixers.attention import Attention
from physim.models.architecture import ModelArch
from physim.models.parallelism import Parallelism
from physim.prediction.arrays import step_model_of
from physim.service.hardware import Hardware
from physim.service.service import Service
from physim.step.batch import Batch
from physim.step.lowering import rows_of
from physim.step.many_batches import named_seconds
from physim.step.model import StepModel
from physim.step.rows import SizeRow, in_order
from physim.step.sizes import KNOTS
from physim.tables.linear_models import MICROSECOND
from physim.types import AnyArray

_TOKENS = tuple(2**power for power in range(14))
_LENGTHS = tuple(2**power for power in range(7, 16))
_REQUESTS = tuple(2**power for power in range(10))
_CONTEXTS = tuple(2**power for power in range(7, 17))
_DTYPE = "bf16"


def write_mfu_grids(folder: Path, case: Case, corrections: Corrections, blis_gpu: str) -> None:
    """Writes the grids below a folder.

    Args:
        folder: The folder that BLIS gets as ``--bench-data-path``.
        case: What is served.
        corrections: Corrections of the components.
        blis_gpu: BLIS's name of the GPU, in lower case.
    """
    arch, gpu, server = case.model, case.server.gpu, case.server
    attention, tp = _attention(arch), server.parallelism.tp
    shape = f"{attention.heads}-{attention.kv_heads}-{attention.head_dim}"
    alone = dataclasses.replace(server, parallelism=Parallelism())
    sharded = step_model_of(case, corrections)
    whole = step_model_of(dataclasses.replace(case, service=Service.single(alone)), corrections)
    files = {
        f"gemm/{blis_gpu}/data.csv": ("m,k,n", _gemms(case, sharded)),
        f"mha/prefill/{blis_gpu}/{shape}.csv": ("dtype,seq_len", _prefill(whole, arch, gpu)),
        f"mha/decode/{blis_gpu}/{shape}-tp{tp}.csv": (
            "dtype,kv_dtype,batch_size,kv_len",
            _decode(sharded, arch, gpu, tp),
        ),
    }
    for name, (columns, rows) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{columns},latency_us,mfu", *rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _attention(arch: ModelArch) -> Attention:
    """The attention that the grids are of.

    Raises:
        InputError: The model has none on keys and values of KV heads.
    """
    if not isinstance(arch.attention, Attention):
        raise InputError(
            arch.name, f"BLIS's grids have no place for {arch.attention.kind}", "use --format json"
        )
    return arch.attention


def _row(key: str, seconds: float, flops: float, peak: float) -> str:
    return f"{key},{seconds / MICROSECOND:.3f},{flops / (seconds * peak):.6f}"


def _gemms(case: Case, model: StepModel) -> list[str]:
    tokens = np.array(_TOKENS, float)
    sizes = dict.fromkeys(KNOTS, np.zeros_like(tokens))
    sizes |= dict.fromkeys(("tokens", "sampled", "routed"), tokens)
    seconds = np.asarray(_row_seconds(model, sizes))
    operations = rows_of(case.server)
    _, placed = in_order([row for row in operations if isinstance(row, SizeRow)])
    rows: dict[str, str] = {}
    for place, row in enumerate(placed):
        # The router works in 16 bit among experts, and BLIS has no place for it.
        if row is None or row.gemm is None or row.name == "router":
            continue
        n, k = (int(size) for size in row.gemm)
        for m, all_layers in zip(_TOKENS, seconds[:, place].tolist(), strict=True):
            key = f"{m},{k},{n}"
            flops = 2.0 * m * k * n
            rows.setdefault(key, _row(key, all_layers / row.count, flops, row.peak_flops))
    return list(rows.values())


@kept
def _row_seconds(
    model: StepModel, sizes: dict[str, Float[AnyArray, " sizes"]]
) -> Float[AnyArray, "sizes rows"]:
    return jax.vmap(model.row_seconds)(sizes)


def _prefill(model: StepModel, arch: ModelArch, gpu: Hardware) -> list[str]:
    length = np.array(_LENGTHS, float)
    prompts = model.batch(prefill_requests=np.ones_like(length), chunk=length)
    seconds = named_seconds(model, prompts)["prefill_attention"] / arch.layers
    shape = _attention(arch)
    flops, _ = roofline.prefill_attention(1.0, length, shape.heads, shape.kv_heads, shape.head_dim)
    return [
        _row(f"{_DTYPE},{tokens}", one, work, _peak(gpu))
        for tokens, one, work in zip(
            _LENGTHS, seconds.tolist(), np.asarray(flops).tolist(), strict=True
        )
    ]


def _decode(model: StepModel, arch: ModelArch, gpu: Hardware, tp: int) -> list[str]:
    request, context = (axis.ravel() for axis in np.meshgrid(_REQUESTS, _CONTEXTS, indexing="ij"))
    # A kernel's table is of what it attends to, whatever the model's windows.
    decodes = Batch.summarised(
        decode_requests=request.astype(float),
        context=context.astype(float),
        windows=np.full_like(model.ops.windows, np.inf),
    )
    seconds = named_seconds(model, decodes)["decode_attention"] / arch.layers
    shape = _attention(arch)
    flops = 4.0 * request * context * shape.heads / tp * shape.head_dim
    return [
        _row(f"{_DTYPE},{_DTYPE},{batch},{tokens}", one, work, _peak(gpu))
        for batch, tokens, one, work in zip(
            request.tolist(), context.tolist(), seconds.tolist(), flops.tolist(), strict=True
        )
    ]


def _peak(gpu: Hardware) -> float:
    return dict(gpu.peak_flops)["bfloat16"]
