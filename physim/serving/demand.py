"""A load and an engine's limits as numbers, for ``vmap``."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.inputs.deployment import ResolvedDeployment
from physim.serving.kv_seats import kv_held, kv_seats
from physim.serving.lengths import lengths
from physim.serving.load import Load
from physim.types import AnyArray, Scalar


class Demand(eqx.Module):
    """A `Load` as numbers.

    Attributes:
        rate: Arrivals per second, of stages the most; infinite in a closed loop.
        concurrency: Clients; infinite in an open loop.
        input_tokens: Prompt tokens, mean.
        cached_tokens: Of them, found in the prefix cache.
        prefixes: Different prefixes in the cache.
        prompt_cv2: Squared coefficient of variation of the tokens that are not cached.
        outputs: Generated tokens, means of equal parts of the requests, from few to many.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """

    rate: Scalar
    concurrency: Scalar
    input_tokens: Scalar
    cached_tokens: Scalar
    prefixes: Scalar
    prompt_cv2: Scalar
    outputs: Float[AnyArray, " strata"]
    arrival_cv2: Scalar

    @classmethod
    def of(cls, load: Load, block_size: int) -> Demand:
        """The numbers of a load; only full KV blocks are found in the prefix cache."""
        cached = float(load.cached_tokens // block_size * block_size)
        new = np.maximum(lengths(load.input_tokens).strata() - cached, 1.0)
        return cls(
            rate=float(max((s.rate for s in load.stages), default=load.rate or math.inf)),
            concurrency=math.inf if load.concurrency is None else float(load.concurrency),
            input_tokens=load.mean_input,
            cached_tokens=cached,
            prefixes=float(load.prefixes),
            prompt_cv2=float(np.var(new) / np.mean(new) ** 2),
            outputs=lengths(load.output_tokens).strata(),
            arrival_cv2=load.arrival_cv2,
        )

    @property
    def clients(self) -> Scalar:
        """Clients; one in an open loop, since where infinity is divided no gradient is a number."""
        return jnp.where(jnp.isfinite(self.concurrency), self.concurrency, 1.0)

    @property
    def new_tokens(self) -> Scalar:
        """Prompt tokens that are computed, mean."""
        return jnp.maximum(self.input_tokens - self.cached_tokens, 1.0)

    @property
    def output_tokens(self) -> Scalar:
        """Generated tokens, mean."""
        return jnp.mean(self.outputs)

    @property
    def decode_steps(self) -> Scalar:
        """Steps in which a request decodes, mean: its first token comes of its prompt."""
        return self.output_tokens - 1.0

    @property
    def age(self) -> Scalar:
        """Tokens that a decoding request has generated, mean: long ones are met more often."""
        return jnp.mean(self.outputs**2) / (2 * self.output_tokens)

    @property
    def output_cv2(self) -> Scalar:
        """Squared coefficient of variation of the generated tokens."""
        return jnp.var(self.outputs) / self.output_tokens**2

    @property
    def evenness(self) -> Scalar:
        """Mean of the lesser of two output lengths, over the mean length."""
        count = self.outputs.shape[0]
        larger = (2.0 * np.arange(count)[::-1] + 1) / count**2
        return jnp.sum(larger * self.outputs) / self.output_tokens


class Limits(eqx.Module):
    """An engine's limits as numbers.

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

    def own_blocks(self, demand: Demand, age: Scalar) -> Scalar:
        """KV blocks of a request that has an age, apart from its cached prefix.

        The last block is half full.
        """
        return (demand.input_tokens - demand.cached_tokens + age) / self.block_size + 0.5

    def kv_seats(self, demand: Demand) -> Scalar:
        """Requests that the KV cache has room for."""
        own, shared = self.own_blocks(demand, demand.age), demand.cached_tokens / self.block_size
        return kv_seats(self.kv_blocks, own, shared, demand.prefixes)

    def kv_use(self, demand: Demand, running: Scalar, age: Scalar) -> Scalar:
        """Share of the KV blocks that so many running requests of a mean age hold."""
        own, shared = self.own_blocks(demand, age), demand.cached_tokens / self.block_size
        return kv_held(running, own, shared, demand.prefixes) / self.kv_blocks
