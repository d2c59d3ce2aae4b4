"""Multi-head latent attention (DeepSeek-V2), to all tokens or to those that an indexer chooses."""

from __future__ import annotations

from dataclasses import dataclass

from physim import roofline
from physim.mixers.mixer import (
    DecodeTerm,
    Indexer,
    Measured,
    Mixer,
    PrefillTerm,
    scored,
)
from physim.types import Number

LATENT_ATTENTION = "latent_attention"
SPARSE_LATENT_ATTENTION = "deepseek_sparse_attention"
_WORDS = {LATENT_ATTENTION: "latent", SPARSE_LATENT_ATTENTION: "sparse latent"}
_16_BIT = roofline.BYTES_16_BIT


@dataclass(frozen=True)
class LatentAttention(Mixer):
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
    def words(self) -> str:
        """What people call it."""
        return _WORDS.get(self.kind, self.kind)

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

    def cached_bytes(self, tp: float, kv_bytes: float) -> float:
        """Bytes of a latent vector and the rotated part of its key, which every GPU has.

        Of an 8-bit cache of sparse attention the rotated part stays in 16 bit, and each 128 numbers
        of the rest have a scale (vLLM's ``fp8_ds_mla``: 656 bytes of 512 + 64).
        """
        if self.window and kv_bytes < _16_BIT:
            return self.latent * (1 + 4 / 128) + _16_BIT * self.rope_dim
        return (self.latent + self.rope_dim) * kv_bytes

    def state_bytes(self, tp: float) -> float:
        """Bytes that a request holds whatever its length: none."""
        return 0.0

    def request_bytes(self, tp: float) -> float:
        """Bytes of a request's queries and outputs, as wide as latent vectors, of 16 bit."""
        return self.heads_on_gpu(tp) * (2.0 * self.latent + self.rope_dim) * _16_BIT

    def decode_terms(self, tp: float, kv_bytes: float) -> list[DecodeTerm]:
        """One term over the latent vectors, and that of the indexer if there is one."""
        flops = 2 * self.heads_on_gpu(tp) * (2 * self.latent + self.rope_dim)
        own = DecodeTerm(self.window, flops, self.cached_bytes(tp, kv_bytes))
        return [own, *scored(self.indexer)]

    def prefill_terms(self, tp: float, kv_bytes: float) -> list[PrefillTerm]:
        """One term over keys and values of heads; those of decoding where tokens are chosen."""
        if self.window is not None:
            return super().prefill_terms(tp, kv_bytes)
        heads, width = self.heads_on_gpu(tp), self.head_dim + self.value_dim
        # What is cached is read, multiplied up, and written and read as keys and values of heads.
        cached = self.cached_bytes(tp, kv_bytes) + 2 * heads * width * _16_BIT
        return [PrefillTerm(None, 2 * heads * width, 2 * heads * width * _16_BIT, cached)]

    def prefill_work(
        self, tp: float, kv_bytes: float, requests: Number, tokens: Number
    ) -> roofline.Work:
        """Work of prompts: latents are multiplied up, unless tokens are chosen."""
        if self.window is not None:
            return super().prefill_work(tp, kv_bytes, requests, tokens)
        pairs, heads = roofline.causal_pairs(tokens, tokens), self.heads_on_gpu(tp)
        return roofline.latent_prefill(
            *(requests, pairs, tokens, heads, self.latent, self.head_dim, self.value_dim)
        )

    def measured(self, tp: int) -> Measured:
        """Layers of DeepSeek-V3, or of DeepSeek-V3.2 and GLM-5 where this one chooses."""
        heads = self.heads_on_gpu(tp)
        if self.window is None or self.indexer is None:
            # One may take the choice of a layer before it; the tables of sparse layers hold
            # choosing.
            return Measured("latent", {"heads": heads})
        return Measured("sparse_latent", {"index_heads": float(self.indexer.heads), "heads": heads})

    def output_width(self, tp: int) -> float:
        """Numbers of the heads, counted as wide as their keys."""
        return self.heads * self.head_dim / tp

    def around(self, tp: int, qk_norm: bool) -> tuple[float, int]:
        """None: all is in its measured time."""
        return 0.0, 0
