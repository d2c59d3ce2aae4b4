"""Requests of a rank that decode together, and the prompts that a step computes with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heappop, heappush
from typing import NamedTuple

from physim.replay.request import Request
from physim.replay.step_times import StepTimes


class PromptChunk(NamedTuple):
    """What a step computes of a prompt.

    Attributes:
        request: The request.
        tokens: Tokens that are computed.
        before: Tokens that were computed before.
        started: Which start of the request's it belongs to.
    """

    request: Request
    tokens: int
    before: int
    started: int


class Microbatch(ABC):
    """Requests that decode together, step for step, and the prompts that a step computes with them.

    They age together: a count of decode steps stands for all their ages.

    Args:
        query_tokens: Tokens of each of them that a step computes.

    Attributes:
        query_tokens: The same.
        age: That count.
        decoding: How many they are.
        context: Their tokens before the next step, summed.
        chunks: Chunks of prompts in the step that was formed last.
        load_s: How long blocks of these prompts take to come up from the host's memory, seconds,
            where that is a part of the step.
        decodes: Whether requests decode in it.
        has_blocks: Whether those that decode have been given the blocks that they need for it.
    """

    def __init__(self, query_tokens: int) -> None:
        self.query_tokens = query_tokens
        self.age = 0
        self.decoding = 0
        self.context = 0
        self.chunks: list[PromptChunk] = []
        self.load_s = 0.0
        self.decodes = True
        self.has_blocks = False
        # The age at which each request ends, and requests by that age.
        self._ends: dict[Request, int] = {}
        self._finishing: list[tuple[int, int, Request]] = []

    @property
    def tokens(self) -> int:
        """Tokens of the step that was formed last."""
        return self.stepping * self.query_tokens + sum(chunk.tokens for chunk in self.chunks)

    @property
    def stepping(self) -> int:
        """Requests that decode in the step that was formed last."""
        return self.decoding if self.decodes else 0

    @property
    def answered(self) -> int:
        """Requests that the step that was formed last gives tokens."""
        answered = self.stepping
        for chunk in self.chunks:
            answered += chunk.before + chunk.tokens == chunk.request.target
        return answered

    @property
    def attended(self) -> int:
        """Tokens that requests attend to in the next step in which they decode, summed."""
        return self.context + self.decoding * self.query_tokens

    def __contains__(self, request: Request) -> bool:
        """Whether a request decodes here."""
        return request in self._ends

    def join(self, request: Request) -> None:
        """A request whose prompt is computed begins to decode."""
        ends = self._enter(request)
        self._ends[request] = ends
        self.decoding += 1
        self.context += request.computed
        heappush(self._finishing, (ends, request.number, request))

    def leave(self, request: Request) -> None:
        """A request decodes no more; its counts of tokens and blocks are brought up to date."""
        del self._ends[request]
        new = self.tokens_since(request)
        self._exit(request)
        request.generated += new
        request.computed += new
        self.decoding -= 1
        self.context -= request.computed

    def ran(self, steps: int) -> None:
        """Steps have run."""
        self.context += self.coming(steps)
        self.age += steps if self.decodes else 0
        self.has_blocks = False

    def finished(self) -> list[Request]:
        """Requests that have all their tokens, which leave."""
        done = []
        while self._finishing and self._finishing[0][0] <= self.age:
            ends, _, request = self._finishing[0]
            if self._finishes(request, ends) and request not in done:
                done.append(request)
            heappop(self._finishing)
        return done

    def _finishes(self, request: Request, age: int) -> bool:
        """Whether a request still decodes here and ends at an age: it may have lost its place."""
        return self._ends.get(request) == age

    def steps_to_next_end(self) -> int:
        """Decode steps until one of the requests ends."""
        while not self._finishes(self._finishing[0][2], self._finishing[0][0]):
            heappop(self._finishing)
        return self._finishing[0][0] - self.age

    @abstractmethod
    def _enter(self, request: Request) -> int:
        """Takes a request in, before it is counted; gives the age at which it ends."""

    @abstractmethod
    def _exit(self, request: Request) -> None:
        """Takes a request out, before its counts of tokens are brought up to date.

        Notes how many blocks it has beside those that its tokens fill.
        """

    @abstractmethod
    def tokens_since(self, request: Request) -> int:
        """Tokens that a request was given since its counts were last brought up to date."""

    @abstractmethod
    def coming(self, steps: int) -> int:
        """Tokens that some steps like the one that was formed last give to all requests."""

    @abstractmethod
    def blocks_for(self, request: Request) -> int:
        """Blocks that a request needs for the next step."""

    @abstractmethod
    def blocks_of_next_step(self) -> int:
        """Blocks that decoding requests need for the next step."""

    @abstractmethod
    def blocks_after(self, steps: int) -> int:
        """Blocks that they need for some steps after the next."""

    @abstractmethod
    def most_steps(self, free: int) -> int:
        """Decode-only steps until a request finishes or there may be too few blocks.

        Args:
            free: Blocks beside those of the next step.
        """

    @abstractmethod
    def run(
        self, times: StepTimes, steps: int, until_s: float, others: dict[str, int]
    ) -> tuple[int, float, float]:
        """A run of decode-only steps, as `StepTimes.decode` gives it.

        Args:
            times: Step times.
            steps: Most steps, at least one and no more than until a request finishes.
            until_s: Seconds from the run's start.
            others: Tokens of other ranks, ``elsewhere``, if there are any.
        """


class SingleTokens(Microbatch):
    """A batch in which every step gives each request a token.

    Args:
        block_size: Tokens of a KV block.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(query_tokens=1)
        # By age, how many need a new block next.
        self._phases = [0] * block_size

    def _enter(self, request: Request) -> int:
        # The age at which it would have begun with no token generated.
        request.began = self.age - request.generated
        self._phases[self._phase(request)] += 1
        return request.began + request.output_tokens

    def _exit(self, request: Request) -> None:
        request.ahead = self.blocks_for(request) if self.has_blocks else 0
        self._phases[self._phase(request)] -= 1

    def _phase(self, request: Request) -> int:
        """The age, but for whole blocks, at which a request has filled its last block."""
        tokens = request.computed + self.tokens_since(request)
        return (tokens - self.age) % len(self._phases)

    def tokens_since(self, request: Request) -> int:
        """Tokens that a request was given since its counts were last brought up to date."""
        return self.age - request.began - request.generated

    def coming(self, steps: int) -> int:
        """Tokens that some steps like the one that was formed last give to all requests."""
        return steps * self.stepping

    def blocks_for(self, request: Request) -> int:
        """Blocks that a request needs for the next step."""
        return int((request.computed + self.tokens_since(request)) % len(self._phases) == 0)

    def blocks_of_next_step(self) -> int:
        """Blocks that decoding requests need for the next step."""
        return self._phases[-self.age % len(self._phases)]

    def blocks_after(self, steps: int) -> int:
        """Blocks that they need for some steps after the next."""
        size = len(self._phases)
        rounds, rest = divmod(steps, size)
        begin = self.age + 1
        more = [self._phases[-age % size] for age in range(begin, begin + rest)]
        return rounds * self.decoding + sum(more)

    def most_steps(self, free: int) -> int:
        """Decode-only steps until a request finishes or there may be too few blocks."""
        steps = self.steps_to_next_end()
        # Every request takes a block in as many steps as a block has tokens.
        size = len(self._phases)
        rounds = free // self.decoding
        safe, needed = 1 + rounds * size, rounds * self.decoding
        while safe < steps:
            needed += self._phases[-(self.age + safe) % size]
            if needed > free:
                break
            safe += 1
        return min(steps, safe)

    def run(
        self, times: StepTimes, steps: int, until_s: float, others: dict[str, int]
    ) -> tuple[int, float, float]:
        """A run of decode-only steps, all at once."""
        return times.decode(self.decoding, self.attended, steps, until_s, **others)
