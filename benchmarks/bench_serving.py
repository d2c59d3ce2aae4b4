"""Times the replay and the fluid on the same load: 8, then 20 requests/s, ten minutes each.

Run with ``python benchmarks/bench_serving.py``; prints a Markdown table of medians and leasts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

RUNS = 15


def timed(action: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median and least time of an action, seconds."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), min(seconds)


def main() -> None:
    """Prints the table."""
    import jax
    import jax.numpy as jnp

    import physim
    from physim.batching.demand import Demand
    from physim.batching.limits import Limits
    from physim.corrections.fields import Corrections
    from physim.fluid.request_latencies import latencies
    from physim.fluid.schedule import Schedule
    from physim.fluid.transient import Fluid
    from physim.prediction.arrays import step_model_of
    from physim.prediction.replayed import config_of
    from physim.replay.cluster import replay
    from physim.replay.step_times import ModelStepTimes
    from physim.replay.workload import drawn
    from physim.step.model import StepModel

    case = physim.Case.from_options(
        "Qwen/Qwen3-14B",
        gpu="h100_sxm",
        tp=2,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        input_tokens=575,
        output_tokens=248,
        stages=[(8, 600), (20, 600)],
        arrival="poisson",
    )
    load, server = case.demanded, case.server
    model, config = step_model_of(case, Corrections()), config_of(case, Corrections())
    numbers = jax.tree.map(float, Limits.from_server(server))

    def replay_all() -> object:
        workload = drawn(load, server, 0)
        times = ModelStepTimes(model, 256, 2048, workload.longest)
        return replay(workload, times, config)

    @jax.jit
    def means(corrections: Corrections, demand: Demand, schedule: Schedule) -> jax.Array:
        fluid = Fluid.tabulated(StepModel(model.ops, corrections), demand, numbers)
        summary = latencies(fluid, fluid.run(schedule), schedule)
        return jnp.stack([summary.ttft, summary.itl, summary.e2e]).sum()

    demand = jax.tree.map(jnp.asarray, Demand.from_load(load, server.kv.block_size))
    schedule = Schedule(jnp.array([8.0, 20.0]), jnp.array([600.0, 1200.0]))
    zero = jax.tree.map(jnp.asarray, Corrections())
    gradient = jax.jit(jax.grad(means))

    def fluid() -> object:
        return jax.block_until_ready(means(zero, demand, schedule))

    def fluid_gradient() -> object:
        return jax.block_until_ready(gradient(zero, demand, schedule))

    print("| what | median | least |\n| --- | --- | --- |")
    for name, action in (
        ("replay of 16,900 requests", replay_all),
        ("fluid: tables, trajectory, percentiles", fluid),
        ("its gradient with respect to all corrections", fluid_gradient),
    ):
        action()
        median, least = timed(action, RUNS)
        print(f"| {name} | {median * 1e3:.1f} ms | {least * 1e3:.1f} ms |")


if __name__ == "__main__":
    main()
