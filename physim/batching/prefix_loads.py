"""What it takes to load prefixes that the GPU's memory has lost and tiers below it have kept.

A rank's loads follow one another on the link, so that they queue as customers of one server whose
service takes a time that hardly varies. An engine finds a prefix in the host's memory as a step is
formed. Where it loads asynchronously it finds that the prefix has come up as a later one is; else
the load is a part of the step (`physim.step.prefix_loads`). What only the disk has comes up to the
host's memory before, in line likewise, and always asynchronously.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp

from physim.batching.demand import Demand
from physim.batching.guards import FULLEST, TINY
from physim.batching.kv_capacity import prefix_hits, private_blocks
from physim.batching.limits import Limits, LowerTiers
from physim.batching.prefix_cache import hits
from physim.step.model import StepModel
from physim.step.prefix_loads import StepLoads
from physim.types import Scalar


class Loads(NamedTuple):
    """Prefixes that come up from tiers below the GPU's memory.

    Attributes:
        shares: Share of the requests whose prefix comes up from each tier to the one above, the
            host's memory first: what comes from the disk passes both.
        links_s: How long one takes the link of each, seconds.
        lower: What they come from.
        tokens: Tokens of one.
    """

    shares: tuple[Scalar, ...]
    links_s: tuple[Scalar, ...]
    lower: LowerTiers
    tokens: Scalar

    def with_steps(self, model: StepModel) -> StepModel:
        """Step times with the loads that are a part of steps.

        Args:
            model: Those without.
        """
        share = (1.0 - self.lower.asynchronous) * self.shares[0]
        load_s = self.links_s[0] + self.lower.tiers[0].latency_s
        return replace(model, loads=StepLoads(share, load_s, self.lower.layered))

    def most(self, ranks: Scalar) -> Scalar:
        """Requests per second that the links have time for.

        Args:
            ranks: Ranks, each with links of its own.
        """
        each = (self._most(place, ranks) for place in range(len(self.shares)))
        return reduce(jnp.minimum, each)

    def _most(self, place: int, ranks: Scalar) -> Scalar:
        return ranks / jnp.maximum(self.shares[place] * self.links_s[place], TINY)

    def loading_s(
        self, rate: Scalar, step_s: Scalar, busy: Scalar, demand: Demand, limits: Limits
    ) -> Scalar:
        """Time that a request with a slot waits for its prefix to come up from the host's memory.

        The mean over all requests, seconds. Zero where it is loaded as a part of a step.

        Args:
            rate: Requests per second.
            step_s: A step, seconds.
            busy: Share of the time that steps are under way.
            demand: The load.
            limits: The engine's limits.
        """
        return self.lower.asynchronous * self._wait_s(0, rate, step_s, busy, demand, limits)

    def fetching_s(
        self, rate: Scalar, step_s: Scalar, busy: Scalar, demand: Demand, limits: Limits
    ) -> Scalar:
        """Time that a request waits, before it has a slot, for its prefix to come from the disk.

        The mean over all requests, seconds; zero without a disk. Arguments are those of
        `loading_s`.
        """
        if len(self.shares) == 1:
            return 0.0
        return self._wait_s(1, rate, step_s, busy, demand, limits)

    def _wait_s(
        self,
        place: int,
        rate: Scalar,
        step_s: Scalar,
        busy: Scalar,
        demand: Demand,
        limits: Limits,
    ) -> Scalar:
        """Time that a request waits for its prefix to come up from a tier, mean over all, seconds.

        Of arrivals with a squared variation ``c`` a share ``p`` by chance has ``1 + p (c - 1)``,
        and waits in line for half of that times ``u L / (1 - u)`` (Kingman; Pollaczek and Khinchine
        for ``c = 1``), where the link is busy a share ``u`` with loads of ``L`` seconds. A busy
        engine takes notice at the end of a step: at least one goes by, and half of another is the
        mean of what is left, and one more where the next is formed already.
        """
        share, link_s = self.shares[place], self.links_s[place]
        used = jnp.minimum(rate / self._most(place, limits.ranks), FULLEST)
        arrivals = jnp.where(demand.closed, 1.0, demand.arrival_cv2)
        varied = 1.0 + share / limits.ranks * (arrivals - 1.0)
        latency_s = self.lower.tiers[place].latency_s
        load = link_s * (1.0 + varied / 2 * used / (1.0 - used)) + latency_s
        noticed = jnp.maximum(load + step_s / 2, step_s) + limits.async_scheduling * step_s
        return share * (load + busy * (noticed - load))


def found_down_to(
    limits: Limits,
    lower: LowerTiers,
    demand: Demand,
    running: Scalar,
    on_gpu: Scalar,
    rate: Scalar = 0.0,
    waited_s: Scalar = 0.0,
) -> tuple[Scalar, ...]:
    """Shares of their prefixes' tokens that requests find down to each tier, the host's first.

    What moves down when it is evicted is in one cache of all sizes together. Copies are in a cache
    of each tier's own size, which all prompts pass, whether those above have them or not.

    Args:
        limits: The engine's limits.
        lower: The tiers.
        demand: The load.
        running: Requests that run.
        on_gpu: Share that they find in the GPU's memory.
        rate: Requests that end, 1/s; of account for turns of conversations alone.
        waited_s: Time that a turn waits until it starts, seconds; likewise.
    """
    prefixes = _prefixes_down_to(limits, lower, demand, running, on_gpu)
    if demand.contexts is None:
        return prefixes
    followed = demand.contexts.followed > 0
    turns, above, blocks = [], on_gpu, limits.kv_blocks
    for tier in lower.tiers:
        blocks = blocks + tier.blocks
        holding = replace(limits, kv_blocks=jnp.where(lower.copies > 0, tier.blocks, blocks))
        above = jnp.maximum(prefix_hits(holding, demand, running, rate, waited_s), above)
        turns.append(above)
    return tuple(jnp.where(followed, *pair) for pair in zip(turns, prefixes, strict=True))


def _prefixes_down_to(
    limits: Limits, lower: LowerTiers, demand: Demand, running: Scalar, on_gpu: Scalar
) -> tuple[Scalar, ...]:
    """Shares of shared prefixes that are found down to each tier."""
    prefixes = demand.prefixes.on(limits.ranks)
    shared = demand.prefixes.tokens / limits.block_size
    prompt = demand.private_tokens / limits.block_size
    ended = prompt + lower.outputs * demand.output_tokens / limits.block_size
    found, above, blocks = [], on_gpu, limits.kv_blocks
    for tier in lower.tiers:
        copied = hits(prefixes, tier.blocks, running, prompt, ended, shared)
        blocks = blocks + tier.blocks
        moved = hits(
            prefixes,
            blocks,
            running,
            private_blocks(limits, demand, demand.age),
            private_blocks(limits, demand, demand.output_tokens),
            shared,
        )
        above = jnp.maximum(jnp.where(lower.copies > 0, copied, moved), above)
        found.append(above)
    return tuple(found)


def loads_of(lower: LowerTiers, demand: Demand, on_gpu: Scalar, found: Sequence[Scalar]) -> Loads:
    """The loads of requests that find so much of their prefixes.

    Args:
        lower: The tiers below the GPU's memory.
        demand: The load, as if all found their prefix.
        on_gpu: Share of the prefixes' tokens that is found in the GPU's memory.
        found: Share that is found down to each tier.
    """
    above, tokens = (on_gpu, *found[:-1]), demand.loadable_tokens
    return Loads(
        tuple(found[-1] - one for one in above),
        tuple(tokens * tier.token_s for tier in lower.tiers),
        lower,
        tokens,
    )
