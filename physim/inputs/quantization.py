"""Number formats of weights, activations and KV cache, read from a HuggingFace configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from physim.errors import InputError


@dataclass(frozen=True)
class WeightFormat:
    """How the weights of a linear layer are stored and multiplied.

    Attributes:
        name: ``bfloat16``, ``fp8``, ``fp8_block`` or ``int4``.
        bytes_per_weight: Storage, scales included.
        compute: The format that the tensor cores multiply in: a key of a GPU's peak FLOP/s.
        quantizes_activations: Whether activations are cast to ``compute`` before each GEMM.
    """

    name: str
    bytes_per_weight: float
    compute: str
    quantizes_activations: bool = False


BFLOAT16 = WeightFormat("bfloat16", 2.0, "bfloat16")
FP8 = WeightFormat("fp8", 1.0, "fp8", quantizes_activations=True)
# One float32 scale for each 128 x 128 weights.
FP8_BLOCK = WeightFormat("fp8_block", 1.0 + 4.0 / 128**2, "fp8", quantizes_activations=True)
# Bytes of an element of the KV cache.
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_SIXTEEN_BIT = {"bfloat16", "float16", "half", "torch.bfloat16", "torch.float16"}


def int4(group_size: int) -> WeightFormat:
    """4-bit weights with a 16-bit scale and a 4-bit zero point for each group, 16-bit compute."""
    overhead = 2.5 / group_size if group_size > 0 else 0.0
    return WeightFormat("int4", 0.5 + overhead, "bfloat16")


@dataclass(frozen=True)
class Formats:
    """The number formats of a model.

    Attributes:
        attention: Format of the QKV and output projections.
        mlp: Format of the gate, up and down projections, shared experts included.
        experts: Format of routed experts.
        kv_cache_dtype: Format of the KV cache, a key of `KV_BYTES`.
    """

    attention: WeightFormat
    mlp: WeightFormat
    experts: WeightFormat
    kv_cache_dtype: str


def read_formats(config: Mapping[str, Any], where: str) -> Formats:
    """The formats that ``torch_dtype``/``dtype`` and ``quantization_config`` describe.

    16-bit floats of either kind are treated alike: tensor cores run them at one rate.

    Raises:
        InputError: The data type or the quantisation is not one that physim models.
    """
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    if dtype not in _SIXTEEN_BIT:
        raise InputError(
            f"{where}: torch_dtype", f"{dtype!r} is not modelled", "use bfloat16 or float16"
        )
    quantization = config.get("quantization_config") or {}
    if not isinstance(quantization, Mapping):
        raise InputError(
            f"{where}: quantization_config", "is not a JSON object", "repair or remove it"
        )
    if not quantization:
        return Formats(BFLOAT16, BFLOAT16, BFLOAT16, "bfloat16")
    weights = _weight_format(quantization, where)
    ignored = [
        pattern
        for field in ("ignore", "modules_to_not_convert", "exclude_modules")
        for pattern in _patterns(quantization.get(field), f"{where}: quantization_config.{field}")
    ]

    def unless_ignored(*modules: str) -> WeightFormat:
        named = any(module in pattern for pattern in ignored for module in modules)
        return BFLOAT16 if named else weights

    return Formats(
        attention=unless_ignored("self_attn", "q_proj", "qkv_proj"),
        mlp=unless_ignored("mlp.gate_proj", "mlp.down_proj", "shared_expert"),
        experts=unless_ignored("experts.", ".experts"),
        kv_cache_dtype="fp8" if _kv_cache_is_fp8(quantization) else "bfloat16",
    )


def _patterns(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise InputError(
            where, f"{value!r} is not a list of module names", "write a list of strings"
        )
    return value


def _weight_format(quantization: Mapping[str, Any], where: str) -> WeightFormat:
    # NVIDIA's ModelOpt names its algorithm, and not always itself.
    implied = "modelopt" if quantization.get("quant_algo") else ""
    method = str(quantization.get("quant_method") or implied).lower()
    if method == "fp8":
        return FP8_BLOCK if quantization.get("weight_block_size") else FP8
    if method in {"gptq", "awq"}:
        bits = quantization.get("bits", quantization.get("w_bit"))
        if bits == 4:
            group = quantization.get("group_size", quantization.get("q_group_size", 128))
            return int4(_group_size(group, f"{where}: quantization_config.group_size"))
        raise InputError(
            f"{where}: quantization_config.bits",
            f"{method} with {bits} bits",
            "only 4 bits are modelled",
        )
    if method == "modelopt" and str(quantization.get("quant_algo", "")).upper() == "FP8":
        return FP8
    if method == "compressed-tensors":
        return _compressed_tensors(quantization, where)
    algorithm = quantization.get("quant_algo")
    raise InputError(
        f"{where}: quantization_config.quant_method",
        f"{method or 'none'!r}{f' ({algorithm})' if algorithm else ''} is not modelled",
        "supported: fp8, modelopt FP8, compressed-tensors (fp8, 4-bit weights), gptq, awq",
    )


def _compressed_tensors(quantization: Mapping[str, Any], where: str) -> WeightFormat:
    place = f"{where}: quantization_config.config_groups"
    named = quantization.get("config_groups")
    groups = list(named.values()) if isinstance(named, Mapping) else []
    schemes = [group.get("weights") for group in groups if isinstance(group, Mapping)]
    if len(schemes) != 1 or not isinstance(schemes[0], Mapping):
        raise InputError(place, f"{len(schemes)} weight schemes", "exactly one is modelled")
    scheme = schemes[0]
    bits, kind = scheme.get("num_bits"), scheme.get("type")
    if (bits, kind) == (8, "float"):
        return FP8_BLOCK if scheme.get("strategy") == "block" else FP8
    if (bits, kind) == (4, "int") and not groups[0].get("input_activations"):
        return int4(_group_size(scheme.get("group_size") or -1, f"{place}.group_size"))
    raise InputError(place, f"{bits}-bit {kind} weights", "supported: 8-bit float and 4-bit int")


def _group_size(value: Any, where: str) -> int:
    """Weights that share a scale; -1 where a whole column does."""
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise InputError(where, f"{value!r} is not a group size", "write a positive integer, or -1")
    return value


def _kv_cache_is_fp8(quantization: Mapping[str, Any]) -> bool:
    scheme = quantization.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    return bits == 8 or str(quantization.get("kv_cache_quant_algo", "")).upper() == "FP8"
