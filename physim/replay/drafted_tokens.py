"""Requests of a rank that decode with drafts: a step gives each as many tokens as are accepted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from physim.replay.microbatch import Microbatch
from physim.replay.request import Request
from physim.replay.step_times import StepTimes
from physim.service.draft import Draft

# Ages for which there is room at first.
_ROOM = 1024


class _Course(NamedTuple):
    """What comes of a request while it decodes, drawn when it begins.

    Attributes:
        began: Age of its batch at its first step.
        tokens: Tokens that it has been given after each count of its steps, from none on.
        blocks: Blocks that it has then.
    """

    began: int
    tokens: Int[np.ndarray, " counts"]
    blocks: Int[np.ndarray, " counts"]


class _Coming:
    """Numbers that belong to ages from now on, summed over requests."""

    def __init__(self) -> None:
        self._numbers = np.zeros(_ROOM, np.int64)
        self._first = 0

    def add(self, age: int, numbers: Int[np.ndarray, " ages"]) -> None:
        """Adds numbers from an age on, which is never less than at the call before."""
        start = age - self._first
        end = start + len(numbers)
        if end > len(self._numbers):
            still = self._numbers[start:]
            self._numbers = np.zeros(2 * max(len(still), len(numbers)), np.int64)
            self._numbers[: len(still)] = still
            self._first, start, end = age, 0, len(numbers)
        self._numbers[start:end] += numbers

    def of_steps(self, age: int, steps: int) -> Int[np.ndarray, " steps"]:
        """The numbers of some steps from an age on, as far as any request goes."""
        start = age - self._first
        return self._numbers[start : start + steps]

    def sum(self, age: int, steps: int) -> int:
        """Their sum."""
        return int(self.of_steps(age, steps).sum())


class DraftedTokens(Microbatch):
    """A batch in which a step verifies what a draft proposes of each request.

    A request has KV blocks for all tokens that a step computes of it, whether or not they are
    accepted, and keeps what it took (vLLM, ``vllm/v1/core/sched/scheduler.py``).

    Args:
        draft: What proposes tokens.
        block_size: Tokens of a KV block.
        max_model_len: Longest context, tokens, beyond which nothing is proposed.
        rng: Draws how many are accepted.
    """

    def __init__(
        self, draft: Draft, block_size: int, max_model_len: int, rng: np.random.Generator
    ) -> None:
        super().__init__(draft.tokens + 1)
        self._refused = -np.array(draft.acceptance)
        self._block_size, self._max_model_len = block_size, max_model_len
        self._rng = rng
        self._courses: dict[Request, _Course] = {}
        # Tokens that each step gives, and blocks that each needs.
        self._given, self._needed = _Coming(), _Coming()

    def _enter(self, request: Request) -> int:
        tokens = np.append(0, self._drawn(request.output_tokens - request.generated))
        longest = max(self._max_model_len, request.kv_tokens)
        slots = np.minimum(request.computed + tokens[:-1] + self.query_tokens, longest)
        blocks = -(-np.append(request.computed, slots) // self._block_size)
        self._courses[request] = _Course(self.age, tokens, blocks)
        self._given.add(self.age, np.diff(tokens))
        self._needed.add(self.age, np.diff(blocks))
        return self.age + len(tokens) - 1

    def _drawn(self, lacking: int) -> Int[np.ndarray, " steps"]:
        """Tokens that a request has been given after each of its steps, until it has all."""
        # Each step gives one at least. Of the proposed ones those are accepted, from the first on,
        # whose chance to be accepted with all before them is above a number drawn.
        drawn = -self._rng.random(lacking)
        tokens = np.cumsum(1 + np.searchsorted(self._refused, drawn))
        steps = int(np.searchsorted(tokens, lacking)) + 1
        return np.minimum(tokens[:steps], lacking)

    def _exit(self, request: Request) -> None:
        course = self._courses.pop(request)
        steps = self.age - course.began
        tokens, blocks = course.tokens[steps:], course.blocks[steps:]
        self._given.add(self.age, -np.diff(tokens))
        self._needed.add(self.age, -np.diff(blocks))
        filled = -(-(request.computed + int(tokens[0])) // self._block_size)
        request.ahead = int(blocks[int(self.has_blocks)]) - filled

    def tokens_since(self, request: Request) -> int:
        """Tokens that a request was given since its counts were last brought up to date."""
        course = self._courses[request]
        return int(course.tokens[self.age - course.began])

    def coming(self, steps: int) -> int:
        """Tokens that some steps like the one that was formed last give to all requests."""
        return self._given.sum(self.age, steps) if self.decodes else 0

    def blocks_for(self, request: Request) -> int:
        """Blocks that a request needs for the next step."""
        course = self._courses[request]
        steps = self.age - course.began
        return int(course.blocks[steps + 1] - course.blocks[steps])

    def blocks_of_next_step(self) -> int:
        """Blocks that decoding requests need for the next step."""
        return self._needed.sum(self.age, 1)

    def blocks_after(self, steps: int) -> int:
        """Blocks that they need for some steps after the next."""
        return self._needed.sum(self.age + 1, steps)

    def most_steps(self, free: int) -> int:
        """Decode-only steps until a request finishes or there may be too few blocks."""
        needed = np.cumsum(self._needed.of_steps(self.age + 1, self.steps_to_next_end() - 1))
        return 1 + int(np.searchsorted(needed, free, side="right"))

    def run(
        self, times: StepTimes, steps: int, until_s: float, others: dict[str, int]
    ) -> tuple[int, float, float]:
        """A run of decode-only steps, each with the context that the one before it leaves."""
        attended, seconds, last = self.attended, 0.0, 0.0
        for number, given in enumerate(self._given.of_steps(self.age, steps).tolist(), 1):
            _, last, _ = times.decode(self.decoding, attended, 1, until_s, **others)
            seconds += last
            if seconds >= until_s:
                return number, seconds, last
            attended += given
        return steps, seconds, last
