"""A few requests that stand for all of a load, and exact means over all of them."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from physim.inputs.lengths import STRATA

# Groups of prompts of equal weight, and points of a group.
_GROUPS = math.isqrt(STRATA)
# Parts of the longest prompts' point, whose length alone decides much of a queue and of a tail.
LONGEST = 8
# Starts of the sequence that are tried.
_STARTS = 64

Points = Float[np.ndarray, " points"]
Requests = Float[np.ndarray, " requests"]


class RequestPoints(NamedTuple):
    """Requests of equal weight that stand for all of a load, `physim.inputs.lengths.STRATA` many.

    Attributes:
        input_tokens: Prompt lengths, tokens.
        cached_tokens: Of each prompt, found in the prefix cache.
        output_tokens: Generated lengths, tokens.
    """

    input_tokens: Points
    cached_tokens: Points
    output_tokens: Points


class RequestMoments(NamedTuple):
    """Means over all requests of a load, in tokens or tokens squared.

    New tokens are those of a prompt that are not found in the prefix cache, one at least.

    Attributes:
        input: Prompt tokens.
        cached: Of them, found in the prefix cache.
        new: New tokens.
        output: Generated tokens.
        input_squared: Squares of prompt tokens.
        new_squared: Squares of new tokens.
        output_squared: Squares of generated tokens.
        input_output: Products of prompt and generated tokens.
        new_output: Products of new and generated tokens.
    """

    input: float
    cached: float
    new: float
    output: float
    input_squared: float
    new_squared: float
    output_squared: float
    input_output: float
    new_output: float

    def scaled(self, prompts: float, outputs: float) -> RequestMoments:
        """Those of requests whose prompts and outputs are so many times as long."""
        each = {"input": prompts, "cached": prompts, "new": prompts, "output": outputs}
        each |= {"input_squared": prompts**2, "new_squared": prompts**2}
        each |= {"output_squared": outputs**2}
        each |= dict.fromkeys(("input_output", "new_output"), prompts * outputs)
        return RequestMoments(**{name: own * each[name] for name, own in self._asdict().items()})

    @property
    def new_cv2(self) -> float:
        """Squared coefficient of variation of the new tokens."""
        return max(self.new_squared / self.new**2 - 1.0, 0.0)

    @property
    def output_cv2(self) -> float:
        """Squared coefficient of variation of the generated tokens."""
        return max(self.output_squared / self.output**2 - 1.0, 0.0)


def joint_points(
    inputs: Requests, cached: Requests, outputs: Requests, groups: int = _GROUPS
) -> RequestPoints:
    """The points of a sample of requests.

    Requests are sorted by prompt into groups of equal weight. Within a group they are sorted by new
    tokens into as many means of prompt and cached part, and by output into as many means of output,
    which a fixed permutation pairs. So every mean is kept, and how outputs go with prompts is kept
    between groups and left out within one.

    Args:
        inputs: Prompt tokens of each request.
        cached: Of them, found in the prefix cache.
        outputs: Generated tokens of each request.
        groups: Groups, and points of each.
    """
    count = len(inputs)
    order = np.argsort(inputs, kind="stable")
    inputs, cached, outputs = inputs[order], cached[order], outputs[order]
    prompts, founds, answers = [], [], []
    for group in range(groups):
        first, last = count * group / groups, count * (group + 1) / groups
        rows = np.arange(int(first), int(np.ceil(last)))
        # A request on the edge of two groups counts in both, by the share that is in each.
        weights = np.minimum(rows + 1, last) - np.maximum(rows, first)
        by_new = np.argsort(inputs[rows] - cached[rows], kind="stable")
        by_output = np.argsort(outputs[rows], kind="stable")
        prompts.append(_means(inputs[rows][by_new], weights[by_new], groups))
        founds.append(_means(cached[rows][by_new], weights[by_new], groups))
        means = _means(outputs[rows][by_output], weights[by_output], groups)
        answers.append(means[scramble(groups)])
    return RequestPoints(np.concatenate(prompts), np.concatenate(founds), np.concatenate(answers))


def independent_points(inputs: Points, cached: float, outputs: Points) -> RequestPoints:
    """The points of a load whose prompts and outputs say nothing of each other.

    Args:
        inputs: Means of equal parts of the prompts, from short to long.
        cached: Tokens of each prompt that are found in the prefix cache.
        outputs: Means of equal parts of the outputs, from short to long.
    """
    found = np.clip(inputs - 1.0, 0.0, cached)
    return RequestPoints(inputs, found, outputs[scramble(len(outputs))])


def longest_parts(new_tokens: Requests) -> Points:
    """Means of `LONGEST` equal parts of the requests that the last of as many points is of.

    Args:
        new_tokens: New tokens of each request.
    """
    ordered = np.sort(new_tokens)
    first = len(ordered) * (STRATA - 1) / STRATA
    rows = np.arange(int(first), len(ordered))
    return _means(ordered[rows], np.minimum(rows + 1 - first, 1.0), LONGEST)


def moments_of(inputs: Requests, cached: Requests, outputs: Requests) -> RequestMoments:
    """Means over a sample of requests.

    Args:
        inputs: Prompt tokens of each request.
        cached: Of them, found in the prefix cache.
        outputs: Generated tokens of each request.
    """
    new = np.maximum(inputs - cached, 1.0)
    columns = np.stack([np.ones_like(new), inputs, cached, new, outputs])
    # Means of all products of two, and with one of each itself.
    means = (columns @ columns.T / len(new)).tolist()
    _, of_input, _, of_new, of_output = means
    return RequestMoments(
        input=means[0][1],
        cached=means[0][2],
        new=means[0][3],
        output=means[0][4],
        input_squared=of_input[1],
        new_squared=of_new[3],
        output_squared=of_output[4],
        input_output=of_input[4],
        new_output=of_new[4],
    )


@functools.cache
def scramble(count: int) -> Int[np.ndarray, " count"]:
    """A fixed permutation that spreads neighbours out, so that ranks that it pairs go unrelated.

    It is the ranks of consecutive multiples of the square root of two, less their whole parts
    (Weyl's sequence, of low discrepancy), from that start on with which neither even nor
    exponential lengths are related in any pairing. The golden ratio's leave more.
    """
    ranks = np.arange(count)
    shares = (ranks + 0.5) / count
    scores = np.array([shares, -np.log1p(-shares)])

    def found(start: int) -> Int[np.ndarray, " count"]:
        return np.argsort(np.argsort((ranks + start) * np.sqrt(2.0) % 1.0))

    def related(start: int) -> float:
        between = np.corrcoef(scores, scores[:, found(start)])[:2, 2:]
        return float(np.max(np.abs(between)))

    return found(min(range(_STARTS), key=related))


def _means(values: Requests, weights: Requests, parts: int) -> Points:
    """Means of equal parts of values in order, each of which counts by its weight."""
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.concatenate([[0.0], np.cumsum(weights * values)])
    edges = ends[-1] * np.arange(parts + 1) / parts
    means: Points = np.diff(np.interp(edges, ends, sums)) * parts / ends[-1]
    return means
