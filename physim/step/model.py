"""The time of a step, summed over its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.fields import CORRECTIONS, Corrections
from physim.corrections.residual import features
from physim.errors import InputError
from physim.grids.efficiency import along
from physim.printable import shown
from physim.pytree import Pytree, outlined, swapped
from physim.step.batch import Batch
from physim.step.curves import CHUNK, CONTEXT, REQUESTS
from physim.step.drafting import PART, further_pass, passes_seconds
from physim.step.host import beside_host, host_sharpness
from physim.step.lowering import PART_NAMES, StepOps
from physim.step.mixed_steps import ADDITIVE, Mixing
from physim.step.power_limit import share_at_limit
from physim.step.prefix_loads import StepLoads
from physim.step.routing import independent_tokens, looked_up_tokens, spread_weights
from physim.step.rows import DecodeRows, PrefillRows
from physim.step.sizes import KNOTS, step_sizes
from physim.types import AnyArray, Number, Scalar, known_number

# The context at which the correction of decode attention stands alone, tokens.
_CONTEXT_OF_CORRECTION = 1000.0
# Share of peak FLOP/s of decode attention that FLOP/s bound: FlashMLA's 660 of H800's 989 TFLOP/s
# (deepseek-ai/FlashMLA, README).
_EFFICIENCY_OF_QUERIES = 0.67

Parts = Float[AnyArray, " parts"]
_DRAFT = PART_NAMES.index(PART.name)


class StepTime(Pytree):
    """The time of a step and where it goes, seconds.

    Attributes:
        latency: From the step's start until its tokens are there.
        interval: From its start until requests that decode get their next token: the same, unless
            prompts have steps of their own.
        seconds: The parts of the interval in the order of `PART_NAMES`; they sum to it.
        launches: Of the latency, what the step takes longer because its kernels are launched one by
            one.
    """

    latency: Scalar
    interval: Scalar
    seconds: Parts
    launches: Scalar = 0.0

    @property
    def parts(self) -> dict[str, Scalar]:
        """The parts by name. ``host`` is the CPU time that the GPU's does not hide."""
        return dict(zip(PART_NAMES, self.seconds, strict=True))

    def __repr__(self) -> str:
        if not known_number(self.latency):
            return outlined(self)
        ranked = sorted(self.parts.items(), key=lambda part: -float(part[1]))
        parts = [
            f"{name.replace('_', ' ')} {1e3 * float(seconds):.3g}"
            for name, seconds in ranked
            if seconds
        ]
        return shown(self, f"{1e3 * float(self.latency):.4g} ms: {', '.join(parts)}")


def _check_means(means: Mapping[str, Number]) -> None:
    """Refuses what no batch has, as far as it is known before anything is traced."""
    known = {name: np.asarray(x) for name, x in means.items() if not isinstance(x, jax.Array)}
    for name, value in known.items():
        if not np.all(value >= 0):
            raise InputError(name, f"{value} is negative or no number", "use 0 or more")
    if "chunk" not in means and np.any(known.get("prefill_requests", np.zeros(1)) > 0):
        raise InputError("chunk", "is missing", "say how many tokens each prompt computes")


class Families(NamedTuple):
    """Parts of a step's time on the GPU, told apart by what they depend on. Seconds.

    Attributes:
        over_sizes: On the step's tokens and other sizes.
        decode: On the requests that decode and what they attend to.
        prefill: On its prefill chunks.
    """

    over_sizes: Parts
    decode: Parts
    prefill: Parts


class StepModel(Pytree):
    """Time of an engine step as a function of its batch.

    Attributes:
        ops: The lowered model.
        corrections: Corrections of the components.
        mixing: How a step of both prefill and decode is composed.
        loads: Prefixes that come up with steps; None where none do, for which less is compiled.
    """

    ops: StepOps
    corrections: Corrections
    mixing: Mixing = ADDITIVE
    loads: StepLoads | None = None

    def __call__(self, batch: Batch) -> StepTime:
        """The time of a step."""
        time: StepTime = self.mixing(self._composed, batch)
        return time

    def __repr__(self) -> str:
        tp, ranks = self.ops.tp, self.ops.setting.alike
        corrections = [getattr(self.corrections, name) for name in CORRECTIONS]
        traced = any(isinstance(one, jax.core.Tracer) for one in (tp, ranks, *corrections))
        if traced or np.ndim(tp):
            return "<StepModel of several models, or of one that is traced>"
        corrected = sum(bool(one) for one in corrections)
        mixing = type(self.mixing).__name__
        alike = f", {ranks:g} data-parallel ranks with the same batch" if ranks > 1 else ""
        return f"<StepModel tp {int(tp)}{alike}, {corrected} corrections, mixing {mixing}>"

    def batch(self, **means: Number) -> Batch:
        """A batch known by its means, with what the model's attention sees of it.

        Args:
            **means: As `Batch.summarised` takes them.

        Raises:
            InputError: A figure is negative or no number, or prompts have no tokens.
        """
        _check_means(means)
        return Batch.summarised(**means, windows=self.ops.windows)

    def of_alike_ranks(self, ranks: int) -> StepModel:
        """Step times where so many data-parallel ranks have the same batch.

        Args:
            ranks: How many.
        """
        return replace(self, ops=self.ops.of_alike_ranks(float(ranks)))

    def _composed(self, batch: Batch) -> StepTime:
        parts = sum(self.families(batch))
        gpu = jnp.sum(parts)
        host, prompts = self.ops.host, batch.prefill_requests
        hidden, exposed = host.seconds(self.corrections, batch.requests)
        always, of_no_graph = host.launch_seconds(self.corrections, prompts)
        handed_out = host.handing_out(self.corrections, batch.requests)
        sharpness = host_sharpness(self.corrections)
        unlaunched, graph, no_graph = (
            beside_host(gpu, jnp.maximum(cpu, handed_out), sharpness)
            for cpu in (hidden, hidden + always, hidden + always + of_no_graph)
        )
        share = self._without_graph(batch)
        busy = graph + share * (no_graph - graph)
        latency, launches = busy + exposed, busy - unlaunched
        if self.loads is not None:
            latency += self.loads.seconds(batch.prefill_requests, latency)
        return StepTime(latency, latency, jnp.append(parts, latency - gpu), launches)

    def families(self, batch: Batch) -> Families:
        """Corrected time of every part on the GPU."""
        theta = self.corrections.logs()
        decode = jax.vmap(lambda row: _decode_seconds(row, batch, theta))(self.ops.decode)
        prefill = jax.vmap(lambda row: _prefill_seconds(row, batch, theta))(self.ops.prefill)
        rows, sizes = self.ops.over_sizes, self.sizes(batch)
        seconds = self.row_seconds(sizes)
        bent = jnp.exp(self._residual(batch.tokens))
        seconds *= 1 + rows.is_bent * (bent - 1)
        found = Families(
            _total(seconds, rows.part),
            _total(decode, self.ops.decode.part),
            _total(prefill, self.ops.prefill.part),
        )
        if self.ops.draft_tokens is None:
            return found
        drafts = self._proposing(batch, self.ops.draft_tokens)
        return Families(
            *(own.at[_DRAFT].add(more) for own, more in zip(found, drafts, strict=True))
        )

    def _proposing(self, batch: Batch, tokens: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        """Time in which a draft proposes tokens, by what it depends on."""
        outside = passes_seconds(batch, tokens)
        if self.ops.draft is None:
            return outside, jnp.zeros(()), jnp.zeros(())
        layers = replace(self, ops=self.ops.draft)
        first, further = layers.families(batch), layers.families(further_pass(batch))
        over_sizes, decode, prefill = (
            jnp.minimum(tokens, 1.0) * jnp.sum(one) + jnp.maximum(tokens - 1.0, 0.0) * jnp.sum(more)
            for one, more in zip(first, further, strict=True)
        )
        return over_sizes + outside, decode, prefill

    def sizes(self, batch: Batch) -> dict[str, Scalar]:
        """What operations of a step grow with, by the names of `physim.step.sizes.SIZES`.

        Args:
            batch: The step's batch.
        """
        here = self.ops.setting
        pads = jnp.maximum(here.pads_all, 1.0 - self._without_graph(batch))
        missing = jnp.maximum(here.padded * batch.tokens - batch.routed, 0.0)
        padded = swapped(batch, elsewhere=batch.elsewhere + pads * missing)
        return step_sizes(padded, here)

    def _without_graph(self, batch: Batch) -> Scalar:
        """Share of the steps that a batch is the mean of that are no CUDA graphs."""
        share = batch.without_graph
        if share is None:
            share = self.ops.host.without_graph(batch.tokens, batch.prefill_requests)
        return share

    def row_seconds(self, sizes: dict[str, Scalar]) -> Float[AnyArray, " rows"]:
        """Corrected time of each operation over one size, without the residual's, seconds.

        Args:
            sizes: The sizes of a step.
        """
        rows, theta = self.ops.over_sizes, self.corrections.logs()
        compute, memory = rows.work(sizes, independent_tokens(sizes["routed"], self.corrections))
        seconds = jnp.maximum(jnp.exp(self._log_measured(sizes)), jnp.maximum(compute, memory))
        limited = compute * rows.at_limit
        seconds += share_at_limit(rows.count @ limited) * jnp.maximum(limited - seconds, 0.0)
        # How far FLOP/s bound it, from 0 to 1: a step of a hundred tokens, which memory bounds,
        # says nothing of how fast the GPU computes.
        ratio = (compute / _divisor(memory)) ** 3
        share = ratio / (1 + ratio)
        logs = (1 - share) * (rows.correction @ theta) + share * (rows.compute_correction @ theta)
        return rows.count * seconds * jnp.exp(logs)

    def _log_measured(self, sizes: dict[str, Scalar]) -> Float[AnyArray, " rows"]:
        """Logarithm of the measured time of one of each operation over one size.

        Between knots the logarithm of time is interpolated along the logarithm of size. Held
        against measured rows between the knots, that is closer than interpolating the efficiency,
        and it rises wherever the knots do.
        """
        rows = self.ops.over_sizes
        places = np.cumsum([0, *rows.slots])
        # One product for each size: a look-up for each row takes several times as long.
        alone = jnp.concatenate(
            [
                along(rows.log_seconds[start:end], KNOTS[size], sizes[size])
                for size, start, end in zip(rows.counts, places, places[1:], strict=False)
            ]
        )
        return alone + rows.kind @ self._log_of_experts(sizes["routed"])

    def _log_of_experts(self, tokens: Scalar) -> Float[AnyArray, " kinds"]:
        """Logarithm of the measured time of a layer of each kind of experts."""
        rows = self.ops.over_sizes
        weights = spread_weights(self.ops.expert_load, self.corrections)
        curves = jnp.einsum("s,ksn->kn", weights, rows.by_spread, precision="highest")
        independent = independent_tokens(tokens, self.corrections)
        share = rows.experts_per_token / _divisor(rows.experts)
        return along(curves, KNOTS["tokens"], looked_up_tokens(tokens, independent, share))

    def _residual(self, tokens: Scalar) -> Scalar:
        """What the residual adds to the logarithm of the time of the work on all tokens."""
        # A step of nothing, which blends of steps ask for, has no intensity.
        tokens = jnp.maximum(tokens, 1.0)
        rows = self.ops.over_sizes
        layers = rows.count * rows.is_matrix
        visited = rows.visited(independent_tokens(tokens, self.corrections))
        compute = jnp.sum(layers * rows.compute) * tokens
        memory = layers @ (rows.fixed + rows.memory * tokens + rows.expert @ visited)
        routed = layers @ (rows.expert > 0)
        share = visited / _divisor(rows.experts)
        activity = routed @ share / jnp.maximum(jnp.sum(routed), 1.0)
        ratio = jnp.where(memory > 0, compute / _divisor(memory), 1.0)
        log_factor = self.corrections.residual.log_factor(
            features(ratio, 1 / (1 + ratio), tokens, self.ops.tp, activity)
        )
        # It is for what memory bounds, of which it is learned; where FLOP/s do, kernels are within
        # a tenth of the roofline, and it would take them beyond.
        return log_factor / (1 + ratio**3)


def _total(seconds: Float[AnyArray, " rows"], part: Float[AnyArray, "rows parts"]) -> Parts:
    """Time of each part."""
    return jnp.matmul(seconds, part, precision=jax.lax.Precision.HIGHEST)


def _decode_seconds(
    row: DecodeRows, batch: Batch, theta: Float[AnyArray, " corrections"]
) -> Scalar:
    """Corrected time of one kind of decode attention in all its layers; 0 without requests."""
    requests = batch.decode_requests
    attended = batch.attended @ row.window
    context = attended / _divisor(requests)
    log_seconds = along(along(row.log_seconds, CONTEXT, context), REQUESTS, requests)
    seconds = jnp.maximum(jnp.exp(log_seconds), row.bound(requests, attended))
    # Measured with one query each: more of them see the same keys and values, and add FLOP.
    several = row.bound(requests, attended, batch.query_tokens) - row.bound(requests, attended)
    seconds += several / _EFFICIENCY_OF_QUERIES
    # What little the fluid leaves of an engine that is idle has no long context.
    met = attended / jnp.maximum(requests, 1e-6)
    longer = jnp.log(jnp.maximum(met, 1.0) / _CONTEXT_OF_CORRECTION)
    factor = jnp.exp(row.correction @ theta + row.exponent @ theta * longer)
    # Of less than one request, as a fluid has of an engine that is idle, so many steps have one.
    return row.count * seconds * factor * jnp.minimum(requests, 1.0)


def _prefill_seconds(
    row: PrefillRows, batch: Batch, theta: Float[AnyArray, " corrections"]
) -> Scalar:
    """Corrected time of one kind of prefill attention in all its layers; 0 without chunks."""
    requests = batch.prefill_requests
    count = _divisor(requests)
    # Where there is none, any length does, so long as its root has a finite gradient.
    chunk = jnp.sqrt(jnp.where(requests > 0, batch.prefill_squares / count, 1.0))
    of_requests = along(jnp.swapaxes(row.log_seconds, -1, -2), REQUESTS, requests)
    before = batch.cached_tokens / count
    # Time of chunks with nothing cached, and its roofline: of the new tokens and of all.
    tokens = jnp.stack([chunk, chunk + before])
    bounds = row.bound(requests, tokens)
    curves = jnp.broadcast_to(of_requests, (2, len(CHUNK)))
    times = jnp.maximum(jnp.exp(along(curves, CHUNK, tokens)), bounds)
    (own, whole), (own_bound, whole_bound) = times, bounds
    # One kernel attends for chunks and for requests that decode, and takes some time to start
    # however little there is: here that is counted once, beside decode attention not at all.
    start = jnp.exp(row.log_seconds[0, 0])
    started = start * jnp.minimum(batch.decode_requests, 1.0)
    own = jnp.maximum(own - started, own_bound)
    # Of a window, a share of the cached tokens is read, and of the pairs with them attended to.
    read = jnp.minimum(before, row.window) / _divisor(before)
    across = row.pairs(chunk + before) - row.pairs(before) - row.pairs(chunk)
    met = jnp.where(chunk + before > row.window, across / _divisor(chunk * before), 1.0)
    is_there = (requests > 0) & (row.count > 0)
    slowdown = jnp.maximum((whole - start) / jnp.where(is_there, whole_bound, 1.0), 1.0)
    cached = slowdown * jnp.maximum(
        row.pair_compute * batch.cached_products * met,
        row.cached_memory * batch.cached_tokens * read,
    )
    seconds = own * jnp.exp(row.correction @ theta) + cached * jnp.exp(
        row.cached_correction @ theta
    )
    return jnp.where(requests > 0, row.count * seconds, 0.0)


def _divisor(value: Number) -> Number:
    """What is divided by: one where there is nothing."""
    return jnp.where(value > 0, value, 1.0)
