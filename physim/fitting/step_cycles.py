"""Measured steps as arrays: what a step carried and how long its cycle was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from physim.corrections.fields import unflat
from physim.corrections.levels import Branch, branch_of
from physim.errors import InputError
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import grouped, read_tables
from physim.measured.step_trace import read_steps
from physim.step.batch import Batch
from physim.step.lowering import PART_NAMES, StepOps, lower, stack_ops
from physim.step.mixed_steps import ADDITIVE, Mixing
from physim.step.model import StepModel
from physim.types import AnyArray

if TYPE_CHECKING:
    import pandas as pd

# Standard deviation of the logarithm of a cycle's time: what a straight line in the batch leaves
# of one run's, and what is not recorded of a step. Neighbours in time err alike, so the cycles of
# a run count no more than so many that do not.
NOISE, _INDEPENDENT = 0.05, 20.0
# What clocks of steps cover: a whole cycle of the engine, or the model's forward pass on the GPU.
CYCLE, FORWARD = 0, 1
_NOT_FORWARD = ("sampling", "host")
_COVERED = np.array(
    [np.ones(len(PART_NAMES)), [float(name not in _NOT_FORWARD) for name in PART_NAMES]]
)


class Cycles(eqx.Module):
    """Steps with their cycle times.

    Attributes:
        ops: The lowered models of the runs.
        run: Which run each step is of.
        batch: What each step carried.
        observed: Logarithm of its cycle, seconds.
        weight: Weight of each.
        clock: What its clock covers, `CYCLE` or `FORWARD`.
        mixing: How steps of both prefill and decode are composed.
    """

    ops: StepOps
    run: Int[AnyArray, " steps"]
    batch: Batch
    observed: Float[AnyArray, " steps"]
    weight: Float[AnyArray, " steps"]
    clock: Int[AnyArray, " steps"]
    mixing: Mixing = ADDITIVE

    def of_run(self, run: Int[AnyArray, ""]) -> StepOps:
        """The lowered model of a run."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[run], self.ops)


@dataclass(frozen=True)
class Trace:
    """Measured steps, and what runs they are of.

    Attributes:
        cycles: The steps.
        branches: The branch of each run, its table as the campaign.
        models: The model of each run.
        frame: The steps' table: ``experiment``, ``step`` and what each carried.
    """

    cycles: Cycles
    branches: Sequence[Branch]
    models: Sequence[str]
    frame: pd.DataFrame

    def of_experiments(self, experiments: Sequence[str]) -> Trace:
        """The same steps, of which only those of some experiments count."""
        counts = self.frame["experiment"].isin(list(experiments)).to_numpy()
        weight = np.where(counts, self.cycles.weight, 0.0)
        return replace(self, cycles=eqx.tree_at(lambda cycles: cycles.weight, self.cycles, weight))


def observe_steps(
    path: str | Path, tables: Sequence[str | Path], share: tuple[float, float] = (0.0, 1.0)
) -> Trace:
    """Reads cycles of measured steps, with the tables that say of what engine and load they are.

    A trace knows a step's requests but not their contexts, so the mean of the run's load is taken:
    the prompt and half of the output.

    Args:
        path: The steps; see `physim.measured.step_trace.read_steps`.
        tables: CSV files in the common form with a row of every experiment in the steps.
        share: Part of each run's time that is kept, such as (0, 0.6).

    Raises:
        InputError: A file cannot be used, or an experiment is in no table.
    """
    frame = read_steps(Path(path))
    runs = grouped(read_tables(tables).rows, lambda one: one.row.experiment)
    rank = frame.groupby("experiment")["start_s"].rank(method="first", pct=True)
    frame = frame[(rank > share[0]) & (rank <= share[1])].reset_index(drop=True)
    ops, branches, contexts, cached = [], [], {}, {}
    names = list(dict.fromkeys(frame["experiment"]))
    for name in names:
        if name not in runs:
            raise InputError(
                f"{path}: experiment_id {name}", "is in no table", "pass its run with --data"
            )
        case = case_of(runs[name], None)
        ops.append(lower(case.server))
        branches.append(branch_of(case, runs[name][0].campaign))
        load = case.demanded
        contexts[name] = load.mean_input + load.mean_output / 2
        cached[name] = load.cached_tokens
    where = frame["experiment"]
    decode, prefill, tokens = (
        frame[column].to_numpy(float)
        for column in ("decode_requests", "prefill_requests", "prefill_tokens")
    )
    chunk = tokens / np.maximum(prefill, 1.0)
    context, before = (where.map(means).to_numpy(float) for means in (contexts, cached))
    ones = np.ones_like(decode)
    batch = Batch.summarised(decode, context, prefill, chunk, before, query_tokens=ones)
    counts = where.map(where.value_counts()).to_numpy(float)
    cycles = Cycles(
        ops=stack_ops(ops),
        run=where.map({name: i for i, name in enumerate(names)}).to_numpy(int),
        batch=batch,
        observed=np.log(frame["cycle_s"].to_numpy(float)),
        weight=np.minimum(_INDEPENDENT / counts, 1.0),
        clock=np.full(len(frame), CYCLE),
    )
    return Trace(cycles, branches, [runs[name][0].row.model for name in names], frame)


def log_cycles(corrections: Float[AnyArray, "runs n"], cycles: Cycles) -> Float[AnyArray, " steps"]:
    """Logarithms of the cycle times that steps are predicted to have.

    Args:
        corrections: Those of each run, flat.
        cycles: The steps.
    """

    def one(run: Int[AnyArray, ""], batch: Batch, clock: Int[AnyArray, ""]) -> Float[AnyArray, ""]:
        return log_cycle(jnp.asarray(corrections)[run], cycles, run, batch, clock)

    return jax.vmap(one)(jnp.asarray(cycles.run), cycles.batch, jnp.asarray(cycles.clock))


def log_cycle(
    numbers: Float[AnyArray, " n"],
    cycles: Cycles,
    run: Int[AnyArray, ""],
    batch: Batch,
    clock: Int[AnyArray, ""],
) -> Float[AnyArray, ""]:
    """Logarithm of the time that a step is predicted to have.

    Args:
        numbers: The corrections of its run, flat.
        cycles: The steps that it is among.
        run: Its run.
        batch: What it carries.
        clock: What its clock covers.
    """
    time = StepModel(cycles.of_run(run), unflat(numbers), cycles.mixing)(batch)
    return jnp.log(jnp.sum(time.seconds * jnp.asarray(_COVERED)[clock]))
