"""Where a data-parallel rank of an engine keeps the keys and values of its requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from physim.engines.host_memory import HostMemory


@dataclass(frozen=True)
class KVTier:
    """Memory that holds KV blocks.

    Attributes:
        blocks: KV blocks of the layers whose keys and values grow with the context.
        bandwidth: Of what brings them up to each GPU, bytes/s; infinite for the GPU's own memory.
        latency_s: Time until the first of them is there, seconds.
        size_bytes: What each GPU has of it, bytes, as it was asked for; nothing if it was not.
        write_bandwidth: Of what brings them down from each GPU, bytes/s; infinite if not said.
    """

    blocks: int
    bandwidth: float = math.inf
    latency_s: float = 0.0
    size_bytes: float = 0.0
    write_bandwidth: float = math.inf


@dataclass(frozen=True)
class KVStore:
    """The KV cache of a rank, in tiers: the GPU's memory, below it the host's, below that a disk.

    Attributes:
        tiers: Memories that hold blocks, the fastest first; there need be no more than the GPU's.
        block_size: Tokens of a KV block.
        window_share: KV blocks that layers with a window fill for each that the others do.
        window: Tokens up to which they do so; 0 where no layer has a window.
        state_blocks: KV blocks that a request holds whatever its length, such as those of layers
            that keep a state in the place of keys and values.
        reported_share: KV blocks that the engine reports for each that it has; see
            `physim.engines.profile.EngineProfile.counts_requests`.
        block_bytes: A KV block on a GPU, bytes.
        host_memory: How the engine keeps blocks in the tiers below the GPU's memory.
    """

    tiers: tuple[KVTier, ...]
    block_size: int = 16
    window_share: float = 0.0
    window: float = 0.0
    state_blocks: float = 0.0
    reported_share: float = 1.0
    block_bytes: float = 0.0
    host_memory: HostMemory = field(default_factory=HostMemory)

    @property
    def host(self) -> KVTier | None:
        """The tier below the GPU's memory, if there is one."""
        return self.tiers[1] if len(self.tiers) > 1 else None

    @property
    def disk(self) -> KVTier | None:
        """The tier below the host's memory, if there is one."""
        return self.tiers[2] if len(self.tiers) > 2 else None

    def load_block_s(self, tier: KVTier) -> float:
        """Time in which a block comes up from a tier to the one above it, seconds.

        Args:
            tier: The tier.
        """
        return self.block_bytes / tier.bandwidth

    @property
    def blocks(self) -> int:
        """KV blocks in the GPU's memory."""
        return self.tiers[0].blocks

    @property
    def tokens(self) -> int:
        """Tokens that the GPU's memory holds of the layers that grow."""
        return self.blocks * self.block_size

    @property
    def reported_blocks(self) -> int:
        """KV blocks as the engine reports them: its KV tokens by the tokens of a block."""
        return round(self.blocks * self.reported_share)

    def fixed_blocks(self, tokens: int) -> int:
        """Blocks that a request of a length holds beside those that grow with each token.

        Args:
            tokens: Tokens of its prompt and of its answer.
        """
        if not (self.window_share or self.state_blocks):
            return 0
        # A window is as many whole blocks as its tokens touch.
        seen = min(tokens, self.window + self.block_size) / self.block_size
        return math.ceil(self.window_share * seen + self.state_blocks)
