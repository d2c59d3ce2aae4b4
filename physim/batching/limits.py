"""A server's limits as numbers, for ``vmap``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp

from physim.batching.guards import SMALL
from physim.engines.host_memory import ASYNCHRONOUS, LAYERED
from physim.pytree import Pytree
from physim.service.kv_store import KVStore
from physim.service.server import Server
from physim.types import Scalar


class LowerTier(Pytree):
    """A tier below the KV cache of all ranks: the host's memory, or a disk.

    Attributes:
        blocks: KV blocks that it has room for.
        latency_s: Time until the first block of a load is there, seconds.
        token_s: Time in which a token's keys and values come up to the tier above, seconds.
    """

    blocks: Scalar = 0.0
    latency_s: Scalar = 0.0
    token_s: Scalar = 0.0


class LowerTiers(Pytree):
    """The tiers below the KV cache of all ranks, and how the engine uses them.

    Attributes:
        tiers: The host's memory, and a disk below it if there is one.
        copies: Whether they have copies of what is computed, else what the GPU evicts, 0 or 1.
        outputs: Whether they have generated tokens too, 0 or 1.
        asynchronous: Whether requests wait for loads from the host while others' steps run, 0 or 1.
        layered: Whether loads with a step go on while it is computed, 0 or 1.
    """

    tiers: tuple[LowerTier, ...]
    copies: Scalar = 1.0
    outputs: Scalar = 0.0
    asynchronous: Scalar = 1.0
    layered: Scalar = 0.0

    def padded(self, number: int) -> LowerTiers:
        """The same with so many tiers, the last of them empty.

        Args:
            number: How many, at least as many as there are.
        """
        empty = (LowerTier(),) * (number - len(self.tiers))
        return replace(self, tiers=(*self.tiers, *empty))


class Limits(Pytree):
    """What an engine allows, of all its data-parallel ranks and pipeline stages together.

    Attributes:
        max_num_seqs: Requests that may run at once.
        max_num_batched_tokens: Tokens of the steps that are under way together.
        max_model_len: Longest context, tokens.
        kv_blocks: KV blocks of the layers whose keys and values grow with the context.
        block_size: Tokens of a KV block.
        async_scheduling: Whether a step is scheduled while the one before it runs, 0 or 1.
        whole_prompts: Whether a prompt starts only if all of it has KV blocks.
        whole_requests: Whether a prompt starts only if its answer has KV blocks too.
        prompts_apart: Whether prompts have steps of their own, in which nothing decodes.
        receive_every: Steps that only decode between two looks at what has arrived.
        window_share: KV blocks that layers with a window fill for each that the others do.
        window: Tokens up to which they do so; 0 where no layer has a window.
        state_blocks: KV blocks that a request holds whatever its length.
        query_tokens: Tokens of each decoding request that a step computes.
        ranks: Ranks with batches of their own.
        stages: Stages of layers between which requests are shared out.
        prompt_token_s: Time of each token of a prompt in the API server, seconds.
        lower: The tiers below the KV cache. None where no server has any, for which less is
            compiled.
    """

    max_num_seqs: Scalar
    max_num_batched_tokens: Scalar
    max_model_len: Scalar
    kv_blocks: Scalar
    block_size: Scalar = KVStore.block_size
    async_scheduling: Scalar = True
    whole_prompts: Scalar = False
    whole_requests: Scalar = False
    prompts_apart: Scalar = False
    receive_every: Scalar = 1
    window_share: Scalar = 0.0
    window: Scalar = 0.0
    state_blocks: Scalar = 0.0
    query_tokens: Scalar = 1
    ranks: Scalar = 1
    stages: Scalar = 1
    prompt_token_s: Scalar = 0.0
    lower: LowerTiers | None = None

    def most_on_rank(self, running: Scalar) -> Scalar:
        """Most of the requests that run that one rank has: each goes to the rank with the fewest.

        Args:
            running: Most requests that run at once.
        """
        return jnp.ceil(running / self.ranks - SMALL)

    @classmethod
    def from_server(cls, server: Server) -> Limits:
        """The limits of a server.

        Args:
            server: The server, whose sizes and KV cache are those of a rank.
        """
        sizes, policy, kv, layout = server.sizes, server.policy, server.kv, server.parallelism
        dp, pp = layout.dp, layout.pp
        return cls(
            max_num_seqs=dp * sizes.max_num_seqs,
            max_num_batched_tokens=dp * pp * sizes.max_num_batched_tokens,
            max_model_len=sizes.max_model_len,
            kv_blocks=dp * kv.blocks,
            block_size=kv.block_size,
            async_scheduling=policy.async_scheduling,
            whole_prompts=policy.whole_prompts,
            whole_requests=policy.whole_requests,
            prompts_apart=policy.prompts_apart,
            receive_every=policy.receive_every,
            window_share=kv.window_share,
            window=kv.window,
            state_blocks=kv.state_blocks,
            query_tokens=server.query_tokens,
            ranks=dp,
            stages=pp,
            prompt_token_s=server.profile.prompt_token_s,
            lower=_lower_tiers(server),
        )

    @classmethod
    def alike(cls, limits: Sequence[Limits]) -> list[Limits]:
        """The same of one shape: as many lower tiers as any server has, the others' empty."""
        most = max((len(one.lower.tiers) for one in limits if one.lower), default=0)
        if not most:
            return list(limits)
        return [replace(one, lower=(one.lower or LowerTiers(())).padded(most)) for one in limits]


def _lower_tiers(server: Server) -> LowerTiers | None:
    kv = server.kv
    if kv.host is None:
        return None
    return LowerTiers(
        tiers=tuple(
            LowerTier(
                blocks=float(server.parallelism.dp * tier.blocks),
                latency_s=tier.latency_s,
                token_s=kv.load_block_s(tier) / kv.block_size,
            )
            for tier in kv.tiers[1:]
        ),
        copies=float(kv.host_memory.copies),
        outputs=float(kv.host_memory.outputs),
        asynchronous=float(kv.host_memory.loads == ASYNCHRONOUS),
        layered=float(kv.host_memory.loads == LAYERED),
    )
