"""Conversations of a replay: what each turn's prompt is made of, and which turn is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from physim.inputs.lengths import Tokens, lengths
from physim.replay.segment import Segment
from physim.service.phases import decode_steps


class TurnPrompt(NamedTuple):
    """The prompt of a turn.

    Attributes:
        input_tokens: Its tokens: all that was said before, and the new ones.
        output_tokens: Tokens of the answer.
        path: What it and the answer are made of, from the front.
    """

    input_tokens: int
    output_tokens: int
    path: tuple[Segment, ...]


def turn_prompts(
    system: Sequence[Segment],
    system_tokens: int,
    turns: Sequence[tuple[int, int]],
    max_model_len: int,
    block_size: int,
) -> Iterator[TurnPrompt]:
    """The prompts of a conversation's turns, one after the other.

    A turn that would be too long starts the conversation afresh; the answer of a first one ends
    where it is.

    Args:
        system: What all conversations begin with,
        system_tokens: and how many tokens that is.
        turns: New tokens of each turn, and of its answer.
        max_model_len: Tokens that a prompt and its answer have at most.
        block_size: Tokens of a KV block.
    """
    said, tokens = tuple(system), system_tokens
    for new, output in turns:
        if tokens + new + output > max_model_len:
            said, tokens = tuple(system), system_tokens
        prompt = min(tokens + new, max_model_len - 1)
        answer = min(output, max_model_len - prompt)
        # The last token of an answer is never computed, so its block may not be full.
        start = said[-1].end * block_size if said else 0
        said = (*said, Segment(start, prompt + decode_steps(answer), block_size))
        tokens = prompt + answer
        yield TurnPrompt(prompt, answer, said)


def first_turns(
    rng: np.random.Generator, turns: Tokens, requests: int
) -> Int[np.ndarray, " conversations"]:
    """Numbers of the requests that begin a conversation, of so many in a row.

    The last conversation may be cut short.

    Args:
        rng: Where chance comes from.
        turns: Turns of a conversation.
        requests: How many requests there are.
    """
    counts = lengths(turns).sample(rng, requests)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return starts[starts < requests]
