"""How much of a trace's prompts a prefix cache of some size finds, from when blocks come again.

What a cache that evicts the least recently used holds is what was touched last. In a window of
``T`` tokens that requests touch there are on average

    w(T) = integral from 0 to T of m(t) dt

different ones, where ``m(t)`` is the share of the touched tokens that were not touched within ``t``
before (Denning and Schwartz, Properties of the working-set model, CACM 15(3), 1972). So a block is
found if what was touched since, by ``w``, has room beside it: Che's approximation with the times
between uses that a trace has, whatever they go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from physim.inputs.request_traces import BLOCK_TOKENS, RequestTrace

Blocks = Float[np.ndarray, " blocks"]
Requests = Float[np.ndarray, " requests"]


@dataclass(frozen=True)
class Reuse:
    """When the blocks of a trace's prompts come again. Counts are of tokens.

    Attributes:
        input_tokens: Prompt tokens of each request.
        request: Of each block of each prompt, the request, by its place in the trace.
        ends: Where in the prompt the block ends.
        between: Tokens that requests touch between its uses: infinite for the first.
        windows: Lengths of windows, from short to long, and
        different: how many different tokens are touched in each, mean.
    """

    input_tokens: Requests
    request: Int[np.ndarray, " blocks"]
    ends: Blocks
    between: Blocks
    windows: Float[np.ndarray, " windows"]
    different: Float[np.ndarray, " windows"]

    @classmethod
    def from_trace(cls, trace: RequestTrace) -> Reuse:
        """The reuse of a trace that names the blocks of prompts; of another, there is none.

        Args:
            trace: The trace, in the order in which its requests came.
        """
        blocks = trace.blocks or [[] for _ in trace.input_tokens]
        return cls.from_prompts(trace.input_tokens, trace.output_tokens, blocks, BLOCK_TOKENS)

    @classmethod
    def from_prompts(
        cls,
        input_tokens: Requests,
        output_tokens: Requests,
        blocks: Sequence[Sequence[int]],
        block_tokens: int,
    ) -> Reuse:
        """The reuse of prompts.

        Args:
            input_tokens: Prompt tokens of each request,
            output_tokens: and generated ones, which no other request asks for.
            blocks: Names of what each prompt is made of, from its front; the last may not be full,
                and what is beyond them no other request asks for.
            block_tokens: Tokens of such a block.
        """
        touched = input_tokens + output_tokens
        starts = np.cumsum(touched) - touched
        ends, between, again, sizes, of_request = [], [], [], [], []
        last: dict[tuple[int, int], int] = {}
        for number, names in enumerate(blocks):
            for place, name in enumerate(names):
                end = min((place + 1) * block_tokens, input_tokens[number])
                before = last.get((place, name))
                last[place, name] = number
                of_request.append(number)
                ends.append(end)
                sizes.append(max(end - place * block_tokens, 0.0))
                if before is None:
                    again.append(np.inf)
                    between.append(np.inf)
                else:
                    again.append(starts[number] - starts[before])
                    between.append(starts[number] - starts[before] - touched[before])
        windows, different = _working_sets(
            np.array(again, float), np.array(sizes, float), float(touched.sum())
        )
        return cls(
            np.asarray(input_tokens, float),
            np.array(of_request, int),
            np.array(ends, float),
            np.array(between, float),
            windows,
            different,
        )

    def found_tokens(self, cache_tokens: float) -> Requests:
        """Tokens that each prompt finds in a cache, of full blocks of the trace.

        Args:
            cache_tokens: Tokens that the cache has room for.
        """
        held = np.interp(self.between, self.windows, self.different)
        there = np.isfinite(self.between) & (held + self.ends <= cache_tokens)
        found = np.zeros(len(self.input_tokens))
        found_in_a_row = _leading(there, self.request)
        np.maximum.at(found, self.request[found_in_a_row], self.ends[found_in_a_row])
        return np.minimum(found, self.input_tokens - 1.0)

    def hit_rate(self, cache_tokens: float) -> float:
        """Share of the prompt tokens that are found in a cache.

        Args:
            cache_tokens: Tokens that the cache has room for.
        """
        return float(self.found_tokens(cache_tokens).sum() / self.input_tokens.sum())


def _working_sets(
    again: Blocks, sizes: Blocks, touched: float
) -> tuple[Float[np.ndarray, " windows"], Float[np.ndarray, " windows"]]:
    """Windows, and different tokens in each: the integral of what was not touched within them.

    Args:
        again: Tokens that are touched from one use of a block to the next.
        sizes: Tokens of each block.
        touched: Tokens that are touched in all.
    """
    order = np.argsort(again, kind="stable")
    times, weights = again[order], sizes[order] / touched
    known = np.isfinite(times)
    times, weights = times[known], weights[known]
    windows = np.concatenate([[0.0], times, [touched]])
    missed = 1.0 - np.concatenate([[0.0], np.cumsum(weights)])
    return windows, np.concatenate([[0.0], np.cumsum(np.diff(windows) * missed)])


def _leading(
    there: Bool[np.ndarray, " blocks"], request: Int[np.ndarray, " blocks"]
) -> Bool[np.ndarray, " blocks"]:
    """Which blocks are there with all before them in their prompt."""
    missed = np.cumsum(~there)
    # Of each request, what was missed before its first block.
    first = np.searchsorted(request, request)
    before = missed[first] - ~there[first]
    leading: Bool[np.ndarray, " blocks"] = missed == before
    return leading
