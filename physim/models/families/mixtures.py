"""Families with mixtures of experts: how experts are counted, and which layers have them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from physim.errors import InputError
from physim.mixers.attention import (
    BLOCK_SPARSE_ATTENTION,
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Attention,
)
from physim.mixers.mixer import Indexer
from physim.models.config_fields import ConfigFields
from physim.models.families import vision
from physim.models.families.family import (
    Block,
    Family,
    Reading,
    attention_block,
    dense_block,
    experts_block,
    mlp_linears,
    shared_heads,
    width_of_heads,
)
from physim.models.families.standard import grouped_queries
from physim.models.families.windows import (
    attention_chunk,
    qwen_window,
    reach_of,
    sliding_window,
)
from physim.models.formats import FLOAT32
from physim.models.layers import Experts

# What families call the same figures.
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = (
    *("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k", "moe_topk"),
    "experts_per_token",
)
_WIDTHS = ("moe_intermediate_size", "expert_intermediate_size")
_SHARED_COUNTS = (
    *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
)
_SHARED_WIDTHS = (
    *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("shared_intermediate_size", "share_expert_dim"),
)


def named(config: ConfigFields, names: Sequence[str]) -> int:
    """The figure of whichever field there is.

    Raises:
        InputError: There is none, or it is not a positive integer.
    """
    found = next((name for name in names if config.has(name)), None)
    if found is None:
        raise InputError(
            f"{config.where}: {names[0]}",
            "is missing",
            f"add it, or what the model calls it: {', '.join(names[1:])}",
        )
    return config.count(found)


def experts_of(config: ConfigFields, widths: Sequence[str] = _WIDTHS) -> Experts:
    """The experts of a configuration, by whatever names it has for them.

    Args:
        config: The configuration.
        widths: Names of the field that says how wide they are.
    """
    width = named(config, widths)
    wide = next((config.count(name) for name in _SHARED_WIDTHS if config.has(name)), 0)
    count = next((config.count(name) for name in _SHARED_COUNTS if config.has(name)), 0)
    return Experts(
        count=named(config, _COUNTS),
        per_token=named(config, _PER_TOKEN),
        intermediate_size=width,
        shared_intermediate_size=wide or count * width,
    )


def as_wide_as_an_mlp(config: ConfigFields) -> Experts:
    """The experts of a model that calls their width what others call that of a dense MLP."""
    return experts_of(config, ("intermediate_size",))


def layers_with_experts(reading: Reading) -> Container[int]:
    """Numbers of the layers that have experts, by whichever field says so."""
    config, layers = reading.config, reading.layers
    for field, dense, sparse in (("mlp_layer_types", "dense", "sparse"), ("moe_layer_freq", 0, 1)):
        # A number says how often, below.
        if config.has(field) and not isinstance(config.fields[field], int):
            kinds = config.of_layers(field, layers, (dense, sparse))
            return {layer for layer, kind in enumerate(kinds) if kind == sparse}
    # Every so many, counted from 1 (Qwen, Ernie) or from 0 (DeepSeek), but for the first.
    step = config.count("decoder_sparse_step", config.count("moe_layer_interval", 1))
    every = config.count("moe_layer_freq", 1)
    first = config.at_least_zero(
        "first_k_dense_replace", config.at_least_zero("moe_layer_start_index", 0)
    )
    if first > layers:
        raise InputError(
            f"{config.where}: first_k_dense_replace",
            f"{first} is more than the {layers} layers",
            "correct it",
        )
    found = set(range(step - 1, layers, step)) - set(config.layer_numbers("mlp_only_layers"))
    return {layer for layer in found if layer >= first and layer % every == 0}


def mixture(
    experts: Callable[[ConfigFields], Experts] = experts_of,
    with_experts: Callable[[Reading], Container[int]] = layers_with_experts,
    width: Callable[[ConfigFields], int] = lambda config: config.count("intermediate_size"),
) -> Callable[[Reading, int], Block]:
    """Experts in some layers and a dense MLP in the others.

    Args:
        experts: The experts of a configuration.
        with_experts: Numbers of the layers that have some.
        width: Hidden width of the dense MLPs.
    """

    def block(reading: Reading, layer: int) -> Block:
        if layer in with_experts(reading):
            return experts_block(reading, layer, experts(reading.config))
        return dense_block(reading, layer, width(reading.config))

    return block


def _every_layer(reading: Reading) -> Container[int]:
    return range(reading.layers)


def _llama4_experts(config: ConfigFields) -> Experts:
    # The shared expert is as wide as a routed one (transformers, modeling_llama4.py).
    width = config.count("intermediate_size")
    return Experts(
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        intermediate_size=width,
        shared_intermediate_size=width,
        load=1.0,
    )


def _llama4_layers(reading: Reading) -> Container[int]:
    # A layer has experts where it is listed or, without a list, where its number, counted from 1,
    # is a multiple of the interleaving step (transformers, configuration_llama4.py).
    config, layers = reading.config, reading.layers
    step = config.count("interleave_moe_layer_step", 1)
    return config.layer_numbers("moe_layers") or range(step - 1, layers, step)


def _llama4_width(config: ConfigFields) -> int:
    # Llama 4 keeps the width of its dense layers apart.
    apart = "intermediate_size_mlp" in config.fields
    return config.count("intermediate_size_mlp" if apart else "intermediate_size")


def _gpt_oss_attention(reading: Reading, layer: int) -> Block:
    # A learned sink for each head, of no weight in time, and a bias.
    return grouped_queries(qkv_bias=True, window=sliding_window)(reading, layer)


def _mimo_attention(reading: Reading, layer: int) -> Block:
    """MiMo-V2: windowed layers and others have heads of their own."""
    config = reading.config
    windowed = config.of_layer("hybrid_layer_pattern", reading.layers, layer, (0, 1)) == 1
    prefix = "swa_" if windowed else ""
    heads, kv_heads = shared_heads(
        config, f"{prefix}num_attention_heads", f"{prefix}num_key_value_heads"
    )
    attention = Attention(
        SLIDING_ATTENTION if windowed else FULL_ATTENTION,
        heads,
        kv_heads,
        config.count(f"{prefix}head_dim"),
        config.count("sliding_window") if windowed else None,
        config.count(f"{prefix}v_head_dim"),
    )
    return attention_block(reading, layer, attention)


def _step_attention(reading: Reading, layer: int) -> Block:
    return grouped_queries(qk_norm=True, window=sliding_window)(reading, layer)


def _minimax2_attention(reading: Reading, layer: int) -> Block:
    """MiniMax-M2: a norm over all heads (``qk_norm_type`` ``per_layer``)."""
    found = grouped_queries(qk_norm=True)(reading, layer)
    attention = found.attention
    assert isinstance(attention, Attention)  # grouped_queries makes no other
    spans = reading.config.fields.get("qk_norm_type") == "per_layer"
    return replace(found, attention=replace(attention, norm_spans_heads=spans))


def _minimax2_experts(reading: Reading, layer: int) -> Block:
    # vLLM, minimax_m2.py, and SGLang likewise: the gate's weights, and what enters it, are float32.
    return experts_block(reading, layer, as_wide_as_an_mlp(reading.config), router=FLOAT32)


def _minimax3_attention(reading: Reading, layer: int) -> Block:
    """MiniMax-M3: layers that attend to blocks of tokens, chosen by small heads of their own."""
    config = reading.config
    sparse = config.part("sparse_attention_config")
    is_sparse = sparse.of_layer("sparse_attention_freq", reading.layers, layer, (0, 1))
    if not (is_sparse and sparse.flag("use_sparse_attention", True)):
        return grouped_queries(qk_norm=True)(reading, layer)
    heads, kv_heads = shared_heads(config, "num_attention_heads", "num_key_value_heads")
    always = ("sparse_init_block", "sparse_local_block")
    blocks = sparse.count("sparse_topk_blocks")
    blocks += sum(sparse.at_least_zero(field, 0) for field in always)
    attention = Attention(
        BLOCK_SPARSE_ATTENTION,
        heads,
        kv_heads,
        width_of_heads(config, heads),
        window=blocks * sparse.count("sparse_block_size"),
        is_sparse=True,
        indexer=Indexer(sparse.count("sparse_num_index_heads"), sparse.count("sparse_index_dim")),
    )
    return attention_block(reading, layer, attention, qk_norm=True)


def _minimax3_width(config: ConfigFields) -> int:
    return config.count("dense_intermediate_size")


def _gemma4_attention(reading: Reading, layer: int) -> Block:
    """Gemma 4: layers without a window have fewer and wider KV heads, whose values are their keys.

    Transformers, modeling_gemma4.py.
    """
    config = reading.config
    kind, reach = reach_of(reading, layer, sliding_window, 6)
    is_full = kind == FULL_ATTENTION
    heads, kv_heads = shared_heads(config, "num_attention_heads", "num_key_value_heads")
    dim = config.count("head_dim")
    if is_full:
        dim = config.count("global_head_dim", dim)
        kv_heads = config.count("num_global_key_value_heads", kv_heads)
    same = is_full and config.flag("attention_k_eq_v")
    attention = Attention(kind, heads, kv_heads, dim, reach)
    found = attention_block(reading, layer, attention, qk_norm=True, value_projection=not same)
    return Block(found.linears, found.norms + 2 * reading.hidden, attention)


def _gemma4_mlp(reading: Reading, layer: int) -> Block:
    """A dense MLP and, where there are experts, those beside it."""
    config = reading.config
    width = config.count("intermediate_size")
    if not config.flag("enable_moe_block"):
        return dense_block(reading, layer, width)
    experts = Experts(
        count=config.count("num_experts"),
        per_token=config.count("top_k_experts"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=0,
    )
    found = experts_block(reading, layer, experts, norms=3 * reading.hidden, role="experts_beside")
    beside = mlp_linears(reading, layer, width)
    return Block((*found.linears, *beside), found.norms, None, width, found.experts)


_GEMMA4 = Family(
    _gemma4_attention, _gemma4_mlp, qk_norm=True, tied_by_default=True, vision=vision.siglip_vision
)
_MINIMAX_M3 = Family(
    _minimax3_attention,
    mixture(as_wide_as_an_mlp, width=_minimax3_width),
    qk_norm=True,
    vision=vision.clip_vision,
)
_LLAMA4 = (
    grouped_queries(window=attention_chunk, unlimited_every=4),
    mixture(_llama4_experts, _llama4_layers, _llama4_width),
)
_EVERY_LAYER = mixture(as_wide_as_an_mlp, _every_layer)
_QWEN3 = (grouped_queries(qk_norm=True, window=qwen_window), mixture())

FAMILIES = {
    "MixtralForCausalLM": Family(grouped_queries(window=sliding_window), _EVERY_LAYER),
    "PhiMoEForCausalLM": Family(grouped_queries(qkv_bias=True), _EVERY_LAYER),
    "Qwen2MoeForCausalLM": Family(grouped_queries(qkv_bias=True, window=qwen_window), mixture()),
    "Qwen3MoeForCausalLM": Family(*_QWEN3, qk_norm=True),
    "Qwen3VLMoeForConditionalGeneration": Family(*_QWEN3, qk_norm=True, vision=vision.qwen_vision),
    "Llama4ForConditionalGeneration": Family(*_LLAMA4, vision=vision.llama4_vision),
    "Llama4ForCausalLM": Family(*_LLAMA4),
    "OlmoeForCausalLM": Family(grouped_queries(qk_norm=True), _EVERY_LAYER),
    "GraniteMoeForCausalLM": Family(grouped_queries(), _EVERY_LAYER, tied_by_default=True),
    "Glm4MoeForCausalLM": Family(grouped_queries(), mixture()),
    "Dots1ForCausalLM": Family(grouped_queries(qk_norm=True), mixture(), qk_norm=True),
    "Ernie4_5_MoeForCausalLM": Family(grouped_queries(), mixture(), tied_by_default=True),
    "HunYuanMoEV1ForCausalLM": Family(grouped_queries(qk_norm=True), mixture(), qk_norm=True),
    "MiniMaxM2ForCausalLM": Family(_minimax2_attention, _minimax2_experts, qk_norm=True),
    "MiniMaxM3ForCausalLM": _MINIMAX_M3,
    "MiniMaxM3SparseForConditionalGeneration": _MINIMAX_M3,
    "GptOssForCausalLM": Family(_gpt_oss_attention, _EVERY_LAYER),
    "MiMoV2FlashForCausalLM": Family(_mimo_attention, mixture()),
    "Step3p7FlashForCausalLM": Family(_step_attention, mixture(), qk_norm=True),
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4ForCausalLM": _GEMMA4,
}
