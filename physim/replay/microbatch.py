"""Requests of a rank that decode together, and the prompts that a step computes with them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from physim.replay.workload import Request


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


class Microbatch:
    """Requests that decode together, step for step, and the prompts that a step computes with them.

    They age together: a count of decode steps stands for all their ages.

    Attributes:
        age: That count.
        decoding: How many they are.
        context: Their tokens before the next step, summed.
        chunks: Chunks of prompts in the step that was formed last.
        decodes: Whether requests decode in it.
        has_blocks: Whether those that decode have been given the blocks that they need for it.
    """

    def __init__(self, block_size: int) -> None:
        self.age = 0
        self.decoding = 0
        self.context = 0
        self.chunks: list[PromptChunk] = []
        self.decodes = True
        self.has_blocks = False
        self._members: set[Request] = set()
        # By age, when requests finish, and how many need a new block next.
        self._finishing: list[tuple[int, int, Request]] = []
        self._phases = [0] * block_size

    @property
    def tokens(self) -> int:
        """Tokens of the step that was formed last."""
        return self.stepping + sum(chunk.tokens for chunk in self.chunks)

    @property
    def stepping(self) -> int:
        """Requests that decode in the step that was formed last."""
        return self.decoding if self.decodes else 0

    def __contains__(self, request: Request) -> bool:
        """Whether a request decodes here."""
        return request in self._members

    def join(self, request: Request) -> None:
        """A request whose prompt is computed begins to decode."""
        self._members.add(request)
        # The age at which it would have begun with no token generated.
        request.began = self.age - request.generated
        self.decoding += 1
        self.context += request.computed
        self._phases[(request.computed - self.age) % len(self._phases)] += 1
        ends = request.began + request.output_tokens
        heappush(self._finishing, (ends, request.number, request))

    def leave(self, request: Request) -> None:
        """A request decodes no more; its counts of tokens are brought up to date."""
        self._members.remove(request)
        request.ahead = self.blocks_for(request) if self.has_blocks else 0
        new = self.tokens_since(request)
        request.generated += new
        request.computed += new
        self.decoding -= 1
        self.context -= request.computed
        self._phases[(request.computed - self.age) % len(self._phases)] -= 1

    def tokens_since(self, request: Request) -> int:
        """Tokens that a request has generated since its counts were last brought up to date."""
        return self.age - request.began - request.generated

    def ran(self, steps: int) -> None:
        """Steps have run."""
        self.has_blocks = False
        if not self.decodes:
            return
        self.age += steps
        self.context += steps * self.decoding

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
        return request in self and request.began + request.output_tokens == age

    def blocks_for(self, request: Request) -> int:
        """Blocks that a request needs for the next step."""
        return int((request.computed + self.tokens_since(request)) % len(self._phases) == 0)

    def blocks_of_next_step(self) -> int:
        """Blocks that decoding requests need for the next step."""
        return self._phases[-self.age % len(self._phases)]

    def blocks_after(self, steps: int) -> int:
        """Blocks that they need for some steps after the next."""
        rounds, rest = divmod(steps, len(self._phases))
        more = (self._phases[-(self.age + 1 + i) % len(self._phases)] for i in range(rest))
        return rounds * self.decoding + sum(more)

    def most_steps(self, free: int) -> int:
        """Decode-only steps until a request finishes or there may be too few blocks.

        Args:
            free: Blocks beside those of the next step.
        """
        while not self._finishes(self._finishing[0][2], self._finishing[0][0]):
            heappop(self._finishing)
        steps = self._finishing[0][0] - self.age
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
