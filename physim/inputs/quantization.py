"""Number formats of weights, activations and KV cache, read from a HuggingFace configuration."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
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
# What different tools call the list of modules that stay in 16 bit.
_NOT_QUANTIZED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
_LAYER = re.compile(r"layers\\?\.(\d+)(?!\d)")
# The modules of a layer by what they do, in the names of transformers and vLLM.
_MODULES = {
    "attention": [f"self_attn.{one}_proj" for one in ("q", "k", "v", "o", "qkv")],
    "MLP": [
        *(f"mlp.{one}_proj" for one in ("gate", "up", "down", "gate_up")),
        *(f"{block}.shared_expert.gate_proj" for block in ("mlp", "feed_forward")),
    ],
    "experts": [
        *("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1"),
        *("feed_forward.experts.gate_up_proj", "feed_forward.experts.0.gate_proj"),
    ],
}
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


def read_formats(config: Mapping[str, Any], layers: int, where: str) -> Formats:
    """The formats that ``torch_dtype``/``dtype`` and ``quantization_config`` describe.

    16-bit floats of either kind are treated alike: tensor cores run them at one rate.

    Args:
        config: The configuration.
        layers: How many layers the model has.
        where: The configuration's path or name, for messages.

    Raises:
        InputError: The data type or the quantisation is not one that physim models, or layers of
            one kind differ in it.
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
        for field in _NOT_QUANTIZED
        for pattern in _patterns(quantization.get(field), f"{where}: quantization_config.{field}")
    ]

    def unless_ignored(kind: str) -> WeightFormat:
        without = _layers_without(ignored, _MODULES[kind], layers, where)
        if 0 < len(without) < layers:
            raise InputError(
                f"{where}: quantization_config",
                f"leaves the {kind} of {len(without)} of {layers} layers in 16 bit, such as layer "
                f"{min(without)}, which is not modelled",
                "name all of the layers, or none",
            )
        return BFLOAT16 if without else weights

    return Formats(
        attention=unless_ignored("attention"),
        mlp=unless_ignored("MLP"),
        experts=unless_ignored("experts"),
        kv_cache_dtype="fp8" if _kv_cache_is_fp8(quantization) else "bfloat16",
    )


def _layers_without(
    patterns: Sequence[str], modules: Sequence[str], layers: int, where: str
) -> set[int]:
    """Layers of which a pattern names one of the modules."""
    found: set[int] = set()
    for pattern in patterns:
        numbered = _LAYER.search(pattern)
        # What names no layer is of all alike: the first and the last tell.
        some = {int(numbered[1])} if numbered else {0, layers - 1}
        named = {
            layer
            for layer in some
            if layer < layers
            for module in modules
            if _names(pattern, f"model.layers.{layer}.{module}", where)
        }
        found |= set(range(layers)) if not numbered and named == some else named
    return found


def _names(pattern: str, module: str, where: str) -> bool:
    """Whether a pattern is a module's name, a whole part of it, or matches it.

    A regular expression after ``re:`` (compressed-tensors), with ``*`` for anything (ModelOpt), or
    a name or part of one (transformers, vLLM).
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except (re.error, RecursionError):
            raise InputError(
                f"{where}: quantization_config",
                f"{pattern[:60]!r} is not a regular expression",
                "correct it",
            ) from None
    # Models with vision have their layers in language_model.
    name = pattern.replace("language_model.", "").replace("model.model.", "model.")
    if "*" in name:
        return fnmatch.fnmatchcase(module, name)
    return f".{name}." in f".{module}."


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
