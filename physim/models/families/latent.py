"""Families with latent attention: DeepSeek, and those that are laid out like it."""

from __future__ import annotations

from dataclasses import replace

from physim.errors import InputError
from physim.mixers.compressed import CompressedAttention
from physim.mixers.latent import LATENT_ATTENTION, SPARSE_LATENT_ATTENTION, LatentAttention
from physim.mixers.mixer import Indexer
from physim.models.config_fields import ConfigFields
from physim.models.families import vision
from physim.models.families.family import Block, Family, Reading, experts_block
from physim.models.families.mixtures import experts_of, mixture
from physim.models.layers import Experts, Linear

# Tokens of a compressed vector (vLLM, deepseek_v4.py, knows no others).
_FINE, _COARSE = 4, 128


def latent_block(reading: Reading, layer: int, *, gate: bool = False) -> Block:
    """Latent attention, sparse where the configuration has an indexer.

    Args:
        reading: The configuration.
        layer: The layer's number.
        gate: Whether a gate multiplies the output of each head.
    """
    config = reading.config
    chosen = config.at_least_zero("index_topk", 0)
    indexer = _indexer(reading, layer) if chosen else None
    attention = LatentAttention(
        kind=SPARSE_LATENT_ATTENTION if chosen else LATENT_ATTENTION,
        heads=config.count("num_attention_heads"),
        latent=config.count("kv_lora_rank"),
        rope_dim=config.count("qk_rope_head_dim"),
        nope_dim=config.count("qk_nope_head_dim"),
        value_dim=config.count("v_head_dim"),
        window=chosen or None,
        indexer=indexer,
    )
    compressed = config.at_least_zero("q_lora_rank", 0)
    linears = _projections(reading, layer, attention, compressed, gate)
    norms = attention.latent + compressed
    if indexer:
        form = reading.quantization.form("indexer", layer)
        queries, keys = indexer.heads * indexer.dim, indexer.heads + indexer.dim
        linears += (
            Linear("indexer_q", "qkv", ((1, queries),), (1, compressed or reading.hidden), form),
            Linear("indexer_k", "qkv", ((1, keys),), (1, reading.hidden)),
        )
        norms += 2 * indexer.dim
    return Block(linears, norms, attention)


def _projections(
    reading: Reading, layer: int, attention: LatentAttention, compressed: int, gate: bool
) -> tuple[Linear, ...]:
    """To latent vectors, from those to heads, and the output.

    Args:
        reading: The configuration.
        layer: The layer's number.
        attention: The attention.
        compressed: Width of the queries' latent vector; 0 where queries have none.
        gate: Whether a gate multiplies the output.
    """
    forms, hidden, heads = reading.quantization.form, reading.hidden, attention.heads
    down = attention.latent + attention.rope_dim
    queries = ((heads, attention.head_dim),)
    up = forms("latent_q_up", layer)
    found = [
        Linear(
            *("latent_down", "qkv", ((1, compressed + down),), (1, hidden)),
            form=forms("latent_down", layer),
        ),
        Linear("latent_queries", "qkv", queries, (1, compressed or hidden), up),
        # Prompts are multiplied up by it and decoding requests' queries absorb it, both within what
        # was measured of attention.
        Linear(
            *("latent_keys_values", "", ((heads, attention.nope_dim + attention.value_dim),)),
            rows=(1, attention.latent),
            form=forms("latent_kv_up", layer),
        ),
        Linear(
            *("attention_output", "attention_output", ((1, hidden),)),
            rows=(heads, attention.value_dim),
            form=forms("latent_output", layer),
        ),
    ]
    if gate:
        found.append(Linear("output_gate", "qkv", ((heads, attention.value_dim),), (1, hidden), up))
    return tuple(found)


def _sparse_block(reading: Reading, layer: int) -> Block:
    """Latent attention of a class that always has an indexer."""
    reading.config.count("index_topk")
    return latent_block(reading, layer)


def _indexer(reading: Reading, layer: int) -> Indexer | None:
    """The indexer of a layer, None where it takes the choice of a layer before it."""
    config = reading.config
    kinds = config.of_layers("indexer_types", reading.layers, ("full", "shared"))
    if kinds and kinds[0] == "shared":
        raise InputError(
            f"{config.where}: indexer_types",
            "has shared first, before any layer that chooses",
            "correct it",
        )
    if kinds and kinds[layer] == "shared":
        return None
    return Indexer(config.count("index_n_heads"), config.count("index_head_dim"))


def _compressed_block(reading: Reading, layer: int) -> Block:
    """DeepSeek-V4's attention: compressed keys and values, and a grouped output projection."""
    config, forms = reading.config, reading.quantization.form
    hidden, heads, dim = (
        reading.hidden,
        config.count("num_attention_heads"),
        config.count("head_dim"),
    )
    ratio = config.of_layer("compress_ratios", reading.layers, layer, (0, _FINE, _COARSE))
    # At the finer ratio vectors overlap, and an indexer chooses among them.
    chooses = ratio == _FINE
    indexer = None
    if chooses:
        indexer = Indexer(config.count("index_n_heads"), config.count("index_head_dim"), ratio)
    attention = CompressedAttention(
        heads=heads,
        head_dim=dim,
        window=config.count("sliding_window"),
        ratio=ratio,
        chosen=config.count("index_topk") if chooses else None,
        indexer=indexer,
    )
    compressed, rank = config.count("q_lora_rank"), config.count("o_lora_rank")
    groups = config.count("o_groups")
    down, up, out = (forms(one, layer) for one in ("latent_down", "latent_q_up", "latent_output"))
    linears = [
        Linear("latent_down", "qkv", ((1, compressed + dim),), (1, hidden), down),
        Linear("latent_queries", "qkv", ((heads, dim),), (1, compressed), up),
        Linear(
            "output_down", "attention_output", ((groups, rank),), (1, heads * dim // groups), out
        ),
        Linear("attention_output", "attention_output", ((1, hidden),), (groups, rank), out),
    ]
    if ratio:
        # Keys and their gates, of which overlapping vectors have two each.
        width = dim * (4 if chooses else 2)
        linears.append(Linear("compressor", "qkv", ((1, width),), (1, hidden)))
    if indexer:
        form = forms("indexer", layer)
        queries, keys = indexer.heads * indexer.dim, indexer.heads + 4 * indexer.dim
        linears += [
            Linear("indexer_q", "qkv", ((1, queries),), (1, compressed), form),
            Linear("indexer_k", "qkv", ((1, keys),), (1, hidden)),
        ]
    # Four residual streams, mixed before and after attention and the MLP (hyper-connections).
    streams = config.count("hc_mult", 1)
    norms = compressed + dim + 2 * (2 + streams) * streams * streams * hidden
    return Block(tuple(linears), norms, attention)


def _every_layer_experts(reading: Reading, layer: int) -> Block:
    return experts_block(reading, layer, experts_of(reading.config))


def _kimi_k2_experts(config: ConfigFields) -> Experts:
    # ITL of 43 rows of Kimi-K2.5 on B200 that the fit sees is 14% too long with an even choice.
    return replace(experts_of(config), load=1.0)


_DEEPSEEK = Family(latent_block, mixture())
_SPARSE = Family(_sparse_block, mixture())

FAMILIES = {
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _SPARSE,
    "DeepseekV4ForCausalLM": Family(_compressed_block, _every_layer_experts),
    "GlmMoeDsaForCausalLM": _SPARSE,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "KimiK25ForConditionalGeneration": Family(
        latent_block, mixture(_kimi_k2_experts), vision=vision.moonvit
    ),
    "KimiVLForConditionalGeneration": Family(latent_block, mixture(), vision=vision.moonvit),
}
