"""The fluid's trajectory: its solver, its limits, the replay, gradients."""

from dataclasses import replace

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import physim
from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.request_latencies import latencies
from physim.fluid.rosenbrock import Rodas3
from physim.fluid.schedule import Schedule
from physim.fluid.transient import Fluid
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.step.lowering import lower
from physim.step.model import StepModel

MODEL = "Qwen/Qwen3-14B"
ENGINE = {"tp": 2, "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 4096}


def both(load, **engine):
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", **ENGINE | engine).under(load)
    return [physim.predict_cases([case], Corrections(), method=m)[0] for m in ("fluid", "replay")]


@pytest.mark.slow
def test_the_solver_converges_with_the_third_order():
    # A stiff linear system with a slow part, and its exact solution.
    matrix = jnp.array([[-1000.0, 1.0], [0.0, -1.0]])
    start = jnp.array([1.0, 1.0])
    exact = jnp.array([1 / 999 * jnp.exp(-1.0), jnp.exp(-1.0)])

    def error(steps):
        end = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda _, y, __: matrix @ y),
            Rodas3(),
            0.0,
            1.0,
            1.0 / steps,
            start,
            max_steps=steps + 2,
        ).ys[-1]
        return float(jnp.abs(end - exact)[1])

    assert error(10) / error(20) == pytest.approx(8.0, rel=0.2)
    assert error(40) < 1e-6


def test_a_schedule_and_its_inverse():
    schedule = Schedule(jnp.array([2.0, 5.0]), jnp.array([10.0, 30.0]))
    assert schedule.arrived(jnp.asarray(20.0)) == pytest.approx(20 + 50)
    times = jnp.array([3.0, 12.0, 29.0])
    assert schedule.arrival(schedule.arrived(times)) == pytest.approx(np.asarray(times))


@pytest.mark.parametrize(
    ("arrival", "rate", "cached"),
    [
        ("constant", 7.0, 0.0),
        ("poisson", 7.0, 0.0),
        # Few steps have a prompt, and that is short: far from a full token budget.
        ("constant", 6.0, 784.0),
    ],
)
def test_a_stage_that_lasts_is_the_steady_state(arrival, rate, cached):
    load = Load(786, 251, stages=(Stage(rate, 3000.0),), arrival=arrival, cached_tokens=cached)
    fluid, steady = physim.predict_cases(
        [
            physim.Case.from_options(MODEL, gpu="h100_sxm", **ENGINE | {"tp": 1}).under(one)
            for one in (load, replace(load, stages=(), rate=rate))
        ],
        Corrections(),
    )
    assert fluid.itl_s == pytest.approx(steady.itl_s, rel=0.005)
    assert fluid.e2e_s == pytest.approx(steady.e2e_s, rel=0.0075)
    assert fluid.ttft_s == pytest.approx(steady.ttft_s, rel=0.03)
    line = fluid.timeline
    late = [np.interp(2000.0, line.time_s, values) for values in (line.running, line.kv_use)]
    assert late == pytest.approx([steady.pool.running, steady.pool.kv_use], rel=0.02)


@pytest.mark.slow
def test_the_queue_near_saturation_is_the_steady_states():
    # 94% of what the server takes: more run, and more wait, in the mean over time than over steps.
    load = Load(2000, 150, stages=(Stage(7.84, 3000.0),), arrival="poisson")
    case = physim.Case.from_options(MODEL, gpu="h100_sxm")
    fluid, steady = physim.predict_cases(
        [case.under(load), case.under(replace(load, stages=(), rate=7.84))], Corrections()
    )
    assert steady.ttft_parts_s["queue"] > 0.1
    assert fluid.ttft_s == pytest.approx(steady.ttft_s, rel=0.05)
    # Six replays of as much have 0.45 s.
    assert fluid.ttft_s == pytest.approx(0.45, rel=0.1)
    running = np.interp(2000.0, fluid.timeline.time_s, fluid.timeline.running)
    assert running == pytest.approx(steady.pool.running, rel=0.03)


@pytest.mark.slow
def test_those_that_run_while_many_come():
    # Ten seconds into 40 requests a second, far more start than leave.
    fluid, replayed = both(
        Load(786, 251, stages=(Stage(8, 60), Stage(40, 20)), arrival="poisson"), max_num_seqs=1024
    )
    running, exact = (
        np.interp(70.0, one.timeline.time_s, one.timeline.running) for one in (fluid, replayed)
    )
    assert running == pytest.approx(exact, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "engine", "tolerance"),
    [
        (Load(575, 248, stages=(Stage(8, 100), Stage(20, 100))), {}, 0.03),
        # Far above capacity, then a stage that finds the queue.
        (Load(575, 248, stages=(Stage(60, 60), Stage(5, 60))), {}, 0.05),
        # Equal prompts all at once: the server's waves are not in the fluid.
        (Load(2000, 100, stages=(Stage(40, 40),)), {}, 0.09),
        (Load(500, 250, stages=(Stage(40, 60),)), {"kv_blocks": 2500}, 0.1),
    ],
)
def test_the_trajectory_is_the_replays(load, engine, tolerance):
    # As many come in both.
    fluid, replayed = both(replace(load, arrival="constant"), **engine)
    assert fluid.e2e_s == pytest.approx(replayed.e2e_s, rel=tolerance)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=2 * tolerance)
    assert fluid.requests_per_s == pytest.approx(replayed.requests_per_s, rel=tolerance)
    assert fluid.whole.arrived == pytest.approx(replayed.whole.arrived, abs=2)
    # Young requests hold less of the cache than those of a load that stays.
    fullest = max(fluid.timeline.kv_use)
    assert fullest <= 1
    assert fullest == pytest.approx(max(replayed.timeline.kv_use), rel=0.15)
    for one, other in zip(fluid.stages, replayed.stages, strict=True):
        ours, theirs = one.latencies["e2e"], other.latencies["e2e"]
        for name in ("mean", "p50", "p90", "p99"):
            assert ours[name] == pytest.approx(theirs[name], rel=0.1)


@pytest.mark.slow
def test_clients_that_give_up():
    load = Load(575, 248, stages=(Stage(60, 120),), timeout_s=20.0)
    fluid, replayed = both(load)
    assert fluid.whole.completed < 0.9 * fluid.whole.arrived
    assert fluid.whole.completed == pytest.approx(replayed.whole.completed, rel=0.2)
    assert fluid.whole.latencies["e2e"]["p99"] < 21.0


def system(**engine):
    case = physim.Case.from_options(MODEL, gpu="h100_sxm", **ENGINE | engine)
    ops = lower(case.server)
    demand = Demand.from_load(Load(575, 248, rate=1.0), 16)
    limits = jax.tree.map(float, Limits.from_server(case.server))
    return jax.tree.map(jnp.asarray, (ops, demand, limits))


@jax.jit
def means(corrections, rate, ops, demand, limits):
    fluid = Fluid.tabulated(StepModel(ops, corrections), demand, limits)
    schedule = Schedule(jnp.stack([rate, jnp.asarray(4.0)]), jnp.array([60.0, 90.0]))
    summary = latencies(fluid, fluid.run(schedule), schedule)
    return jnp.stack([summary.ttft[-1], summary.itl[-1], summary.e2e[-1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "step", "tolerance"),
    [(0.5, 1e-6, 0.01), (0.99, 1e-6, 0.01), (1.01, 3e-3, 0.12), (1.5, 3e-3, 0.12)],
)
def test_gradients_agree_with_differences(share, step, tolerance):
    """Below, at both sides of and above the capacity; in 64 bit, for the differences' sake.

    Above it the solver chooses other steps for other corrections, within its tolerance, so that
    small differences say nothing; just below it the slope changes within a percent of the rate, so
    that large ones do not.
    """
    capacity = physim.predict(
        MODEL, gpu="h100_sxm", rate=1.0, input_tokens=575, output_tokens=248, fit="none", **ENGINE
    ).saturation_rps
    with jax.enable_x64(True):
        parts = system()
        rate = jnp.asarray(share * capacity)
        zero = jax.tree.map(jnp.asarray, Corrections())
        backward = jax.jit(jax.jacrev(means))(zero, rate, *parts)
        for name in ("gemm_memory", "decode_attention", "step_overhead", "front_end", "handover"):
            up, down = (
                means(replace(zero, **{name: jnp.asarray(sign * step)}), rate, *parts)
                for sign in (1, -1)
            )
            differences = (up - down) / (2 * step)
            found = getattr(backward, name)
            assert np.all(np.isfinite(found))
            assert found == pytest.approx(np.asarray(differences), rel=tolerance, abs=1e-4)


@pytest.mark.slow
def test_latency_is_continuous_and_rises_across_the_capacity():
    parts = system()
    zero = jax.tree.map(jnp.asarray, Corrections())
    rates = np.linspace(20, 45, 40)
    rows = np.stack([means(zero, jnp.asarray(rate), *parts) for rate in rates])
    assert np.all(np.isfinite(rows))
    rises = np.diff(np.log(rows[:, 2]))
    assert np.all(rises > -0.005)
    assert np.max(rises) < 0.25


def test_a_plot_needs_an_end(tmp_path):
    from physim.plot import draw_timeline, save

    load = {"rate": 1, "input_tokens": 99, "output_tokens": 9, "fit": "none"}
    endless = physim.predict(MODEL, gpu="h100_sxm", **load)
    with pytest.raises(InputError, match="needs a load that ends"):
        draw_timeline(endless)
    ends = physim.predict(MODEL, gpu="h100_sxm", requests=20, **load)
    with pytest.raises(InputError, match=r"end it in \.png or \.svg"):
        save(draw_timeline(ends), tmp_path / "a.txt")
    save(draw_timeline(ends), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_queue_of_requests_whose_lengths_changed_is_solved(tmp_path):
    """Requests of all ten stretches of a record start after it has ended, and jump in length."""
    path, rng = tmp_path / "requests.csv", np.random.default_rng(0)
    prompts = np.repeat([20_000, 10_000, 25_000, 8_000, 22_000] * 2, 24)
    prompts = np.rint(prompts * rng.uniform(0.5, 1.5, len(prompts))).astype(int)
    arrivals = np.arange(len(prompts)) / 3
    columns = {"arrival_s": arrivals, "input_tokens": prompts, "output_tokens": 300}
    pd.DataFrame(columns).to_csv(path, index=False)
    fluid, replay = (
        physim.predict_trace("Qwen/Qwen3-14B", path, gpu="h100_sxm", fit="none", method=method)
        for method in ("fluid", "replay")
    )
    assert fluid.ttft_s == pytest.approx(replay.ttft_s, rel=0.1)
    assert fluid.itl_s == pytest.approx(replay.itl_s, rel=0.1)
