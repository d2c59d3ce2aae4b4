"""What it takes to load prefixes that the GPU's memory has lost and the host's has kept.

A rank's loads follow one another on the link, so that they queue as customers of one server whose
service takes a time that hardly varies. An engine finds a prefix in the host's memory as a step is
formed. Where it loads asynchronously it finds that the prefix has come up as a later one is; else
the load is a part of the step (`physim.step.prefix_loads`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp

from physim.batching.demand import Demand
from physim.batching.guards import FULLEST, TINY
from physim.batching.kv_capacity import prefix_hits, private_blocks
from physim.batching.limits import HostTier, Limits
from physim.batching.prefix_cache import hits
from physim.step.model import StepModel
from physim.step.prefix_loads import StepLoads
from physim.types import Scalar


class Loads(NamedTuple):
    """Prefixes that come up from the host's memory.

    Attributes:
        share: Share of the requests whose prefix does.
        link_s: How long one takes the link, seconds.
        host: What they come from.
        tokens: Tokens of one.
    """

    share: Scalar
    link_s: Scalar
    host: HostTier
    tokens: Scalar = 0.0

    def with_steps(self, model: StepModel) -> StepModel:
        """Step times with the loads that are a part of steps.

        Args:
            model: Those without.
        """
        share = (1.0 - self.host.asynchronous) * self.share
        load_s = self.link_s + self.host.latency_s
        return replace(model, loads=StepLoads(share, load_s, self.host.layered))

    def most(self, ranks: Scalar) -> Scalar:
        """Requests per second that the links have time for.

        Args:
            ranks: Ranks, each with a link of its own.
        """
        return ranks / jnp.maximum(self.share * self.link_s, TINY)

    def wait_s(
        self, rate: Scalar, step_s: Scalar, busy: Scalar, demand: Demand, limits: Limits
    ) -> Scalar:
        """Time that a request waits for its prefix to come up, mean over all requests, seconds.

        None where it comes up with a step.

        Of arrivals with a squared variation ``c`` a share ``p`` by chance has ``1 + p (c - 1)``,
        and waits in line for half of that times ``u L / (1 - u)`` (Kingman; Pollaczek and Khinchine
        for ``c = 1``), where the link is busy a share ``u`` with loads of ``L`` seconds. A busy
        engine takes notice at the end of a step: at least one goes by, and half of another is the
        mean of what is left, and one more where the next is formed already.

        Args:
            rate: Requests per second.
            step_s: A step, seconds.
            busy: Share of the time that steps are under way.
            demand: The load.
            limits: The engine's limits.
        """
        used = jnp.minimum(rate / self.most(limits.ranks), FULLEST)
        arrivals = jnp.where(demand.closed, 1.0, demand.arrival_cv2)
        varied = 1.0 + self.share / limits.ranks * (arrivals - 1.0)
        load = self.link_s * (1.0 + varied / 2 * used / (1.0 - used)) + self.host.latency_s
        noticed = jnp.maximum(load + step_s / 2, step_s) + limits.async_scheduling * step_s
        return self.host.asynchronous * self.share * (load + busy * (noticed - load))


def found_anywhere(
    limits: Limits,
    host: HostTier,
    demand: Demand,
    running: Scalar,
    on_gpu: Scalar,
    rate: Scalar = 0.0,
    waited_s: Scalar = 0.0,
) -> Scalar:
    """Share of their prefixes' tokens that requests find in the GPU's memory or the host's.

    What moves down when it is evicted is in one cache of both sizes. Copies are in a cache of the
    host's size, which all prompts pass, whether the GPU has them or not.

    Args:
        limits: The engine's limits.
        host: The host's memory.
        demand: The load.
        running: Requests that run.
        on_gpu: Share that they find in the GPU's memory.
        rate: Requests that end, 1/s; of account for turns of conversations alone.
        waited_s: Time that a turn waits until it starts, seconds; likewise.
    """
    if demand.contexts is None:
        return _prefixes_anywhere(limits, host, demand, running, on_gpu)
    blocks = jnp.where(host.copies > 0, host.blocks, limits.kv_blocks + host.blocks)
    below = prefix_hits(replace(limits, kv_blocks=blocks), demand, running, rate, waited_s)
    return jnp.where(
        demand.contexts.followed > 0,
        jnp.maximum(below, on_gpu),
        _prefixes_anywhere(limits, host, demand, running, on_gpu),
    )


def _prefixes_anywhere(
    limits: Limits, host: HostTier, demand: Demand, running: Scalar, on_gpu: Scalar
) -> Scalar:
    """Share of shared prefixes that is found in either."""
    prefixes = demand.prefixes.on(limits.ranks)
    shared = demand.prefixes.tokens / limits.block_size
    prompt = demand.private_tokens / limits.block_size
    ended = prompt + host.outputs * demand.output_tokens / limits.block_size
    copied = hits(prefixes, host.blocks, running, prompt, ended, shared)
    moved = hits(
        prefixes,
        limits.kv_blocks + host.blocks,
        running,
        private_blocks(limits, demand, demand.age),
        private_blocks(limits, demand, demand.output_tokens),
        shared,
    )
    return jnp.maximum(jnp.where(host.copies > 0, copied, moved), on_gpu)


def loads_of(host: HostTier, demand: Demand, on_gpu: Scalar, found: Scalar) -> Loads:
    """The loads of requests that find so much of their prefixes.

    Args:
        host: The host's memory.
        demand: The load, as if all found their prefix.
        on_gpu: Share of the prefixes' tokens that is found in the GPU's memory.
        found: Share that is found there or in the host's.
    """
    tokens = demand.prefixes.tokens
    if demand.contexts is not None:
        tokens = jnp.where(demand.contexts.followed > 0, demand.evictable_tokens, tokens)
    return Loads(found - on_gpu, tokens * host.token_s, host, tokens)
