"""What a replay is told of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from physim.errors import InputError
from physim.models.parallelism import Parallelism
from physim.service.draft import Draft, drafted
from physim.service.kv_store import KVStore
from physim.service.phases import DECODE, PHASES, decode_steps
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
        draft: What proposes tokens; None where each step makes a token.
        padded_tokens: Tokens of the largest step in which all ranks compute as many tokens as the
            fullest.
        prefix_caching: Whether blocks of known content are found again.
        front_end_s: Time before a request reaches the scheduler, seconds.
        front_end_per_token_s: What each prompt token adds to it, seconds.
        output_s: Time from the end of a step until its tokens are out, seconds; the engine does
            not wait for it.
        output_per_request_s: What each request that the step gives tokens adds to it, seconds.
        output_steps: What is added to it, in units of steps when requests arrive.
        output_per_token_s: Time that every token of a request adds to that of the others, seconds.
        warm_up_s: Time before its first step, seconds.

    Raises:
        InputError: A step has no room for the tokens that it verifies of one request.
    """

    sizes: Sizes
    kv: KVStore
    policy: Policy = field(default_factory=Policy)
    parallelism: Parallelism = field(default_factory=Parallelism)
    phases: tuple[str, ...] = PHASES
    draft: Draft | None = None
    padded_tokens: float = 0.0
    prefix_caching: bool = True
    front_end_s: float = 0.0
    front_end_per_token_s: float = 0.0
    output_s: float = 0.0
    output_per_request_s: float = 0.0
    output_steps: float = 0.0
    output_per_token_s: float = 0.0
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.slots:
            raise InputError(
                "max_num_batched_tokens",
                f"{self.sizes.max_num_batched_tokens} are fewer than the {self.query_tokens} tokens"
                " that a step verifies of a request",
                "raise it or propose fewer",
            )

    @property
    def query_tokens(self) -> int:
        """Tokens of each decoding request that a step computes."""
        return 1 + (drafted(self.draft) if DECODE in self.phases else 0)

    @property
    def slots(self) -> int:
        """Requests of a rank that may run at once.

        Where prompts share a step with them, no more than a step verifies all drafts of. An engine
        would let more run, which then wait for their turn to decode.
        """
        most, budget = self.sizes.max_num_seqs, self.sizes.max_num_batched_tokens
        shared = self.query_tokens > 1 and not self.policy.prompts_apart
        return min(most, budget // self.query_tokens) if shared else most

    @property
    def makes_room_first(self) -> bool:
        """Whether it makes room for requests whose prompts are yet to be computed elsewhere."""
        return self.policy.reserved_tokens is not None and self.phases == (DECODE,)

    def most_blocks(self, input_tokens: int, output_tokens: int) -> int:
        """KV blocks that a request comes to need, at most.

        Args:
            input_tokens: Tokens of its prompt.
            output_tokens: Tokens that it is given.
        """
        # Where none decodes they leave with their first token.
        steps = decode_steps(output_tokens) if DECODE in self.phases else 0
        tokens = input_tokens + steps
        # Its last step may begin with one token missing, and computes all that are proposed.
        computed = tokens + self.query_tokens - 1 if steps else tokens
        slots = min(computed, max(self.sizes.max_model_len, tokens))
        return -(-slots // self.kv.block_size) + self.kv.fixed_blocks(tokens)

    @property
    def kv_blocks(self) -> int:
        """KV blocks of all ranks."""
        return self.parallelism.dp * self.kv.blocks
