"""What requests wait for between pools of which one computes prompts and the other generates.

The formulas take numbers, or what JAX traces.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from physim.pytree import Pytree
from physim.types import Number, Scalar

# Share of its time that a link is taken at most, beyond which a wait would have no end.
BUSIEST = 0.95
# Shares of the saturation throughput between which a rate of clients is looked for. Beyond the
# most, where queues of requests that come by chance are long, as many come as are served.
LEAST_SHARE, MOST_SHARE = 1e-5, 0.95
# Requests per second of which none meets another.
ALONE_RPS = 1e-4


def on_link_s(
    exposed_s: Number, latency_s: Number, rate: Number, servers: Number, others: Number
) -> Number:
    """Time from the end of a prompt until its KV blocks are in the other pool, mean, seconds.

    Servers send those of one request after the other: half of the prompts that end in the same step
    are sent before it, and as many of other steps wait as in an M/D/1 queue (Pollaczek and
    Khinchine).

    Args:
        exposed_s: How long they take after the prompt's end, seconds.
        latency_s: What each request waits beside that, seconds.
        rate: Requests per second, of all servers.
        servers: How many send.
        others: Prompts that end in the same step, mean.
    """
    traced = any(isinstance(one, jax.Array) for one in (exposed_s, rate))
    busy = (jnp if traced else np).minimum(rate * exposed_s / servers, BUSIEST)
    return latency_s + exposed_s * (1.0 + others / 2.0 + busy / (2.0 * (1.0 - busy)))


def chance_of_clients(answer_cv2: Number, rate: Number, answer_s: Number) -> Number:
    """How far prompts of clients come by chance, from 0 to 1.

    Clients whose answers take as long come back in the order and at the distances in which their
    prompts were computed; the more their answers differ, in times between prompts, the less is left
    of that.

    Args:
        answer_cv2: Squared coefficient of variation of the answers' lengths.
        rate: Requests per second.
        answer_s: Mean time of an answer, seconds.
    """
    differing = answer_cv2 * (rate * answer_s) ** 2
    return differing / (1.0 + differing)


class Passage(Pytree):
    """What requests pass between two pools.

    Attributes:
        tokens: Tokens of a prompt, mean.
        token_s: Time in which the keys and values of a token are sent, seconds.
        latency_s: What each request waits beside that, seconds.
        while_computed: Share of them that may be sent while the prompt is still computed.
        first_token_comes: Whether the first token comes with them, 0 or 1.
        arrival_cv2: Squared coefficient of variation of the times between arrivals at a server that
            computes prompts,
        prompt_cv2: and of the tokens that are computed of them.
    """

    tokens: Scalar
    token_s: Scalar
    latency_s: Scalar
    while_computed: Scalar
    first_token_comes: Scalar
    arrival_cv2: Scalar
    prompt_cv2: Scalar

    def between_s(
        self, computed_s: Scalar, rate: Scalar, servers: Scalar, others: Scalar
    ) -> Scalar:
        """Time between the pools, mean, seconds.

        Args:
            computed_s: How long a prompt is computed, seconds.
            rate: Requests per second.
            servers: Servers that send.
            others: Prompts that end in the same step, mean.
        """
        whole = self.token_s * self.tokens
        exposed = jnp.maximum(whole - computed_s, (1.0 - self.while_computed) * whole)
        return on_link_s(exposed, self.latency_s, rate, servers, others)

    def most_rps(self, servers: Scalar) -> Scalar:
        """Requests per second whose KV blocks so many servers send at most."""
        return servers / (self.token_s * self.tokens)
