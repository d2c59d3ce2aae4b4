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

from physim import roofline
from physim.corrections import Corrections
from physim.inputs.architecture import ModelArch
from physim.inputs.deployment import ResolvedDeployment
from physim.inputs.hardware import Hardware
from physim.step.lowering import GEMM_NAMES, lower
from physim.step.many import named_seconds
from physim.step.model import StepModel
from physim.tables.coefficients import MICROSECOND

_TOKENS = tuple(2**power for power in range(14))
_LENGTHS = tuple(2**power for power in range(7, 16))
_REQUESTS = tuple(2**power for power in range(10))
_CONTEXTS = tuple(2**power for power in range(7, 17))
_DTYPE = "bf16"


def write_mfu_grids(
    folder: Path,
    arch: ModelArch,
    gpu: Hardware,
    deployment: ResolvedDeployment,
    corrections: Corrections,
    blis_gpu: str,
) -> None:
    """Writes the grids below a folder.

    Args:
        folder: The folder that BLIS gets as ``--bench-data-path``.
        arch: The model.
        gpu: The GPU.
        deployment: The engine.
        corrections: Corrections of the components.
        blis_gpu: BLIS's name of the GPU, in lower case.
    """
    heads, kv_heads, dim = arch.heads, arch.kv_heads, arch.head_dim
    shape = f"{heads}-{kv_heads}-{dim}"
    sharded = StepModel(lower(arch, gpu, deployment), corrections)
    whole = StepModel(lower(arch, gpu, dataclasses.replace(deployment, tp=1)), corrections)
    files = {
        f"gemm/{blis_gpu}/data.csv": ("m,k,n", _gemms(sharded)),
        f"mha/prefill/{blis_gpu}/{shape}.csv": ("dtype,seq_len", _prefill(whole, arch, gpu)),
        f"mha/decode/{blis_gpu}/{shape}-tp{deployment.tp}.csv": (
            "dtype,kv_dtype,batch_size,kv_len",
            _decode(sharded, arch, gpu, deployment.tp),
        ),
    }
    for name, (columns, rows) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{columns},latency_us,mfu", *rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(key: str, seconds: float, flops: float, peak: float) -> str:
    return f"{key},{seconds / MICROSECOND:.3f},{flops / (seconds * peak):.6f}"


def _gemms(model: StepModel) -> list[str]:
    gemms = model.ops.gemms
    tokens = np.array(_TOKENS, float)
    seconds = np.asarray(jax.jit(jax.vmap(lambda t: model.gemm_seconds(t, t)))(tokens))
    rows: dict[str, str] = {}
    for place, name in enumerate(GEMM_NAMES):
        count = float(gemms.count[place])
        # The router works in 16 bit among experts, and BLIS has no place for it.
        if count == 0 or name == "router":
            continue
        n, k = int(gemms.n[place]), int(gemms.k[place])
        for m, all_layers in zip(_TOKENS, seconds[:, place].tolist(), strict=True):
            key = f"{m},{k},{n}"
            flops, peak = 2.0 * m * k * n, float(gemms.peak_flops[place])
            rows.setdefault(key, _row(key, all_layers / count, flops, peak))
    return list(rows.values())


def _prefill(model: StepModel, arch: ModelArch, gpu: Hardware) -> list[str]:
    length = np.array(_LENGTHS, float)
    sums = np.zeros((len(length), 7))
    sums[:, 2], sums[:, 3], sums[:, 4] = 1.0, length, length**2
    seconds = named_seconds(model, sums)["prefill_attention"] / arch.layers
    flops, _ = roofline.prefill_attention(1.0, length, arch.heads, arch.kv_heads, arch.head_dim)
    return [
        _row(f"{_DTYPE},{tokens}", one, work, _peak(gpu))
        for tokens, one, work in zip(
            _LENGTHS, seconds.tolist(), np.asarray(flops).tolist(), strict=True
        )
    ]


def _decode(model: StepModel, arch: ModelArch, gpu: Hardware, tp: int) -> list[str]:
    request, context = (axis.ravel() for axis in np.meshgrid(_REQUESTS, _CONTEXTS, indexing="ij"))
    sums = np.zeros((len(request), 7))
    sums[:, 0], sums[:, 1] = request, request * context
    seconds = named_seconds(model, sums)["decode_attention"] / arch.layers
    flops = 4.0 * request * context * arch.heads / tp * arch.head_dim
    return [
        _row(f"{_DTYPE},{_DTYPE},{batch},{tokens}", one, work, _peak(gpu))
        for batch, tokens, one, work in zip(
            request.tolist(), context.tolist(), seconds.tolist(), flops.tolist(), strict=True
        )
    ]


def _peak(gpu: Hardware) -> float:
    return dict(gpu.peak_flops)["bfloat16"]
