"""A transformer's shape, read from its HuggingFace ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from physim.errors import InputError
from physim.inputs.quantization import Formats, read_formats


@dataclass(frozen=True)
class Experts:
    """The mixture-of-experts part of a model.

    Attributes:
        count: Routed experts of a layer.
        per_token: Routed experts that each token visits.
        intermediate_size: Hidden width of one routed expert.
        shared_intermediate_size: Hidden width of the expert that every token visits, 0 if none.
        layers: Layers that have experts; the others have a dense MLP.
    """

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int
    layers: int


@dataclass(frozen=True)
class ModelArch:
    """The shape of a decoder-only transformer with gated MLPs and grouped-query attention.

    Attributes:
        name: Where the configuration came from, for messages.
        layers: Decoder layers.
        hidden_size: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        intermediate_size: Hidden width of a dense layer's MLP.
        vocab_size: Rows of the embedding and of lm_head.
        max_position: Longest context that the model was made for, in tokens.
        tied_embeddings: Whether lm_head shares the embedding's weights.
        qkv_bias: Whether the QKV projection adds a bias.
        qk_norm: Whether queries and keys are normalised for each head.
        window: Tokens that attention looks back, where that is limited; None where it is not.
        experts: The mixture of experts, None for a dense model.
        vision_parameters: Weights of a vision encoder, which take memory but see no text token.
        formats: Number formats of weights and KV cache.
        truncates: Whether, by the model's own default, tokens are drawn from the likeliest alone
            (top-k, top-p).
        penalises: Whether, likewise, tokens that occurred before are made less likely.
    """

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    window: int | None
    experts: Experts | None
    vision_parameters: int
    formats: Formats
    truncates: bool = False
    penalises: bool = False

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def attention_parameters(self) -> int:
        """Weights of the QKV and output projections of all layers, biases included."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.hidden_size * (2 * queries + 2 * keys)
        layer += (queries + 2 * keys) if self.qkv_bias else 0
        return self.layers * layer

    @property
    def mlp_parameters(self) -> int:
        """Weights of dense MLPs, shared experts and routers, which every token visits."""
        total = self.dense_layers * 3 * self.hidden_size * self.intermediate_size
        if self.experts:
            shared = 3 * self.hidden_size * self.experts.shared_intermediate_size
            total += self.experts.layers * (shared + self.hidden_size * self.experts.count)
        return total

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert in every layer that has experts."""
        if not self.experts:
            return 0
        return self.experts.layers * 3 * self.hidden_size * self.experts.intermediate_size

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding and of lm_head, counted once where they are tied."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms."""
        heads = 2 * self.head_dim if self.qk_norm else 0
        return self.layers * (2 * self.hidden_size + heads) + self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights."""
        routed = self.expert_parameters * (self.experts.count if self.experts else 0)
        return self._always_active + routed + self.vision_parameters

    @property
    def active_parameters(self) -> int:
        """Weights that one token visits."""
        visited = self.expert_parameters * (self.experts.per_token if self.experts else 0)
        return self._always_active + visited

    @property
    def _always_active(self) -> int:
        return (
            self.attention_parameters
            + self.mlp_parameters
            + self.embedding_parameters
            + self.norm_parameters
        )

    def kv_bytes_per_token(self, tp: int) -> float:
        """Bytes of KV cache that one token takes on each GPU under tensor parallelism ``tp``.

        KV heads are replicated where there are fewer of them than GPUs.
        """
        heads = max(self.kv_heads / tp, 1.0)
        return 2 * self.layers * heads * self.head_dim * self.formats.kv_cache_bytes


class _Config:
    """A configuration whose fields are checked as they are read."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def count(self, field: str, default: int | None = None) -> int:
        """A positive integer."""
        return self._integer(field, default, minimum=1)

    def at_least_zero(self, field: str, default: int) -> int:
        """An integer that may be zero."""
        return self._integer(field, default, minimum=0)

    def flag(self, field: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.fields.get(field)
        return default if value is None else bool(value)

    def list(self, field: str) -> list[Any]:
        """A list, empty where absent."""
        value = self.fields.get(field) or []
        if not isinstance(value, list):
            raise InputError(f"{self.where}: {field}", "is no list", "pass a list or remove it")
        return value

    def _integer(self, field: str, default: int | None, minimum: int) -> int:
        value = self.fields.get(field)
        if value is None:
            value = default
        if value is None:
            raise InputError(
                f"{self.where}: {field}",
                "is missing",
                "add it, or pass the model's full config.json",
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(
                f"{self.where}: {field}",
                f"{value!r} is no integer of at least {minimum}",
                "correct it",
            )
        return value


@dataclass(frozen=True)
class _Family:
    """What sets one architecture class apart from the plain Llama layout."""

    qkv_bias: bool = False
    qk_norm: bool = False
    tied_by_default: bool = False
    experts: Callable[[_Config], Experts] | None = None
    window: Callable[[_Config], int | None] = lambda _: None
    vision: Callable[[_Config], int] = lambda _: 0


def _mixtral_experts(config: _Config) -> Experts:
    return Experts(
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
        shared_intermediate_size=0,
        layers=config.count("num_hidden_layers"),
    )


def _qwen3_experts(config: _Config) -> Experts:
    layers, step = config.count("num_hidden_layers"), config.count("decoder_sparse_step", 1)
    dense = set(config.list("mlp_only_layers"))
    sparse = [i for i in range(layers) if i not in dense and (i + 1) % step == 0]
    return Experts(
        count=config.count("num_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=0,
        layers=len(sparse),
    )


def _llama4_experts(config: _Config) -> Experts:
    # A layer has experts where its number, counted from 1, is a multiple of the interleaving
    # step; the shared expert is as wide as a routed one (transformers, modeling_llama4.py).
    step = config.count("interleave_moe_layer_step", 1)
    listed = config.list("moe_layers")
    return Experts(
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
        shared_intermediate_size=config.count("intermediate_size"),
        layers=len(listed) if listed else config.count("num_hidden_layers") // step,
    )


def _mistral_window(config: _Config) -> int | None:
    return config.at_least_zero("sliding_window", 0) or None


def _qwen_window(config: _Config) -> int | None:
    return _mistral_window(config) if config.flag("use_sliding_window") else None


def _llama4_window(config: _Config) -> int | None:
    return config.at_least_zero("attention_chunk_size", 0) or None


def _llama4_vision(config: _Config) -> int:
    # A vision transformer, a pixel-shuffle MLP and a projector to the text model's width
    # (transformers, modeling_llama4.py: Llama4VisionModel, Llama4MultiModalProjector).
    fields = config.fields.get("vision_config")
    if not isinstance(fields, Mapping):
        return 0
    vision = _Config(fields, f"{config.where}: vision_config")
    width, out = vision.count("hidden_size"), vision.count("projector_output_dim")
    layer = 4 * width**2 + 2 * width * vision.count("intermediate_size")
    mlp = vision.count("intermediate_size") * vision.count("projector_input_dim")
    return (
        vision.count("num_hidden_layers") * layer
        + mlp
        + vision.count("projector_input_dim") * out
        + out * config.count("hidden_size")
    )


_FAMILIES = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(window=_mistral_window),
    "MixtralForCausalLM": _Family(experts=_mixtral_experts, window=_mistral_window),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, window=_qwen_window),
    "Qwen3ForCausalLM": _Family(qk_norm=True, window=_qwen_window),
    "Qwen3MoeForCausalLM": _Family(qk_norm=True, experts=_qwen3_experts, window=_qwen_window),
    "GemmaForCausalLM": _Family(tied_by_default=True),
    "Llama4ForConditionalGeneration": _Family(
        experts=_llama4_experts, window=_llama4_window, vision=_llama4_vision
    ),
    "Llama4ForCausalLM": _Family(experts=_llama4_experts, window=_llama4_window),
}

# Fields that change what a layer computes in ways that no component of physim describes.
_UNMODELLED_FIELDS = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "ssm_cfg": "state-space layers",
    "mamba_d_state": "state-space layers",
    "mamba_d_ssm": "state-space layers",
    "ssm_state_size": "state-space layers",
    "linear_num_key_heads": "linear-attention layers",
    "n_shared_experts": "a gated shared expert",
    "index_topk": "sparse attention",
}


def read_architecture(config: Mapping[str, Any], where: str) -> ModelArch:
    """A model's shape from the fields of its ``config.json``.

    Args:
        config: The parsed file.
        where: Its path or name, for messages.

    Raises:
        InputError: A field is missing or out of range, or the architecture or its quantisation
            is not one that physim models. Nothing is approximated silently.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(
            f"{where}: architectures", "is missing", "pass the model's full config.json"
        )
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, Mapping) else dict(config)
    for field, meaning in _UNMODELLED_FIELDS.items():
        if merged.get(field):
            raise InputError(
                f"{where}: {field}", f"{meaning} is not modelled ({architectures[0]})", _supported()
            )
    family = _FAMILIES.get(str(architectures[0]))
    if family is None:
        raise InputError(
            f"{where}: architectures", f"{architectures[0]} is not modelled", _supported()
        )
    return _read(_Config(merged, where), family)


def _supported() -> str:
    return f"modelled are {', '.join(sorted(_FAMILIES))}"


def _read(config: _Config, family: _Family) -> ModelArch:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise InputError(
            f"{config.where}: num_key_value_heads",
            f"{kv_heads} does not divide num_attention_heads {heads}",
            "correct it",
        )
    if config.fields.get("head_dim") is None and hidden % heads:
        raise InputError(
            f"{config.where}: num_attention_heads",
            f"{heads} does not divide hidden_size {hidden}",
            "add head_dim",
        )
    experts = family.experts(config) if family.experts else None
    if experts and experts.per_token > experts.count:
        raise InputError(
            f"{config.where}: num_experts_per_tok",
            f"{experts.per_token} is more than the {experts.count} experts",
            "correct it",
        )
    # Llama 4 keeps the width of its dense layers apart, in intermediate_size_mlp.
    dense_width = "intermediate_size_mlp" if "intermediate_size_mlp" in config.fields else None
    return ModelArch(
        name=config.where,
        layers=config.count("num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.count("head_dim", hidden // heads),
        intermediate_size=config.count(dense_width or "intermediate_size"),
        vocab_size=config.count("vocab_size"),
        max_position=config.count("max_position_embeddings", 4096),
        tied_embeddings=config.flag("tie_word_embeddings", family.tied_by_default),
        qkv_bias=family.qkv_bias or config.flag("attention_bias"),
        qk_norm=family.qk_norm,
        window=family.window(config),
        experts=experts,
        vision_parameters=family.vision(config),
        formats=read_formats(config.fields, config.where),
    )
