"""Which number format each linear layer has, read from a HuggingFace configuration."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from physim.errors import InputError
from physim.models import formats
from physim.models.formats import BFLOAT16, FP8, FP8_BLOCK, WeightFormat, int4

if TYPE_CHECKING:
    import re2

# What different tools call the list of modules that stay in 16 bit.
_NOT_QUANTIZED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
_LAYER = re.compile(r"(?:^|[.*])layers\\?\.(\d+)(?!\d)")
# What a checkpoint's names begin with, before the layers.
_PREFIX = re.compile(r"^(?:\*|(?:language_model|model|backbone)\.)*(?=layers\.)")
# A regular expression for all names that do not match another.
_WITHOUT = re.compile(r"re:\^?\(\?!(.*)\)(?:\.\*\$?)?")
# The KV cache's format, by the bits and by the algorithm that a checkpoint names.
_KV_BITS: Mapping[int | None, str] = {None: "", 16: "bfloat16", 8: "fp8", 4: "nvfp4"}
_KV_ALGORITHMS = {"": "", "NONE": "", "FP8": "fp8", "NVFP4": "nvfp4"}
# The only blocks of weights that share a scale for which engines have fast kernels.
_BLOCK = [128, 128]
_SIXTEEN_BIT = {"bfloat16", "float16", "half", "torch.bfloat16", "torch.float16"}
_FLOAT32 = {"float32", "float", "torch.float32"}

# The modules that a linear layer may be made of, in the names of transformers and vLLM.
_ATTENTION = ("self_attn.{}_proj", "mixer.{}_proj", "attention.{}_proj", "linear_attn.{}_proj")
_QKV = tuple(form.format(one) for form in _ATTENTION for one in ("q", "k", "v", "qkv"))
_OUTPUT = tuple(form.format("o") for form in _ATTENTION)
_MLPS = ("mlp", "feed_forward", "mixer")
_SHARED = (
    *("mlp.shared_expert.{}", "mlp.shared_experts.{}", "feed_forward.shared_expert.{}"),
    *("block_sparse_moe.shared_experts.{}", "mixer.shared_experts.{}", "ffn.shared_experts.{}"),
    *("share_expert.{}", "mlp.shared_mlp.{}"),
)
_EXPERTS = (
    *("mlp.experts", "mlp.experts.0.gate_proj", "feed_forward.experts.gate_up_proj"),
    *("feed_forward.experts.0.gate_proj", "block_sparse_moe.experts", "moe.gate_proj"),
    *("block_sparse_moe.experts.0.w1", "mixer.experts", "mixer.experts.0.up_proj"),
    *("ffn.experts", "ffn.experts.0.w1", "mlp.experts.gate_proj"),
)
MODULES = {
    "qkv": _QKV,
    "attention_output": _OUTPUT,
    "latent_down": (
        *("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj"),
        *("attn.wq_a", "attn.wkv"),
    ),
    "latent_q_up": ("self_attn.q_b_proj", "self_attn.q_proj", "attn.wq_b"),
    "latent_kv_up": ("self_attn.kv_b_proj",),
    "latent_output": ("self_attn.o_proj", "attn.wo_a", "attn.wo_b"),
    "indexer": ("self_attn.indexer.wq_b", "self_attn.indexer.wk", "attn.indexer.wq_b"),
    "linear_in": (
        *("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz", "linear_attn.in_proj_z"),
        *("self_attn.q_proj", "self_attn.k_proj", "mixer.in_proj", "mamba.in_proj"),
    ),
    "linear_out": (
        *("linear_attn.out_proj", "self_attn.o_proj", "mixer.out_proj", "mamba.out_proj"),
    ),
    "mlp": (
        *(f"{block}.{one}_proj" for block in _MLPS for one in ("gate", "up", "down", "gate_up")),
    ),
    "shared_experts": tuple(
        form.format(one) for form in _SHARED for one in ("gate_proj", "up_proj", "w1", "down_proj")
    ),
    "experts": _EXPERTS,
    # Experts beside a dense MLP, in a module of their own.
    "experts_beside": ("experts", "moe.experts", "experts.0.gate_proj", "moe.experts.0.gate_proj"),
    "latent_experts": ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
}


class Quantization:
    """What a configuration says of the formats of its linear layers.

    16-bit floats of either kind are treated alike: tensor cores run them at one rate.

    Args:
        config: The configuration, with its ``quantization_config``.
        layers: How many layers the model has.
        where: The configuration's path or name, for messages.

    Attributes:
        kv_cache_dtype: Format of the KV cache, a key of `physim.models.formats.KV_BYTES`.

    Raises:
        InputError: The data type or the quantisation is not one that physim models.
    """

    def __init__(self, config: Mapping[str, Any], layers: int, where: str) -> None:
        self.where, self.kv_cache_dtype = f"{where}: quantization_config", "bfloat16"
        self._plain = _plain(config, where)
        self._default: WeightFormat = self._plain
        self._targets: list[tuple[list[str], WeightFormat]] = []
        self._named: dict[str, WeightFormat] = {}
        self._unnamed = self._plain
        self._ignored: list[str] = []
        self._layers = layers
        quantization = config.get("quantization_config")
        if quantization is not None:
            if not isinstance(quantization, Mapping):
                raise InputError(self.where, "is not a JSON object", "repair or remove it")
            self._read(quantization, config)
        self._by_layer: dict[int, list[str]] = {}
        self._generic: list[str] = []
        for pattern in self._ignored:
            numbered = None if pattern.startswith("re:") else _LAYER.search(pattern)
            if numbered:
                self._by_layer.setdefault(int(numbered[1]), []).append(pattern)
            else:
                self._generic.append(pattern)
        self._candidates: dict[str, list[str]] = {}
        self._found: dict[tuple[str, int], WeightFormat] = {}

    def form(self, role: str, layer: int) -> WeightFormat:
        """The format of a linear layer.

        Args:
            role: What it does: a key of `MODULES`.
            layer: The number of the layer.
        """
        if (role, layer) not in self._found:
            self._found[role, layer] = self._form(role, layer)
        return self._found[role, layer]

    def _form(self, role: str, layer: int) -> WeightFormat:
        modules = [f"layers.{layer}.{module}" for module in MODULES[role]]
        patterns = [*self._by_layer.get(layer, ()), *self._of_role(role)]
        if any(_names(one, modules, self.where) for one in patterns):
            return self._plain
        if self._named:
            named = (self._named[module] for module in modules if module in self._named)
            return next(named, self._unnamed)
        for targets, form in self._targets:
            if any(_names(one, modules, self.where) for one in targets):
                return form
        return self._default

    def _of_role(self, role: str) -> list[str]:
        """Patterns without a layer's number that may name these modules."""
        if role not in self._candidates:
            ends = [
                f"layers.{layer}.{module}"
                for layer in (0, max(self._layers - 1, 0))
                for module in MODULES[role]
            ]
            self._candidates[role] = [
                pattern
                for pattern in self._generic
                if _names(pattern, ends, self.where)
                # One that tells layers apart may name none of the two ends.
                or (pattern.startswith("re:") and any(map(str.isdigit, pattern)))
            ]
        return self._candidates[role]

    def _read(self, quantization: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        for field in _NOT_QUANTIZED:
            self._ignored += _patterns(quantization.get(field), f"{self.where}.{field}")
        self.kv_cache_dtype = _kv_cache_dtype(quantization, self.where)
        method = _method(quantization, self.where)
        reader = _METHODS.get(method)
        algorithm = _text(quantization, "quant_algo", self.where)
        if reader is None:
            raise InputError(
                f"{self.where}.quant_method",
                f"{method or 'none'!r}{f' ({algorithm})' if algorithm else ''} is not modelled",
                f"supported: {', '.join(sorted(_METHODS))}",
            )
        reader(self, quantization)
        # DeepSeek-V4 keeps its experts in mxfp4 beside fp8, as a field of its own says.
        experts = config.get("expert_dtype")
        if experts not in (None, "fp4", "fp8"):
            raise InputError(
                f"{self.where.partition(':')[0]}: expert_dtype",
                f"{experts!r} is not modelled",
                "use fp4 or fp8",
            )
        if experts == "fp4" and not self._named:
            self._targets.append((["*.ffn.experts*"], formats.MXFP4_MXFP8))

    def _read_fp8(self, quantization: Mapping[str, Any]) -> None:
        block = quantization.get("weight_block_size")
        if block not in (None, _BLOCK):
            raise InputError(
                f"{self.where}.weight_block_size", f"{block!r} is not modelled", f"use {_BLOCK}"
            )
        self._default = FP8_BLOCK if block else FP8
        # NVIDIA's checkpoints of DeepSeek-V4 name the experts that they have in another format;
        # what they exclude from it stays in fp8.
        if quantization.get("quantized_layers") is not None:
            self._ignored, self._unnamed = [], self._default
            self._read_named(quantization)

    def _read_mxfp4(self, _: Mapping[str, Any]) -> None:
        # gpt-oss, whose experts vLLM pads (mxfp4.py); other methods name the same format.
        self._default = replace(formats.MXFP4, is_padded=True)

    def _read_packed(self, quantization: Mapping[str, Any]) -> None:
        method = _method(quantization, self.where)
        bits = quantization.get("bits", quantization.get("w_bit"))
        if bits == 8:
            self._default = formats.INT8_WEIGHTS
            return
        if bits != 4:
            raise InputError(
                f"{self.where}.bits", f"{method} with {bits} bits", "4 and 8 bits are modelled"
            )
        group = quantization.get("group_size", quantization.get("q_group_size", 128))
        self._default = int4(_group_size(group, f"{self.where}.group_size"))

    def _read_modelopt(self, quantization: Mapping[str, Any]) -> None:
        algorithm = _text(quantization, "quant_algo", self.where).upper()
        if not algorithm and quantization.get("config_groups") is not None:
            self._read_compressed_tensors(quantization)
            return
        if algorithm == "MIXED_PRECISION":
            self._read_named(quantization)
        else:
            self._default = self._algorithm(algorithm, quantization)

    def _read_named(self, quantization: Mapping[str, Any]) -> None:
        """The format of each layer by its name."""
        named = quantization.get("quantized_layers")
        place = f"{self.where}.quantized_layers"
        if not isinstance(named, Mapping) or not named:
            raise InputError(place, "names no layers", "add the format of each layer")
        for name, how in named.items():
            if not isinstance(how, Mapping):
                raise InputError(f"{place}.{name}", "is not a JSON object", "correct it")
            form = self._algorithm(_text(how, "quant_algo", f"{place}.{name}").upper(), how)
            self._named[_PREFIX.sub("", name)] = form

    def _algorithm(self, algorithm: str, how: Mapping[str, Any]) -> WeightFormat:
        if algorithm in ("W4A8_AWQ", "W4A16_AWQ", "INT4_AWQ"):
            group = _group_size(how.get("group_size"), f"{self.where}.group_size", 128)
            return int4(group, "fp8" if algorithm == "W4A8_AWQ" else "bfloat16")
        if algorithm not in _ALGORITHMS:
            raise InputError(
                f"{self.where}.quant_algo",
                f"{algorithm or 'none'!r} is not modelled",
                f"supported: {', '.join(sorted(_ALGORITHMS))}, W4A8_AWQ, W4A16_AWQ",
            )
        return _ALGORITHMS[algorithm]

    def _read_compressed_tensors(self, quantization: Mapping[str, Any]) -> None:
        place = f"{self.where}.config_groups"
        named = quantization.get("config_groups")
        if not isinstance(named, Mapping) or not named:
            raise InputError(place, "has no weight scheme", "pass the checkpoint's full config")
        for name, group in named.items():
            if not isinstance(group, Mapping):
                raise InputError(f"{place}.{name}", "is not a JSON object", "correct it")
            form = _scheme(group, quantization, f"{place}.{name}")
            targets = ["Linear"]
            if group.get("targets") is not None:
                targets = _patterns(group["targets"], f"{place}.{name}.targets")
            if not targets:
                raise InputError(f"{place}.{name}.targets", "name no modules", "add some")
            if any(target in ("Linear", "RoutedExperts", "FusedMoE") for target in targets):
                self._default = form
            else:
                self._targets.append((targets, form))


_METHODS = {
    "fp8": Quantization._read_fp8,
    "fbgemm_fp8": Quantization._read_fp8,
    "mxfp4": Quantization._read_mxfp4,
    "gptq": Quantization._read_packed,
    "awq": Quantization._read_packed,
    "modelopt": Quantization._read_modelopt,
    "compressed-tensors": Quantization._read_compressed_tensors,
}
# NVIDIA ModelOpt's names of formats.
_ALGORITHMS = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": FP8_BLOCK,
    "FP8_BLOCK": FP8_BLOCK,
    "MXFP8": formats.MXFP8,
    "NVFP4": formats.NVFP4,
    "W4A16_NVFP4": formats.NVFP4_WEIGHTS,
    "MXFP4": formats.MXFP4,
    "INT8": formats.INT8,
    "W8A8_SQ_PER_CHANNEL": formats.INT8,
    "W8A16": formats.INT8_WEIGHTS,
}


def _plain(config: Mapping[str, Any], where: str) -> WeightFormat:
    """The format of what is not quantised.

    Raises:
        InputError: It is none that engines serve.
    """
    named = (config.get(field) for field in ("dtype", "torch_dtype"))
    dtype = str(next((one for one in named if one is not None), "bfloat16"))
    # Engines cast a checkpoint of 32 bit to 16.
    if dtype not in _SIXTEEN_BIT | _FLOAT32:
        raise InputError(
            f"{where}: torch_dtype", f"{dtype!r} is not modelled", "use bfloat16 or float16"
        )
    return BFLOAT16


def _text(content: Mapping[str, Any], field: str, where: str) -> str:
    """Text, empty where it is not there."""
    value = content.get(field)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}.{field}", f"{str(value)[:60]!r} is not a name", "correct it")
    return value or ""


def _method(quantization: Mapping[str, Any], where: str) -> str:
    # NVIDIA's ModelOpt names its algorithm, and not always itself.
    implied = "modelopt" if _text(quantization, "quant_algo", where) else ""
    method = (_text(quantization, "quant_method", where) or implied).lower()
    for known in ("modelopt", "gptq", "awq"):
        if method.startswith(f"{known}_"):
            return known
    return method


def _scheme(group: Mapping[str, Any], quantization: Mapping[str, Any], place: str) -> WeightFormat:
    """The format of one group of a compressed-tensors configuration."""
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise InputError(place, "has no weights", "pass the checkpoint's full config")
    input_bits = _bits(group, "input_activations", place)
    bits, kind = weights.get("num_bits"), weights.get("type")
    packing = _text(group, "format", place) or _text(quantization, "format", place)
    if (bits, kind, input_bits) == (8, "float", 8):
        return FP8_BLOCK if weights.get("strategy") == "block" else FP8
    if (bits, kind) == (8, "int"):
        return formats.INT8 if input_bits == 8 else formats.INT8_WEIGHTS
    if (bits, kind) == (4, "int"):
        size = _group_size(weights.get("group_size"), f"{place}.group_size", -1)
        return int4(size, "fp8" if input_bits == 8 else "bfloat16")
    if (bits, kind) == (4, "float"):
        if packing.startswith("mxfp4") or weights.get("group_size") == 32:
            return formats.MXFP4_MXFP8 if input_bits else formats.MXFP4
        return formats.NVFP4 if input_bits == 4 else formats.NVFP4_WEIGHTS
    raise InputError(
        place,
        f"{bits}-bit {kind} weights and {input_bits or 16}-bit activations",
        "supported: 8-bit float weights and activations, 8-bit int, 4-bit float and int weights",
    )


def _bits(content: Mapping[str, Any], field: str, where: str) -> int | None:
    """Bits of a number by a scheme, None where there is no scheme."""
    scheme = content.get(field)
    if scheme is None:
        return None
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise InputError(f"{where}.{field}", "has no num_bits", "pass the checkpoint's full config")
    return bits


def _names(pattern: str, modules: Sequence[str], where: str) -> bool:
    """Whether a pattern is the name of one of some modules, a whole part of it, or matches it.

    A regular expression after ``re:`` (compressed-tensors), with ``*`` for anything (ModelOpt), or
    a name or part of one (transformers, vLLM).
    """
    if pattern.startswith("re:"):
        without = _WITHOUT.fullmatch(pattern)
        # Not all of the modules are there, so whatever the pattern spares is spared with the rest.
        if without:
            return not _names(f"re:{without[1]}", modules, where)
        matches = _regular(pattern[3:], where).match
        return any(
            matches(before + module)
            for module in modules
            for before in ("model.", "", "language_model.")
        )
    name = _PREFIX.sub("", pattern)
    if "*" in name:
        return any(
            fnmatch.fnmatchcase(known, wild)
            for module in modules
            for known, one in ((module, name), (f"model.{module}", pattern))
            # A module holds what is within it.
            for wild in (one, f"{one}.*")
        )
    return any(f".{name}." in f".{module}." for module in modules)


@functools.lru_cache(maxsize=4096)
def _regular(pattern: str, where: str) -> re2._Regexp:
    """A regular expression that matches in a time linear in the length of a name.

    Of look-ahead, which RE2 lacks, checkpoints have what `_WITHOUT` takes care of.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError):
        raise InputError(
            where,
            f"{'re:' + pattern[:60]!r} is not a regular expression that RE2 takes",
            "name the modules without look-around and back-references",
        ) from None


def _patterns(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise InputError(
            where, f"{value!r} is not a list of module names", "write a list of strings"
        )
    return value


def _group_size(value: Any, where: str, default: int | None = None) -> int:
    """Weights that share a scale; -1 where a whole column does."""
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise InputError(where, f"{value!r} is not a group size", "write a positive integer, or -1")
    return value


def _kv_cache_dtype(quantization: Mapping[str, Any], where: str) -> str:
    # ModelOpt names its algorithm in either field.
    is_named = isinstance(quantization.get("kv_cache_scheme"), str)
    bits = None if is_named else _bits(quantization, "kv_cache_scheme", where)
    if bits not in _KV_BITS:
        raise InputError(
            f"{where}.kv_cache_scheme", f"{bits} bits are not modelled", "use 4, 8 or 16"
        )
    field = "kv_cache_scheme" if is_named else "kv_cache_quant_algo"
    algorithm = _text(quantization, field, where).upper()
    if algorithm not in _KV_ALGORITHMS:
        raise InputError(
            f"{where}.{field}", f"{algorithm[:60]!r} is not modelled", "use FP8 or NVFP4"
        )
    return _KV_BITS[bits] or _KV_ALGORITHMS[algorithm] or "bfloat16"


@runtime_checkable
class Formats(Protocol):
    """Whatever says which format a linear layer has."""

    def form(self, role: str, layer: int) -> WeightFormat:
        """The format of a linear layer, by what it does and the number of its layer."""


@dataclass(frozen=True)
class OneLayer:
    """The formats of one layer, whichever is asked for.

    Attributes:
        formats: The formats of all layers.
        layer: The number of the one.
    """

    formats: Formats
    layer: int

    def form(self, role: str, layer: int) -> WeightFormat:  # noqa: ARG002
        """The format of a linear layer, by what it does."""
        return self.formats.form(role, self.layer)
