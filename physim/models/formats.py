"""Number formats of weights and of the KV cache: their size, and what multiplies them."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_16_BIT = 2.0


@dataclass(frozen=True)
class WeightFormat:
    """How the weights of a linear layer are stored and multiplied.

    Attributes:
        name: Its name, such as ``fp8_block``.
        bytes_per_weight: Storage, scales included.
        compute: The format that the tensor cores multiply in: a key of a GPU's peak FLOP/s. A GPU
            without it keeps the weights as they are and multiplies in 16 bit.
        activation_bytes: Bytes of an element that enters a GEMM: activations are cast before one
            where it is below 2.
        gemm_tables: Formats whose measured GEMMs stand for it, the best first.
        expert_tables: Likewise of expert layers.
        is_padded: Whether kernels of experts pad their matrices, by how much being the kernel's.
    """

    name: str
    bytes_per_weight: float
    compute: str
    activation_bytes: float = BYTES_16_BIT
    gemm_tables: tuple[str, ...] = ("bfloat16",)
    expert_tables: tuple[str, ...] = ("bfloat16",)
    is_padded: bool = False

    @property
    def quantizes_activations(self) -> bool:
        """Whether activations are cast to ``compute`` before each GEMM."""
        return self.activation_bytes < BYTES_16_BIT

    @property
    def stored(self) -> WeightFormat:
        """The format on a GPU that cannot multiply it: the same storage, 16-bit products."""
        return WeightFormat(
            self.name, self.bytes_per_weight, "bfloat16", expert_tables=self.expert_tables
        )


BFLOAT16 = WeightFormat("bfloat16", BYTES_16_BIT, "bfloat16")
_FP8_TABLES = ("fp8", "bfloat16")
FP8 = WeightFormat("fp8", 1.0, "fp8", 1.0, _FP8_TABLES, ("fp8", "fp8_block", "bfloat16"))
# One float32 scale for each 128 x 128 weights. vLLM's GEMMs were timed with the launch of their
# kernels (55 to 280 us at any size), which CUDA graphs hide: there per-tensor fp8 stands in.
FP8_BLOCK = WeightFormat(
    *("fp8_block", 1.0 + 4.0 / 128**2, "fp8", 1.0),
    gemm_tables=("fp8_block", *_FP8_TABLES),
    expert_tables=("fp8_block", "fp8", "bfloat16"),
)
# One 8-bit scale for each 32 weights (OCP microscaling formats).
MXFP8 = WeightFormat(
    "mxfp8", 1.0 + 1.0 / 32, "fp8", 1.0, _FP8_TABLES, ("fp8_block", "fp8", "bfloat16")
)
# One fp8 scale for each 16 weights.
NVFP4 = WeightFormat(
    *("nvfp4", 0.5 + 1.0 / 16, "fp4", 0.5 + 1.0 / 16),
    gemm_tables=("nvfp4", *_FP8_TABLES),
    expert_tables=("nvfp4", "mxfp4", "int4", "bfloat16"),
)
NVFP4_WEIGHTS = WeightFormat(
    "nvfp4_w4a16", 0.5 + 1.0 / 16, "bfloat16", expert_tables=("mxfp4", "int4", "bfloat16")
)
# One 8-bit scale for each 32 weights; activations stay in 16 bit.
MXFP4 = WeightFormat(
    "mxfp4", 0.5 + 1.0 / 32, "bfloat16", expert_tables=("mxfp4", "int4", "bfloat16")
)
# Likewise with activations in mxfp8, as Blackwell multiplies them.
MXFP4_MXFP8 = WeightFormat(
    *("mxfp4_mxfp8", 0.5 + 1.0 / 32, "fp8", 1.0),
    expert_tables=("mxfp4_mxfp8", "mxfp4", "int4", "bfloat16"),
)
INT8 = WeightFormat("int8", 1.0, "int8", 1.0, ("int8", *_FP8_TABLES), ("fp8", "bfloat16"))
INT8_WEIGHTS = WeightFormat("int8_w8a16", 1.0, "bfloat16")
# Multiplied by CUDA cores, as routers that some models keep in it are.
FLOAT32 = WeightFormat("float32", 4.0, "float32", 4.0)
# Bytes of an element of the KV cache, the share of a scale included.
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5 + 1.0 / 16}


def int4(group_size: int, activation: str = "bfloat16") -> WeightFormat:
    """4-bit weights with a 16-bit scale and a 4-bit zero point for each group.

    Args:
        group_size: Weights that share them; not positive where a whole column does.
        activation: What they are multiplied in: ``bfloat16``, or ``fp8`` (w4a8).
    """
    overhead = 2.5 / group_size if group_size > 0 else 0.0
    if activation == "fp8":
        return WeightFormat(
            *("int4_fp8", 0.5 + overhead, "fp8", 1.0, _FP8_TABLES),
            expert_tables=("int4", "bfloat16"),
        )
    return WeightFormat("int4", 0.5 + overhead, "bfloat16", expert_tables=("int4", "bfloat16"))
