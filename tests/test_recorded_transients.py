"""Recorded arrivals and loads above the capacity, in the fluid's trajectory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import physim
from physim.corrections.fields import Corrections
from physim.fluid.demand import Demand
from physim.fluid.kv_capacity import own_blocks
from physim.fluid.transient import Fluid
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.load import Load, Stage
from physim.prediction.arrays import CaseArrays
from physim.prediction.transient import trajectory_of

MODEL = "Qwen/Qwen3-14B"
# A token budget that prompts fill, so that it is what an overload waits for.
TIGHT = {"max_num_seqs": 256, "max_num_batched_tokens": 1024, "max_model_len": 8192}


def case_of(load, **engine):
    return physim.Case.of(MODEL, gpu="h100_sxm", **TIGHT | engine).under(load)


@pytest.mark.slow
def test_an_overload_waits_once():
    # As many wait as came beyond what was served, and nobody for the same tokens twice.
    stage = Stage(16.0, 200.0)
    case = case_of(Load(2000, 50, stages=(stage,), arrival="poisson"))
    (found,) = physim.predict_cases([case], Corrections())
    path = trajectory_of(case, Corrections())
    served = float(np.interp(stage.duration_s, path.time, path.taken)) / stage.duration_s
    assert served < 0.9 * stage.rate
    mean_wait = (stage.rate / served - 1) * stage.duration_s / 2
    assert found.ttft_s == pytest.approx(mean_wait, rel=0.05)
    assert found.whole.completed == pytest.approx(found.whole.arrived, rel=1e-3)


@pytest.mark.slow
def test_what_starts_follows_from_what_waits():
    """A load that stays below the budget has the queue of one that stays, and no more starts."""
    case = case_of(Load(2000, 50, stages=(Stage(5.0, 10.0),), arrival="poisson"))
    one = jax.tree.map(lambda leaf: leaf[0], CaseArrays.of([case]))
    fluid = Fluid.of(one.model(Corrections()), one.demand, one.limits)
    batch = jnp.asarray(20.0)
    waiting = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0, 10.0, 1000.0])
    starts, slopes = jax.vmap(jax.value_and_grad(fluid._by_tokens), (0, None))(waiting, batch)
    budget = (1024 - 20) / 2000
    assert np.all(starts <= np.minimum(waiting, budget) + 1e-6)
    assert np.all(np.diff(starts) > 0)
    assert starts[-1] == pytest.approx(budget, rel=0.01)
    assert np.all(np.isfinite(slopes))
    assert np.all(slopes >= 0)
    step = 1e-3
    for count, slope in zip(waiting[2:5], slopes[2:5], strict=True):
        up, down = (fluid._by_tokens(count + sign * step, batch) for sign in (1, -1))
        assert slope == pytest.approx(float(up - down) / (2 * step), rel=0.05)


def test_requests_that_come_at_once():
    batches = ArrivalDispersion.of(np.repeat(np.arange(100) * 10.0, 8))
    assert batches.at_once == pytest.approx(7.0)
    assert batches.at_rate(3.0).at_once == pytest.approx(7.0)
    assert ArrivalDispersion.of(np.arange(200.0)).at_once == 0.0
    assert Load(100, 10, rate=1.0).at_once == 0.0


@pytest.mark.slow
def test_a_batch_waits_for_itself():
    # Far below the capacity, only those of its own batch are before a request.
    batches = ArrivalDispersion.of(np.repeat(np.arange(60) * 30.0, 8))
    load = Load(6000, 20, rate=batches.rate, arrival="trace", dispersion=batches, requests=480)
    case = case_of(load)
    fluid, replayed = (
        physim.predict_cases([case], Corrections(), method=method)[0]
        for method in ("fluid", "replay")
    )
    alone = physim.predict_cases([case_of(Load(6000, 20, rate=1e-3))], Corrections())[0]
    assert replayed.ttft_s > 3 * alone.ttft_s
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.2)


def test_requests_that_decode_hold_the_prompts_of_long_outputs():
    lengths = physim.RequestLengths.of([1000.0, 3000.0], [300.0, 100.0])
    load = Load.of_requests(lengths, rate=1.0)
    case = case_of(load)
    demand, limits = Demand.of(load, 16), case.deployment.limits
    # Three times as many are met of the short prompt, at half of their outputs.
    held = 0.75 * 1000 + 0.25 * 3000 + demand.age
    assert own_blocks(limits, demand, demand.age) == pytest.approx(held / 16 + 0.5)
    apart = Demand.of(Load(2000, 200, rate=1.0), 16)
    assert apart.met_longer == 0.0
    assert own_blocks(limits, replace(apart, met_longer=160.0), 0.0) == pytest.approx(
        own_blocks(limits, apart, 0.0) + 10
    )
