"""Requests that share prefixes, for the replay and for the fluid."""

import numpy as np

import physim
from physim.batching.demand import Demand
from physim.replay.request import Request
from physim.replay.segment import Segment

# Blocks of a prefix and of the rest of a prompt, which alone is left of one-token answers.
PREFIX, REST = 32, 6


def demand_of(number: int, popularity: str) -> Demand:
    """A load whose prompts begin with one of so many prefixes."""
    tokens, cached = 16.0 * (PREFIX + REST), 16.0 * PREFIX
    load = physim.Load(
        tokens, 1, rate=1.0, cached_tokens=cached, prefixes=number, popularity=popularity
    )
    return Demand.from_load(load, 16)


def requests_of_four_prefixes(rng: np.random.Generator) -> tuple[int, list[Request], int]:
    """Tokens of a block, random requests, and a few times the blocks that the largest needs."""
    size, count = int(rng.choice([1, 2, 4])), int(rng.integers(2, 50))
    segments = [Segment(0, int(rng.integers(4, 60)), size) for _ in range(4)]
    requests = []
    for n, at_s in enumerate(np.sort(rng.uniform(0, 4, count)).tolist()):
        segment = segments[rng.integers(4)]
        prompt = segment.end * size + int(rng.integers(1, 30))
        requests.append(Request(n, at_s, prompt, int(rng.integers(1, 30)), path=[segment]))
    least = max(-(-(one.input_tokens + one.output_tokens) // size) for one in requests)
    return size, requests, int(least * rng.choice([1, 1.5, 3]))
