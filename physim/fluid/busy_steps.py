"""Steps of an engine that a number of clients keep busy: who is in them, and what they take."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.batching.guards import LITTLE, SMALL
from physim.batching.limits import Limits
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Scalar

# Share of all that decode in a step that is taken for thin: it says how much less a step takes for
# each that does not decode.
_THIN = 1 / 3


class Crowd(NamedTuple):
    """Who is in the steps of a busy engine.

    Attributes:
        running: Requests that have a slot.
        decoding: Of them, those that decode at most.
        absent: In step, those that do not decode in a step with prefill.
        room: Prompts that fill what decode leaves of a step's tokens,
        whole: and of them those that are not divided between steps, if prompts are that short.
        chunks: Steps that a prompt takes.
        lanes: Batches of a pipeline that prompts fill which come together.
    """

    running: Scalar
    decoding: Scalar
    absent: Scalar
    room: Scalar
    whole: Scalar
    chunks: Scalar
    lanes: Scalar

    @property
    def group(self) -> Scalar:
        """Prompts in a step that is full of them."""
        return jnp.minimum(self.room, self.running)


class PrefillTimes(NamedTuple):
    """How much longer a step is than one in which all decode, by how many prompts it has.

    Attributes:
        prompts: One, as many as steps compute whole, and those of a step that is full of them.
        longer_s: How much longer steps with these are, seconds.
    """

    prompts: tuple[Scalar, Scalar, Scalar]
    longer_s: tuple[Scalar, Scalar, Scalar]

    def longer(self, prompts: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
        """How much longer a step is for so many prompts, seconds: on two straight lines.

        Args:
            prompts: Prompts, at least the one.
        """
        (one, whole, most), (shortest, middle, longest) = self
        few = (middle - shortest) / jnp.maximum(whole - one, LITTLE)
        many = (longest - middle) / jnp.maximum(most - whole, LITTLE)
        beyond = jnp.maximum(prompts - whole, 0.0)
        return shortest + few * (prompts - beyond - one) + many * beyond


class BusyTimes(NamedTuple):
    """Times of a busy engine's steps, seconds.

    Attributes:
        decode: A step in which all decode.
        partly_full: A step in which only the share `_THIN` of them decode.
        fewer: A step in which those do not decode whose prompts a step computes whole.
        prefill: How much longer steps with prompts are.
        sooner: How much sooner a prompt's token is there than the next step can start.
        begin: The first prompts' first step, in which nothing decodes.
        end: A step full of first prompts when all before the last decode.
        last: The last step of first prompts.
    """

    decode: Scalar
    partly_full: Scalar
    fewer: Scalar
    prefill: PrefillTimes
    sooner: Scalar
    begin: Scalar
    end: Scalar
    last: Scalar

    @property
    def each_decode(self) -> Scalar:
        """How much longer a step is for decoding, over all that decode: a straight line's slope."""
        return (self.decode - self.partly_full) / (1 - _THIN)


def crowd_of(demand: Demand, limits: Limits, running: Scalar) -> Crowd:
    """Who is in the steps of an engine that so many clients keep busy.

    Decode has precedence, and leaves the less of the token budget for prompts. In step, clients
    come in groups that fill it: one that ends, one that is computed and, with asynchronous
    scheduling, one that is waited for do not decode.

    Args:
        demand: The load, in a closed loop.
        limits: The engine's limits.
        running: Requests that have a slot.
    """
    fresh, budget = demand.new_tokens, limits.max_num_batched_tokens
    most = budget / fresh
    absent = jnp.minimum((2.0 + limits.async_scheduling) * most, running)
    decoding = jnp.minimum(running, demand.decode_steps * most)
    taken = limits.query_tokens * jnp.minimum(running - absent, decoding)
    taken = jnp.where(limits.prompts_apart, 0.0, taken)
    room = jnp.maximum(budget - taken, 1.0) / fresh
    lines = limits.ranks * limits.stages
    whole = jnp.where(room < lines, room, lines * jnp.floor(room / lines + SMALL))
    chunks = jnp.maximum(lines / room, 1.0)
    lanes = jnp.clip(running * fresh * limits.stages / budget, 1.0, limits.stages)
    return Crowd(running, decoding, absent, room, whole, chunks, lanes)


def busy_times(
    model: StepModel,
    demand: Demand,
    limits: Limits,
    crowd: Crowd,
    *,
    before_last: Scalar,
    rest: Scalar,
) -> BusyTimes:
    """Times of a busy engine's steps.

    Args:
        model: Step times.
        demand: The load.
        limits: The engine's limits.
        crowd: Who is in the steps.
        before_last: Requests that decode when the last of the first prompts is computed.
        rest: First prompts in the last step that computes any.
    """
    group, decoding = crowd.group, crowd.decoding
    old, new = demand.met_tokens + demand.age, demand.input_tokens + 1.0
    one, most = 1 / crowd.chunks, jnp.maximum(group, 1 / crowd.chunks)
    whole = jnp.clip(crowd.whole, one, most)
    none, others = jnp.zeros_like(crowd.running), jnp.maximum(decoding - 1, 0.0)
    late = jnp.minimum(crowd.running - group, before_last)
    # Requests that decode, tokens that each has, prompts, and those that steps have room for.
    kinds = [
        (decoding, old, none, crowd.room),
        (_THIN * decoding, old, none, crowd.room),
        (jnp.maximum(decoding - crowd.whole, 0.0), old, none, crowd.room),
        (others, old, one, crowd.room),
        (others, old, whole, crowd.whole),
        (others, old, most, crowd.room),
        (none, new, group, crowd.room),
        (late, new, group, crowd.room),
        (late, new, rest, crowd.room),
    ]
    columns = [jnp.stack(jnp.broadcast_arrays(*column)) for column in zip(*kinds, strict=True)]
    times = jax.vmap(lambda *kind: _step(model, demand, limits, crowd, *kind))(*columns)
    decode, thin, fewer, single, middle, full, *_ = times.interval
    _, _, _, first, _, _, begin, end, last = times.latency
    prefill = PrefillTimes((one, whole, most), (single - decode, middle - decode, full - decode))
    return BusyTimes(decode, thin, fewer, prefill, single - first, begin, end, last)


def _step(
    model: StepModel,
    demand: Demand,
    limits: Limits,
    crowd: Crowd,
    decodes: Scalar,
    context: Scalar,
    prompts: Scalar,
    room: Scalar,
) -> StepTime:
    """A step of so many requests that decode and prompts, of each of which it has a chunk."""
    fresh, chunks = demand.new_tokens, crowd.chunks
    batch = model.batch(
        decode_requests=decodes,
        query_tokens=limits.query_tokens,
        context=context,
        prefill_requests=prompts * chunks,
        chunk=fresh / chunks,
        cached=demand.cached_before + (chunks - 1) / 2 * fresh / chunks,
        ranks=limits.ranks,
        stages=crowd.lanes,
        most=limits.most_on_rank(crowd.running),
    )
    # A rank that has more requests than others has no more tokens than its step has room for.
    lines = limits.ranks * limits.stages
    left = limits.max_num_batched_tokens / lines - batch.decode_requests * limits.query_tokens
    return model(batch.within(jnp.maximum(jnp.minimum(room * fresh / lines, left), 1.0)))
