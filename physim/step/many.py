"""Step times of many batches at once, however many, with one compilation."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from physim.step.batch import Batch
from physim.step.model import PART_NAMES, StepModel
from physim.types import AnyArray

# Batches that are evaluated together.
_BLOCK = 1024


def part_seconds(
    model: StepModel, sums: Float[np.ndarray, "rows 7"]
) -> Float[np.ndarray, "rows parts"]:
    """Seconds of the parts of each step, in the order of `physim.step.model.PART_NAMES`.

    Args:
        model: The step model.
        sums: What each step carries, in the order of `Batch`'s fields.
    """
    blocks = -(-len(sums) // _BLOCK)
    padded = np.resize(sums, (blocks, _BLOCK, 7)).astype(float)
    seconds = np.concatenate([np.asarray(_seconds(model, block)) for block in padded])
    return seconds[: len(sums)].astype(float)


def named_seconds(
    model: StepModel, sums: Float[np.ndarray, "rows 7"]
) -> dict[str, Float[np.ndarray, " rows"]]:
    """`part_seconds` by the names of the parts."""
    return dict(zip(PART_NAMES, part_seconds(model, sums).T, strict=True))


def sums_of(where: Float[np.ndarray, "rows 4"]) -> Float[np.ndarray, "rows 7"]:
    """Steps of one prefill chunk at most, in the order of `Batch`'s fields.

    Args:
        where: Of each step the requests that decode, the mean tokens that they attend to, the
            chunk's tokens, and those in the cache before it.
    """
    decode, context, prefill, before = where.T
    chunks = np.minimum(prefill, 1.0)
    return np.stack(
        [
            decode,
            decode * context,
            chunks,
            prefill,
            chunks * prefill**2,
            chunks * before,
            prefill * before,
        ],
        axis=1,
    )


@jax.jit
def _seconds(model: StepModel, sums: Float[AnyArray, "rows 7"]) -> Float[AnyArray, "rows parts"]:
    return jax.vmap(lambda row: model(Batch(*row)).seconds)(sums)
