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
    from physim.corrections import Corrections
    from physim.inputs.hardware import load_hardware
    from physim.inputs.models import load_model
    from physim.serving.demand import Demand, Limits
    from physim.serving.latencies import latencies
    from physim.serving.replay import Engine, replay
    from physim.serving.step_times import ModelStepTimes
    from physim.serving.transient import Fluid, Schedule
    from physim.serving.workload import drawn
    from physim.step.lowering import lower
    from physim.step.model import StepModel

    deployment = physim.Deployment(tp=2, max_num_seqs=256, max_num_batched_tokens=2048)
    stages = (physim.Stage(8, 600), physim.Stage(20, 600))
    load = physim.Load(575, 248, stages=stages, arrival="poisson")
    arch, gpu = load_model("Qwen/Qwen3-14B"), load_hardware("h100_sxm")
    resolved = deployment.resolved(arch, gpu)
    ops = lower(arch, gpu, resolved)
    limits = Limits.of(resolved)
    engine = Engine(256, 2048, resolved.kv_blocks, async_scheduling=True)

    def replay_all() -> object:
        workload = drawn(load, resolved.block_size, 0)
        times = ModelStepTimes(StepModel(ops, Corrections()), 256, 2048, workload.longest)
        return replay(workload, times, engine)

    @jax.jit
    def means(corrections: Corrections, demand: Demand, schedule: Schedule) -> jax.Array:
        fluid = Fluid.of(StepModel(ops, corrections), demand, limits)
        summary = latencies(fluid, fluid.run(schedule), schedule)
        return jnp.stack([summary.ttft, summary.itl, summary.e2e]).sum()

    demand = jax.tree.map(jnp.asarray, Demand.of(load, resolved.block_size))
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
        ("fluid: tables, course, percentiles", fluid),
        ("its gradient with respect to all corrections", fluid_gradient),
    ):
        action()
        median, least = timed(action, RUNS)
        print(f"| {name} | {median * 1e3:.1f} ms | {least * 1e3:.1f} ms |")


if __name__ == "__main__":
    main()
