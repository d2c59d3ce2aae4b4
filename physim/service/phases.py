"""What a request does at a pool: its prompt is computed at one, its answer generated at one.

Numbers may be of one request or arrays of many, in NumPy or JAX.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from physim.types import Number

PHASES = PREFILL, DECODE = "prefill", "decode"


def decode_steps(tokens: Number) -> Number:
    """Steps in which a request decodes: the first of its tokens comes of the prompt.

    Args:
        tokens: Tokens that it is given.
    """
    return tokens - 1


@dataclass(frozen=True)
class Visit:
    """What a request does at a pool.

    A request that comes with the keys and values of its prompt computes one token at first, the
    last that it was given or that the prompt has, as it does in every step that follows.

    Attributes:
        context: Tokens that it has in the KV cache when it starts.
        computed: Tokens that are computed of it before it decodes.
        given: Tokens that it is given, the first by the step that computes the last of these.
        query_tokens: Tokens of it that a step computes in which it decodes.
    """

    context: Number
    computed: Number
    given: Number
    query_tokens: Number = 1

    @property
    def kv_tokens(self) -> Number:
        """Tokens that it holds in the KV cache at its end."""
        return self.context + self.computed + decode_steps(self.given)


def visit(
    phases: Collection[str],
    input_tokens: Number,
    cached_tokens: Number,
    output_tokens: Number,
    hands_first_token: bool = True,
) -> Visit:
    """What a request does at a pool that runs some phases.

    Args:
        phases: Those that the pool runs, of `PHASES`.
        input_tokens: Prompt tokens.
        cached_tokens: Of them, found in the prefix cache.
        output_tokens: Generated tokens.
        hands_first_token: Whether the token that the prompt gave comes to the pool that decodes;
            else the last token of the prompt is computed there again, and gives it.
    """
    new = input_tokens - cached_tokens
    if DECODE not in phases:
        return Visit(cached_tokens, new, output_tokens / output_tokens)
    if PREFILL not in phases:
        if hands_first_token:
            return Visit(input_tokens, new / new, decode_steps(output_tokens))
        return Visit(input_tokens - 1, new / new, output_tokens)
    return Visit(cached_tokens, new, output_tokens)
