"""Hit rates of the prefix cache: Che's approximation against exact LRU, block by block."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physim.batching.prefix_cache import Prefixes, hits
from physim.errors import InputError
from physim.inputs.popularity import CLASSES, Popularity
from physim.replay.kv_cache import KVCache
from physim.replay.segment import Segment

# Blocks of a prefix, and of a request that it shares with none.
SHARED, PRIVATE = 32, 6


def prefixes_of(number: int, popularity: str, requests: float = math.inf) -> Prefixes:
    kind = Popularity.parse(popularity)
    repeated = 1.0 if math.isinf(requests) else kind.repeated(number, requests)
    return Prefixes(SHARED * 16.0, *kind.classes(number), float(kind.in_turn), 0.0, repeated)


def exact(
    number: int, popularity: str, blocks: int, requests: int = 12_000, seed: int | None = None
) -> float:
    """Hit rate of requests that come one at a time, by blocks: once the cache is full, or of all.

    Of all where a seed is given.
    """
    rng = np.random.default_rng(number if seed is None else seed)
    which = Popularity.parse(popularity).drawn(rng, number, requests).tolist()
    segments = {one: Segment(0, SHARED * 16, 16) for one in which}
    cache, found = KVCache(blocks), []
    for one in which:
        segment = segments[one]
        known = segment.present
        found.append(known)
        cache.hold(segment)
        cache.take(SHARED - known + PRIVATE)
        segment.present = SHARED
        cache.give_up([segment], PRIVATE)
    return float(np.mean(found[requests // 3 if seed is None else 0 :])) / SHARED


@pytest.mark.parametrize("popularity", ["in-turn", "uniform", "zipf:0.6", "zipf:1", "zipf:1.3"])
@pytest.mark.parametrize("working_set", np.geomspace(0.2, 5.0, 10).tolist())
def test_hits_are_those_of_an_exact_cache(popularity, working_set):
    number = 300
    blocks = round(number * SHARED / working_set)
    found = hits(prefixes_of(number, popularity), blocks, 0.0, PRIVATE, PRIVATE, SHARED)
    assert found == pytest.approx(exact(number, popularity, blocks), abs=0.03)


def test_hits_by_hand():
    """Room for 100 requests' private blocks and both prefixes: one is found but for 2^-100."""
    two = prefixes_of(2, "uniform")
    assert hits(two, 100 * PRIVATE + 2 * SHARED, 0.0, PRIVATE, PRIVATE, SHARED) == pytest.approx(1)
    # One request fits: the next has the same prefix half of the time.
    assert hits(two, PRIVATE + SHARED, 0.0, PRIVATE, PRIVATE, SHARED) == pytest.approx(0.5)
    # Of ten in turn nine requests' blocks come between, and leave 8 blocks of 32.
    ten = prefixes_of(10, "in-turn")
    blocks = 9 * (PRIVATE + SHARED) + 8
    assert hits(ten, blocks, 0.0, PRIVATE, PRIVATE, SHARED) == pytest.approx(0.25)
    # Four that run with 2 blocks each, not 6, leave 16 more.
    assert hits(ten, blocks, 4.0, 2.0, PRIVATE, SHARED) == pytest.approx(0.75)


@pytest.mark.parametrize("number", [3, 40, 900])
@pytest.mark.parametrize("requests", [1, 50, 2000])
def test_the_first_request_with_each_prefix_finds_none(number, requests):
    """Of many blocks nothing is evicted: by chance P (1 - (1 - 1/P)^N) of N requests are first."""
    for popularity, first in (
        ("uniform", number * (1 - (1 - 1 / number) ** requests)),
        ("in-turn", min(number, requests)),
    ):
        prefixes = prefixes_of(number, popularity, requests)
        found = hits(prefixes, 1e9, 0.0, PRIVATE, PRIVATE, SHARED)
        assert found == pytest.approx(1 - first / requests, abs=1e-6)


@pytest.mark.parametrize("popularity", ["in-turn", "uniform", "zipf:1"])
@pytest.mark.parametrize(("requests", "blocks"), [(200, 20_000), (600, 10_000), (6000, 5000)])
def test_hits_from_the_first_request_on_are_those_of_an_exact_cache(popularity, requests, blocks):
    prefixes = prefixes_of(300, popularity, requests)
    found = hits(prefixes, blocks, 0.0, PRIVATE, PRIVATE, SHARED)
    seen = [exact(300, popularity, blocks, requests, seed) for seed in range(10)]
    assert found == pytest.approx(np.mean(seen), abs=0.03)


def test_what_the_load_says_is_found_is_found():
    kept = Prefixes(512.0, *Popularity().classes(10**6), 1.0, 1.0)
    assert hits(kept, 100.0, 0.0, PRIVATE, PRIVATE, SHARED) == 1.0
    assert hits(prefixes_of(9, "uniform"), 10.0, 0.0, PRIVATE, PRIVATE, 0.0) == 1.0


@given(
    number=st.integers(1, 10**6),
    popularity=st.sampled_from(["in-turn", "uniform", "zipf:0.5", "zipf:1.2"]),
    blocks=st.floats(100, 1e6),
    more=st.floats(1.01, 3),
    running=st.floats(0, 1),
    leaves=st.floats(0.5, 300),
    shared=st.floats(1, 1000),
)
@pytest.mark.slow
def test_hits_grow_with_the_cache_and_fall_with_the_prefixes(
    number, popularity, blocks, more, running, leaves, shared
):
    running *= blocks / (leaves + shared)

    def found(number: int, blocks: float) -> float:
        prefixes = prefixes_of(number, popularity)
        return float(hits(prefixes, blocks, running, 0.7 * leaves, leaves, shared))

    share = found(number, blocks)
    assert 0 <= share <= 1
    assert found(number, blocks * more) >= share - 1e-6
    # Classes of Zipf's ranks differ with their number.
    assert found(math.ceil(number * more), blocks) <= share + 2e-3


def test_the_slope_of_hits_is_that_of_differences():
    prefixes = prefixes_of(300, "zipf:0.8")

    def found(blocks):
        return hits(prefixes, blocks, 40.0, 4.0, PRIVATE, SHARED)

    slope = (found(6001.0) - found(5999.0)) / 2
    assert jax.grad(found)(6000.0) == pytest.approx(float(slope), rel=1e-5)
    assert slope > 0


@pytest.mark.parametrize("number", [1, 5, 8, 9, 30, 1000, 10**6])
@pytest.mark.parametrize("exponent", [0.3, 1.0, 2.0])
def test_classes_of_zipf_are_all_prefixes_and_all_requests(number, exponent):
    count, share = Popularity(False, exponent).classes(number)
    assert len(count) == CLASSES
    assert count.sum() == number
    assert (count * share).sum() == pytest.approx(1)
    weights = np.arange(1.0, number + 1) ** -exponent
    assert share[:3] == pytest.approx(np.append(weights / weights.sum(), [0, 0])[:3], rel=2e-3)


@pytest.mark.parametrize("text", ["", "zipf", "zipf:", "zipf:-1", "zipf:nan", "zipf:11", "even"])
def test_a_popularity_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="use in-turn, uniform or zipf:EXPONENT"):
        Popularity.parse(text)
