"""What all mixers of tokens answer: what they keep in the KV cache, and the work that they are.

A mixer's work is a sum of terms, each over a window of the context: sparse attention has one over
the tokens that it chooses and one over all that it chooses among; a recurrent state is a window of
one token, since it stands for all before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from physim import roofline
from physim.types import Number


@dataclass(frozen=True)
class DecodeTerm:
    """Work of decoding requests over a window of their context, on one GPU.

    Attributes:
        window: Tokens that are seen at most; None for all.
        pair_flops: FLOP for each token that a request sees.
        pair_bytes: Bytes moved likewise.
    """

    window: int | None
    pair_flops: float
    pair_bytes: float


@dataclass(frozen=True)
class PrefillTerm:
    """Work of prompts over a window before each token, on one GPU.

    Attributes:
        window: Tokens that a token sees at most, itself included; None for all.
        pair_flops: FLOP for each token that a new token sees.
        token_bytes: Bytes moved for each new token.
        cached_bytes: Bytes moved for each cached token.
    """

    window: int | None
    pair_flops: float
    token_bytes: float
    cached_bytes: float


@dataclass(frozen=True)
class Measured:
    """The measured layers that stand for a mixer.

    Attributes:
        tables: What the names of their tables begin with; that of a phase follows.
        shape: Where to look them up beside requests and tokens, by the names of the tables' axes.
    """

    tables: str
    shape: dict[str, float]


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

    @property
    def term(self) -> DecodeTerm:
        """Its work where requests decode."""
        flops, moved = roofline.scoring(1 / self.ratio, 1 / self.ratio, self.heads, self.dim)
        return DecodeTerm(None, float(flops), float(moved))


class Mixer(ABC):
    """What mixes the tokens of a layer. A kind is a frozen dataclass of its figures.

    Attributes:
        heads: Query heads, or those that have a state.
        indexer: What chooses the tokens that it attends to, where this layer does so itself.
        norm_spans_heads: Whether queries and keys are normalised over all heads, so that GPUs that
            share them add up their squares.
        kv_cache_dtype: Format of its part of the KV cache, whatever is asked for; None for what is.
    """

    heads: int
    indexer: Indexer | None = None
    norm_spans_heads: bool = False
    kv_cache_dtype: str | None = None

    if TYPE_CHECKING:
        # Fields of some kinds and properties of others: at run time these would stand in the way
        # of the fields.
        @property
        @abstractmethod
        def kind(self) -> str:
            """Its kind, in the words of a configuration's ``layer_types`` where it has some."""

        @property
        @abstractmethod
        def kv_heads(self) -> int:
            """Heads of keys and values, as tensor parallelism divides them."""

        @property
        @abstractmethod
        def window(self) -> int | None:
            """Tokens of each request that a step attends to at most; None for all."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What people call it, such as ``window 128``."""

    @property
    @abstractmethod
    def rotated(self) -> int:
        """Numbers of a query and a key that are rotated by their position."""

    @property
    @abstractmethod
    def kept(self) -> int | None:
        """Tokens that the KV cache keeps of a request at most; None for all."""

    @abstractmethod
    def cached_bytes(self, tp: float, kv_bytes: float) -> float:
        """Bytes of the KV cache for each token on each GPU, its indexer's apart.

        Args:
            tp: GPUs that share the layer.
            kv_bytes: Bytes of an element of the cache.
        """

    @abstractmethod
    def state_bytes(self, tp: float) -> float:
        """Bytes that a request holds on each GPU whatever its length.

        Args:
            tp: GPUs that share the layer.
        """

    @abstractmethod
    def request_bytes(self, tp: float) -> float:
        """Bytes of a decoding request's queries and outputs, where no term has them.

        Args:
            tp: GPUs that share the heads.
        """

    @abstractmethod
    def decode_terms(self, tp: float, kv_bytes: float) -> list[DecodeTerm]:
        """The terms of decoding, those with a window first.

        Args:
            tp: GPUs that share the heads.
            kv_bytes: Bytes of an element of the KV cache.
        """

    def prefill_terms(self, tp: float, kv_bytes: float) -> list[PrefillTerm]:
        """The terms of prefill, those with a window first.

        Here tokens of a prompt attend as requests that decode do, and the first term moves their
        queries and outputs.

        Args:
            tp: GPUs that share the heads.
            kv_bytes: Bytes of an element of the KV cache.
        """
        query_bytes = self.request_bytes(tp)
        return [
            PrefillTerm(
                term.window,
                term.pair_flops,
                term.pair_bytes + (query_bytes if place == 0 else 0.0),
                term.pair_bytes,
            )
            for place, term in enumerate(self.decode_terms(tp, kv_bytes))
        ]

    def prefill_work(
        self, tp: float, kv_bytes: float, requests: Number, tokens: Number
    ) -> roofline.Work:
        """Work of prompts with nothing cached, summed over the terms.

        Args:
            tp: GPUs that share the heads.
            kv_bytes: Bytes of an element of the KV cache.
            requests: Prompts.
            tokens: Tokens of each.
        """
        work: roofline.Work = (0.0, 0.0)
        for term in self.prefill_terms(tp, kv_bytes):
            pairs = roofline.causal_pairs(tokens, np.minimum(tokens, term.window or np.inf))
            own = (term.pair_flops * requests * pairs, term.token_bytes * requests * tokens)
            work = roofline.plus(work, own)
        return work

    @abstractmethod
    def measured(self, tp: int) -> Measured | None:
        """The measured layers that stand for it; None where only their kernels were measured.

        Args:
            tp: GPUs that share the heads.
        """

    @abstractmethod
    def output_width(self, tp: int) -> float:
        """Numbers of a token that enter the output projection on each GPU.

        Args:
            tp: GPUs that share the heads.
        """

    @abstractmethod
    def around(self, tp: int, qk_norm: bool) -> tuple[float, int]:
        """What kernels do between its projections, beside what its measured time holds.

        Args:
            tp: GPUs that share the heads.
            qk_norm: Whether queries and keys are normalised.

        Returns:
            Numbers that they read and write for each token on each GPU, and how many they are.
        """

    def heads_on_gpu(self, tp: float) -> float:
        """Heads on each GPU, one at least.

        Args:
            tp: GPUs that share them.
        """
        return max(self.heads / tp, 1.0)

    def token_bytes(self, tp: float, kv_bytes: float) -> float:
        """Bytes of the KV cache for each token on each GPU, its indexer's keys included.

        Args:
            tp: GPUs that share the layer.
            kv_bytes: Bytes of an element of the cache.
        """
        own = self.cached_bytes(tp, kv_bytes)
        return own + self.indexer.token_bytes if self.indexer else own

    def decode_work(
        self, tp: float, kv_bytes: float, requests: Number, context: Number
    ) -> roofline.Work:
        """Work of decoding requests, all terms together.

        Args:
            tp: GPUs that share the heads.
            kv_bytes: Bytes of an element of the KV cache.
            requests: Requests that decode.
            context: Tokens that each has, the new one included.
        """
        work: roofline.Work = (0.0, requests * self.request_bytes(tp))
        for term in self.decode_terms(tp, kv_bytes):
            seen = requests * np.minimum(context, term.window or np.inf)
            work = roofline.plus(work, (term.pair_flops * seen, term.pair_bytes * seen))
        return work


def scored(indexer: Indexer | None) -> list[DecodeTerm]:
    """The term of an indexer, if there is one."""
    return [] if indexer is None else [indexer.term]
