"""What is found in the prefix cache as an outcome: the fluid against the replay."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.steady import steady_state
from physim.prediction.arrays import step_model_of

# The cache holds 200 prefixes of 64 blocks; a request has 21 of its own when it ends.
BLOCKS = 12_800
SHARED: dict[str, Any] = {
    "gpu": "h100_sxm",
    "max_num_seqs": 128,
    "rate": 6.0,
    "arrival": "poisson",
    "input_tokens": 1200,
    "output_tokens": 150,
    "cached_tokens": 1024,
    "fit": "none",
}


def predicted(model: str = "Qwen/Qwen3-14B", **options: Any) -> physim.Prediction:
    return physim.predict(model, **{**SHARED, "kv_blocks": BLOCKS, **options})


@pytest.mark.slow
@pytest.mark.parametrize("popularity", ["in-turn", "uniform", "zipf:1"])
@pytest.mark.parametrize("prefixes", [40, 90, 250, 1000])
def test_the_fluid_finds_what_the_replay_finds(popularity, prefixes):
    """Working sets of 0.2 to 5 times the cache."""
    fluid = predicted(prefixes=prefixes, popularity=popularity)
    replayed = predicted(prefixes=prefixes, popularity=popularity, method="replay")
    # Of 5,000 requests the first with each prefix finds none.
    assert fluid.pool.hit_rate == pytest.approx(replayed.pool.hit_rate, abs=0.02)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.05)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.02)
    seen, said = replayed.whole.latencies["ttft"], fluid.whole.latencies["ttft"]
    assert said["p90"] == pytest.approx(seen["p90"], rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "within"),
    [
        # Clients whose prompts vary meet one another's more than the fluid says.
        (
            {
                "rate": None,
                "concurrency": 64,
                "requests": 3000,
                "output_tokens": physim.Lengths.exponential(150),
            },
            0.2,
        ),
        ({"rate": None, "arrival": "constant", "stages": [(4.0, 300.0), (8.0, 300.0)]}, 0.05),
        ({"model": "Qwen/Qwen3-30B-A3B", "dp": 2, "ep": 2, "kv_blocks": 6400}, 0.05),
        ({"max_num_batched_tokens": 1024}, 0.08),
        ({"input_tokens": physim.Lengths.normal(1500, 150), "rate": 4.0}, 0.05),
    ],
)
def test_so_it_does_under_other_loads(options, within):
    options = {"prefixes": 250, "popularity": "zipf:0.7", **options}
    fluid, replayed = predicted(**options), predicted(method="replay", **options)
    assert fluid.pool.hit_rate == pytest.approx(replayed.pool.hit_rate, abs=0.04)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=within)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("requests", [500, 3000])
def test_of_clients_the_first_requests_with_each_prefix_compute_it(requests):
    options: dict[str, Any] = {"rate": None, "concurrency": 32}
    options |= {"requests": requests, "prefixes": 50, "popularity": "uniform"}
    options["output_tokens"] = physim.Lengths.exponential(150)
    fluid, replayed = predicted(**options), predicted(**options, method="replay")
    assert fluid.pool.hit_rate == pytest.approx(replayed.pool.hit_rate, abs=0.005)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.02)
    # Nothing is evicted.
    assert not any("evicted" in line for one in (fluid, replayed) for line in one.assumptions)


@pytest.mark.slow
def test_prefixes_that_do_not_fit_overload_a_server():
    """450 prefixes in turn, each evicted before it comes again."""
    options = {"prefixes": 450, "stages": [(20.0, 120.0)], "rate": None}
    fluid, replayed = predicted(**options), predicted(method="replay", **options)
    assert fluid.pool.hit_rate == replayed.pool.hit_rate == 0
    assert fluid.ttft_s > 10
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.05)
    assert predicted(**options | {"prefixes": 45}).ttft_s < 0.1


def state_of(blocks: Any, **load: Any) -> Any:
    """The steady state of a server with a cache of so many blocks."""
    options = {name: value for name, value in SHARED.items() if name != "fit"}
    case = physim.Case.from_options("Qwen/Qwen3-14B", **{**options, **load})
    server = jax.tree.map(float, Limits.from_server(case.server))
    limits = type(server)(**{**server.__dict__, "kv_blocks": blocks})
    demand = Demand.from_load(case.demanded, 16)
    return steady_state(step_model_of(case, Corrections()), demand, limits)


@pytest.mark.slow
@pytest.mark.parametrize("load", [{}, {"rate": None, "concurrency": 40}])
def test_the_slope_of_ttft_in_the_size_of_the_cache(load):
    load = {"prefixes": 300, "popularity": "zipf:1", **load}
    ttft = jax.jit(lambda blocks: state_of(blocks, **load).ttft)
    slope = jax.jit(jax.grad(ttft))(12_800.0)
    assert slope < 0
    assert slope == pytest.approx(float(ttft(12_810.0) - ttft(12_790.0)) / 20, rel=2e-2)


FOUND = jax.jit(
    lambda model, demand, limits: steady_state(model, demand, limits).hit_rate,
)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    prefixes=st.integers(1, 2000),
    popularity=st.sampled_from(["in-turn", "uniform", "zipf:1"]),
    blocks=st.integers(2000, 50_000),
    rate=st.floats(0.5, 50),
)
def test_more_cache_finds_more_and_more_prefixes_find_less(prefixes, popularity, blocks, rate):
    def hit_rate(prefixes: int, blocks: int) -> float:
        options = {**SHARED, "kv_blocks": blocks, "rate": rate, "prefixes": prefixes + 1}
        del options["fit"]
        case = physim.Case.from_options("Qwen/Qwen3-14B", **options, popularity=popularity)
        demand, limits = Demand.from_load(case.demanded, 16), Limits.from_server(case.server)
        numbers = jax.tree.map(float, limits)
        return float(FOUND(step_model_of(case, Corrections()), demand, numbers))

    found = hit_rate(prefixes, blocks)
    assert 0 <= found <= 1024 / 1200 + 1e-9
    assert hit_rate(prefixes, 2 * blocks) >= found - 1e-3
    assert hit_rate(2 * prefixes, blocks) <= found + 3e-3


def test_where_part_of_the_prompts_find_their_prefix():
    """Of ten in sixteen a prompt of 100 tokens is left, of the others one of 400."""
    load = physim.Load(400, 10, rate=1.0, cached_tokens=300, prefixes=9)
    demand = Demand.from_load(load, 1).where_found(10 / 16)
    assert demand.prompts == pytest.approx([100.0] * 40 + [400.0] * 24)
    assert demand.longest == pytest.approx([400.0] * 8)
    assert demand.cached_tokens == pytest.approx(187.5)
    assert demand.new_tokens == pytest.approx(212.5)
    # Of 100 tokens in 212.5 each sees 300, of the rest none.
    assert demand.cached_before == pytest.approx(300 * 10 / 16 * 100 / 212.5)
    variance = 300**2 * 10 / 16 * 6 / 16
    assert demand.prompt_cv2 == pytest.approx(variance / 212.5**2)
    assert np.mean(demand.prompts) == pytest.approx(212.5)


def test_one_prefix_and_own_prefixes_are_found():
    assert predicted().pool.hit_rate == pytest.approx(1024 / 1200)
    assert predicted(cached_tokens=0).pool.hit_rate == 0
    lengths = physim.RequestLengths.from_columns([1200], [150], [1024])
    own = {"lengths": lengths, **dict.fromkeys(("input_tokens", "output_tokens"))}
    assert predicted(**own, cached_tokens=0.0).pool.hit_rate == pytest.approx(1024 / 1200)


def test_a_popularity_of_one_prefix_is_refused():
    with pytest.raises(InputError, match="popularity: has no meaning for one prefix; say how many"):
        physim.Load(400, 10, rate=1.0, cached_tokens=300, popularity="uniform")


def test_evictions_are_said():
    found = predicted(prefixes=300, popularity="uniform")
    (line,) = [one for one in found.assumptions if "evicted" in one]
    assert line == (
        "prefixes are evicted before they are asked for again, and computed anew: 300 of 64 KV "
        "blocks each have no room beside requests in a cache of 12,800"
    )
    assert "1024 in one of 300 prefixes" in found.describe()
    assert "prefix cache hits" in found._repr_html_()
    kept = predicted(prefixes=100)
    assert not any("evicted" in one for one in kept.assumptions)
    assert not any("evicted" in one for one in predicted(cached_tokens=0).assumptions)


@pytest.mark.slow
def test_loads_of_many_prefixes_and_of_one_are_solved_together():
    """Each as it is by itself."""
    options = {name: value for name, value in SHARED.items() if name != "fit"}
    loads = ({}, {"prefixes": 300, "popularity": "uniform"}, {"cached_tokens": 0})
    cases = [physim.Case.from_options("Qwen/Qwen3-14B", **{**options, **one}) for one in loads]
    both = physim.predict_cases(cases, Corrections())
    for case, found in zip(cases, both, strict=True):
        (one,) = physim.predict_cases([case], Corrections())
        assert found.pool.hit_rate == pytest.approx(one.pool.hit_rate)
        assert found.ttft_s == pytest.approx(one.ttft_s)


@pytest.mark.slow
def test_an_overload_whose_prefixes_fill_the_cache_can_be_followed():
    """Each request that runs holds a prefix that none beside it has, as if it were its own."""
    options = {"gpu": "h100_sxm", "max_num_seqs": 128, "kv_blocks": 7442, "fit": "none"}
    options |= {"stages": [(4.0, 1200.0)], "timeout_s": 300.0, "max_model_len": 4096}
    options |= {"input_tokens": 1082.0, "output_tokens": 1448.0}
    shared = {"cached_tokens": 1072.0, "prefixes": 300}
    found, whole = (
        physim.predict("meta-llama/Llama-2-7b-hf", **options, **one) for one in (shared, {})
    )
    assert found.pool.hit_rate == 0
    # What preempted requests find again of their prefix counts as found.
    assert found.ttft_s == pytest.approx(whole.ttft_s, rel=0.1)
    assert found.e2e_s == pytest.approx(whole.e2e_s, rel=0.1)
