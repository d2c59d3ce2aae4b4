"""Operations of a step as rows: what a component says of each, and the arrays that they become.

There are three families, told apart by what their time depends on: one size of the step (its
tokens, say), the requests that decode and what they attend to, or prefill chunks. Whatever a model
is made of is rows of these, so that one compiled function serves every model. An absent operation
has no row; rows that only fill an array up count zero times.

Every row has a roofline, the longer of its time at peak FLOP/s and that at the bandwidth, and is
never faster; most have a curve of measured time above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim import roofline
from physim.corrections.fields import selector
from physim.pytree import Pytree
from physim.step.curves import CHUNK, CONTEXT, REQUESTS, SPREADS, TOKENS
from physim.step.sizes import KNOTS, SIZES
from physim.types import AnyArray, Number, Scalar

# Fields of `SizeRows` that are of kinds of expert layers, not of rows.
_OF_KINDS = ("experts", "experts_per_token", "by_spread")
# The logarithm of a time that every roofline is above: of a row that nothing was measured of.
UNMEASURED = -60.0


@dataclass(frozen=True)
class SizeRow:
    """An operation whose time depends on one size of the step.

    Attributes:
        name: Its name among the model's operations.
        part: The part of a step's time that it belongs to.
        count: Times that it runs in a step.
        size: What its work grows with: the name of one of `physim.step.sizes.SIZES`.
        flops: FLOP for each unit of the size.
        bytes: Bytes moved for each unit of it.
        fixed_bytes: Bytes moved whatever the size, such as weights.
        expert_bytes: Bytes moved for each expert that the step's tokens visit.
        experts: Experts of a layer.
        experts_per_token: Experts that a token visits.
        seconds: Time for each unit of the size beside what it moves.
        fixed_seconds: Time whatever the size beside what it moves, such as launches.
        peak_flops: Peak FLOP/s in the format that is multiplied.
        sustained_share: Share of them that is kept up for long, at the GPU's power limit.
        bandwidth: Bytes/s of what it moves them over.
        log_seconds: Logarithm of the measured time at the size's knots; None where nothing was
            measured and the roofline stands alone.
        by_spread: Likewise for each of `SPREADS`, where experts were measured under several.
        correction: The correction that multiplies it.
        compute_correction: The correction that takes over as FLOP/s come to bound it, if that is
            another.
        is_matrix: Whether it is a matrix product of a layer, of which the residual sees the work.
        is_bent: Whether the residual multiplies it.
        gemm: Columns and rows of the weight on one GPU, if it is a dense GEMM.
    """

    name: str
    part: str
    count: float
    correction: str
    size: str = "tokens"
    flops: float = 0.0
    bytes: float = 0.0
    fixed_bytes: float = 0.0
    expert_bytes: float = 0.0
    experts: float = 1.0
    experts_per_token: float = 0.0
    seconds: float = 0.0
    fixed_seconds: float = 0.0
    peak_flops: float = np.inf
    sustained_share: float = 1.0
    bandwidth: float = np.inf
    log_seconds: np.ndarray | None = None
    by_spread: np.ndarray | None = None
    compute_correction: str | None = None
    is_matrix: bool = False
    is_bent: bool = False
    gemm: tuple[float, float] | None = None


@dataclass(frozen=True)
class DecodeRow:
    """Attention of decoding requests, of the layers that are alike.

    Attributes:
        name: Its name among the model's operations.
        part: The part of a step's time that it belongs to.
        count: Layers.
        window: Tokens that it looks back; None for all.
        pair_flops: FLOP for each attended token of each request.
        pair_bytes: Bytes moved likewise: keys and values.
        request_bytes: Bytes moved for each request: queries and outputs.
        peak_flops: Peak FLOP/s.
        bandwidth: Memory bandwidth, bytes/s.
        log_seconds: Logarithm of the measured time of a layer over `REQUESTS` and `CONTEXT`.
        correction: The correction that multiplies it.
        exponent: The correction by which it grows with the context beyond what was measured.
    """

    name: str
    part: str
    count: float
    window: int | None
    pair_flops: float
    pair_bytes: float
    request_bytes: float
    peak_flops: float
    bandwidth: float
    log_seconds: np.ndarray
    correction: str
    exponent: str


@dataclass(frozen=True)
class PrefillRow:
    """Attention of prefill chunks, of the layers that are alike.

    Attention among a chunk's own tokens was measured. That of its tokens to those in the cache was
    not measured apart: it has the efficiency of a chunk as long as both together, once started.

    Attributes:
        name: Its name among the model's operations.
        part: The part of a step's time that it belongs to.
        count: Layers.
        window: Tokens that a token attends to, itself included; None for all.
        pair_flops: FLOP for each token that a new token attends to.
        token_bytes: Bytes moved for each new token.
        cached_bytes: Bytes moved for each cached token.
        peak_flops: Peak FLOP/s.
        bandwidth: Memory bandwidth, bytes/s.
        log_seconds: Logarithm of the measured time of a layer over `REQUESTS` and `CHUNK`.
        correction: The correction of attention among new tokens.
        cached_correction: The correction of attention to cached tokens.
    """

    name: str
    part: str
    count: float
    window: int | None
    pair_flops: float
    token_bytes: float
    cached_bytes: float
    peak_flops: float
    bandwidth: float
    log_seconds: np.ndarray
    correction: str
    cached_correction: str


Row = SizeRow | DecodeRow | PrefillRow


class SizeRows(Pytree):
    """The arrays of `SizeRow`: work in seconds at peak FLOP/s and at the bandwidth.

    Rows over one size stand together, in the order of `SIZES`.

    Attributes:
        slots: Rows over each size.
        count: Times that each runs in a step.
        compute: Seconds of FLOP for each unit of the size.
        at_limit: How many times as long they take at the GPU's power limit.
        memory: Seconds of bytes for each unit of the size.
        fixed: Seconds of bytes whatever the size.
        expert: Seconds of bytes for each expert that is visited, of each kind of expert layer.
        kind: Which kind of expert layer each is, as ones and zeros; none for other operations.
        experts: Experts of a layer of each kind; one where there is none.
        experts_per_token: Experts that a token visits, likewise; zero where there is none.
        by_spread: Measured time at the tokens' knots for each of `SPREADS`, of each kind.
        log_seconds: Measured time at the size's knots; nothing where a kind's stands for it.
        part: Which part of a step each belongs to, as ones and zeros.
        correction: Which correction multiplies it, likewise.
        compute_correction: Which correction multiplies it as FLOP/s come to bound it, likewise.
        is_matrix: Whether the residual sees its work.
        is_bent: Whether the residual multiplies it.
    """

    slots: tuple[int, ...] = field(metadata={"static": True})
    count: Float[AnyArray, " rows"]
    compute: Float[AnyArray, " rows"]
    at_limit: Float[AnyArray, " rows"]
    memory: Float[AnyArray, " rows"]
    fixed: Float[AnyArray, " rows"]
    expert: Float[AnyArray, "rows kinds"]
    kind: Float[AnyArray, "rows kinds"]
    experts: Float[AnyArray, " kinds"]
    experts_per_token: Float[AnyArray, " kinds"]
    by_spread: Float[AnyArray, "kinds spreads knots"]
    log_seconds: Float[AnyArray, "rows knots"]
    part: Float[AnyArray, "rows parts"]
    correction: Float[AnyArray, "rows corrections"]
    compute_correction: Float[AnyArray, "rows corrections"]
    is_matrix: Float[AnyArray, " rows"]
    is_bent: Float[AnyArray, " rows"]

    @classmethod
    def from_rows(cls, rows: Sequence[SizeRow], parts: Sequence[str]) -> SizeRows:
        """The arrays of some rows; `in_order` says which place each has.

        Args:
            rows: The rows.
            parts: The parts of a step.
        """
        slots, placed = in_order(rows)
        fill = SizeRow("", parts[0], 0.0, "experts", fixed_seconds=1.0)
        full = [fill if row is None else row for row in placed]
        kinds = list({_kind(row): row for row in full if row.expert_bytes}.values())
        none = SizeRow("", parts[0], 0.0, "experts")
        own = np.array(
            [[float(_kind(row) == _kind(kind)) for kind in kinds] or [0.0] for row in full]
        )
        kinds = kinds or [none]

        def column(values: list[float]) -> Float[np.ndarray, " rows"]:
            return np.array(values, float)

        return cls(
            slots=slots,
            count=column([row.count for row in full]),
            compute=column([row.flops / row.peak_flops for row in full]),
            at_limit=column([1 / row.sustained_share for row in full]),
            memory=column([row.bytes / row.bandwidth + row.seconds for row in full]),
            fixed=column([row.fixed_bytes / row.bandwidth + row.fixed_seconds for row in full]),
            expert=own * column([row.expert_bytes / row.bandwidth for row in full])[:, None],
            kind=own,
            experts=column([kind.experts for kind in kinds]),
            experts_per_token=column([kind.experts_per_token for kind in kinds]),
            by_spread=np.stack([_by_spread(kind) for kind in kinds]),
            log_seconds=np.stack([_log_seconds(row) for row in full]),
            part=_places([row.part for row in full], parts),
            correction=selector(row.correction for row in full),
            compute_correction=selector(row.compute_correction or row.correction for row in full),
            is_matrix=column([float(row.is_matrix) for row in full]),
            is_bent=column([float(row.is_bent) for row in full]),
        )

    def widened(self, slots: Sequence[int]) -> SizeRows:
        """The same rows among more that are absent.

        Args:
            slots: Rows over each size, at least as many as there are.
        """
        if tuple(slots) == self.slots:
            return self
        ends = np.cumsum(self.slots)
        added = [more - own for more, own in zip(slots, self.slots, strict=True)]

        def wider(leaf: AnyArray, fill: float) -> np.ndarray:
            sections = np.split(np.asarray(leaf, float), ends[:-1])
            return np.concatenate(
                [
                    np.pad(own, [(0, more), *[(0, 0)] * (own.ndim - 1)], constant_values=fill)
                    for own, more in zip(sections, added, strict=True)
                ]
            )

        # An absent row has some time of its own, so that its ratios are numbers.
        columns = {
            field.name: wider(getattr(self, field.name), float(field.name == "fixed"))
            for field in fields(self)
            if field.name not in ("slots", *_OF_KINDS)
        }
        kinds = {name: getattr(self, name) for name in _OF_KINDS}
        return SizeRows(tuple(slots), **columns, **kinds)

    @property
    def counts(self) -> dict[str, int]:
        """Rows over each size, by its name."""
        return dict(zip(KNOTS, self.slots, strict=True))

    def visited(self, tokens: Scalar) -> Float[AnyArray, " kinds"]:
        """Experts of a layer that so many tokens visit, for each kind of expert layer.

        Args:
            tokens: Tokens that choose on their own.
        """
        # Kinds that only fill an array up have no experts.
        return roofline.active_experts(
            tokens, jnp.where(self.experts > 0, self.experts, 1.0), self.experts_per_token
        )

    def work(
        self, sizes: Mapping[str, Scalar], independent: Scalar | None = None
    ) -> tuple[Float[AnyArray, " rows"], Float[AnyArray, " rows"]]:
        """Time of one of each operation at peak FLOP/s and at the bandwidth, seconds.

        Args:
            sizes: The sizes of a step by name.
            independent: Tokens that choose experts on their own; all if None.
        """
        size = jnp.concatenate(
            [jnp.full(count, sizes[name], float) for name, count in self.counts.items()]
        )
        visited = self.visited(sizes["routed"] if independent is None else independent)
        return self.compute * size, self.fixed + self.memory * size + self.expert @ visited


class DecodeRows(Pytree):
    """The arrays of `DecodeRow`: work in seconds at peak FLOP/s and at the bandwidth.

    Attributes:
        count: Layers.
        window: Which of the model's windows each looks back, as ones and zeros.
        pair_compute: Seconds of FLOP for each attended token.
        pair_memory: Seconds of bytes for each attended token.
        request_memory: Seconds of bytes for each request.
        log_seconds: Measured time of a layer over `REQUESTS` and `CONTEXT`.
        part: Which part of a step each belongs to, as ones and zeros.
        correction: Which correction multiplies it, likewise.
        exponent: Which correction it grows with the context by, likewise.
    """

    count: Float[AnyArray, " rows"]
    window: Float[AnyArray, "rows windows"]
    pair_compute: Float[AnyArray, " rows"]
    pair_memory: Float[AnyArray, " rows"]
    request_memory: Float[AnyArray, " rows"]
    log_seconds: Float[AnyArray, "rows requests context"]
    part: Float[AnyArray, "rows parts"]
    correction: Float[AnyArray, "rows corrections"]
    exponent: Float[AnyArray, "rows corrections"]

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[DecodeRow],
        windows: Sequence[float],
        parts: Sequence[str],
    ) -> DecodeRows:
        """The arrays of some rows.

        Args:
            rows: The rows.
            windows: The windows of the model's attention, infinite where it is not limited.
            parts: The parts of a step.
        """
        return cls(
            count=np.array([float(row.count) for row in rows]),
            window=_places([row.window or np.inf for row in rows], windows),
            pair_compute=np.array([row.pair_flops / row.peak_flops for row in rows]),
            pair_memory=np.array([row.pair_bytes / row.bandwidth for row in rows]),
            request_memory=np.array([row.request_bytes / row.bandwidth for row in rows]),
            log_seconds=np.array([row.log_seconds for row in rows]).reshape(
                -1, len(REQUESTS), len(CONTEXT)
            ),
            part=_places([row.part for row in rows], parts),
            correction=selector(row.correction for row in rows),
            exponent=selector(row.exponent for row in rows),
        )

    def bound(self, requests: Number, attended: Number, queries: Number = 1.0) -> Number:
        """Roofline of a layer of one row, seconds.

        Args:
            requests: Requests that decode.
            attended: Tokens that they attend to, summed.
            queries: Tokens of each of them that attend.
        """
        memory = self.pair_memory * attended + self.request_memory * queries * requests
        return jnp.maximum(self.pair_compute * queries * attended, memory)


class PrefillRows(Pytree):
    """The arrays of `PrefillRow`: work in seconds at peak FLOP/s and at the bandwidth.

    Attributes:
        count: Layers.
        window: Tokens that a token attends to; infinite for all.
        pair_compute: Seconds of FLOP for each attended token of each new one.
        token_memory: Seconds of bytes for each new token.
        cached_memory: Seconds of bytes for each cached token.
        log_seconds: Measured time of a layer over `REQUESTS` and `CHUNK`.
        part: Which part of a step each belongs to, as ones and zeros.
        correction: Which correction multiplies attention among new tokens, likewise.
        cached_correction: Which correction multiplies attention to cached tokens, likewise.
    """

    count: Float[AnyArray, " rows"]
    window: Float[AnyArray, " rows"]
    pair_compute: Float[AnyArray, " rows"]
    token_memory: Float[AnyArray, " rows"]
    cached_memory: Float[AnyArray, " rows"]
    log_seconds: Float[AnyArray, "rows requests chunk"]
    part: Float[AnyArray, "rows parts"]
    correction: Float[AnyArray, "rows corrections"]
    cached_correction: Float[AnyArray, "rows corrections"]

    @classmethod
    def from_rows(cls, rows: Sequence[PrefillRow], parts: Sequence[str]) -> PrefillRows:
        """The arrays of some rows.

        Args:
            rows: The rows.
            parts: The parts of a step.
        """
        return cls(
            count=np.array([float(row.count) for row in rows]),
            window=np.array([float(row.window or np.inf) for row in rows]),
            pair_compute=np.array([row.pair_flops / row.peak_flops for row in rows]),
            token_memory=np.array([row.token_bytes / row.bandwidth for row in rows]),
            cached_memory=np.array([row.cached_bytes / row.bandwidth for row in rows]),
            log_seconds=np.array([row.log_seconds for row in rows]).reshape(
                -1, len(REQUESTS), len(CHUNK)
            ),
            part=_places([row.part for row in rows], parts),
            correction=selector(row.correction for row in rows),
            cached_correction=selector(row.cached_correction for row in rows),
        )

    def bound(self, requests: Number, chunk: Number) -> Number:
        """Roofline of a layer of one row with nothing cached, seconds.

        Args:
            requests: Requests with a chunk.
            chunk: Tokens of each chunk.
        """
        pairs = requests * self.pairs(chunk)
        return jnp.maximum(self.pair_compute * pairs, self.token_memory * requests * chunk)

    def pairs(self, tokens: Number) -> Number:
        """Tokens that each of a sequence's tokens attends to in a layer of one row, summed.

        Args:
            tokens: Tokens of the sequence.
        """
        return roofline.causal_pairs(tokens, jnp.minimum(tokens, self.window))


def _kind(row: SizeRow) -> tuple[float, float, bytes]:
    """What makes expert layers alike: their experts, and the measured time."""
    measured = b"" if row.by_spread is None else row.by_spread.tobytes()
    return row.experts, row.experts_per_token, measured


def _by_spread(row: SizeRow) -> Float[np.ndarray, "spreads knots"]:
    """Measured time for each spread; nothing where it is that of the row."""
    return np.zeros((len(SPREADS), len(TOKENS))) if row.by_spread is None else row.by_spread


def _log_seconds(row: SizeRow) -> Float[np.ndarray, " knots"]:
    """Measured time of a row, to which that of its kind is added."""
    if row.by_spread is not None:
        return np.zeros(len(TOKENS))
    return np.full(len(TOKENS), UNMEASURED) if row.log_seconds is None else row.log_seconds


def in_order(rows: Sequence[SizeRow]) -> tuple[tuple[int, ...], list[SizeRow | None]]:
    """Rows as they stand in `SizeRows`: how many over each size, and all with gaps filled by None.

    Args:
        rows: The rows.
    """
    slots, placed = [], []
    for size in SIZES:
        own: list[SizeRow | None] = [row for row in rows if row.size == size.name]
        own += [None] * (-len(own) % size.slots or size.slots * (not own))
        slots.append(len(own))
        placed += own
    return tuple(slots), placed


def _places(
    entries: Sequence[str] | Sequence[float], among: Sequence[str] | Sequence[float]
) -> Float[np.ndarray, "rows places"]:
    """A row for each entry with a one at its place among some others."""
    return np.eye(len(among))[[list(among).index(one) for one in entries]]
