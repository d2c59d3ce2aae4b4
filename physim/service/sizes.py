"""How much one data-parallel rank of an engine takes at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """What an engine allows each of its data-parallel ranks.

    Attributes:
        max_num_seqs: Requests that may run at once.
        max_num_batched_tokens: Tokens of one step.
        max_model_len: Longest context, tokens.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
