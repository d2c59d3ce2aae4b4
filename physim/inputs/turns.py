"""Turns of conversations: requests whose prompts hold all that was said before them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from physim.inputs.lengths import Tokens, lengths
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.request_points import Requests
from physim.service.phases import decode_steps

# Requests of a sample, about, and conversations of it at least and at most: enough that hit rates
# of tests/test_conversations.py move by less than 0.002 with twice as many.
_REQUESTS, _FEWEST, _MOST = 2**14, 32, 2**12


@dataclass(frozen=True, eq=False)
class TurnSample:
    """The turns of some conversations, which stand for all and are all as likely.

    What is kept of one is kept for itself alone, as `sample_turns` gives it.

    Attributes:
        input_tokens: Prompt tokens of each: all that was said before, and the new ones.
        known_tokens: Of them, those whose keys and values the turn before left behind; of a first
            turn, those of the prefix that all conversations begin with.
        output_tokens: Generated tokens of each.
        number: Its place in its conversation, from 1 on.
        followed: Whether another turn of its conversation comes after it.
        prefix_tokens: Tokens that all conversations begin with.
        asked_tokens: Of the known tokens, those of the prompt before, which is all that a server
            that does not generate has computed.
    """

    input_tokens: Requests
    known_tokens: Requests
    output_tokens: Requests
    number: Int[np.ndarray, " requests"]
    followed: Bool[np.ndarray, " requests"]
    prefix_tokens: float
    asked_tokens: Requests

    @property
    def without_answers(self) -> TurnSample:
        """The same prompts where no answer is generated, so that none is left behind."""
        ones = np.ones_like(self.output_tokens)
        return replace(self, known_tokens=self.asked_tokens, output_tokens=ones)

    @property
    def mean_turns(self) -> float:
        """Turns of a conversation, mean."""
        return len(self.followed) / float(np.sum(~self.followed))

    @property
    def met_turns(self) -> float:
        """Turns of the conversation that a turn is of, mean over turns: long ones have more."""
        return 2.0 * float(np.mean(self.number)) - 1.0

    @property
    def mean_input(self) -> float:
        """Prompt tokens of a turn, mean over all turns."""
        return float(np.mean(self.input_tokens))

    @property
    def context(self) -> Requests:
        """Tokens whose keys and values each turn leaves behind."""
        kept: Requests = self.input_tokens + decode_steps(self.output_tokens)
        return kept

    def found_tokens(self, block_size: int) -> Requests:
        """Tokens that each turn finds where nothing was evicted: those of full blocks.

        Args:
            block_size: Tokens of a KV block.
        """
        found: Requests = np.minimum(self.known_tokens, self.input_tokens - 1.0)
        return found // block_size * block_size

    def prefix_found(self, block_size: int) -> float:
        """Tokens that a turn finds whose conversation was evicted: those of the prefix alone."""
        return self.prefix_tokens // block_size * block_size

    def known_on(self, ranks: int) -> float:
        """Tokens that a turn finds where each goes to one of some ranks, by chance; mean.

        It finds what the last turn left there that ran on the same rank.

        Args:
            ranks: How many ranks there are, each with a cache of its own.
        """
        before = np.full(int(np.sum(self.number == 1)), self.prefix_tokens)
        total = 0.0
        for turn in range(1, int(self.number.max()) + 1):
            rows = self.number == turn
            known = before + (self.known_tokens[rows] - before) / ranks
            total += float(known.sum())
            # Those that have a next turn are in the order in which these are.
            before = known[self.followed[rows]]
        return total / len(self.number)

    def requests(self, cached_tokens: Requests) -> RequestLengths:
        """The turns as joint lengths.

        Args:
            cached_tokens: Of each prompt, what is found in the prefix cache.
        """
        columns = self.input_tokens, self.output_tokens, cached_tokens
        return RequestLengths.from_columns(*columns, name="turns")


@functools.lru_cache(maxsize=64)
def sample_turns(
    turns: Tokens, input_tokens: Tokens, output_tokens: Tokens, prefix_tokens: float
) -> TurnSample:
    """The turns of conversations whose lengths say nothing of each other.

    The means of new tokens, outputs and numbers of turns are exact; which of them go together is
    drawn once and for all.

    Args:
        turns: Turns of a conversation: a number, of which the part is the share of conversations
            with one more, or a distribution.
        input_tokens: Prompt tokens of a first turn, and with ``prefix_tokens`` less new ones of the
            others.
        output_tokens: Generated tokens of a turn.
        prefix_tokens: Tokens that all conversations begin with.
    """
    inputs, outputs, numbers = (lengths(one) for one in (input_tokens, output_tokens, turns))
    count = math.ceil(_REQUESTS / numbers.mean)
    count = 2 ** math.ceil(math.log2(min(max(count, _FEWEST), _MOST)))
    alike = inputs.alike and outputs.alike
    if numbers.alike and not numbers.mean % 1.0:
        last = np.full(1 if alike else count, round(numbers.mean))
    elif numbers.alike:
        last = np.floor(numbers.mean + (np.arange(count) + 0.5) / count).astype(int)
    else:
        last = np.rint(_parts(numbers.fine, count)).astype(int)
    rng = np.random.default_rng(0)
    own, answers = (_parts(one.fine, len(last)) for one in (inputs, outputs))
    own = np.maximum(own, prefix_tokens + 1.0) - prefix_tokens
    context, known = np.full(len(last), prefix_tokens), np.full(len(last), prefix_tokens)
    asked = known
    columns: list[list[Any]] = [[], [], [], [], [], []]
    for turn in range(1, int(last.max()) + 1):
        new, output = rng.permutation(own), rng.permutation(answers)
        there, prompt = last >= turn, context + new
        number = np.full(len(last), turn)
        every = prompt, known, output, number, last > turn, asked
        for column, values in zip(columns, every, strict=True):
            column.append(values[there])
        context, known, asked = prompt + output, prompt + decode_steps(output), prompt
    prompts, founds, answered, places, followed, asks = map(np.concatenate, columns)
    return TurnSample(prompts, founds, answered, places, followed, prefix_tokens, asks)


def _parts(fine: Float[np.ndarray, " points"], count: int) -> Requests:
    """Means of so many equal parts of lengths in order."""
    means: Requests = fine.reshape(count, -1).mean(axis=1)
    return means
