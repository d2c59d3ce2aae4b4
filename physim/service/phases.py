"""What a request does at a pool: its prompt is computed at one, its answer generated at one.

Numbers may be of one request or arrays of many, in NumPy or JAX.
"""

from __future__ import annotations

from dataclasses import dataclass

from physim.types import Number

PHASES = PREFILL, DECODE = "prefill", "decode"


def decode_steps(output_tokens: Number) -> Number:
    """Tokens of an answer that decode gives: the first comes of the prompt.

    Args:
        output_tokens: Generated tokens.
    """
    return output_tokens - 1


@dataclass(frozen=True)
class Phase:
    """What a request does at a pool.

    Attributes:
        name: One of `PHASES`.
        computed: Tokens that are computed of it.
        context: Tokens that it has in the KV cache when it starts.
        steps: Steps that it stays.
        query_tokens: Tokens of it that a step computes.
        yielded: Tokens that a step gives.
        kv_tokens: Tokens that it holds in the KV cache at its end.
        handed_on: Tokens whose keys and values it hands on to the next pool.
    """

    name: str
    computed: Number
    context: Number
    steps: Number
    query_tokens: Number
    yielded: Number
    kv_tokens: Number
    handed_on: Number


def phases(
    input_tokens: Number, cached_tokens: Number, output_tokens: Number, chunk: Number
) -> tuple[Phase, Phase]:
    """The phases of a request whose steps give a token each.

    Args:
        input_tokens: Prompt tokens.
        cached_tokens: Of them, found in the prefix cache.
        output_tokens: Generated tokens.
        chunk: Prompt tokens that a step computes of it.
    """
    new = input_tokens - cached_tokens
    decoded = decode_steps(output_tokens)
    prefill = Phase(
        name=PREFILL,
        computed=new,
        context=cached_tokens,
        steps=new / chunk,
        query_tokens=chunk,
        yielded=chunk / new,
        kv_tokens=input_tokens,
        handed_on=input_tokens,
    )
    decode = Phase(
        name=DECODE,
        computed=decoded,
        context=input_tokens,
        steps=decoded,
        query_tokens=1,
        yielded=1,
        kv_tokens=input_tokens + decoded,
        handed_on=0,
    )
    return prefill, decode
