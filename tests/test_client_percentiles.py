"""Requests of clients that begin at once, one by one."""

import jax.numpy as jnp
import numpy as np
import pytest

import physim
from physim.fluid.client_percentiles import Clients, requests_of

# Ten requests a client. The first prompts take 1 to 4 s; later ones a second or two more or less
# than 1 s.
FIRST = jnp.asarray([1.0, 2.0, 3.0, 4.0])
UNTIL = jnp.asarray([-0.9, 0.1, 0.3, 0.5])
AFTER = -UNTIL


def clients(**changes):
    options = {
        "closed": jnp.asarray(True),
        "begun": 0.1,
        "first": FIRST,
        "round": jnp.asarray([0.5, 1.0]),
        "later": jnp.asarray([1.0, 1.0]),
        "decode": jnp.asarray([1.0, 1.0]),
        "last_decode": 0.9,
        "chance": jnp.zeros(2),
        "until_s": UNTIL,
        "after_s": AFTER,
        "prompts_apart": 0.0,
        "least_s": 0.01,
        "most_s": 0.1,
        "line": 0.0,
        "line_cv": 0.0,
    }
    return Clients(**options | changes)


def found(turn, place, **changes):
    """TTFT and mean step of a request that decodes in 100 steps of 20 ms."""
    asked = clients(**changes)
    one = jnp.ones(1)
    requests = requests_of(asked, 5.0 * one, turn * one, place * one, 0.0 * one)
    return float(requests.ttft[0]), float(requests.pace_s(asked, 100.0 * one, 0.02 * one)[0])


def test_who_is_early_meets_later_what_it_did_not_wait_for():
    assert found(0.5, 0.0) == pytest.approx((0.1, 0.029))
    assert found(0.5, 1.0) == pytest.approx((1.5, 0.015))
    # Half of both where requests vary by half as if clients were anywhere.
    assert found(0.5, 1.0, chance=jnp.full(2, 0.5)) == pytest.approx((1.25, 0.0175))
    # No step takes less than one that only decodes, nor more than a full one.
    assert found(0.5, 1.0, until_s=4 * UNTIL)[1] == pytest.approx(0.01)
    assert found(0.5, 0.0, until_s=10 * UNTIL)[1] == pytest.approx(0.1)


def test_first_and_last_requests():
    # Where prompts share steps with requests that decode, the last of the first ones meet the
    # second prompts of those before them: all decode for as long.
    for turn, ttft in ((0.0, 1.0), (0.1 - 1e-6, 4.0)):
        assert found(turn, 0.3) == pytest.approx((ttft, 0.02), rel=1e-3)
    # Where all prompts come before, and in the last round, who is early decodes beside the others'.
    assert found(0.0, 0.3, prompts_apart=1.0) == pytest.approx((1.0, 0.029), rel=1e-3)
    assert found(0.95, 0.0) == pytest.approx((0.1, 0.018 + 0.009))
    # One request each is the first and the last.
    assert found(0.0, 0.7, begun=1.0) == pytest.approx((1.0, 0.018 + 0.009))


def test_other_loads_are_left_alone():
    assert found(0.5, 0.0, closed=jnp.asarray(False)) == (5.0, pytest.approx(0.02))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "rounds"), [("vllm", 10), ("sglang", 10), ("trtllm", 10), ("vllm", 1)]
)
def test_percentiles_of_clients_in_step_are_the_replays(engine, rounds):
    case = {"gpu": "h100_sxm", "tp": 2, "engine": engine, "fit": "none"}
    case |= {"concurrency": 64, "requests": 64 * rounds}
    case |= {"input_tokens": 1000, "output_tokens": 200}
    fluid, replay = (
        physim.predict("Qwen/Qwen3-14B", method=method, **case).whole.latencies
        for method in ("fluid", "replay")
    )
    bounds = {"ttft": {"p90": 0.04, "p99": 0.08}, "tpot": {"p50": 0.05, "p90": 0.01, "p99": 0.01}}
    bounds["e2e"] = {"p50": 0.01, "p90": 0.01, "p99": 0.01}
    for metric, statistics in bounds.items():
        for statistic, bound in statistics.items():
            ratio = fluid[metric][statistic] / replay[metric][statistic]
            assert np.abs(np.log(ratio)) < bound, (metric, statistic, ratio)
