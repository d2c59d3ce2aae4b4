"""Families that are laid out like Llama, and what sets them apart: one record each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from physim.errors import InputError
from physim.mixers.attention import Attention
from physim.models.config_fields import ConfigFields
from physim.models.families import vision
from physim.models.families.family import (
    Block,
    Family,
    Reading,
    attention_block,
    dense_block,
    shared_heads,
    width_of_heads,
)
from physim.models.families.windows import (
    Window,
    qwen_window,
    reach_of,
    sliding_window,
    unlimited,
)

# What families call a bias of the QKV projection.
_BIASES = ("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias", "bias")


def grouped_queries(
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    window: Window = unlimited,
    unlimited_every: int = 0,
    more_norms: int = 0,
    gated: bool = False,
) -> Callable[[Reading, int], Block]:
    """Attention of query heads that share KV heads.

    Args:
        qkv_bias: Whether the QKV projection adds a bias whatever the configuration says.
        qk_norm: Whether queries and keys are normalised.
        window: Tokens that windowed layers look back.
        unlimited_every: Where the configuration does not say which layers are windowed, one of so
            many is not; 0 where all are.
        more_norms: Norms of the hidden width beside the usual two of a layer.
        gated: Whether a gate multiplies the output.
    """

    def block(reading: Reading, layer: int) -> Block:
        config = reading.config
        heads, kv_heads = shared_heads(config, "num_attention_heads", "num_key_value_heads")
        kind, reach = reach_of(reading, layer, window, unlimited_every)
        attention = Attention(kind, heads, kv_heads, width_of_heads(config, heads), reach)
        found = attention_block(
            reading,
            layer,
            attention,
            bias=qkv_bias or any(config.flag(field) for field in _BIASES),
            qk_norm=qk_norm or config.flag("use_qk_norm"),
            gate=gated and config.flag("attn_output_gate", True),
        )
        norms = found.norms + more_norms * reading.hidden
        return Block(found.linears, norms, attention)

    return block


def dense_mlp(*, gated: bool = True) -> Callable[[Reading, int], Block]:
    """A dense MLP in every layer, of a model that has no experts."""

    def block(reading: Reading, layer: int) -> Block:
        refuse_experts(reading.config)
        return dense_block(reading, layer, reading.config.count("intermediate_size"), gated=gated)

    return block


def refuse_experts(config: ConfigFields) -> None:
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


def like_llama(
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    gated_mlp: bool = True,
    tied_by_default: bool = False,
    window: Window = unlimited,
    unlimited_every: int = 0,
    more_norms: int = 0,
    encoder: Callable[[ConfigFields, ConfigFields], int] = lambda _, __: 0,
) -> Family:
    """A family that is laid out like Llama but for what the arguments say."""
    return Family(
        attention=grouped_queries(
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            window=window,
            unlimited_every=unlimited_every,
            more_norms=more_norms,
        ),
        mlp=dense_mlp(gated=gated_mlp),
        qk_norm=qk_norm,
        gated_mlp=gated_mlp,
        tied_by_default=tied_by_default,
        vision=encoder,
    )


def _decilm_attention(reading: Reading, layer: int) -> Block:
    # Each layer has a number of query heads for each KV head, or no attention (DeciLM's
    # block_configs).
    how = _decilm_blocks(reading)[layer].part("attention")
    if how.flag("no_op") or how.flag("replace_with_linear"):
        return Block()
    config = reading.config
    heads = config.count("num_attention_heads")
    kv_heads = heads // how.count("n_heads_in_group", 1)
    attention = Attention("full_attention", heads, kv_heads, width_of_heads(config, heads))
    return attention_block(reading, layer, attention)


def _decilm_mlp(reading: Reading, layer: int) -> Block:
    how = _decilm_blocks(reading)[layer].part("ffn")
    if how.flag("no_op") or how.flag("replace_with_linear"):
        return Block()
    mult = how.fields.get("ffn_mult")
    if isinstance(mult, bool) or not isinstance(mult, int | float) or not 0 < mult < math.inf:
        raise InputError(
            f"{how.where}.ffn_mult", f"{mult!r} is not a positive number", "correct it"
        )
    # Two thirds of it, rounded up to a multiple of 256 (modeling_decilm.py).
    width = -(-int(2 * mult * reading.hidden / 3) // 256) * 256
    return dense_block(reading, layer, width)


def _decilm_blocks(reading: Reading) -> Sequence[ConfigFields]:
    found = reading.config.of_layers("block_configs", reading.layers)
    if not found:
        raise InputError(
            f"{reading.config.where}: block_configs", "is missing", "pass the full config.json"
        )
    return [
        ConfigFields(one if isinstance(one, dict) else {}, f"{reading.config.where}: block_configs")
        for one in found
    ]


# Families say by what they differ in work and memory. Scalars on embeddings, residuals or logits,
# partial rotary embeddings, where norms stand, attention and MLP side by side, and projections that
# are stored as one matrix cost the same.
FAMILIES = {
    "LlamaForCausalLM": like_llama(),
    "MistralForCausalLM": like_llama(window=sliding_window),
    # Reported weights at tp 1, 2 and 4 hold all of Pixtral's each (vLLM 0.19, Mistral-Small-3.1).
    "Mistral3ForConditionalGeneration": replace(
        like_llama(window=sliding_window, encoder=vision.pixtral_vision), vision_is_replicated=True
    ),
    "MiMoForCausalLM": like_llama(qkv_bias=True, window=qwen_window),
    "ApertusForCausalLM": like_llama(qk_norm=True, gated_mlp=False),
    "ArceeForCausalLM": like_llama(gated_mlp=False),
    "CohereForCausalLM": like_llama(tied_by_default=True),
    "Cohere2ForCausalLM": like_llama(
        tied_by_default=True, window=sliding_window, unlimited_every=4
    ),
    "DeciLMForCausalLM": Family(_decilm_attention, _decilm_mlp),
    "Ernie4_5ForCausalLM": like_llama(tied_by_default=True),
    "Ernie4_5_ForCausalLM": like_llama(tied_by_default=True),
    "Exaone4ForCausalLM": like_llama(qk_norm=True, window=sliding_window, unlimited_every=4),
    "GlmForCausalLM": like_llama(),
    "Glm4ForCausalLM": like_llama(),
    "GraniteForCausalLM": like_llama(),
    "HunYuanDenseV1ForCausalLM": like_llama(qk_norm=True),
    "InternLM2ForCausalLM": like_llama(),
    "InternLM3ForCausalLM": like_llama(),
    "MiniCPMForCausalLM": like_llama(tied_by_default=True),
    "NemotronForCausalLM": like_llama(gated_mlp=False),
    "OlmoForCausalLM": like_llama(),
    "Olmo2ForCausalLM": like_llama(qk_norm=True),
    "Olmo3ForCausalLM": like_llama(qk_norm=True, window=sliding_window, unlimited_every=4),
    "Phi3ForCausalLM": like_llama(window=sliding_window),
    "SeedOssForCausalLM": like_llama(),
    "SmolLM3ForCausalLM": like_llama(tied_by_default=True),
    "StableLmForCausalLM": like_llama(),
    "Starcoder2ForCausalLM": like_llama(
        qkv_bias=True, gated_mlp=False, tied_by_default=True, window=sliding_window
    ),
    "Qwen2ForCausalLM": like_llama(qkv_bias=True, window=qwen_window),
    "Qwen2VLForConditionalGeneration": like_llama(
        qkv_bias=True, window=qwen_window, encoder=vision.qwen2_vision
    ),
    "Qwen2_5_VLForConditionalGeneration": like_llama(
        qkv_bias=True, window=qwen_window, encoder=vision.qwen2_vision
    ),
    "Qwen3ForCausalLM": like_llama(qk_norm=True, window=qwen_window),
    "Qwen3VLForConditionalGeneration": like_llama(
        qk_norm=True, window=qwen_window, encoder=vision.qwen_vision
    ),
    # Gemma 2 and 3 have a norm after attention and one after the MLP as well.
    "GemmaForCausalLM": like_llama(tied_by_default=True),
    "Gemma2ForCausalLM": like_llama(
        tied_by_default=True, window=sliding_window, unlimited_every=2, more_norms=2
    ),
    "Gemma3ForCausalLM": like_llama(
        qk_norm=True, tied_by_default=True, window=sliding_window, unlimited_every=6, more_norms=2
    ),
    "Gemma3ForConditionalGeneration": like_llama(
        qk_norm=True,
        tied_by_default=True,
        window=sliding_window,
        unlimited_every=6,
        more_norms=2,
        encoder=vision.siglip_vision,
    ),
}
