"""A transformer's shape, read from its HuggingFace ``config.json``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from physim.errors import InputError
from physim.inputs.quantization import Formats, read_formats

# Kinds of attention, in the words of a configuration's layer_types.
FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
CHUNKED_ATTENTION = "chunked_attention"
_MOST_LAYERS = 1000


@dataclass(frozen=True)
class Attention:
    """The attention of a layer.

    Attributes:
        kind: What it attends to, in the words of a configuration's ``layer_types``, such as
            ``full_attention`` and ``sliding_attention``.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        window: Tokens that it looks back, where that is limited; None where it is not.
    """

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of a layer's MLP.

    Attributes:
        count: Routed experts.
        per_token: Routed experts that each token visits.
        intermediate_size: Hidden width of one routed expert.
        shared_intermediate_size: Hidden width of the expert that every token visits, 0 if none.
        load: How unevenly tokens choose, where nothing else is known: the exponent of a power law,
            0 for experts that are chosen alike. Mixtral's and Qwen3-30B-A3B's measured runs are
            near 0, Llama-4 Scout's near 1 (seed16.csv, ML.ENERGY, trainval.csv).
    """

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int
    load: float = 0.0


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are alike.

    Attributes:
        layers: How many there are.
        attention: Their attention.
        intermediate_size: Hidden width of their dense MLP; 0 where they have experts.
        experts: Their experts; None where their MLP is dense.
    """

    layers: int
    attention: Attention
    intermediate_size: int
    experts: Experts | None = None


@dataclass(frozen=True)
class ModelArch:
    """The shape of a decoder-only transformer.

    Attributes:
        name: Where the configuration came from, for messages.
        groups: Its layers, those that are alike together, in the order in which they come first.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the embedding and of lm_head.
        max_position: Longest context that the model was made for, in tokens.
        tied_embeddings: Whether lm_head shares the embedding's weights.
        qkv_bias: Whether the QKV projection adds a bias.
        qk_norm: Whether queries and keys are normalised for each head.
        gated_mlp: Whether dense MLPs have a gate beside their up projection.
        vision_parameters: Weights of a vision encoder, which take memory but see no text token.
        formats: Number formats of weights and KV cache.
        truncation: What, by the model's own default, tokens are drawn from: ``top_k``, ``top_p``,
            ``top_k_top_p``, or empty for all.
        penalises: Whether, likewise, tokens that occurred before are made less likely.
        note: How the configuration was read, if not for what it says it is.
    """

    name: str
    groups: tuple[LayerGroup, ...]
    hidden_size: int
    vocab_size: int
    max_position: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    vision_parameters: int
    formats: Formats
    gated_mlp: bool = True
    truncation: str = ""
    penalises: bool = False
    note: str = ""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(group.layers for group in self.groups)

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return sum(group.layers for group in self.groups if not group.experts)

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers

    @property
    def experts(self) -> Experts | None:
        """The experts of the layers that have some, None for a dense model."""
        return next((group.experts for group in self.groups if group.experts), None)

    @property
    def intermediate_size(self) -> int:
        """Hidden width of the dense MLPs, 0 if there are none."""
        return max(group.intermediate_size for group in self.groups)

    @property
    def attention(self) -> Attention:
        """The attention of the first layers, for what knows of no other."""
        return self.groups[0].attention

    @property
    def attention_layers(self) -> dict[Attention, int]:
        """Each attention that occurs, and how many layers have it."""
        layers: dict[Attention, int] = {}
        for group in self.groups:
            layers[group.attention] = layers.get(group.attention, 0) + group.layers
        return layers

    @property
    def window(self) -> int | None:
        """The shortest window of its attention, None if all of it is unlimited."""
        windows = [group.attention.window for group in self.groups if group.attention.window]
        return min(windows, default=None)

    @property
    def chunk(self) -> int | None:
        """The chunk within which some layers attend, None if none do."""
        kinds = [group.attention for group in self.groups]
        return next((one.window for one in kinds if one.kind == CHUNKED_ATTENTION), None)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of a dense MLP: gate, up and down, or without a gate up and down."""
        return 3 if self.gated_mlp else 2

    @property
    def attention_parameters(self) -> int:
        """Weights of the QKV and output projections of all layers, biases included."""
        total = 0
        for group in self.groups:
            shape = group.attention
            queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            layer = self.hidden_size * (2 * queries + 2 * keys)
            layer += (queries + 2 * keys) if self.qkv_bias else 0
            total += group.layers * layer
        return total

    @property
    def mlp_parameters(self) -> int:
        """Weights of dense MLPs, shared experts and routers, which every token visits."""
        total = 0
        for group in self.groups:
            width, routed = group.intermediate_size, 0
            if group.experts:
                width, routed = group.experts.shared_intermediate_size, group.experts.count
            total += group.layers * self.hidden_size * (self.mlp_matrices * width + routed)
        return total

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert in every layer that has experts."""
        return sum(
            group.layers * 3 * self.hidden_size * group.experts.intermediate_size
            for group in self.groups
            if group.experts
        )

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding and of lm_head, counted once where they are tied."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms."""
        heads = sum(g.layers * 2 * g.attention.head_dim for g in self.groups) if self.qk_norm else 0
        return self.layers * 2 * self.hidden_size + heads + self.hidden_size

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

    def kv_elements_per_token(self, tp: int) -> float:
        """Elements of KV cache that a token takes on each GPU under tensor parallelism ``tp``.

        KV heads are replicated where there are fewer of them than GPUs.
        """
        return sum(
            2 * group.layers * max(group.attention.kv_heads / tp, 1.0) * group.attention.head_dim
            for group in self.groups
        )


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
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"{self.where}: {field}", f"{value!r} is not true or false", "correct it"
            )
        return value

    def list(self, field: str) -> list[Any]:
        """A list, empty where absent."""
        value = self.fields.get(field) or []
        if not isinstance(value, list):
            raise InputError(f"{self.where}: {field}", "is not a list", "pass a list or remove it")
        return value

    def layer_numbers(self, field: str) -> Sequence[int]:
        """Numbers of layers, counted from 0."""
        found, layers = self.list(field), self.count("num_hidden_layers")
        for one in found:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < layers:
                raise InputError(
                    f"{self.where}: {field}",
                    f"names {one!r}, and the model has layers 0 to {layers - 1}",
                    "correct it",
                )
        return found

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
                f"{value!r} is not an integer of at least {minimum}",
                "correct it",
            )
        return value


@dataclass(frozen=True)
class _Family:
    """What sets one architecture class apart from the plain Llama layout.

    Attributes:
        qkv_bias: Whether the QKV projection adds a bias whatever the configuration says.
        qk_norm: Whether queries and keys are normalised.
        gated_mlp: Whether dense MLPs have a gate.
        tied_by_default: Whether embeddings are tied where the configuration does not say.
        experts: The experts of the layers that have some.
        expert_layers: The layers that have them, by their numbers from 0.
        window: Tokens that windowed layers look back.
        unlimited_every: Where the configuration does not say which layers are windowed, one of so
            many is not; 0 where all are.
        vision: Weights of the vision encoder, of the configuration and its ``vision_config``.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    tied_by_default: bool = False
    experts: Callable[[_Config], Experts | None] = lambda _: None
    expert_layers: Callable[[_Config], Container[int]] = lambda config: range(
        config.count("num_hidden_layers")
    )
    window: Callable[[_Config], int | None] = lambda _: None
    unlimited_every: int = 0
    vision: Callable[[_Config, _Config], int] = lambda _, __: 0


def _mixtral_experts(config: _Config) -> Experts:
    return Experts(
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
        shared_intermediate_size=0,
    )


def _qwen3_experts(config: _Config) -> Experts:
    return Experts(
        count=config.count("num_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=0,
    )


def _qwen3_expert_layers(config: _Config) -> Container[int]:
    step, layers = config.count("decoder_sparse_step", 1), config.count("num_hidden_layers")
    return set(range(step - 1, layers, step)) - set(config.layer_numbers("mlp_only_layers"))


def _llama4_experts(config: _Config) -> Experts:
    # The shared expert is as wide as a routed one (transformers, modeling_llama4.py).
    return Experts(
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
        shared_intermediate_size=config.count("intermediate_size"),
        load=1.0,
    )


def _llama4_expert_layers(config: _Config) -> Container[int]:
    # A layer has experts where it is listed or, without a list, where its number, counted from 1,
    # is a multiple of the interleaving step (transformers, configuration_llama4.py).
    step, layers = config.count("interleave_moe_layer_step", 1), config.count("num_hidden_layers")
    return config.layer_numbers("moe_layers") or range(step - 1, layers, step)


def _mistral_window(config: _Config) -> int | None:
    return config.at_least_zero("sliding_window", 0) or None


def _qwen_window(config: _Config) -> int | None:
    return _mistral_window(config) if config.flag("use_sliding_window") else None


def _llama4_window(config: _Config) -> int | None:
    return config.at_least_zero("attention_chunk_size", 0) or None


def _llama4_vision(config: _Config, vision: _Config) -> int:
    # A vision transformer, a pixel-shuffle MLP and a projector to the text model's width
    # (transformers, modeling_llama4.py: Llama4VisionModel, Llama4MultiModalProjector).
    width, out = vision.count("hidden_size"), vision.count("projector_output_dim")
    layer = 4 * width**2 + 2 * width * vision.count("intermediate_size")
    mlp = vision.count("intermediate_size") * vision.count("projector_input_dim")
    return (
        vision.count("num_hidden_layers") * layer
        + mlp
        + vision.count("projector_input_dim") * out
        + out * config.count("hidden_size")
    )


def _pixtral_vision(config: _Config, vision: _Config) -> int:
    # A transformer with gated MLPs, a merger of patches and a projector to the text model's width
    # (transformers, modeling_pixtral.py, modeling_mistral3.py).
    width, out = vision.count("hidden_size"), config.count("hidden_size")
    layer = 4 * width**2 + 3 * width * vision.count("intermediate_size")
    merged = config.count("spatial_merge_size", 2) ** 2
    return vision.count("num_hidden_layers") * layer + merged * width**2 + width * out + out**2


# Families that are laid out like Llama say by what they differ in work and memory. Scalars on
# embeddings, residuals or logits, partial rotary embeddings, where norms stand, attention and MLP
# side by side, and projections that are stored as one matrix cost the same.
_FAMILIES = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(window=_mistral_window),
    "Mistral3ForConditionalGeneration": _Family(window=_mistral_window, vision=_pixtral_vision),
    "ApertusForCausalLM": _Family(qk_norm=True, gated_mlp=False),
    "ArceeForCausalLM": _Family(gated_mlp=False),
    "CohereForCausalLM": _Family(tied_by_default=True),
    "Cohere2ForCausalLM": _Family(tied_by_default=True, window=_mistral_window, unlimited_every=4),
    "Ernie4_5ForCausalLM": _Family(tied_by_default=True),
    "Ernie4_5_ForCausalLM": _Family(tied_by_default=True),
    "Exaone4ForCausalLM": _Family(qk_norm=True, window=_mistral_window, unlimited_every=4),
    "GlmForCausalLM": _Family(),
    "Glm4ForCausalLM": _Family(),
    "GraniteForCausalLM": _Family(),
    "HunYuanDenseV1ForCausalLM": _Family(qk_norm=True),
    "InternLM2ForCausalLM": _Family(),
    "InternLM3ForCausalLM": _Family(),
    "MiniCPMForCausalLM": _Family(tied_by_default=True),
    "NemotronForCausalLM": _Family(gated_mlp=False),
    "OlmoForCausalLM": _Family(),
    "Olmo2ForCausalLM": _Family(qk_norm=True),
    "Olmo3ForCausalLM": _Family(qk_norm=True, window=_mistral_window, unlimited_every=4),
    "Phi3ForCausalLM": _Family(window=_mistral_window),
    "SeedOssForCausalLM": _Family(),
    "SmolLM3ForCausalLM": _Family(tied_by_default=True),
    "StableLmForCausalLM": _Family(),
    "Starcoder2ForCausalLM": _Family(
        qkv_bias=True, gated_mlp=False, tied_by_default=True, window=_mistral_window
    ),
    "MixtralForCausalLM": _Family(experts=_mixtral_experts, window=_mistral_window),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, window=_qwen_window),
    "Qwen3ForCausalLM": _Family(qk_norm=True, window=_qwen_window),
    "Qwen3MoeForCausalLM": _Family(
        qk_norm=True,
        experts=_qwen3_experts,
        expert_layers=_qwen3_expert_layers,
        window=_qwen_window,
    ),
    "GemmaForCausalLM": _Family(tied_by_default=True),
    "Llama4ForConditionalGeneration": _Family(
        experts=_llama4_experts,
        expert_layers=_llama4_expert_layers,
        window=_llama4_window,
        vision=_llama4_vision,
    ),
    "Llama4ForCausalLM": _Family(
        experts=_llama4_experts, expert_layers=_llama4_expert_layers, window=_llama4_window
    ),
}

# What families call a bias of the QKV projection.
_BIASES = ("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias", "bias")

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


def read_architecture(
    config: Mapping[str, Any], where: str, read_as: str | None = None
) -> ModelArch:
    """A model's shape from the fields of its ``config.json``.

    Args:
        config: The parsed file.
        where: Its path or name, for messages.
        read_as: The architecture class whose layout it is read by, whatever it says it is.

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
    says = str(architectures[0])
    family = _FAMILIES.get(read_as or says)
    if family is None and read_as:
        raise InputError(f"as {read_as}", "is not modelled", _supported())
    if family is None:
        near = difflib.get_close_matches(says, _FAMILIES, n=1) or ["LlamaForCausalLM"]
        raise InputError(
            f"{where}: architectures",
            f"{says} is not modelled",
            f"if its layers are laid out like those of {near[0]}, read it as that "
            f"(--as {near[0]}, read_as in Python); {_supported()}",
        )
    model = _read(_Config(merged, where), family)
    if read_as and read_as != says:
        model = replace(model, note=f"{says} is read as {read_as}, as was asked for")
    return model


def _supported() -> str:
    return f"supported: {', '.join(sorted(_FAMILIES))}"


def _check_dense(config: _Config) -> None:
    """Refuses experts in a family that has none.

    Raises:
        InputError: The configuration names some.
    """
    for field in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        if config.at_least_zero(field, 0) > 1:
            raise InputError(
                f"{config.where}: {field}",
                "names experts, of which this architecture has none",
                "correct it, or read the model as a class that has them, such as "
                "Qwen3MoeForCausalLM (--as)",
            )


def _vision_parameters(config: _Config, family: _Family) -> int:
    """Weights of the vision encoder, 0 where the configuration has none."""
    fields = config.fields.get("vision_config")
    if not isinstance(fields, Mapping):
        return 0
    return family.vision(config, _Config(fields, f"{config.where}: vision_config"))


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
    experts = family.experts(config)
    if experts is None:
        _check_dense(config)
    if experts and experts.per_token > experts.count:
        raise InputError(
            f"{config.where}: num_experts_per_tok",
            f"{experts.per_token} is more than the {experts.count} experts",
            "correct it",
        )
    return ModelArch(
        name=config.where,
        groups=_groups(config, family, experts, heads, kv_heads),
        hidden_size=hidden,
        vocab_size=config.count("vocab_size"),
        max_position=config.count("max_position_embeddings", 4096),
        tied_embeddings=config.flag("tie_word_embeddings", family.tied_by_default),
        qkv_bias=family.qkv_bias or any(config.flag(field) for field in _BIASES),
        qk_norm=family.qk_norm or config.flag("use_qk_norm"),
        gated_mlp=family.gated_mlp,
        vision_parameters=_vision_parameters(config, family),
        formats=read_formats(config.fields, config.count("num_hidden_layers"), config.where),
    )


def _groups(
    config: _Config, family: _Family, experts: Experts | None, heads: int, kv_heads: int
) -> tuple[LayerGroup, ...]:
    """The layers, those that are alike counted together."""
    layers, window = config.count("num_hidden_layers"), family.window(config)
    head_dim = config.count("head_dim", config.count("hidden_size") // heads)
    # Llama 4 keeps the width of its dense layers apart, in intermediate_size_mlp.
    apart = "intermediate_size_mlp" in config.fields
    width = config.count("intermediate_size_mlp" if apart else "intermediate_size")
    if layers > _MOST_LAYERS:
        raise InputError(
            f"{config.where}: num_hidden_layers",
            f"{layers} are more than any model has",
            "correct it",
        )
    with_experts = family.expert_layers(config) if experts else ()
    counts: dict[LayerGroup, int] = {}
    for layer, kind in enumerate(_attention_kinds(config, family, layers)):
        if kind in (SLIDING_ATTENTION, CHUNKED_ATTENTION) and window is None:
            raise InputError(
                f"{config.where}: layer_types",
                f"names {kind}, for which the configuration has no window in use",
                "add sliding_window or attention_chunk_size, or correct layer_types",
            )
        own = experts if layer in with_experts else None
        reach = None if kind == FULL_ATTENTION else window
        attention = Attention(kind, heads, kv_heads, head_dim, reach)
        group = LayerGroup(0, attention, 0 if own else width, own)
        counts[group] = counts.get(group, 0) + 1
    return tuple(replace(group, layers=count) for group, count in counts.items())


def _attention_kinds(config: _Config, family: _Family, layers: int) -> list[str]:
    """The kind of attention of each layer; where the configuration lists none, as is usual."""
    window = family.window(config)
    listed = config.list("layer_types")
    if listed and len(listed) != layers:
        raise InputError(
            f"{config.where}: layer_types",
            f"names {len(listed)} layers, and num_hidden_layers is {layers}",
            "correct one of them",
        )
    if listed:
        return [str(kind) for kind in listed]
    limited = CHUNKED_ATTENTION if "attention_chunk_size" in config.fields else SLIDING_ATTENTION
    # As lists of layers are made where there is none (transformers, configuration_cohere2.py).
    every = config.at_least_zero("sliding_window_pattern", family.unlimited_every)
    if window and every:
        return [limited if (layer + 1) % every else FULL_ATTENTION for layer in range(layers)]
    # Of Qwen the first layers look back without a limit (transformers, configuration_qwen2.py).
    unlimited = min(config.at_least_zero("max_window_layers", 0), layers) if window else layers
    return [FULL_ATTENTION] * unlimited + [limited] * (layers - unlimited)
