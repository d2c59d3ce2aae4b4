"""DeepSeek-V4's attention: the last tokens as they are, those before as compressed vectors."""

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

COMPRESSED_ATTENTION = "compressed_attention"
# Numbers of a vector that are rotated by their position.
_ROTATED = 64
# Ratios of compression that were measured; layers that compress nothing take the coarser one's
# efficiency.
_MEASURED_RATIOS = (4, 128)


@dataclass(frozen=True)
class CompressedAttention(Mixer):
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

    # vLLM keeps compressed vectors in 8 bit whatever is asked for (deepseek_v4.py).
    kv_cache_dtype = "fp8"

    @property
    def kind(self) -> str:
        """``compressed_attention``."""
        return COMPRESSED_ATTENTION

    @property
    def words(self) -> str:
        """What people call it, with its ratio, or its window where it compresses nothing."""
        return f"compressed {self.ratio}:1" if self.ratio else f"window {self.window}"

    @property
    def rotated(self) -> int:
        """Numbers of a query and a key that are rotated by their position."""
        return _ROTATED

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
        return (self.head_dim - _ROTATED) + 2.0 * _ROTATED + 8

    def cached_bytes(self, tp: float, kv_bytes: float) -> float:
        """Bytes of a token's share of a compressed vector, which every GPU has in its own format.

        Of a token as it is, where none are compressed.
        """
        return self.vector_bytes / (self.ratio or 1)

    def state_bytes(self, tp: float) -> float:
        """Bytes of the last tokens beside compressed vectors."""
        return self.window * self.vector_bytes if self.ratio else 0.0

    def request_bytes(self, tp: float) -> float:
        """Bytes of a request's queries and outputs, of 16 bit."""
        return self.heads_on_gpu(tp) * (2.0 * self.head_dim) * roofline.BYTES_16_BIT

    def decode_terms(self, tp: float, kv_bytes: float) -> list[DecodeTerm]:
        """A term over the last tokens, one over compressed vectors, and that of the indexer."""
        flops, moved = 4.0 * self.heads_on_gpu(tp) * self.head_dim, self.vector_bytes
        terms = [DecodeTerm(self.window, flops, moved)]
        if self.ratio:
            reach = self.chosen * self.ratio if self.chosen else None
            terms.append(DecodeTerm(reach, flops / self.ratio, moved / self.ratio))
        return [*terms, *scored(self.indexer)]

    def measured(self, tp: int) -> Measured:
        """Layers of DeepSeek-V4 with its ratio, by the heads of all GPUs as well."""
        ratio = self.ratio if self.ratio in _MEASURED_RATIOS else _MEASURED_RATIOS[-1]
        shape = {"all_heads": float(self.heads), "heads": self.heads_on_gpu(tp)}
        return Measured(f"compressed_{ratio}", shape)

    def output_width(self, tp: int) -> float:
        """Numbers of the heads' values."""
        return self.heads * self.head_dim / tp

    def around(self, tp: int, qk_norm: bool) -> tuple[float, int]:
        """None: all is in its measured time."""
        return 0.0, 0
