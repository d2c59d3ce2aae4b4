"""Step times of many batches at once, however many, with one compilation."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from physim.kept import kept
from physim.step.batch import Batch
from physim.step.lowering import PART_NAMES
from physim.step.model import Families, StepModel, StepTime
from physim.types import AnyArray, Number

# Batches that are evaluated together, where there are few and where there are many: handing the
# model over with each block takes as long as a thousand batches.
_FEW, _MANY = 1024, 4096


def part_seconds(model: StepModel, batches: Batch) -> Float[np.ndarray, "steps parts"]:
    """Seconds of the parts of each step, in the order of `physim.step.lowering.PART_NAMES`.

    Args:
        model: The step model.
        batches: What each step carries: a batch whose fields are arrays, or numbers that all share.
    """
    return np.concatenate([np.asarray(_parts(model, block)) for block in _blocks(batches)])[
        : _count(batches)
    ].astype(float)


def step_times(model: StepModel, batches: Batch) -> StepTime:
    """The times of each step: `StepTime` with a leading axis of steps in each of its fields.

    Args:
        model: The step model.
        batches: As `part_seconds` takes them.
    """
    blocks = [_times(model, block) for block in _blocks(batches)]

    def joined(*leaves: AnyArray) -> np.ndarray:
        return np.concatenate([np.asarray(leaf) for leaf in leaves])[: _count(batches)]

    found: StepTime = jax.tree.map(joined, *blocks)
    return found


def named_seconds(model: StepModel, batches: Batch) -> dict[str, Float[np.ndarray, " steps"]]:
    """`part_seconds` by the names of the parts."""
    return dict(zip(PART_NAMES, part_seconds(model, batches).T, strict=True))


def total_seconds(model: StepModel, batches: Batch) -> Float[np.ndarray, " steps"]:
    """Seconds of each step."""
    return np.asarray(np.sum(part_seconds(model, batches), axis=1))


def family_seconds(model: StepModel, batches: Batch) -> Families:
    """GPU time of each step by what it depends on, all parts together, seconds."""
    blocks = [_families(model, block) for block in _blocks(batches)]
    columns = (
        np.concatenate([np.asarray(x) for x in column]) for column in zip(*blocks, strict=True)
    )
    return Families(*(column[: _count(batches)].astype(float) for column in columns))


def _count(batches: Batch) -> int:
    return max(
        int(np.prod(np.shape(leaf)[: np.ndim(leaf) - trailing]))
        for leaf, trailing in _leaves(batches)
    )


def _leaves(batches: Batch) -> list[tuple[Number, int]]:
    """Each leaf and how many axes a single batch's has."""
    return [(leaf, 1 if leaf is batches.attended else 0) for leaf in jax.tree.leaves(batches)]


def _blocks(batches: Batch) -> list[Batch]:
    """The batches in blocks of one size, the last one filled up with repetitions."""
    count = _count(batches)
    size = _FEW if count < _MANY else _MANY
    padded = -(-count // size) * size

    def column(leaf: Number, trailing: int) -> np.ndarray:
        shape = (count, *np.shape(leaf)[np.ndim(leaf) - trailing :])
        whole = np.broadcast_to(np.asarray(leaf, float), shape)
        return np.resize(whole, (padded, *shape[1:]))

    columns = [column(*leaf) for leaf in _leaves(batches)]
    structure = jax.tree.structure(batches)
    return [
        jax.tree.unflatten(structure, [one[start : start + size] for one in columns])
        for start in range(0, padded, size)
    ]


@kept
def _parts(model: StepModel, batches: Batch) -> Float[AnyArray, "steps parts"]:
    return jax.vmap(lambda batch: model(batch).seconds)(batches)


@kept
def _times(model: StepModel, batches: Batch) -> StepTime:
    return jax.vmap(model)(batches)


@kept
def _families(model: StepModel, batches: Batch) -> Families:
    def totals(batch: Batch) -> Families:
        return Families(*(parts.sum() for parts in model.families(batch)))

    return jax.vmap(totals)(batches)
