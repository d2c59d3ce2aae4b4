"""Families with layers that keep a state in the place of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from physim.errors import InputError
from physim.mixers.attention import FULL_ATTENTION, Attention
from physim.mixers.recurrent import GATED_DELTA, KIMI_DELTA, LIGHTNING, LinearAttention, StateSpace
from physim.models.config_fields import ConfigFields
from physim.models.families import vision
from physim.models.families.family import (
    NOTHING,
    Block,
    Family,
    Reading,
    attention_block,
    dense_block,
    experts_block,
    width_of_heads,
)
from physim.models.families.latent import latent_block
from physim.models.families.mixtures import as_wide_as_an_mlp, experts_of, mixture
from physim.models.families.standard import dense_mlp, grouped_queries
from physim.models.layers import Experts, Linear


def _gated_delta(reading: Reading, layer: int) -> Block:
    """Gated delta net in most layers, gated attention in every fourth (Qwen3-Next, Qwen3.5)."""
    config, form = reading.config, reading.quantization.form
    if _qwen_kinds(reading)[layer] != GATED_DELTA:
        return grouped_queries(qk_norm=True, gated=True)(reading, layer)
    mixer = LinearAttention(
        GATED_DELTA,
        config.count("linear_num_key_heads"),
        config.count("linear_num_value_heads"),
        config.count("linear_key_head_dim"),
        config.count("linear_value_head_dim"),
        config.count("linear_conv_kernel_dim"),
    )
    keys, values = mixer.key_heads, mixer.heads
    columns = ((keys, 2 * mixer.key_dim), (values, 2 * mixer.value_dim))
    linears = (
        Linear("linear_in", "qkv", columns, (1, reading.hidden), form("linear_in", layer)),
        Linear("linear_gates", "qkv", ((values, 2),), (1, reading.hidden)),
        Linear(
            *("attention_output", "attention_output", ((1, reading.hidden),)),
            rows=(values, mixer.value_dim),
            form=form("linear_out", layer),
        ),
    )
    return Block(linears, mixer.conv * mixer.channels + 2 * values + mixer.value_dim, mixer)


def _qwen_kinds(reading: Reading) -> Sequence[str]:
    config, layers = reading.config, reading.layers
    every = config.count("full_attention_interval", 4)
    kinds = [GATED_DELTA if (layer + 1) % every else FULL_ATTENTION for layer in range(layers)]
    kinds = [str(kind) for kind in config.of_layers("layer_types", layers)] or kinds
    unknown = set(kinds) - {GATED_DELTA, FULL_ATTENTION}
    if unknown:
        raise InputError(
            f"{config.where}: layer_types",
            f"names {min(unknown)[:60]!r}",
            f"use {GATED_DELTA} and {FULL_ATTENTION}",
        )
    return kinds


def _kimi_delta(reading: Reading, layer: int) -> Block:
    """Kimi delta attention in most layers, latent attention in every fourth (Kimi Linear, K3)."""
    config, form, hidden = reading.config, reading.quantization.form, reading.hidden
    how = config.part("linear_attn_config")
    # Layers are counted from 1 there.
    if layer + 1 not in _numbered_from_1(how, "kda_layers", reading.layers):
        return latent_block(reading, layer, gate=config.flag("mla_use_output_gate"))
    heads, dim = how.count("num_heads"), how.count("head_dim")
    mixer = LinearAttention(KIMI_DELTA, heads, heads, dim, dim, how.count("short_conv_kernel_size"))
    down = form("linear_in", layer)
    # Queries, keys and values; a gate of the output and the decay of each channel, through narrow
    # matrices unless the gate has all of its rank; and what each head takes in.
    wide = how.flag("use_full_rank_gate")
    narrow = dim if wide else 2 * dim
    linears = [
        Linear("linear_in", "qkv", ((heads, (4 if wide else 3) * dim),), (1, hidden), down),
        Linear("linear_gates", "qkv", ((1, narrow), (heads, 1)), (1, hidden)),
        Linear("linear_decay", "qkv", ((heads, dim),), (1, dim)),
        Linear(
            *("attention_output", "attention_output", ((1, hidden),)),
            rows=(heads, dim),
            form=form("linear_out", layer),
        ),
    ]
    if not wide:
        linears.append(Linear("linear_output_gate", "qkv", ((heads, dim),), (1, dim)))
    return Block(tuple(linears), mixer.conv * mixer.channels + heads * (dim + 1) + dim, mixer)


def _numbered_from_1(config: ConfigFields, field: str, layers: int) -> Sequence[int]:
    """Numbers of layers in a list that counts them from 1 and has to be there."""
    found = config.entries(field)
    if not found or not all(type(one) is int and 1 <= one <= layers for one in found):
        raise InputError(
            f"{config.where}: {field}",
            f"is not a list of layers, which are 1 to {layers}",
            "pass the model's full config.json",
        )
    return found


def _kimi_experts(config: ConfigFields) -> Experts:
    latent = config.at_least_zero("routed_expert_hidden_size", 0)
    return replace(experts_of(config), hidden_size=latent)


# What Nemotron-H's pattern and list of layers call each kind.
_NEMOTRON_KINDS = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    **{kind: kind for kind in ("mamba", "attention", "mlp", "moe")},
}


def _nemotron_kinds(config: ConfigFields) -> Sequence[str]:
    listed = config.text("hybrid_override_pattern") or config.entries("layers_block_type")
    kinds = [_NEMOTRON_KINDS.get(str(one), "") for one in listed]
    if not kinds or "" in kinds:
        raise InputError(
            f"{config.where}: hybrid_override_pattern",
            "is missing, or names a layer that is none of M, *, - and E",
            "pass the model's full config.json",
        )
    return kinds


def _nemotron_attention(reading: Reading, layer: int) -> Block:
    """Mamba2 or attention, in layers that are one of these, an MLP, or experts (Nemotron-H)."""
    config, form, hidden = reading.config, reading.quantization.form, reading.hidden
    kind = _nemotron_kinds(config)[layer]
    if kind == "attention":
        heads = config.count("num_attention_heads")
        dim = config.count("head_dim", config.count("attention_head_dim", 128))
        kv_heads = config.count("num_key_value_heads")
        return attention_block(reading, layer, Attention(FULL_ATTENTION, heads, kv_heads, dim))
    if kind != "mamba":
        return NOTHING
    mixer = StateSpace(
        config.count("mamba_num_heads"),
        config.count("mamba_head_dim"),
        config.count("ssm_state_size"),
        config.count("n_groups"),
        config.count("conv_kernel"),
    )
    inner = (mixer.heads, mixer.head_dim)
    columns = (inner, inner, (mixer.groups, 2 * mixer.state), (mixer.heads, 1))
    linears = (
        Linear("linear_in", "qkv", columns, (1, hidden), form("linear_in", layer)),
        Linear(
            *("attention_output", "attention_output", ((1, hidden),), inner),
            form=form("linear_out", layer),
        ),
    )
    small = (mixer.conv + 1) * mixer.channels + 3 * mixer.heads + mixer.heads * mixer.head_dim
    return Block(linears, small, mixer)


def _nemotron_mlp(reading: Reading, layer: int) -> Block:
    config = reading.config
    kind = _nemotron_kinds(config)[layer]
    if kind == "mlp":
        return dense_block(reading, layer, config.count("intermediate_size"), gated=False)
    if kind != "moe":
        return NOTHING
    latent = config.at_least_zero("moe_latent_size", 0)
    experts = replace(experts_of(config), hidden_size=latent, matrices=2)
    return experts_block(reading, layer, experts, gated=False)


def _lightning(reading: Reading, layer: int) -> Block:
    """Lightning attention in most layers, softmax attention in every eighth (MiniMax-01 and M1)."""
    config, form, hidden = reading.config, reading.quantization.form, reading.hidden
    if config.of_layer("attn_type_list", reading.layers, layer, (0, 1)):
        return grouped_queries()(reading, layer)
    heads = config.count("num_attention_heads")
    dim = width_of_heads(config, heads)
    mixer = LinearAttention(LIGHTNING, heads, heads, dim, dim, conv=1)
    # Queries, keys and values, and the gate of the output.
    linears = (
        Linear("linear_in", "qkv", ((heads, 4 * dim),), (1, hidden), form("linear_in", layer)),
        Linear(
            *("attention_output", "attention_output", ((1, hidden),), (heads, dim)),
            form=form("linear_out", layer),
        ),
    )
    return Block(linears, heads * dim, mixer)


def _qwen(mlp: Callable[[Reading, int], Block], *, images: bool = True) -> Family:
    family = Family(_gated_delta, mlp, qk_norm=True)
    return replace(family, vision=vision.qwen_vision) if images else family


_NEMOTRON = Family(
    _nemotron_attention,
    _nemotron_mlp,
    gated_mlp=False,
    layers=lambda config: len(_nemotron_kinds(config)),
)
_KIMI = mixture(_kimi_experts)
_MINIMAX = Family(_lightning, mixture(as_wide_as_an_mlp))

FAMILIES = {
    # vllm/model_executor/models/qwen3_next_mtp.py.
    "Qwen3NextForCausalLM": replace(_qwen(mixture(), images=False), predicts_further=True),
    "Qwen3_5ForCausalLM": _qwen(dense_mlp(), images=False),
    "Qwen3_5ForConditionalGeneration": _qwen(dense_mlp()),
    "Qwen3_5MoeForCausalLM": _qwen(mixture(), images=False),
    "Qwen3_5MoeForConditionalGeneration": _qwen(mixture()),
    "KimiLinearForCausalLM": Family(_kimi_delta, _KIMI),
    "KimiK3ForConditionalGeneration": Family(_kimi_delta, _KIMI, vision=vision.moonvit),
    "MiniMaxText01ForCausalLM": _MINIMAX,
    "MiniMaxM1ForCausalLM": _MINIMAX,
    "NemotronHForCausalLM": _NEMOTRON,
}
