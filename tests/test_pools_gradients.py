"""Pools apart and replicas as differentiable functions: waits by hand, slopes by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import physim
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.passage import Passage, chance_of_clients, on_link_s
from physim.prediction.apart_arrays import ApartArrays
from physim.prediction.replica_arrays import ReplicaArrays

MODEL = "Qwen/Qwen3-14B"
POOLS: dict[str, Any] = {
    "gpu": "h100_sxm",
    "input_tokens": 4000,
    "output_tokens": 300,
    "prefill": {"tp": 1, "replicas": 3},
    "decode": {"tp": 2, "replicas": 2},
}


def test_waits_between_pools_by_hand():
    # Two servers send 0.1 s each, busy for half of the time: a quarter of a load more.
    assert on_link_s(0.1, 0.02, 10.0, 2.0, 0.0) == pytest.approx(0.02 + 0.1 * 1.5)
    assert chance_of_clients(0.25, 2.0, 1.0) == pytest.approx(0.5)
    assert chance_of_clients(0.0, 2.0, 1.0) == 0.0


@pytest.mark.parametrize(("while_computed", "exposed_s"), [(0.0, 0.4), (0.9, 0.1)])
def test_the_slope_of_what_is_sent(while_computed, exposed_s):
    passage = Passage(4000.0, 1e-4, 0.025, while_computed, 1.0, 1.0, 0.0)

    def sent(token_s: Any) -> Any:
        return dataclasses.replace(passage, token_s=token_s).between_s(0.3, 1.0, 2.0, 0.0)

    busy = exposed_s / 2
    assert sent(1e-4) == pytest.approx(0.025 + exposed_s * (1 + busy / (2 * (1 - busy))))
    slope = jax.grad(sent)(1e-4)
    assert slope == pytest.approx(float(sent(1.001e-4) - sent(0.999e-4)) / 2e-7, rel=1e-4)


def test_one_pool_is_refused():
    load = {"input_tokens": 100, "output_tokens": 10, "rate": 1.0}
    with pytest.raises(InputError, match="service: has one pool"):
        ApartArrays.from_case(physim.Case.from_options(MODEL, gpu="h100_sxm", **load))


@pytest.mark.slow
def test_slopes_of_pools_apart_are_those_of_their_prediction():
    case = physim.Case.from_options(MODEL, rate=12.0, arrival="poisson", **POOLS)
    (found,) = physim.predict_cases([case], Corrections())
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), ApartArrays.from_case(case))

    def logs(moved: Any) -> Any:
        passage = dataclasses.replace(
            arrays.passage, token_s=arrays.passage.token_s * jnp.exp(-moved[2])
        )
        own = Corrections(gemm_compute=moved[0], decode_attention=moved[1])
        state = dataclasses.replace(arrays, passage=passage).state(own)
        return jnp.log(state.ttft) + jnp.log(state.itl) + jnp.log(state.e2e), state

    slopes, state = jax.jit(jax.grad(logs, has_aux=True))(jnp.zeros(3))
    for value, said in zip(
        state, (found.ttft_s, found.itl_s, found.e2e_s, found.requests_per_s), strict=True
    ):
        assert value == pytest.approx(said, rel=1e-6)
    value = jax.jit(lambda moved: logs(moved)[0])
    for place, step in enumerate(1e-3 * jnp.eye(3)):
        by_differences = float(value(step) - value(-step)) / 2e-3
        assert slopes[place] == pytest.approx(by_differences, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("router", ["round_robin", "random"])
def test_slopes_of_replicas_are_those_of_their_prediction(router):
    lengths = {"input_tokens": 1500, "output_tokens": 200}
    load = {"rate": 30.0, "arrival": "poisson", **lengths}
    options: dict[str, Any] = {"gpu": "h100_sxm", "replicas": 3, "router": router, **load}
    case = physim.Case.from_options(MODEL, **options)
    (found,) = physim.predict_cases([case], Corrections())
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), ReplicaArrays.from_case(case))

    @jax.jit
    def logs(moved: Any) -> Any:
        faster = dataclasses.replace(arrays, rate=arrays.rate * jnp.exp(moved[2]))
        own = Corrections(gemm_memory=moved[0], decode_attention=moved[1])
        state = faster.state(own)
        latencies = jnp.stack([state.ttft, state.itl, state.e2e])
        return jnp.log(latencies), jnp.append(latencies, state.throughput)

    # Values and slopes of one function, compiled once.
    at = jax.jit(lambda moved, along: jax.jvp(logs, (moved,), (along,)))
    none, steps = jnp.zeros(3), jnp.eye(3)
    (_, state), _ = at(none, steps[0])
    wanted = found.ttft_s, found.itl_s, found.e2e_s, found.requests_per_s
    assert np.asarray(state) == pytest.approx(wanted, rel=1e-6)
    for along in steps:
        _, (slopes, _) = at(none, along)
        more, less = (at(sign * 1e-3 * along, along)[0][0] for sign in (1.0, -1.0))
        by_differences = np.asarray(more - less) / 2e-3
        assert np.abs(slopes).max() > 0.01
        assert np.asarray(slopes) == pytest.approx(by_differences, rel=2e-2, abs=1e-4)


def test_several_pools_are_no_replicas():
    case = physim.Case.from_options(MODEL, rate=1.0, **POOLS)
    with pytest.raises(InputError, match="service: has several pools"):
        ReplicaArrays.from_case(case)
