"""What a replay is told of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from physim.models.parallelism import Parallelism
from physim.service.kv_store import KVStore
from physim.service.phases import PHASES
from physim.service.policy import Policy
from physim.service.sizes import Sizes


@dataclass(frozen=True)
class ReplayConfig:
    """A server without its step times, and what a request spends outside of steps.

    Attributes:
        sizes: What the engine allows each of its data-parallel ranks.
        kv: The KV cache of each rank.
        policy: How the engine schedules.
        parallelism: How GPUs share the model.
        phases: What requests do there: without decode they leave with their first token.
        prefix_caching: Whether blocks of known content are found again.
        front_end_s: Time before a request reaches the scheduler, seconds.
        front_end_per_token_s: What each prompt token adds to it, seconds.
        output_s: Time from the end of a step until its tokens are out, seconds; the engine does
            not wait for it.
        output_steps: What is added to it, in units of the step that gave the first token.
        output_per_token_s: Time that every token of a request adds to that of the others, seconds.
        warm_up_s: Time before its first step, seconds.
    """

    sizes: Sizes
    kv: KVStore
    policy: Policy = field(default_factory=Policy)
    parallelism: Parallelism = field(default_factory=Parallelism)
    phases: tuple[str, ...] = PHASES
    prefix_caching: bool = True
    front_end_s: float = 0.0
    front_end_per_token_s: float = 0.0
    output_s: float = 0.0
    output_steps: float = 0.0
    output_per_token_s: float = 0.0
    warm_up_s: float = 0.0

    @property
    def kv_blocks(self) -> int:
        """KV blocks of all ranks."""
        return self.parallelism.dp * self.kv.blocks
