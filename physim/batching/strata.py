"""Requests of equal weight that stand for all of a load."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from physim.inputs.lengths import STRATA
from physim.inputs.load import Load
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.request_points import LONGEST, RequestMoments
from physim.inputs.turns import TurnSample

# Weights of the strata of prompts, of which the last is in parts.
PARTS = np.repeat([1.0, 1.0 / LONGEST], [STRATA - 1, LONGEST]) / STRATA


class Strata(NamedTuple):
    """Requests of equal weight that stand for all of a load, from few tokens to compute to many.

    Attributes:
        inputs: Prompt tokens.
        new: Prompt tokens that are computed.
        outputs: Generated tokens.
        longest: Of the last of them, tokens to compute of its `LONGEST` equal parts.
        cached: Prompt tokens that are found in the prefix cache, mean.
    """

    inputs: Float[np.ndarray, " strata"]
    new: Float[np.ndarray, " strata"]
    longest: Float[np.ndarray, " parts"]
    outputs: Float[np.ndarray, " strata"]
    cached: float


def strata_of(load: Load, block_size: int) -> Strata:
    """The strata of a load; only full KV blocks are found in the prefix cache.

    Args:
        load: The load.
        block_size: Tokens of a KV block.
    """
    if load.conversing:
        return _strata_of_requests(_turns_found(load.turn_sample, block_size))
    points = load.points()
    cached = load.cached_tokens if load.lengths is None else points.cached_tokens
    in_blocks = load.lengths is None or not load.lengths.handed
    found = np.asarray(cached) // block_size * block_size if in_blocks else np.asarray(cached)
    new = np.maximum(points.input_tokens - found, 1.0)
    order = np.argsort(new, kind="stable")
    longest = load.longest()
    return Strata(
        inputs=points.input_tokens[order],
        new=new[order],
        longest=longest * (new[order[-1]] / np.mean(longest)),
        outputs=points.output_tokens[order],
        cached=float(np.mean(found)),
    )


def _strata_of_requests(requests: RequestLengths) -> Strata:
    """The strata of joint lengths whose cached parts are full KV blocks."""
    points = requests.points
    new = points.input_tokens - points.cached_tokens
    order = np.argsort(new, kind="stable")
    longest = requests.longest
    return Strata(
        inputs=points.input_tokens[order],
        new=new[order],
        longest=longest * (new[order[-1]] / np.mean(longest)),
        outputs=points.output_tokens[order],
        cached=float(np.mean(points.cached_tokens)),
    )


@functools.lru_cache
def _turns_found(turns: TurnSample, block_size: int) -> RequestLengths:
    """Turns of conversations that find all that was said before."""
    return turns.requests(turns.found_tokens(block_size))


def strata_of_missed(turns: TurnSample, block_size: int) -> Strata:
    """The strata of turns of conversations whose prompts before are not in the cache any more.

    Args:
        turns: The turns.
        block_size: Tokens of a KV block.
    """
    return _strata_of_requests(_turns_missed(turns, block_size))


@functools.lru_cache
def _turns_missed(turns: TurnSample, block_size: int) -> RequestLengths:
    """Turns of conversations of which nothing is left in the cache but their common prefix."""
    cached = np.full(len(turns.input_tokens), turns.prefix_found(block_size))
    return turns.requests(np.minimum(cached, turns.input_tokens - 1.0))


def moments_of(load: Load, block_size: int) -> RequestMoments:
    """Means over the requests of a load.

    Args:
        load: The load.
        block_size: Tokens of a KV block.
    """
    if load.conversing:
        return _turns_found(load.turn_sample, block_size).moments
    return load.moments()
