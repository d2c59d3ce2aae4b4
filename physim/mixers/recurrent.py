"""Layers that keep a state: the gated delta rule, Kimi delta and lightning attention, Mamba2."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from physim import roofline
from physim.mixers.mixer import DecodeTerm, Measured, Mixer, PrefillTerm
from physim.types import Number

GATED_DELTA = "linear_attention"
KIMI_DELTA = "kimi_delta_attention"
LIGHTNING = "lightning_attention"
MAMBA2 = "mamba2"
_WORDS = {GATED_DELTA: "gated delta", KIMI_DELTA: "Kimi delta", LIGHTNING: "lightning"}
# Tokens of the prompt whose scan stands for that of each token.
_PROMPT = 1024.0
# Numbers of a head's matrix of which the gated delta rule was measured.
_MEASURED_NUMBERS = 128 * 128


class Recurrent(Mixer):
    """A layer that keeps a matrix for each head in the place of keys and values.

    Attributes:
        conv: Tokens that the convolution before it sees; 1 where there is none.
    """

    conv: int

    @property
    @abstractmethod
    def matrix(self) -> tuple[int, int]:
        """Numbers of a key and of a value, which make the rows and columns of a head's matrix."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Numbers of a token that the convolution sees."""

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

    def cached_bytes(self, tp: float, kv_bytes: float) -> float:
        """Bytes for each token: none."""
        return 0.0

    def state_bytes(self, tp: float) -> float:
        """Bytes of the matrices, of 32 bit, and of the convolution's last tokens, of 16 bit."""
        keys, values = self.matrix
        numbers = self.heads * keys * values
        last = roofline.BYTES_16_BIT * (self.conv - 1) * self.channels
        return (4.0 * numbers + last) / tp

    def request_bytes(self, tp: float) -> float:
        """Bytes of queries and outputs beside the term: none."""
        return 0.0

    def decode_terms(self, tp: float, kv_bytes: float) -> list[DecodeTerm]:
        """One term: a token through the state."""
        flops, moved = roofline.state_update(1.0, self.heads_on_gpu(tp), *self.matrix)
        return [DecodeTerm(1, float(flops), float(moved))]

    def prefill_terms(self, tp: float, kv_bytes: float) -> list[PrefillTerm]:
        """One term: a token's share of the scan of a prompt."""
        flops, moved = self.prefill_work(tp, kv_bytes, 1.0, _PROMPT)
        return [PrefillTerm(1, float(flops) / _PROMPT, float(moved) / _PROMPT, 0.0)]

    def prefill_work(
        self,
        tp: float,
        kv_bytes: float,
        requests: Number,
        tokens: Number,
    ) -> roofline.Work:
        """Work of prompts through the state."""
        return roofline.state_scan(requests, tokens, self.heads_on_gpu(tp), *self.matrix)

    def output_width(self, tp: int) -> float:
        """Numbers of the heads' values."""
        return self.heads * self.matrix[1] / tp

    def around(self, tp: int, qk_norm: bool) -> tuple[float, int]:
        """The norm of the output with its gate: read two, write one."""
        return 3 * self.output_width(tp), 1


@dataclass(frozen=True)
class LinearAttention(Recurrent):
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
    def words(self) -> str:
        """What people call it."""
        return _WORDS.get(self.kind, self.kind)

    @property
    def kv_heads(self) -> int:
        """Key heads, as tensor parallelism divides them."""
        return self.key_heads

    @property
    def matrix(self) -> tuple[int, int]:
        """Widths of a key and a value."""
        return self.key_dim, self.value_dim

    @property
    def channels(self) -> int:
        """Numbers of queries, keys and values of a token, which the convolution sees."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    def measured(self, tp: int) -> Measured:
        """Layers of Kimi delta attention, or of the gated delta rule for all else."""
        tables = "kimi_delta" if self.kind == KIMI_DELTA else "gated_delta"
        return Measured(tables, {"heads": self.heads_on_gpu(tp)})


@dataclass(frozen=True)
class StateSpace(Recurrent):
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
    def words(self) -> str:
        """``Mamba2``."""
        return "Mamba2"

    @property
    def kv_heads(self) -> int:
        """Groups, as tensor parallelism divides them."""
        return self.groups

    @property
    def matrix(self) -> tuple[int, int]:
        """Numbers of state, and the width of a head."""
        return self.state, self.head_dim

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution sees: the heads', and B and C of each group."""
        return self.heads * self.head_dim + 2 * self.groups * self.state

    def measured(self, tp: int) -> Measured:
        """Layers of the gated delta rule, by the numbers of states, not by the narrower heads."""
        heads = self.heads_on_gpu(tp) * self.head_dim * self.state / _MEASURED_NUMBERS
        return Measured("gated_delta", {"heads": heads})
