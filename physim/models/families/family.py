"""How a family of models is read: what each layer is made of, of a checked configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from physim.errors import InputError
from physim.mixers.attention import Attention
from physim.mixers.mixer import Mixer
from physim.models.config_fields import ConfigFields
from physim.models.formats import BFLOAT16, WeightFormat
from physim.models.layers import Experts, LayerGroup, Linear
from physim.models.quantization import Formats


@dataclass(frozen=True)
class Reading:
    """A configuration that is being read.

    Attributes:
        config: Its fields.
        quantization: The formats of its linear layers.
        predicts_further: Whether checkpoints have a layer that predicts further tokens though
            their configuration does not say so.
        layers: How many layers it has.
    """

    config: ConfigFields
    quantization: Formats
    layers: int

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.config.count("hidden_size")


@dataclass(frozen=True)
class Block:
    """What one half of a layer adds to it: attention, or an MLP.

    Attributes:
        linears: Its linear layers.
        norms: Weights of its norms and other small tensors.
        attention: The attention; None for an MLP.
        intermediate_size: Hidden width of a dense MLP.
        experts: Routed experts.
    """

    linears: tuple[Linear, ...] = ()
    norms: int = 0
    attention: Mixer | None = None
    intermediate_size: int = 0
    experts: Experts | None = None


NOTHING = Block()


def _no_vision(_: ConfigFields, __: ConfigFields) -> int:
    return 0


@dataclass(frozen=True)
class Family:
    """Models that are laid out alike.

    Attributes:
        attention: The attention of a layer, by its number from 0.
        mlp: Its MLP or experts, likewise.
        qk_norm: Whether queries and keys are normalised.
        gated_mlp: Whether dense MLPs have a gate.
        tied_by_default: Whether embeddings are tied where the configuration does not say.
        vision: Weights of the vision encoder, of the configuration and its ``vision_config``.
        vision_is_replicated: Whether every GPU has all of them.
        layers: How many layers it has.
    """

    attention: Callable[[Reading, int], Block]
    mlp: Callable[[Reading, int], Block]
    qk_norm: bool = False
    gated_mlp: bool = True
    tied_by_default: bool = False
    vision: Callable[[ConfigFields, ConfigFields], int] = _no_vision
    vision_is_replicated: bool = False
    predicts_further: bool = False
    layers: Callable[[ConfigFields], int] = field(
        default=lambda config: config.count("num_hidden_layers")
    )


def layer_of(family: Family, reading: Reading, layer: int) -> LayerGroup:
    """One layer as a group of its own.

    Args:
        family: Its family.
        reading: The configuration.
        layer: Its number from 0.
    """
    attention, mlp = family.attention(reading, layer), family.mlp(reading, layer)
    blocks = (attention is not NOTHING) + (mlp is not NOTHING)
    return LayerGroup(
        layers=1,
        attention=attention.attention,
        linears=(*attention.linears, *mlp.linears),
        intermediate_size=mlp.intermediate_size,
        experts=mlp.experts,
        # A norm before attention and one before the MLP.
        norms=blocks * reading.hidden + attention.norms + mlp.norms,
    )


def grouped(layers: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Layers that are alike as one group, in the order in which they come first."""
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, layers=count) for layer, count in counts.items())


def shared_heads(config: ConfigFields, heads: str, kv_heads: str) -> tuple[int, int]:
    """Query heads and KV heads, of which each serves as many.

    Args:
        config: The configuration.
        heads: The field of the query heads.
        kv_heads: The field of the KV heads.

    Raises:
        InputError: The KV heads do not divide the query heads.
    """
    queries = config.count(heads)
    keys = config.count(kv_heads, queries)
    if queries % keys:
        raise InputError(
            f"{config.where}: {kv_heads}", f"{keys} does not divide {heads} {queries}", "correct it"
        )
    return queries, keys


def width_of_heads(config: ConfigFields, heads: int) -> int:
    """Width of a head, where the configuration does not say the hidden size over their number."""
    hidden = config.count("hidden_size")
    if config.fields.get("head_dim") is None and hidden % heads:
        raise InputError(
            f"{config.where}: num_attention_heads",
            f"{heads} does not divide hidden_size {hidden}",
            "add head_dim",
        )
    return config.count("head_dim", hidden // heads)


def attention_block(
    reading: Reading,
    layer: int,
    attention: Attention,
    *,
    bias: bool = False,
    qk_norm: bool = False,
    gate: bool = False,
    value_projection: bool = True,
) -> Block:
    """Attention with one projection to queries, keys and values, and one of its output.

    Args:
        reading: The configuration.
        layer: The layer's number.
        attention: Its attention.
        bias: Whether the first projection adds a bias.
        qk_norm: Whether queries and keys are normalised.
        gate: Whether a gate as wide as the queries multiplies the output.
        value_projection: Whether values have a projection, or are the keys.
    """
    quantization, hidden = reading.quantization, reading.hidden
    heads, kv_heads = attention.heads, attention.kv_heads
    columns = [
        (heads, attention.head_dim + (attention.values if gate else 0)),
        (kv_heads, attention.head_dim),
    ]
    if value_projection:
        columns.append((kv_heads, attention.values))
    linears = [
        Linear(
            *("qkv", "qkv", tuple(columns), (1, hidden)),
            form=quantization.form("qkv", layer),
            bias=bias,
        ),
        Linear(
            *("attention_output", "attention_output", ((1, hidden),), (heads, attention.values)),
            form=quantization.form("attention_output", layer),
        ),
    ]
    if attention.indexer is not None:
        index = attention.indexer
        width = (index.heads + 1) * index.dim
        linears.append(Linear("indexer", "qkv", ((1, width),), (1, hidden)))
    norms = 2 * attention.head_dim if qk_norm else 0
    return Block(tuple(linears), norms, attention)


def mlp_linears(
    reading: Reading, layer: int, width: int, *, gated: bool = True, shared: bool = False
) -> tuple[Linear, Linear]:
    """The linear layers of a dense MLP, or of an expert that every token visits.

    Args:
        reading: The configuration.
        layer: The layer's number.
        width: Its hidden width.
        gated: Whether it has a gate beside its up projection, in one with it.
        shared: Whether it stands beside routed experts.
    """
    form = reading.quantization.form("shared_experts" if shared else "mlp", layer)
    prefix, first = ("shared_" if shared else ""), ("gate_up" if gated else "up")
    wide = ((width, 2 if gated else 1),)
    return (
        Linear(f"{prefix}{first}", "mlp", wide, (1, reading.hidden), form),
        Linear(f"{prefix}down", "mlp", ((1, reading.hidden),), (width, 1), form),
    )


def dense_block(reading: Reading, layer: int, width: int, *, gated: bool = True) -> Block:
    """A dense MLP of some width."""
    return Block(mlp_linears(reading, layer, width, gated=gated), intermediate_size=width)


def experts_block(
    reading: Reading,
    layer: int,
    experts: Experts,
    *,
    gated: bool = True,
    norms: int = 0,
    role: str = "experts",
    router: WeightFormat = BFLOAT16,
) -> Block:
    """Routed experts with their router and what every token visits beside them.

    Args:
        reading: The configuration.
        layer: The layer's number.
        experts: The experts; their format is read here.
        gated: Whether the shared expert has a gate.
        norms: Weights of what else there is.
        role: What the quantisation knows the experts as.
        router: Format of the router.

    Raises:
        InputError: A token visits more experts than there are.
    """
    config = reading.config
    if experts.per_token > experts.count:
        raise InputError(
            f"{config.where}: num_experts_per_tok",
            f"{experts.per_token} is more than the {experts.count} experts",
            "correct it",
        )
    hidden, latent = reading.hidden, experts.hidden_size
    linears = [Linear("router", "experts", ((1, experts.count),), (1, hidden), router)]
    if latent:
        form = reading.quantization.form("latent_experts", layer)
        linears += [
            Linear("latent_in", "experts", ((1, latent),), (1, hidden), form),
            Linear("latent_out", "experts", ((1, hidden),), (1, latent), form),
        ]
    if experts.shared_intermediate_size:
        linears += mlp_linears(
            reading, layer, experts.shared_intermediate_size, gated=gated, shared=True
        )
    own = replace(experts, form=reading.quantization.form(role, layer))
    return Block(tuple(linears), norms, experts=own)
