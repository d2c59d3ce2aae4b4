"""What one engine step works on, reduced to the sums that its time depends on."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Num

from physim.types import AnyArray, Scalar

MAX_REQUESTS = 1024


class Batch(eqx.Module):
    """Sums over the requests of a step, from which every component takes its work.

    Attributes:
        decode_requests: Requests that decode one token.
        decode_context: Tokens that they attend to, summed.
        prefill_requests: Requests with a prefill chunk in this step.
        prefill_tokens: Tokens of the chunks, summed.
        prefill_squares: Squares of the chunks' tokens, summed.
        cached_tokens: Tokens that the chunks' requests have in the cache already, summed.
        cached_products: Products of each chunk's tokens with its cached tokens, summed.
    """

    decode_requests: Scalar
    decode_context: Scalar
    prefill_requests: Scalar
    prefill_tokens: Scalar
    prefill_squares: Scalar
    cached_tokens: Scalar
    cached_products: Scalar

    @classmethod
    def exact(
        cls, new_tokens: Num[AnyArray, " requests"], cached: Num[AnyArray, " requests"]
    ) -> Batch:
        """A batch of known requests.

        Args:
            new_tokens: Tokens that each request computes in this step: 1 while it decodes, more
                for a prefill chunk, 0 for an empty place. Arrays of one length, such as
                `MAX_REQUESTS`, share a compiled function.
            cached: Tokens of each request that are in the KV cache before the step.
        """
        decodes, prefills = new_tokens == 1, new_tokens > 1
        chunk = jnp.where(prefills, new_tokens, 0.0)
        before = jnp.where(prefills, cached, 0.0)
        return cls(
            decode_requests=jnp.sum(decodes * 1.0),
            decode_context=jnp.sum(jnp.where(decodes, cached + 1.0, 0.0)),
            prefill_requests=jnp.sum(prefills * 1.0),
            prefill_tokens=jnp.sum(chunk),
            prefill_squares=jnp.sum(chunk**2),
            cached_tokens=jnp.sum(before),
            cached_products=jnp.sum(chunk * before),
        )

    @classmethod
    def summarised(
        cls,
        decode_requests: Scalar = 0.0,
        context: Scalar = 0.0,
        prefill_requests: Scalar = 0.0,
        chunk: Scalar = 0.0,
        cached: Scalar = 0.0,
    ) -> Batch:
        """A batch known by its means.

        Args:
            decode_requests: Requests that decode; need not be whole.
            context: Mean tokens that each of them attends to.
            prefill_requests: Requests with a prefill chunk; need not be whole.
            chunk: Mean tokens of a chunk.
            cached: Mean tokens that such a request has in the cache already.
        """
        return cls(
            decode_requests=decode_requests,
            decode_context=decode_requests * context,
            prefill_requests=prefill_requests,
            prefill_tokens=prefill_requests * chunk,
            prefill_squares=prefill_requests * chunk**2,
            cached_tokens=prefill_requests * cached,
            cached_products=prefill_requests * chunk * cached,
        )

    @property
    def tokens(self) -> Scalar:
        """Tokens that the step's GEMMs work on."""
        return self.decode_requests + self.prefill_tokens

    @property
    def requests(self) -> Scalar:
        """Requests of the step, each of which has one token sampled."""
        return self.decode_requests + self.prefill_requests

    def decode_only(self) -> Batch:
        """The batch without its prefill chunks."""
        return Batch(self.decode_requests, self.decode_context, 0.0, 0.0, 0.0, 0.0, 0.0)

    def prefill_only(self) -> Batch:
        """The batch without its decoding requests."""
        return Batch(
            0.0,
            0.0,
            self.prefill_requests,
            self.prefill_tokens,
            self.prefill_squares,
            self.cached_tokens,
            self.cached_products,
        )
