"""Recorded arrivals and loads above the capacity, in the fluid's trajectory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import physim
from physim.batching.demand import Demand
from physim.batching.kv_capacity import private_blocks
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.fluid.transient import Fluid
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.stages import Stage
from physim.prediction.arrays import CaseArrays
from physim.prediction.transient import trajectory_of

MODEL = "Qwen/Qwen3-14B"
# A token budget that prompts fill, so that it is what an overload waits for.
TIGHT = {"max_num_seqs": 256, "max_num_batched_tokens": 1024, "max_model_len": 8192}


def case_of(load, **engine):
    return physim.Case.from_options(MODEL, gpu="h100_sxm", **TIGHT | engine).under(load)


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
    one = jax.tree.map(lambda leaf: leaf[0], CaseArrays.from_cases([case]))
    fluid = Fluid.tabulated(one.model(Corrections()), one.demand, one.limits)
    batch = jnp.asarray(20.0)
    waiting = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0, 10.0, 1000.0])
    starts, slopes = jax.vmap(jax.value_and_grad(fluid._by_tokens), (0, None))(waiting, batch)
    budget = (1024 - 20) / 2000
    assert np.all(starts <= np.minimum(waiting, budget) + 1e-5)
    assert np.all(np.diff(starts) > 0)
    assert starts[-1] == pytest.approx(budget, rel=0.01)
    assert np.all(np.isfinite(slopes))
    assert np.all(slopes >= 0)
    step = 1e-3
    for count, slope in zip(waiting[2:5], slopes[2:5], strict=True):
        up, down = (fluid._by_tokens(count + sign * step, batch) for sign in (1, -1))
        assert slope == pytest.approx(float(up - down) / (2 * step), rel=0.05)


def test_requests_that_come_at_once():
    batches = ArrivalDispersion.from_arrivals(np.repeat(np.arange(100) * 10.0, 8))
    assert batches.at_once == pytest.approx(7.0)
    assert batches.at_rate(3.0).at_once == pytest.approx(7.0)
    assert ArrivalDispersion.from_arrivals(np.arange(200.0)).at_once == 0.0
    assert Load(100, 10, rate=1.0).at_once == 0.0


@pytest.mark.slow
def test_a_batch_waits_for_itself():
    # Far below the capacity, only those of its own batch are before a request.
    batches = ArrivalDispersion.from_arrivals(np.repeat(np.arange(60) * 30.0, 8))
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
    lengths = physim.RequestLengths.from_columns([1000.0, 3000.0], [300.0, 100.0])
    load = Load.of_requests(lengths, rate=1.0)
    case = case_of(load)
    demand, limits = Demand.from_load(load, 16), Limits.from_server(case.server)
    # Three times as many are met of the short prompt, at half of their outputs.
    held = 0.75 * 1000 + 0.25 * 3000 + demand.age
    assert private_blocks(limits, demand, demand.age) == pytest.approx(held / 16 + 0.5)
    apart = Demand.from_load(Load(2000, 200, rate=1.0), 16)
    assert apart.met_longer == 0.0
    assert private_blocks(limits, replace(apart, met_longer=160.0), 0.0) == pytest.approx(
        private_blocks(limits, apart, 0.0) + 10
    )


def ramp(count=6000, rate=5.0):
    """Evenly spaced requests whose prompts are three times as long in the middle of the record."""
    times = np.arange(count) / rate
    middle = np.abs(np.arange(count) / count - 0.5) < 0.15
    inputs, outputs = np.where(middle, 3000.0, 1000.0), np.where(middle, 100.0, 200.0)
    return ArrivalDispersion.from_arrivals(times), RequestLengths.from_columns(
        inputs, outputs, recorded=True
    )


def test_stretches_have_their_own_lengths():
    arrivals, lengths = ramp()
    load = Load.of_requests(lengths, rate=10.0, arrival="trace", dispersion=arrivals)
    assert load.recorded
    stages = load.in_stretches(5.0).stages
    middle, first = stages[len(stages) // 2], stages[0]
    mean_input, mean_output = 0.3 * 3000 + 0.7 * 1000, 0.3 * 100 + 0.7 * 200
    assert middle.prompts == pytest.approx(3000 / mean_input, rel=1e-2)
    assert middle.outputs == pytest.approx(100 / mean_output, rel=1e-2)
    assert first.prompts == pytest.approx(1000 / mean_input, rel=1e-2)
    # All of them together have the mean of all.
    counts = np.array([one.rate * one.duration_s for one in stages])
    assert np.sum(counts * [one.prompts for one in stages]) / counts.sum() == pytest.approx(
        1.0, rel=1e-2
    )
    # Other lengths do not go by when requests come.
    other = Load(1000, 200, rate=10.0, arrival="trace", dispersion=arrivals)
    assert not other.recorded
    assert not load.with_lengths(RequestLengths.from_columns(*lengths.arrays[::2])).recorded


@pytest.mark.slow
@pytest.mark.parametrize(("arrival", "seeds"), [("constant", 1), ("poisson", 6)])
def test_no_request_of_an_overload_decodes_for_ever(arrival, seeds):
    # Who starts while prompts fill the steps decodes most of its answer in others.
    stages = (Stage(4.2, 100.0), Stage(7.9, 200.0))
    load = Load(Lengths.exponential(2000), Lengths.exponential(200), stages=stages, arrival=arrival)
    case = physim.Case.from_options(
        "meta-llama/Llama-3.1-70B-Instruct", gpu="h100_sxm", tp=4, max_model_len=32_768
    ).under(load)
    (fluid,) = physim.predict_cases([case], Corrections())
    replays = [
        physim.predict_cases([case], Corrections(), method="replay", seed=seed)[0].requests_per_s
        for seed in range(seeds)
    ]
    assert fluid.requests_per_s == pytest.approx(np.mean(replays), rel=0.05)


@pytest.mark.slow
def test_recorded_requests_in_stages_of_ones_own():
    # The record starts over with each stage, so stages are no stretches of it.
    arrivals, lengths = ramp()
    stages = (Stage(4.0, 30.0), Stage(8.0, 30.0))
    load = Load.of_requests(lengths, stages=stages, arrival="trace", dispersion=arrivals)
    (found,) = physim.predict_cases([case_of(load)], Corrections())
    assert found.whole.arrived == pytest.approx(360, rel=1e-3)
