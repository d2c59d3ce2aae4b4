"""What a decoder layer is made of: its attention or what stands for it, and its linear layers."""

from __future__ import annotations

from dataclasses import dataclass

from physim.models.formats import BFLOAT16, BYTES_16_BIT, WeightFormat

# Kinds of attention, in the words of a configuration's layer_types where it has some.
FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
CHUNKED_ATTENTION = "chunked_attention"
BLOCK_SPARSE_ATTENTION = "block_sparse_attention"
LATENT_ATTENTION = "latent_attention"
SPARSE_LATENT_ATTENTION = "deepseek_sparse_attention"
COMPRESSED_ATTENTION = "compressed_attention"
GATED_DELTA = "linear_attention"
KIMI_DELTA = "kimi_delta_attention"
LIGHTNING = "lightning_attention"
MAMBA2 = "mamba2"


@dataclass(frozen=True)
class Linear:
    """A linear layer: ``[tokens, rows] @ [rows, columns]``.

    Columns and rows are units, such as heads, of some width: GPUs share the units, and each has one
    where there are fewer. What all GPUs hold whole is one unit.

    Attributes:
        name: Its name among the operations of a step.
        part: The part of a step's time that it belongs to; empty where the measured time of the
            layer's attention holds it.
        columns: Units and their width, of each block of columns.
        rows: Units and their width.
        form: Format of its weights.
        bias: Whether it adds one.
    """

    name: str
    part: str
    columns: tuple[tuple[int, int], ...]
    rows: tuple[int, int]
    form: WeightFormat = BFLOAT16
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Weights, bias included."""
        columns = sum(units * width for units, width in self.columns)
        return columns * (self.rows[0] * self.rows[1] + self.bias)

    def on_gpu(self, tp: int) -> tuple[float, float]:
        """Columns and rows on each of ``tp`` GPUs."""
        columns = sum(max(units / tp, 1.0) * width for units, width in self.columns)
        return columns, max(self.rows[0] / tp, 1.0) * self.rows[1]


@dataclass(frozen=True)
class Indexer:
    """What chooses the tokens that sparse attention attends to: small heads that see all of them.

    Attributes:
        heads: Its query heads, each of which is on every GPU.
        dim: Their width, that of one key for each token.
        ratio: Tokens that share a key.
    """

    heads: int
    dim: int
    ratio: int = 1

    @property
    def token_bytes(self) -> float:
        """Bytes of its keys for each token: 8-bit numbers and a 32-bit scale for each key."""
        return (self.dim + 4.0) / self.ratio


@dataclass(frozen=True)
class Attention:
    """Attention of query heads on the keys and values of KV heads.

    Attributes:
        kind: What it attends to, in the words of a configuration's ``layer_types``, such as
            ``full_attention`` and ``sliding_attention``.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a query and a key.
        window: Tokens that it attends to at most, where that is limited; None where it is not.
        value_dim: Width of a value; None for that of a key.
        is_sparse: Whether it chooses those tokens among all, so that all stay in the cache.
        indexer: What chooses them, where this layer does so itself.
        norm_spans_heads: Whether queries and keys are normalised over all heads, so that GPUs that
            share them add up their squares.
    """

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    value_dim: int | None = None
    is_sparse: bool = False
    indexer: Indexer | None = None
    norm_spans_heads: bool = False

    @property
    def values(self) -> int:
        """Width of a value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def rotated(self) -> int:
        """Numbers of a query and a key that are rotated by their position."""
        return self.head_dim

    @property
    def mean_dim(self) -> float:
        """Width of a key and a value, mean."""
        return (self.head_dim + self.values) / 2

    @property
    def kept(self) -> int | None:
        """Tokens that the cache keeps of a request at most; None for all."""
        return None if self.is_sparse else self.window


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): one latent vector a token is all that is cached.

    Requests that decode multiply their queries into the latents' space and attend there; prompts
    multiply the latents up to keys and values of every head.

    Attributes:
        kind: ``latent_attention``, or ``deepseek_sparse_attention``.
        heads: Query heads.
        latent: Width of the latent vector (``kv_lora_rank``).
        rope_dim: Width of the rotated part of keys, which heads share.
        nope_dim: Width of the other part of a head's keys.
        value_dim: Width of a head's values.
        window: Tokens that it attends to at most; None for all.
        indexer: What chooses them, where this layer does so itself.
    """

    kind: str
    heads: int
    latent: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    window: int | None = None
    indexer: Indexer | None = None

    @property
    def kv_heads(self) -> int:
        """Latent vectors of a token: one, which every GPU keeps."""
        return 1

    @property
    def rotated(self) -> int:
        """Numbers of a query and a key that are rotated by their position."""
        return self.rope_dim

    @property
    def head_dim(self) -> int:
        """Width of a head's queries and keys in a prompt."""
        return self.nope_dim + self.rope_dim

    @property
    def kept(self) -> None:
        """Tokens that the cache keeps of a request at most: all."""
        return None


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4's attention: the last tokens as they are, those before as compressed vectors.

    Keys and values are one vector, which all heads share.

    Attributes:
        heads: Query heads.
        head_dim: Width of the vector.
        window: Tokens that are attended to as they are.
        ratio: Tokens of a compressed vector; 0 where none are kept.
        chosen: Compressed vectors that are attended to at most; None for all.
        indexer: What chooses them.
    """

    heads: int
    head_dim: int
    window: int
    ratio: int
    chosen: int | None = None
    indexer: Indexer | None = None

    @property
    def rotated(self) -> int:
        """Numbers of a query and a key that are rotated by their position."""
        return 64

    @property
    def kind(self) -> str:
        """``compressed_attention``."""
        return COMPRESSED_ATTENTION

    @property
    def kv_heads(self) -> int:
        """Vectors of a token: one, which every GPU keeps."""
        return 1

    @property
    def kept(self) -> int | None:
        """Tokens that the cache keeps of a request at most; None where it grows."""
        return None if self.ratio else self.window

    @property
    def vector_bytes(self) -> float:
        """Bytes of a vector: 64 rotated numbers of 16 bit, the rest in 8 bit with scales.

        584 of 512 numbers, as vLLM lays out the cache of DeepSeek-V4.
        """
        return (self.head_dim - 64) + 2.0 * 64 + 8


@dataclass(frozen=True)
class LinearAttention:
    """Attention that keeps a matrix for each head in the place of keys and values.

    Attributes:
        kind: ``linear_attention`` (gated delta rule), ``kimi_delta_attention`` or
            ``lightning_attention``.
        key_heads: Query and key heads.
        heads: Value heads, each of which has a matrix.
        key_dim: Width of a key.
        value_dim: Width of a value.
        conv: Tokens that the convolution before it sees; 1 where there is none.
    """

    kind: str
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    conv: int

    @property
    def kv_heads(self) -> int:
        """Key heads, as tensor parallelism divides them."""
        return self.key_heads

    @property
    def window(self) -> int:
        """Tokens that a step reads of each request: one matrix stands for all of them."""
        return 1

    @property
    def kept(self) -> int:
        """Tokens that the cache keeps: none."""
        return 0

    @property
    def rotated(self) -> int:
        """Numbers that are rotated by their position: none."""
        return 0

    @property
    def channels(self) -> int:
        """Numbers of queries, keys and values of a token, which the convolution sees."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim


@dataclass(frozen=True)
class StateSpace:
    """A Mamba2 layer: a state for each head that decays and takes in each token.

    Attributes:
        heads: Heads.
        head_dim: Width of a head.
        state: Numbers of state for each number of a head.
        groups: Groups of heads that share the matrices B and C.
        conv: Tokens that the convolution before it sees.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int

    @property
    def kind(self) -> str:
        """``mamba2``."""
        return MAMBA2

    @property
    def kv_heads(self) -> int:
        """Groups, as tensor parallelism divides them."""
        return self.groups

    @property
    def window(self) -> int:
        """Tokens that a step reads of each request: one state stands for all of them."""
        return 1

    @property
    def kept(self) -> int:
        """Tokens that the cache keeps: none."""
        return 0

    @property
    def rotated(self) -> int:
        """Numbers that are rotated by their position: none."""
        return 0

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution sees: the heads', and B and C of each group."""
        return self.heads * self.head_dim + 2 * self.groups * self.state


Mixer = Attention | LatentAttention | CompressedAttention | LinearAttention | StateSpace


def cached_bytes(mixer: Mixer, tp: float, kv_bytes: float) -> float:
    """Bytes of the KV cache for each token of a layer on each of some GPUs, its indexer's apart.

    KV heads are replicated where there are fewer of them than GPUs; latent vectors are always. Of
    an 8-bit cache of sparse latent attention the rotated part stays in 16 bit, and each 128 numbers
    of the rest have a scale (vLLM's ``fp8_ds_mla``: 656 bytes of 512 + 64).

    Args:
        mixer: The layer's attention.
        tp: GPUs that share it.
        kv_bytes: Bytes of an element of the cache.
    """
    if isinstance(mixer, LinearAttention | StateSpace):
        return 0.0
    if isinstance(mixer, CompressedAttention):
        return mixer.vector_bytes / (mixer.ratio or 1)
    if isinstance(mixer, Attention):
        heads = max(mixer.kv_heads / max(tp, 1.0), 1.0)
        return heads * (mixer.head_dim + mixer.values) * kv_bytes
    if mixer.window and kv_bytes < BYTES_16_BIT:
        return mixer.latent * (1 + 4 / 128) + BYTES_16_BIT * mixer.rope_dim
    return (mixer.latent + mixer.rope_dim) * kv_bytes


def state_bytes(mixer: Mixer, tp: float) -> float:
    """Bytes that a request holds in a layer whatever its length, on each of some GPUs.

    A recurrent state is of 32 bit, the last tokens of the convolution before it of 16.

    Args:
        mixer: The layer's attention.
        tp: GPUs that share it.
    """
    if isinstance(mixer, CompressedAttention):
        return mixer.window * mixer.vector_bytes if mixer.ratio else 0.0
    if isinstance(mixer, LinearAttention):
        numbers = mixer.heads * mixer.key_dim * mixer.value_dim
    elif isinstance(mixer, StateSpace):
        numbers = mixer.heads * mixer.head_dim * mixer.state
    else:
        return 0.0
    return (4.0 * numbers + BYTES_16_BIT * (mixer.conv - 1) * mixer.channels) / tp


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
        hidden_size: Width of what enters an expert; 0 for that of the residual stream.
        matrices: Matrices of an expert: gate, up and down, or without a gate up and down.
        form: Format of their weights.
    """

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int
    load: float = 0.0
    hidden_size: int = 0
    matrices: int = 3
    form: WeightFormat = BFLOAT16


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are alike.

    Attributes:
        layers: How many there are.
        attention: Their attention, or what stands for it; None where they have an MLP alone.
        linears: Their linear layers but for routed experts.
        intermediate_size: Hidden width of their dense MLP; 0 where they have none.
        experts: Their routed experts; None where they have none.
        norms: Weights of their norms, and others that are neither of a linear layer nor of experts.
    """

    layers: int
    attention: Mixer | None
    linears: tuple[Linear, ...]
    intermediate_size: int = 0
    experts: Experts | None = None
    norms: int = 0

    def named(self, *names: str) -> tuple[Linear, ...]:
        """The linear layers of some names."""
        return tuple(linear for linear in self.linears if linear.name in names)

    def form(self, *parts: str) -> WeightFormat:
        """The format of the first linear layer of some parts of a step; 16 bit if there is none."""
        return next((one.form for one in self.linears if one.part in parts), BFLOAT16)
