"""Steady state of a vLLM engine as a mean-field balance of arrivals, batch and step time.

A request that arrives is prefilled in one or more steps and then decodes one token a step, so the
running batch follows from the arrival rate and the step time by Little's law, and the step time
from the batch. The one unknown is the mean step time; a root-finder closes the loop and gives
gradients by the implicit function theorem. Load above capacity is limited by seats, KV cache or
token budget, and then what is served is the capacity.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool

from physim.corrections import FRONT_END_S
from physim.inputs.deployment import ResolvedDeployment
from physim.serving.load import Load
from physim.serving.root import bracketed_root
from physim.step.batch import Batch
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Scalar

# Bounds of a step's time, seconds: a bracket for the root-finder.
_SHORTEST_STEP_S, _LONGEST_STEP_S = 1e-5, 1e3
# Served load below this share of the offered one counts as saturated.
_SATURATED_SHARE = 0.999


class Demand(eqx.Module):
    """A `Load` as numbers, for ``vmap``.

    Attributes:
        rate: Arrivals per second; infinite in a closed loop.
        concurrency: Clients; infinite in an open loop.
        input_tokens: Prompt tokens.
        cached_tokens: Of them, found in the prefix cache.
        output_tokens: Generated tokens.
        poisson: 1 for Poisson arrivals, 0 for evenly spaced ones.
    """

    rate: Scalar
    concurrency: Scalar
    input_tokens: Scalar
    cached_tokens: Scalar
    output_tokens: Scalar
    poisson: Scalar

    @classmethod
    def of(cls, load: Load) -> Demand:
        """The numbers of a load."""
        return cls(
            rate=math.inf if load.rate is None else float(load.rate),
            concurrency=math.inf if load.concurrency is None else float(load.concurrency),
            input_tokens=float(load.input_tokens),
            cached_tokens=float(load.cached_tokens),
            output_tokens=float(load.output_tokens),
            poisson=float(load.arrival == "poisson"),
        )


class Limits(eqx.Module):
    """An engine's limits as numbers, for ``vmap``.

    Attributes:
        max_num_seqs: Requests that may run at once.
        max_num_batched_tokens: Tokens of one step.
        kv_blocks: KV blocks.
        block_size: Tokens of a block.
        scheduled_ahead: Steps that are scheduled while another runs.
    """

    max_num_seqs: Scalar
    max_num_batched_tokens: Scalar
    kv_blocks: Scalar
    block_size: Scalar
    scheduled_ahead: Scalar

    @classmethod
    def of(cls, deployment: ResolvedDeployment) -> Limits:
        """The numbers of a deployment."""
        return cls(
            max_num_seqs=float(deployment.max_num_seqs),
            max_num_batched_tokens=float(deployment.max_num_batched_tokens),
            kv_blocks=float(deployment.kv_blocks),
            block_size=float(deployment.block_size),
            scheduled_ahead=float(deployment.async_scheduling),
        )


class SteadyState(eqx.Module):
    """What a server settles to. Times in seconds, rates in 1/s.

    Attributes:
        ttft: Mean time to first token; infinite where the load is above capacity.
        itl: Mean time from one token to the next.
        e2e: Mean time of a request; infinite where the load is above capacity.
        throughput: Requests completed per second: the rate, or the capacity if that is less.
        saturated: Whether the load is above capacity, so that a queue grows without end.
        batch: Mean number of requests that decode in a step.
        running: Mean number of requests that are prefilled or decode.
        kv_use: Share of the KV blocks that running requests hold.
        mixed_share: Share of steps that carry a prefill chunk.
        step: Time of a mean step and its parts.
    """

    ttft: Scalar
    itl: Scalar
    e2e: Scalar
    throughput: Scalar
    saturated: Bool[AnyArray, ""]
    batch: Scalar
    running: Scalar
    kv_use: Scalar
    mixed_share: Scalar
    step: StepTime


class _Balance(eqx.Module):
    """The loop at a given mean step time."""

    throughput: Scalar
    batch: Scalar
    prefilling: Scalar
    chunks: Scalar
    mixed_share: Scalar
    mixed_share_beside: Scalar
    decode_step: StepTime
    mixed_step: StepTime

    @property
    def step(self) -> StepTime:
        """A mean step."""
        return self._mean(self.mixed_share)

    @property
    def step_beside(self) -> StepTime:
        """A mean step as a decoding request meets it: its own prefill is not among them."""
        return self._mean(self.mixed_share_beside)

    def _mean(self, share: Scalar) -> StepTime:
        mean: StepTime = jax.tree.map(
            lambda mixed, decode: share * mixed + (1 - share) * decode,
            self.mixed_step,
            self.decode_step,
        )
        return mean


def steady_state(model: StepModel, demand: Demand, limits: Limits) -> SteadyState:
    """The steady state of an engine under a load: differentiable, and made to be vmapped.

    Args:
        model: Step times.
        demand: The load.
        limits: The engine's limits.
    """
    shortest, longest = jnp.log(_SHORTEST_STEP_S), jnp.log(_LONGEST_STEP_S)
    log_step, balance = bracketed_root(_residual, (model, demand, limits), shortest, longest)
    return _observed(jnp.exp(log_step), balance, model, demand, limits)


# Traced once, for its shapes and for the loop.
@jax.jit
def _residual(
    log_step: Scalar, system: tuple[StepModel, Demand, Limits]
) -> tuple[Scalar, _Balance]:
    """How much longer the mean step is, in logarithm, than what runs in it takes; and what runs."""
    balance = _balance(jnp.exp(log_step), *system)
    return log_step - jnp.log(balance.step.total), balance


def _balance(step: Scalar, model: StepModel, demand: Demand, limits: Limits) -> _Balance:
    """What runs if the mean step takes ``step`` seconds, and how long such steps take."""
    new_tokens = jnp.maximum(demand.input_tokens - demand.cached_tokens, 1.0)
    decode_steps = demand.output_tokens - 1.0
    seats = jnp.minimum(limits.max_num_seqs, limits.kv_blocks / _blocks(demand, limits))
    tokens = limits.max_num_batched_tokens
    outside = FRONT_END_S * jnp.exp(model.corrections.front_end)
    outside += jnp.clip(demand.concurrency - 1.0, 0.0, 1.0) * _handover_steps(model, limits) * step
    closed = jnp.isfinite(demand.concurrency)
    # No infinity is divided, or its gradient would not be a number.
    clients = jnp.where(closed, demand.concurrency, 1.0)

    def served(chunks: Scalar) -> Scalar:
        """Requests per second with so many prefill steps each: offered, or what a limit allows."""
        steps = chunks + decode_steps
        returning = jnp.where(closed, clients / (outside + steps * step), jnp.inf)
        by_seats, by_tokens = seats / steps, tokens / (decode_steps + new_tokens)
        limit = jnp.minimum(by_seats, by_tokens) / step
        return jnp.minimum(jnp.minimum(demand.rate, returning), limit)

    # Decode has precedence; prefill takes what it leaves of a step's tokens, in one step if it can.
    left = tokens - served(jnp.ones(())) * step * decode_steps
    chunks = jnp.ceil(new_tokens / jnp.maximum(left, 1.0))
    throughput = served(chunks)
    arrivals = throughput * step
    batch, prefilling = arrivals * decode_steps, arrivals * chunks
    mixed_share = _share_with(prefilling, demand)
    # A request sees the mean number of others beside itself where arrivals are independent; where
    # they are evenly spaced, it is one of the mean number.
    beside = jnp.where(demand.poisson > 0, jnp.minimum(batch + 1.0, seats), jnp.maximum(batch, 1.0))
    decoding = jnp.where(decode_steps > 0, beside, 0.0)
    context = demand.input_tokens + demand.output_tokens / 2
    chunk = new_tokens / chunks
    decode = Batch.summarised(jnp.maximum(decoding, 1.0), context)
    mixed = Batch.summarised(
        decode_requests=decoding,
        context=context,
        prefill_requests=jnp.maximum(prefilling / mixed_share, 1.0),
        chunk=chunk,
        cached=demand.cached_tokens + (chunks - 1) / 2 * chunk,
    )
    both: Batch = jax.tree.map(
        lambda *kinds: jnp.stack(jnp.broadcast_arrays(*kinds)), decode, mixed
    )
    steps = jax.vmap(model)(both)
    return _Balance(
        throughput=throughput,
        batch=batch,
        prefilling=prefilling,
        chunks=chunks,
        mixed_share=mixed_share,
        # A client that decodes has no prompt of its own under way.
        mixed_share_beside=_share_with(
            jnp.where(closed, prefilling * (1 - 1 / clients), prefilling), demand
        ),
        decode_step=jax.tree.map(lambda x: x[0], steps),
        mixed_step=jax.tree.map(lambda x: x[1], steps),
    )


def _share_with(prefilling: Scalar, demand: Demand) -> Scalar:
    """Share of steps with a prefill chunk, if there are ``prefilling`` chunks in a mean step."""
    by_chance = -jnp.expm1(-prefilling)
    return jnp.where(demand.poisson > 0, by_chance, jnp.minimum(prefilling, 1.0))


def _observed(
    step: Scalar, balance: _Balance, model: StepModel, demand: Demand, limits: Limits
) -> SteadyState:
    # A request's own prefill steps are mixed ones; while it decodes it meets those of others.
    own_prefill = balance.chunks * balance.mixed_step.total
    itl = balance.step_beside.total
    running = balance.batch + balance.prefilling
    # Whether a step is under way when a request arrives: by chance, or one of the others'.
    others = jnp.where(jnp.isfinite(demand.concurrency), demand.concurrency - 1.0, running)
    busy = jnp.where(demand.poisson > 0, -jnp.expm1(-running), jnp.clip(others, 0.0, 1.0))
    # The time outside the engine, the steps under way when a request arrives, its own prefill.
    ttft = (
        FRONT_END_S * jnp.exp(model.corrections.front_end)
        + busy * _handover_steps(model, limits) * step
        + own_prefill
    )
    # Clients that find no seat wait for one: by Little's law, what is left of their round trip.
    decode = (demand.output_tokens - 1.0) * itl
    clients = jnp.where(jnp.isfinite(demand.concurrency), demand.concurrency, 0.0)
    ttft += jnp.maximum(clients / balance.throughput - ttft - decode, 0.0)
    # The balance took a mean step for each of a client's own prefill steps, which are longer: of
    # the two, the round trip as it is observed says how often a client returns.
    throughput = jnp.where(clients > 0, clients / (ttft + decode), balance.throughput)
    saturated = jnp.isfinite(demand.rate) & (balance.throughput < _SATURATED_SHARE * demand.rate)
    ttft = jnp.where(saturated, jnp.inf, ttft)
    return SteadyState(
        ttft=ttft,
        itl=itl,
        e2e=ttft + decode,
        throughput=throughput,
        saturated=saturated,
        batch=balance.batch,
        running=running,
        kv_use=running * _blocks(demand, limits) / limits.kv_blocks,
        mixed_share=balance.mixed_share,
        step=balance.step,
    )


def _handover_steps(model: StepModel, limits: Limits) -> Scalar:
    """Steps that an arriving request waits: half of the running one, and those scheduled ahead."""
    return (0.5 + limits.scheduled_ahead) * jnp.exp(model.corrections.handover)


def _blocks(demand: Demand, limits: Limits) -> Scalar:
    """KV blocks of a request, on average over its life; the last one is half full.

    Blocks of a cached prefix are counted for each request, as if none shared them.
    """
    return (demand.input_tokens + demand.output_tokens / 2) / limits.block_size + 0.5
