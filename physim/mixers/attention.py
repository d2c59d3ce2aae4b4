"""Attention on the keys and values of KV heads: to all tokens, to a window, or to chosen blocks."""

from __future__ import annotations

from dataclasses import dataclass

from physim import roofline
from physim.mixers.mixer import (
    DecodeTerm,
    Indexer,
    Measured,
    Mixer,
    scored,
)

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
CHUNKED_ATTENTION = "chunked_attention"
BLOCK_SPARSE_ATTENTION = "block_sparse_attention"
_WORDS = {
    FULL_ATTENTION: "full",
    SLIDING_ATTENTION: "window",
    CHUNKED_ATTENTION: "chunk",
    BLOCK_SPARSE_ATTENTION: "block-sparse",
}


@dataclass(frozen=True)
class Attention(Mixer):
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
    def words(self) -> str:
        """What people call it, with the tokens of a window."""
        words = _WORDS.get(self.kind, self.kind)
        has_reach = self.kind in (SLIDING_ATTENTION, CHUNKED_ATTENTION)
        return f"{words} {self.window}" if has_reach else words

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

    def on_gpu(self, tp: int) -> tuple[int, int]:
        """Query heads and KV heads on each GPU; KV heads are replicated where they are fewer.

        Args:
            tp: GPUs that share them.
        """
        return self.heads // tp, max(self.kv_heads // tp, 1)

    def cached_bytes(self, tp: float, kv_bytes: float) -> float:
        """Bytes of a token's keys and values; KV heads are replicated where they are fewer."""
        heads = max(self.kv_heads / max(tp, 1.0), 1.0)
        return heads * (self.head_dim + self.values) * kv_bytes

    def state_bytes(self, tp: float) -> float:
        """Bytes that a request holds whatever its length: none."""
        return 0.0

    def request_bytes(self, tp: float) -> float:
        """Bytes of a request's queries and outputs, of 16 bit."""
        width = float(self.head_dim + self.values)
        return self.heads_on_gpu(tp) * width * roofline.BYTES_16_BIT

    def decode_terms(self, tp: float, kv_bytes: float) -> list[DecodeTerm]:
        """One term over the window, and that of the indexer if there is one."""
        flops = 2 * self.heads_on_gpu(tp) * (self.head_dim + self.values)
        own = DecodeTerm(self.window, flops, self.cached_bytes(tp, kv_bytes))
        return [own, *scored(self.indexer)]

    def measured(self, tp: int) -> Measured | None:
        """MiniMax-M3's layers for chosen blocks; of all else the kernels were measured."""
        if self.kind != BLOCK_SPARSE_ATTENTION:
            return None
        return Measured("block_sparse", {"heads": self.heads_on_gpu(tp)})

    def output_width(self, tp: int) -> float:
        """Numbers of the heads' values."""
        return float(self.on_gpu(tp)[0] * self.values)

    def around(self, tp: int, qk_norm: bool) -> tuple[float, int]:
        """Rotary embedding in place, the write of keys and values to the cache, and norms."""
        heads, kv_heads = self.on_gpu(tp)
        queries, keys = heads * self.head_dim, kv_heads * self.mean_dim
        values, kernels = 2 * (queries + keys) + 4 * keys, 2
        if qk_norm:
            values += 2 * (queries + keys)
            kernels += 1
        return values, kernels
