"""How an engine schedules its requests."""

from __future__ import annotations

from dataclasses import dataclass

# So few slots are thrice as many for those that have room and run together (SGLang,
# model_executor/model_runner.py: pre_alloc_size).
_FEW_SLOTS, _TIMES = 32, 3


@dataclass(frozen=True)
class Policy:
    """How an engine schedules.

    Attributes:
        admission: What must have KV blocks for a prompt to start, of
            `physim.engines.profile.ADMISSIONS`.
        prompts_apart: Whether prompts have steps of their own, in which nothing decodes.
        receive_every: Steps that only decode between two looks at what has arrived.
        async_scheduling: Whether a step is scheduled while the one before it runs.
        hands_first_token: Whether a server that computes prompts for another hands their first
            tokens on with the KV blocks; else the other computes the last token of a prompt again.
        reserved_tokens: Tokens that a server that decodes keeps free for each of its requests when
            it makes room for one whose prompt is yet to be computed elsewhere, and which waits for
            that room; None where it makes room once the prompt is computed.
    """

    admission: str = "chunk"
    prompts_apart: bool = False
    receive_every: int = 1
    async_scheduling: bool = True
    hands_first_token: bool = True
    reserved_tokens: int | None = None

    @property
    def whole_prompts(self) -> bool:
        """Whether a prompt starts only if all of it has KV blocks, not just its first chunk."""
        return self.admission == "prompt"

    @property
    def whole_requests(self) -> bool:
        """Whether a prompt starts only if its answer has KV blocks too, which are kept for it."""
        return self.admission == "request"


def places_of(slots: int) -> int:
    """Requests that may have room on a rank or run there, where room is made ahead.

    Args:
        slots: Requests that may run there.
    """
    return _TIMES * slots if slots <= _FEW_SLOTS else slots
