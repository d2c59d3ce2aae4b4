"""What one engine step works on, reduced to the sums that its time depends on."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Num

from physim.printable import shown
from physim.pytree import Pytree, outlined
from physim.types import AnyArray, Number, known_number

MAX_REQUESTS = 1024
# Tokens that attention looks back: all of them.
UNLIMITED = np.array([np.inf])


def fullest(requests: Number, ranks: Number, most: Number = np.inf) -> Number:
    """Requests of the fullest of some ranks that share them: up to one more than the mean.

    Engines give a request to the rank with the fewest. Of less than one request on all, as a fluid
    has of an engine that is idle, the fullest has all.

    Args:
        requests: Requests of all ranks.
        ranks: How many ranks there are.
        most: Most requests that a rank has.
    """
    xp = jnp if any(isinstance(one, jax.Array) for one in (requests, ranks, most)) else np
    return xp.minimum(xp.minimum(requests, requests / ranks + (1 - 1 / ranks)), most)


class Batch(Pytree):
    """Sums over the requests of a step, from which every component takes its work.

    The fields are numbers, or arrays with the same leading axes for many steps at once.

    Attributes:
        decode_requests: Requests that decode.
        query_tokens: Tokens of each of them that the step computes: one, and more where tokens are
            proposed that it verifies.
        attended: Tokens that they attend to, summed, for each window of the model's attention:
            the sum of the lesser of context and window.
        prefill_requests: Requests with a prefill chunk in this step.
        prefill_tokens: Tokens of the chunks, summed.
        prefill_squares: Squares of the chunks' tokens, summed.
        cached_tokens: Tokens that the chunks' requests have in the cache already, summed.
        cached_products: Products of each chunk's tokens with its cached tokens, summed.
        elsewhere: Tokens of requests that decode on other ranks, whose experts are this one's too,
        prompts_elsewhere: and those of their prompts.
        without_graph: Share of the steps that are too large for a CUDA graph, where these sums are
            means of several; None for one step, whose tokens say it.
    """

    decode_requests: Number
    query_tokens: Number
    attended: Num[AnyArray, "*steps windows"]
    prefill_requests: Number
    prefill_tokens: Number
    prefill_squares: Number
    cached_tokens: Number
    cached_products: Number
    elsewhere: Number = 0.0
    prompts_elsewhere: Number = 0.0
    without_graph: Number | None = None

    @classmethod
    def exact(
        cls,
        new_tokens: Num[AnyArray, " requests"],
        cached: Num[AnyArray, " requests"],
        windows: Float[AnyArray, " windows"] = UNLIMITED,
        decodes: Bool[AnyArray, " requests"] | None = None,
    ) -> Batch:
        """A batch of known requests.

        Args:
            new_tokens: Tokens that each request computes in this step: 1 while it decodes, more
                for a prefill chunk, 0 for an empty place. Arrays of one length, such as
                `MAX_REQUESTS`, share a compiled function.
            cached: Tokens of each request that are in the KV cache before the step.
            windows: Tokens that the model's attention looks back, for each of its kinds
                (`StepOps.windows`).
            decodes: Whether each request decodes, whatever its tokens in this step; None for those
                of one token.
        """
        decodes = new_tokens == 1 if decodes is None else decodes
        prefills = (new_tokens > 0) & ~decodes
        chunk = jnp.where(prefills, new_tokens, 0.0)
        before = jnp.where(prefills, cached, 0.0)
        computed = jnp.where(decodes, new_tokens, 0.0)
        seen = jnp.minimum((cached + computed)[:, None], windows)
        requests = jnp.sum(decodes * 1.0)
        each = jnp.sum(computed) / jnp.maximum(requests, 1.0)
        return cls(
            decode_requests=requests,
            query_tokens=jnp.where(requests > 0, each, 1.0),
            attended=jnp.sum(jnp.where(decodes[:, None], seen, 0.0), axis=0),
            prefill_requests=jnp.sum(prefills * 1.0),
            prefill_tokens=jnp.sum(chunk),
            prefill_squares=jnp.sum(chunk**2),
            cached_tokens=jnp.sum(before),
            cached_products=jnp.sum(chunk * before),
        )

    @classmethod
    def summarised(
        cls,
        decode_requests: Number = 0.0,
        context: Number = 0.0,
        prefill_requests: Number = 0.0,
        chunk: Number = 0.0,
        cached: Number = 0.0,
        query_tokens: Number = 1.0,
        windows: Float[AnyArray, " windows"] = UNLIMITED,
        ranks: Number = 1,
        stages: Number = 1,
        most: Number = np.inf,
    ) -> Batch:
        """A batch known by its means, or many of them.

        Requests of several ranks give the batch of the fullest of them, for which the others wait;
        those of a pipeline the fullest of the batches that are in it.

        Args:
            decode_requests: Requests that decode; need not be whole.
            context: Tokens that each of them has before and with this step, mean.
            prefill_requests: Requests with a prefill chunk; need not be whole.
            chunk: Mean tokens of a chunk.
            cached: Mean tokens that such a request has in the cache already.
            query_tokens: Tokens of each decoding request that the step computes.
            windows: Tokens that the model's attention looks back, for each of its kinds
                (`StepOps.windows`). Contexts are taken to be all alike.
            ranks: Data-parallel ranks that share the requests.
            stages: Stages of a pipeline, each with a batch of its own.
            most: Most requests that a rank has of those that run.
        """
        decodes, prefills = (fullest(x, stages) for x in (decode_requests, prefill_requests))
        decode_requests, prefill_requests = (fullest(x, ranks, most) for x in (decodes, prefills))
        traced = any(isinstance(x, jax.Array) for x in (decode_requests, context, windows))
        xp = jnp if traced else np
        seen = xp.minimum(xp.asarray(context)[..., None], windows)
        return cls(
            decode_requests=decode_requests,
            query_tokens=query_tokens,
            attended=xp.asarray(decode_requests)[..., None] * seen,
            prefill_requests=prefill_requests,
            prefill_tokens=prefill_requests * chunk,
            prefill_squares=prefill_requests * chunk**2,
            cached_tokens=prefill_requests * cached,
            cached_products=prefill_requests * chunk * cached,
            elsewhere=(decodes - decode_requests) * query_tokens,
            prompts_elsewhere=(prefills - prefill_requests) * chunk,
        )

    @property
    def tokens(self) -> Number:
        """Tokens that the step's GEMMs work on."""
        return self.decode_requests * self.query_tokens + self.prefill_tokens

    @property
    def routed(self) -> Number:
        """Tokens that the experts of all ranks work on."""
        return self.tokens + self.elsewhere + self.prompts_elsewhere

    @property
    def sampled(self) -> Number:
        """Tokens that have logits computed: all that decode, and the last of each chunk."""
        return self.decode_requests * self.query_tokens + self.prefill_requests

    @property
    def requests(self) -> Number:
        """Requests of the step."""
        return self.decode_requests + self.prefill_requests

    def within(self, prompt_tokens: Number) -> Batch:
        """The batch with at most so many tokens of prompts: other ranks have the rest.

        Args:
            prompt_tokens: Most tokens of its chunks, summed; above zero.
        """
        xp = jnp if isinstance(self.prefill_tokens, jax.Array) else np
        share = prompt_tokens / xp.maximum(self.prefill_tokens, prompt_tokens)
        return replace(
            self,
            prefill_requests=share * self.prefill_requests,
            prefill_tokens=share * self.prefill_tokens,
            prefill_squares=share * self.prefill_squares,
            cached_tokens=share * self.cached_tokens,
            cached_products=share * self.cached_products,
            prompts_elsewhere=self.prompts_elsewhere + (1 - share) * self.prefill_tokens,
        )

    def decode_only(self) -> Batch:
        """The batch without its prefill chunks."""
        zero = 0.0 * self.prefill_requests
        return Batch(
            self.decode_requests,
            self.query_tokens,
            self.attended,
            prefill_requests=zero,
            prefill_tokens=zero,
            prefill_squares=zero,
            cached_tokens=zero,
            cached_products=zero,
            elsewhere=self.elsewhere,
            prompts_elsewhere=0.0 * self.prompts_elsewhere,
        )

    def prefill_only(self) -> Batch:
        """The batch without its decoding requests."""
        return Batch(
            decode_requests=0.0 * self.decode_requests,
            query_tokens=self.query_tokens,
            attended=0.0 * self.attended,
            prefill_requests=self.prefill_requests,
            prefill_tokens=self.prefill_tokens,
            prefill_squares=self.prefill_squares,
            cached_tokens=self.cached_tokens,
            cached_products=self.cached_products,
            elsewhere=0.0 * self.elsewhere,
            prompts_elsewhere=self.prompts_elsewhere,
            without_graph=self.without_graph,
        )

    def __repr__(self) -> str:
        numbers = (self.decode_requests, self.prefill_requests, self.prefill_tokens)
        if not all(map(known_number, numbers)):
            return outlined(self)
        decode, prefill, tokens = map(float, numbers)
        return shown(self, f"{decode:g} requests decode, {prefill:g} prefill {tokens:g} tokens")
