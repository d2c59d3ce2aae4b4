"""Cases as arrays, one or many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.batching.strata import strata_of
from physim.corrections.fields import Corrections
from physim.inputs.case import Case
from physim.pytree import Pytree
from physim.step.lowering import StepOps, lower, stack_ops
from physim.step.mixed_steps import MIXINGS, Mixing
from physim.step.model import StepModel

Entry = TypeVar("Entry")
Record = TypeVar("Record")


def step_model_of(case: Case, corrections: Corrections) -> StepModel:
    """The time of the steps of a case's engine.

    Args:
        case: The case; its load is of no account.
        corrections: Corrections of the components.
    """
    ops = lower(case.server)
    return StepModel(ops, corrections, MIXINGS[case.composition])


def rank_model_of(case: Case, corrections: Corrections) -> StepModel:
    """The time of the steps of one data-parallel rank, where all ranks have the same batch.

    Args:
        case: The case; its load is of no account.
        corrections: Corrections of the components.
    """
    return step_model_of(case, corrections).of_alike_ranks(case.server.parallelism.dp)


def prompts_of_strata(case: Case) -> Float[np.ndarray, " strata"]:
    """Whole prompts of the strata of a case's load, tokens, in the order that `Demand` has them.

    Args:
        case: The case.
    """
    return strata_of(case.demanded, case.server.kv.block_size).inputs


class CaseArrays(Pytree):
    """Cases as numbers, stacked.

    Attributes:
        ops: The lowered models.
        demand: The loads; of one in stages, the busiest.
        limits: The engines' limits.
        mixing: How steps of both prefill and decode are composed.
    """

    ops: StepOps
    demand: Demand
    limits: Limits
    mixing: Mixing

    @classmethod
    def from_cases(cls, cases: Sequence[Case]) -> CaseArrays:
        """The cases as numbers.

        Args:
            cases: Cases whose mixed steps are composed alike.
        """
        return cls.chunks(cases, len(cases))[0]

    @classmethod
    def chunks(cls, cases: Sequence[Case], most: int) -> list[CaseArrays]:
        """The cases as numbers, so many of them at a time, all of the same shapes.

        Args:
            cases: Cases whose mixed steps are composed alike.
            most: Cases of a chunk; the last one is of those that are left.
        """
        # Members of an ensemble are one case many times over, and many cases share their steps.
        apart = {id(case): case for case in cases}
        places = {key: place for place, key in enumerate(apart)}
        lowered = [lower(c.server) for c in apart.values()]
        different = {id(ops): ops for ops in lowered}
        steps = {key: place for place, key in enumerate(different)}
        ops, step_of = stack_ops(list(different.values())), [steps[id(own)] for own in lowered]
        demand = Demand.stacked(
            [
                Demand.from_load(case.demanded, case.server.kv.block_size, case.server.draft)
                for case in apart.values()
            ]
        )
        servers = {id(case.server): case.server for case in apart.values()}
        known = dict(
            zip(servers, Limits.alike([*map(Limits.from_server, servers.values())]), strict=True)
        )
        limits = stack([known[id(case.server)] for case in apart.values()])
        found = []
        for start in range(0, len(cases), most):
            rows = [places[id(case)] for case in cases[start : start + most]]
            own = row_of(ops, [step_of[row] for row in rows])
            chunk = cls(
                own, row_of(demand, rows), row_of(limits, rows), MIXINGS[cases[0].composition]
            )
            found.append(chunk)
        return found

    def model(self, corrections: Corrections) -> StepModel:
        """Step times, of one case or of stacked ones."""
        return StepModel(self.ops, corrections, self.mixing)


def stack(records: Sequence[Record]) -> Record:
    """Records of one shape as one with a leading axis, in NumPy."""
    # Many are one record many times over.
    apart = {id(record): record for record in records}
    leaves, structures = zip(*(jax.tree.flatten(record) for record in apart.values()), strict=True)
    columns = (np.array(column, float) for column in zip(*leaves, strict=True))
    places = {key: place for place, key in enumerate(apart)}
    rows = [places[id(record)] for record in records]
    return jax.tree.unflatten(structures[0], [column[rows] for column in columns])


def unstacked(record: Record) -> list[Record]:
    """The records that one with a leading axis holds, as plain numbers.

    Args:
        record: It.
    """
    leaves, structure = jax.tree.flatten(record)
    columns = (np.asarray(leaf).tolist() for leaf in leaves)
    return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def row_of(records: Record, row: int | slice | Sequence[int] | np.ndarray) -> Record:
    """One of stacked records, or some of them."""
    picked: Record = jax.tree.map(lambda leaf: leaf[row], records)
    return picked


def padded(entries: Sequence[Entry], sizes: Sequence[int] = ()) -> list[Entry]:
    """The entries and some more, so that few sizes are ever compiled.

    Args:
        entries: The entries.
        sizes: Up to the first of these that holds them all, or else up to a power of two.
    """
    count = len(entries)
    size = next((one for one in sizes if one >= count), 2 ** math.ceil(math.log2(count)))
    return [*entries, *[entries[-1]] * (size - count)]
