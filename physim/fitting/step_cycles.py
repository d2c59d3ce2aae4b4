"""Measured steps as arrays: what a step carried and how long its cycle was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from physim.corrections.fields import unflat
from physim.corrections.levels import Branch, branch_of
from physim.errors import InputError
from physim.inputs.case import Case
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import grouped, read_tables
from physim.measured.step_trace import read_steps
from physim.measured.steps import CLOCKS, NOT_TIMED, WAITS, WHOLE_STEPS, MeasuredSteps, too_short
from physim.pytree import Pytree
from physim.step.batch import Batch
from physim.step.lowering import PART_NAMES, StepOps, lower, stack_ops
from physim.step.mixed_steps import ADDITIVE, MIXINGS, Mixing
from physim.step.model import StepModel
from physim.types import AnyArray

if TYPE_CHECKING:
    import pandas as pd

Record = TypeVar("Record")

# Standard deviation of the logarithm of a cycle's time: what a straight line in the batch leaves
# of one run's, and what is not recorded of a step. Neighbours in time err alike, so the cycles of
# a run count no more than so many that do not.
NOISE, _INDEPENDENT = 0.05, 20.0
# Steps of one server are thinned to so many: neighbours are nearly the same step.
_MOST_STEPS = 20_000
# However often a batch occurs, the physics of it errs once: steps whose requests, tokens and
# contexts are alike to a quarter count no more than so many.
_ALIKE_STEPS, _ALIKE = 20.0, 0.25
# Steps that are predicted at once, and what that is a multiple of.
_AT_ONCE, _UNIT = 2048, 128
# What each clock covers of the parts of a step.
CLOCK_NAMES = tuple(CLOCKS)
_COVERED = np.array(
    [[float(name not in NOT_TIMED.get(clock, ())) for name in PART_NAMES] for clock in CLOCKS]
)


class Cycles(Pytree):
    """Steps with their cycle times.

    Attributes:
        ops: The lowered models of the runs.
        run: Which run each step is of.
        batch: What each step carried.
        observed: Logarithm of its cycle, seconds.
        weight: Weight of each.
        clock: What its clock covers, by its place in `CLOCK_NAMES`.
        mixing: How steps of both prefill and decode are composed.
    """

    ops: StepOps
    run: Int[AnyArray, " steps"]
    batch: Batch
    observed: Float[AnyArray, " steps"]
    weight: Float[AnyArray, " steps"]
    clock: Int[AnyArray, " steps"]
    mixing: Mixing = ADDITIVE

    def chunks(self) -> Iterator[tuple[slice, Cycles]]:
        """The steps in pieces of few different sizes, so that many take little memory.

        What a piece is filled up with is its last step again.
        """
        count = len(self.observed)
        size = min(-(-count // _UNIT) * _UNIT, _AT_ONCE)
        for start in range(0, count, size):
            own = np.minimum(np.arange(start, start + size), count - 1)
            run, batch, observed, weight, clock = _picked(
                (self.run, self.batch, self.observed, self.weight, self.clock), own
            )
            piece = replace(
                self, run=run, batch=batch, observed=observed, weight=weight, clock=clock
            )
            yield slice(start, min(start + size, count)), piece


def _picked(arrays: Record, own: Int[np.ndarray, " own"]) -> Record:
    """Some steps of arrays, or of one number for all."""

    def picked(leaf: AnyArray) -> AnyArray:
        return np.full(len(own), leaf) if np.ndim(leaf) == 0 else np.asarray(leaf)[own]

    found: Record = jax.tree.map(picked, arrays)
    return found


@dataclass(frozen=True)
class Trace:
    """Measured steps, and what runs they are of.

    Attributes:
        cycles: The steps.
        branches: The branch of each run, its table as the campaign.
        models: The model of each run,
        cases: its server, and its load where that is known.
        frame: The steps' table: ``experiment``, ``step`` and what each carried.
    """

    cycles: Cycles
    branches: Sequence[Branch]
    models: Sequence[str]
    cases: Sequence[Case]
    frame: pd.DataFrame

    @property
    def covered(self) -> list[dict[str, float]]:
        """Least and largest of what steps of one server covered, by quantity.

        The quantities are those of `physim.prediction.intervals.quantities`.
        """
        server, batch = self.cases[0].server, self.cycles.batch
        decoding, prompts = (
            np.asarray(one) for one in (batch.decode_requests, batch.prefill_requests)
        )
        contexts = np.max(np.asarray(batch.attended), axis=-1) / np.maximum(decoding, 1)
        values = {
            "batch": decoding[decoding > 0],
            "context": contexts[decoding > 0],
            "new_tokens": (np.asarray(batch.prefill_tokens) / np.maximum(prompts, 1))[prompts > 0],
            "step_s": np.exp(np.asarray(self.cycles.observed)),
            "weight_bytes": np.array([server.memory.weights]),
            "tp": np.array([server.parallelism.tp]),
        }
        known = {name: one for name, one in values.items() if len(one)}
        return [{name: float(end(one)) for name, one in known.items()} for end in (np.min, np.max)]

    def of_experiments(self, experiments: Sequence[str]) -> Trace:
        """The same steps, of which only those of some experiments count."""
        counts = self.frame["experiment"].isin(list(experiments)).to_numpy()
        weight = np.where(counts, self.cycles.weight, 0.0)
        return replace(self, cycles=replace(self.cycles, weight=weight))


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
    ops, branches, cases, contexts, cached = [], [], [], {}, {}
    names = list(dict.fromkeys(frame["experiment"]))
    for name in names:
        if name not in runs:
            raise InputError(
                f"{path}: experiment_id {name}", "is in no table", "pass its run with --data"
            )
        case = case_of(runs[name], None)
        cases.append(case)
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
        clock=np.full(len(frame), CLOCK_NAMES.index("loop")),
    )
    models = [runs[name][0].row.model for name in names]
    return Trace(cycles, branches, models, cases, frame)


def observe_served(tables: Sequence[MeasuredSteps], case: Case, campaign: str) -> Trace:
    """Steps of one server as a trace.

    Args:
        tables: The steps, with contexts (`MeasuredSteps.completed`), each with a clock of its own.
        case: Their server; its load is of no account.
        campaign: The campaign that the server is of.

    Raises:
        InputError: Contexts are not known, or the times are those that an engine which runs ahead
            waits for tokens.
    """
    import pandas as pd

    for steps in tables:
        if steps.clock == "worker" and (short := too_short(steps.seconds)):
            raise InputError(steps.source, f"{100 * short:.0f}% of its steps {WAITS}", WHOLE_STEPS)
    count = sum(map(len, tables))
    thinned = [steps[slice(None, None, -(-count // _MOST_STEPS))] for steps in tables]
    ops = lower(case.server).of_alike_ranks(float(case.server.parallelism.dp))
    every = [
        _picked(steps.batches(np.asarray(ops.windows)), np.arange(len(steps))) for steps in thinned
    ]
    batch: Batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *every)
    clock = np.concatenate(
        [np.full(len(steps), CLOCK_NAMES.index(steps.clock)) for steps in thinned]
    )
    cycles = Cycles(
        ops=stack_ops([ops]),
        run=np.zeros(len(batch.decode_requests), int),
        batch=batch,
        observed=np.log(np.concatenate([steps.seconds for steps in thinned])),
        weight=_weights(batch, clock),
        clock=clock,
        mixing=MIXINGS[case.composition],
    )
    starts = np.concatenate([steps.start_s for steps in thinned])
    frame = pd.DataFrame({"experiment": campaign, "start_s": starts})
    return Trace(cycles, [branch_of(case, campaign)], [case.model.name], [case], frame)


def alike(batch: Batch, clock: Int[AnyArray, " steps"]) -> Int[np.ndarray, " steps"]:
    """A number for each step, the same for those whose requests, tokens and contexts are alike.

    Args:
        batch: What the steps carry.
        clock: What their clocks cover; only those of one are alike.
    """
    decoding = np.asarray(batch.decode_requests)
    sizes = (
        decoding,
        np.max(np.asarray(batch.attended), axis=-1) / np.maximum(decoding, 1.0),
        np.asarray(batch.prefill_tokens),
        np.asarray(batch.cached_tokens),
    )
    kinds = np.stack([np.floor(np.log1p(one) / np.log1p(_ALIKE)) for one in sizes], axis=1)
    kinds = np.column_stack([kinds, clock])
    _, found = np.unique(kinds, axis=0, return_inverse=True)
    return np.ravel(found)


def _weights(batch: Batch, clock: Int[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    """How much each step counts: those that are alike together as some that are not."""
    own = alike(batch, clock)
    found: Float[np.ndarray, " steps"] = np.minimum(_ALIKE_STEPS / np.bincount(own), 1.0)[own]
    return found


def log_cycles(corrections: Float[AnyArray, "runs n"], cycles: Cycles) -> Float[AnyArray, " steps"]:
    """Logarithms of the times that steps are predicted to have.

    Args:
        corrections: Those of each run, flat.
        cycles: The steps.
    """

    def one(run: Int[AnyArray, ""], batch: Batch, clock: Int[AnyArray, ""]) -> Float[AnyArray, ""]:
        ops = jax.tree.map(lambda leaf: jnp.asarray(leaf)[run], cycles.ops)
        return log_time(jnp.asarray(corrections)[run], ops, cycles.mixing, batch, clock)

    return jax.vmap(one)(jnp.asarray(cycles.run), cycles.batch, jnp.asarray(cycles.clock))


def log_time(
    numbers: Float[AnyArray, " n"],
    ops: StepOps,
    mixing: Mixing,
    batch: Batch,
    clock: Int[AnyArray, ""],
) -> Float[AnyArray, ""]:
    """Logarithm of the time that a step is predicted to have.

    Args:
        numbers: The corrections of its run, flat.
        ops: The lowered model of its run.
        mixing: How steps of both prefill and decode are composed.
        batch: What it carries.
        clock: What its clock covers, by its place in `CLOCK_NAMES`.
    """
    seconds = StepModel(ops, unflat(numbers), mixing)(batch).seconds
    return jnp.log(jnp.sum(seconds * jnp.asarray(_COVERED)[clock]))
