"""A table of step times and its look-up, in NumPy alone: what a port to another language does.

The time of a step is a function of four numbers (`AXES`). On each axis there are knots, and between
them time is linear in each of the four: a step's work is nearly a sum of products of them, so that
straight lines need fewer knots than power laws would (docs/simulators.md has the figures, and
docs/simulators the look-up in Go).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from physim.printable import printable

# The arguments of a look-up, in order, with their meaning.
AXES = {
    "decode_requests": "requests that decode a token",
    "decode_context": "tokens that each of them attends to, mean",
    "prefill_tokens": "new prompt tokens, of all prefill chunks",
    "prefill_context": "tokens in the cache before the chunk, mean over new tokens",
}

# The axis that has no end below, by its place.
_OPEN = 3
# Of prompts of a step but the first, of tokens that these have in the cache, and of those beyond
# `FIRST_CACHED`: in a table's metadata.
COSTS = (
    "each_more_prompt_us",
    "each_more_cached_token_us",
    "each_more_cached_token_beyond_us",
)
FIRST_CACHED = 576.0


class Table:
    """Step times at the knots of four axes.

    Args:
        axes: Knots of each axis, rising, in the order of `AXES`.
        seconds: Time of a step at all combinations of knots, seconds.
        parts: Its components by name, likewise; an axis on which one does not depend may have
            length one.
        metadata: What the table is of, and how exact it is.
    """

    def __init__(
        self,
        axes: Sequence[Float[np.ndarray, " _"]],
        seconds: Float[np.ndarray, "a b c d"],
        parts: Mapping[str, Float[np.ndarray, "_ _ _ _"]],
        metadata: Mapping[str, Any],
    ) -> None:
        self.axes = [np.asarray(knots, float) for knots in axes]
        self.seconds = np.asarray(seconds, float)
        self.parts = {
            name: np.broadcast_to(np.asarray(values, float), self.seconds.shape)
            for name, values in parts.items()
        }
        self.metadata = metadata
        self._knots = [knots.tolist() for knots in self.axes]

    def __call__(
        self,
        decode_requests: float,
        decode_context: float,
        prefill_tokens: float,
        prefill_context: float,
    ) -> float:
        """Time of a step, seconds.

        Beyond the ends of an axis the end holds, but for a prefill context below the first knot,
        which stands for several prompts (see `prefill_context`): there the line through the first
        two knots goes on.

        Args:
            decode_requests: Requests that decode.
            decode_context: Mean tokens that each of them attends to.
            prefill_tokens: New prompt tokens.
            prefill_context: Mean tokens that are in the cache before them.
        """
        block = self.seconds
        where = (decode_requests, decode_context, prefill_tokens, prefill_context)
        for number, (knots, x) in enumerate(zip(self._knots, where, strict=True)):
            low = min(max(bisect_right(knots, x) - 1, 0), len(knots) - 2)
            x = min(x if number == _OPEN else max(x, knots[0]), knots[-1])
            share = (x - knots[low]) / (knots[low + 1] - knots[low])
            block = block[low] + share * (block[low + 1] - block[low])
        return float(block)

    def __repr__(self) -> str:
        about, knots = self.metadata, " x ".join(str(len(one)) for one in self.axes)
        said = f"{knots} knots"
        if "model" in about and "gpu" in about:
            gpus = about.get("gpus", about.get("tp", 1))
            said = printable(f"{about['model']} on {gpus} x {about['gpu']}") + f", {said}"
        error = about.get("interpolation_error_pct")
        if isinstance(error, Mapping) and "p99" in error:
            said += f", 99% of steps within {error['p99']}%"
        return f"<Table {said}>"

    def more_prompts_s(self, prompts: float, cached_tokens: float) -> float:
        """What the prompts of a step but the first add to what a look-up says, seconds.

        Args:
            prompts: Prompts with a chunk in the step.
            cached_tokens: Tokens that they have in the cache before, summed.
        """
        if prompts <= 1:
            return 0.0
        each, first = (float(self.metadata.get(name, 0.0)) for name in COSTS[:2])
        beyond = float(self.metadata.get(COSTS[2], first))
        cached = cached_tokens / prompts
        near = min(cached, FIRST_CACHED)
        return 1e-6 * (prompts - 1) * (each + first * near + beyond * (cached - near))

    def many(self, where: Num[np.ndarray, "rows 4"]) -> Float[np.ndarray, " rows"]:
        """Times of many steps, seconds: a row of four numbers for each."""
        return self._interpolated(self.seconds, np.asarray(where, float))

    def breakdown(
        self,
        decode_requests: float,
        decode_context: float,
        prefill_tokens: float,
        prefill_context: float,
    ) -> dict[str, float]:
        """Time of each component of a step, seconds; they sum to the step's."""
        row = [decode_requests, decode_context, prefill_tokens, prefill_context]
        where = np.array([row], float)
        return {
            name: float(self._interpolated(values, where)[0]) for name, values in self.parts.items()
        }

    def _interpolated(
        self, values: Float[np.ndarray, "a b c d"], where: Float[np.ndarray, "rows 4"]
    ) -> Float[np.ndarray, " rows"]:
        ends, shares = [], []
        for number, knots in enumerate(self.axes):
            x = where[:, number]
            low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
            x = np.clip(x, -np.inf if number == _OPEN else knots[0], knots[-1])
            ends.append((low, low + 1))
            shares.append((x - knots[low]) / (knots[low + 1] - knots[low]))
        total = np.zeros(len(where))
        for corner in np.ndindex(2, 2, 2, 2):
            weight = np.prod(
                [s if end else 1 - s for s, end in zip(shares, corner, strict=True)], axis=0
            )
            total += (
                weight * values[tuple(pair[end] for pair, end in zip(ends, corner, strict=True))]
            )
        return total


def prefill_context(prefill_tokens: float, prefill_squares: float, cached_products: float) -> float:
    """The prefill context of a step with any number of chunks.

    Chunks of several prompts attend to fewer pairs of tokens than one chunk as long as all of them.
    What is returned is the context with which one chunk has as many pairs, which is negative where
    nothing, or little, is cached. For a single chunk it is its cached tokens.

    Args:
        prefill_tokens: New tokens of all chunks.
        prefill_squares: Squares of the chunks' new tokens, summed.
        cached_products: Products of each chunk's new and cached tokens, summed.
    """
    if prefill_tokens == 0:
        return 0.0
    return (cached_products + prefill_squares / 2) / prefill_tokens - prefill_tokens / 2
