"""What turns of conversations find where prompts are computed and answers are not.

A turn leaves its prompt there, is answered elsewhere, and is thought about; the next one finds the
prompt unless others took its blocks in the meantime (`physim.batching.contexts`).
"""

from __future__ import annotations

import jax.numpy as jnp

from physim.batching.contexts import Blocks, Contexts, contexts_found
from physim.batching.guards import SMALL
from physim.batching.kv_capacity import blocks_of
from physim.batching.limits import Limits
from physim.batching.prefix_cache import PASSES
from physim.inputs.load import Load
from physim.pytree import Pytree
from physim.service.routers import BY_PREFIX
from physim.service.service import Pool
from physim.types import Scalar

# Times that what is found and the waits that follow from it are gone through, which change more.
EVICTION_PASSES = 2 * PASSES
# A wait beyond which nothing is found, seconds.
LONG_S = 1.0 / SMALL


class PromptCaches(Pytree):
    """The prefix caches of a pool that computes prompts.

    Attributes:
        contexts: What turns leave there.
        limits: Limits of one of its servers.
        servers: How many there are.
        ranks: Caches of which a turn comes to any.
        prompt_tokens: Tokens of a prompt beside what all conversations begin with, mean.
        of_client: Share of the conversations that are one client's; nothing in an open loop.
    """

    contexts: Contexts
    limits: Limits
    servers: Scalar
    ranks: Scalar
    prompt_tokens: Scalar
    of_client: Scalar

    @classmethod
    def of_pool(cls, pool: Pool, load: Load, router: str) -> PromptCaches:
        """Those of a pool under a load of conversations.

        Args:
            pool: The pool.
            load: The load of the service.
            router: How turns are spread over servers, of `physim.service.routers.ROUTERS`.
        """
        limits = Limits.from_server(pool.server)
        turns, block_size = load.turn_sample.without_answers, pool.server.kv.block_size
        comes_back = router in BY_PREFIX
        return cls(
            contexts=Contexts.of_turns(turns, float(load.think_s), block_size),
            limits=limits,
            servers=float(pool.replicas),
            ranks=float(limits.ranks) * (1.0 if comes_back else pool.replicas),
            prompt_tokens=turns.mean_input - turns.prefix_found(block_size),
            of_client=0.0 if load.concurrency is None else 1.0 / load.concurrency,
        )

    def found(self, rate: Scalar, stay_s: Scalar, waited_s: Scalar, away_s: Scalar) -> Scalar:
        """Share of what was said before, beside answers, that turns find.

        Args:
            rate: Requests per second, of all servers.
            stay_s: How long a request holds its blocks, seconds.
            waited_s: Time that a turn waits until it starts, seconds.
            away_s: Time from when its blocks are given up to its answer, seconds.
        """
        own, limits = self.contexts, self.limits
        prefix = own.prefix_tokens / limits.block_size
        blocks = Blocks(
            cache=self.servers * (limits.kv_blocks - limits.ranks * prefix),
            running=rate * stay_s,
            runs=blocks_of(limits, self.prompt_tokens),
            left=blocks_of(limits, own.left_tokens),
            last=blocks_of(limits, own.last_tokens),
            of_client=jnp.asarray(self.of_client),
        )
        # A turn comes back to a cache after several that went to others.
        several = 1.0 / (1.0 - own.followed + own.followed / self.ranks)
        share = contexts_found(own.on(self.ranks), blocks, rate, waited_s, several * away_s)
        return share * own.reached_on(self.ranks)
