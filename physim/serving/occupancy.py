"""What an engine's steps are made of at a given occupancy, and how long they take."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from physim.serving.demand import Demand, Limits
from physim.serving.mixture import decoding, even, met_while_decoding, prefills
from physim.serving.waits import peakedness
from physim.step.batch import Batch
from physim.step.model import StepModel, StepTime
from physim.types import Scalar

# Evenly spaced arrivals in a step from which on a request meets the prompt before it, being
# handed over in two steps or so, and how sharp that is.
_CLOSE, _CLOSE_WIDTH = 0.45, 0.08


class Occupancy(eqx.Module):
    """Who is in a step.

    Attributes:
        batch: Requests that decode, mean.
        prefilling: Prefill chunks, mean.
        chunks: Prefill steps of a prompt.
        chunk: Tokens of a chunk, mean.
        age: Tokens that a decoding request has generated, mean.
        start_cv2: Squared coefficient of variation of the times between requests that start.
        others: Of the prefill chunks, the share that a decoding request may meet: in a closed loop
            a client that decodes has no prompt under way.
    """

    batch: Scalar
    prefilling: Scalar
    chunks: Scalar
    chunk: Scalar
    age: Scalar
    start_cv2: Scalar
    others: Scalar


class Steps(eqx.Module):
    """Steps at an occupancy. Times in seconds.

    Attributes:
        mixed_share: Share of steps with a prefill chunk.
        mean: A mean step.
        beside: A mean step as a decoding request meets it: its own prompt is not among those met.
        under_way_s: Time of a step that is under way or scheduled when a request arrives.
        own_s: Time of a step in which an arriving request is prefilled.
        together: Other prompts that arrive in the same step, as a request sees it.
        spread: Squared coefficient of variation of the times of steps.
        budget: Prefill chunks that a step's token budget leaves room for.
        longer_s: How much longer a step is for a prefill chunk in it.
    """

    mixed_share: Scalar
    mean: StepTime
    beside: StepTime
    under_way_s: Scalar
    own_s: Scalar
    together: Scalar
    spread: Scalar
    budget: Scalar
    longer_s: Scalar


def steps_at(
    model: StepModel, demand: Demand, limits: Limits, occupancy: Occupancy, seats: Scalar
) -> Steps:
    """Steps at an occupancy.

    Args:
        model: Step times.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        seats: Requests that may run.
    """
    batch, prefilling, chunk = occupancy.batch, occupancy.prefilling, occupancy.chunk
    peaked = peakedness(demand.arrival_cv2, demand.evenness)
    beside = decoding(batch, peaked, jnp.maximum(seats, 1.0))
    decodes = jnp.where(demand.decode_steps > 0, beside.mean(beside.low, beside.high), 0.0)
    budget = jnp.maximum(limits.max_num_batched_tokens - batch, 1.0) / chunk
    prefill = prefills(prefilling, occupancy.start_cv2, budget)
    # Those that arrive while the same step runs are prefilled together.
    cv2 = demand.arrival_cv2
    together = cv2 * prefilling + even(cv2) * jnp.maximum(prefilling - 1.0, 0.0)
    rows = jnp.array(
        [
            [jnp.maximum(beside.low, 1.0), 0.0],
            [jnp.maximum(beside.high, 1.0), 0.0],
            [decodes, prefill.chunks.low],
            [decodes, prefill.chunks.high],
            [batch, 1.0 + together],
        ]
    )
    steps = jax.vmap(
        lambda row: model(
            Batch.summarised(
                decode_requests=row[0],
                context=demand.input_tokens + occupancy.age,
                prefill_requests=row[1],
                chunk=chunk * jnp.sqrt(1.0 + demand.prompt_cv2),
                cached=demand.cached_tokens + (occupancy.chunks - 1) / 2 * chunk,
            )
        )
    )(rows)
    decode: StepTime = jax.tree.map(lambda x: beside.mean(x[0], x[1]), steps)
    mixed: StepTime = jax.tree.map(lambda x: prefill.chunks.mean(x[2], x[3]), steps)
    mean = _blend(prefill.share, mixed, decode)
    # How much longer a step is for a prompt in it, and what that does to the spread of steps.
    longer = (mixed.total - decode.total) * prefill.share / prefilling
    feedback = jnp.minimum(prefilling * longer / mean.total, 0.9) ** 2
    variance = longer**2 * (1 + demand.prompt_cv2) * cv2 * prefilling
    spread = variance / (1 - feedback) / mean.total**2
    # Long steps are met more often than short ones, so more arrive in them.
    own = steps.total[4] + together * spread * longer
    arrivals = prefilling / occupancy.chunks
    met = met_while_decoding(
        arrivals * occupancy.others,
        jnp.maximum(arrivals * (own / mean.total - 1.0), 0.0) * (occupancy.others == 1.0),
        cv2,
        jnp.maximum(demand.outputs - 1.0, 1e-3),
    )
    # The prompt before an evenly spaced one is long computed, unless they follow within few steps.
    close = jax.nn.sigmoid((arrivals - _CLOSE) / _CLOSE_WIDTH)
    apart = decode.total + close * (mean.total - decode.total)
    return Steps(
        mixed_share=prefill.share,
        mean=mean,
        beside=_blend(prefill.share * met / arrivals, mixed, decode),
        under_way_s=even(cv2) * apart + (1 - even(cv2)) * mean.total,
        own_s=own,
        together=together * (1 + spread),
        spread=spread,
        budget=budget,
        longer_s=longer,
    )


def _blend(share: Scalar, mixed: StepTime, decode: StepTime) -> StepTime:
    blended: StepTime = jax.tree.map(lambda m, d: share * m + (1 - share) * d, mixed, decode)
    return blended
