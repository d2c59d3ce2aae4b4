"""The physical corrections that a fit may move, with their priors and what they mean."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.residual import Residual
from physim.printable import shown
from physim.pytree import Pytree, outlined
from physim.types import AnyArray, Scalar, known_number


def _correction(prior: float, meaning: str, carries_over: bool = False) -> Any:
    """A field of `Corrections`, zero unless it is given.

    Args:
        prior: Standard deviation of the prior, whose mean is zero: how far the constant may be off
            before anything is measured. Kernels were measured, on another machine and with other
            libraries; what carries an order of magnitude may be off by a factor of two.
        meaning: What it multiplies, in words that stand alone.
        carries_over: Whether what was fitted on one GPU and family of models holds on others.
    """
    metadata = {"prior": prior, "meaning": meaning, "carries_over": carries_over}
    return dataclasses.field(default=0.0, metadata=metadata)


class Corrections(Pytree):
    """Logarithms of factors on components of the step time and on the serving loop's constants.

    A component's time is its physics times ``exp`` of its correction; at zero, the default, the
    physics stands alone. The prior of each is zero. All but the last are scalars without unit.
    What each multiplies stands beside its prior, below and in `CORRECTIONS`. Kernels were measured
    on requests of one context; an engine's batch mixes them, so that decode attention has an
    exponent of its own for the context.
    """

    gemm_memory: Scalar = _correction(0.10, "dense GEMMs, where memory bounds them")
    gemm_compute: Scalar = _correction(0.15, "dense GEMMs, where FLOP/s bound them")
    experts: Scalar = _correction(0.20, "expert layers with their router, where memory bounds them")
    experts_compute: Scalar = _correction(0.30, "expert layers, where FLOP/s bound them")
    expert_spread: Scalar = _correction(
        0.50, "spread of tokens over experts, added to the exponent of its power law", True
    )
    expert_independence: Scalar = _correction(
        0.10, "how many of a step's tokens choose experts on their own, an exponent", True
    )
    prefill_attention: Scalar = _correction(
        0.15, "attention of prefill chunks among their own tokens"
    )
    cached_attention: Scalar = _correction(
        0.50, "attention of prefill chunks to the cached tokens before them"
    )
    decode_attention: Scalar = _correction(0.15, "decode attention at a context of 1,000 tokens")
    decode_context: Scalar = _correction(
        0.15, "growth of decode attention with the context, an exponent"
    )
    elementwise: Scalar = _correction(
        0.30, "norms, rotary embedding, activation, cache writes and casts"
    )
    all_reduce: Scalar = _correction(0.30, "all-reduces and the gathering of logits")
    lm_head: Scalar = _correction(0.20, "lm_head")
    sampling: Scalar = _correction(0.70, "drawing tokens from their logits")
    penalties: Scalar = _correction(0.70, "bookkeeping of repetition penalties and the like")
    step_overhead: Scalar = _correction(0.70, "GPU idle time between steps")
    layer_overhead: Scalar = _correction(0.70, "GPU idle time at each layer of a step with prefill")
    host_step: Scalar = _correction(0.50, "CPU time of a step, whatever its batch", True)
    host_request: Scalar = _correction(0.70, "CPU time of a step for each of its requests", True)
    host_sharpness: Scalar = _correction(
        0.50, "sharpness of the smooth maximum of GPU and CPU time", True
    )
    front_end: Scalar = _correction(0.50, "time of a request outside the engine", True)
    handover: Scalar = _correction(
        0.20, "scheduling delay: the wait of an arriving request for the steps under way", True
    )
    output_handling: Scalar = _correction(
        0.70, "detokenisation: the time in which a step's tokens leave the API server", True
    )
    warm_up: Scalar = _correction(
        1.00, "time that the first requests of a benchmark wait for the engine to warm up", True
    )
    residual: Residual = dataclasses.field(default_factory=Residual.silent)

    def logs(self) -> Float[AnyArray, " corrections"]:
        """The scalars as one vector, in the order of `CORRECTIONS`."""
        return jnp.stack([jnp.asarray(getattr(self, name), float) for name in CORRECTIONS])

    def __repr__(self) -> str:
        values = [getattr(self, name) for name in CORRECTIONS]
        if not all(map(known_number, values)):
            return outlined(self)
        factors = [
            f"{name} x {math.exp(value):.3g}"
            for name, value in zip(CORRECTIONS, values, strict=True)
            if value
        ]
        return shown(self, ", ".join(factors) or "none")


@dataclasses.dataclass(frozen=True)
class Correction:
    """What there is to know of one of the scalars.

    Attributes:
        name: The field of `Corrections`.
        prior: Standard deviation of its prior.
        meaning: What it multiplies.
        carries_over: Whether what was fitted on one GPU and family of models holds on others.
    """

    name: str
    prior: float
    meaning: str
    carries_over: bool


CORRECTIONS: Mapping[str, Correction] = {
    field.name: Correction(field.name, **field.metadata)
    for field in dataclasses.fields(Corrections)
    if field.name != "residual"
}
"""The scalars of `Corrections` by name, in the order of its fields."""

PRIOR_WIDTHS = Corrections(
    **{name: one.prior for name, one in CORRECTIONS.items()}, residual=Residual.widths(0.3, 0.5)
)


def selector(names: Iterable[str]) -> Float[np.ndarray, "rows corrections"]:
    """A row for each name with a one at that correction's place in `Corrections.logs`."""
    places = list(CORRECTIONS)
    return np.eye(len(places))[[places.index(name) for name in names]]


def flat(corrections: Corrections) -> Float[np.ndarray, " n"]:
    """Every number of some corrections, in the order of `labels`."""
    leaves = jax.tree.leaves(corrections)
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves])


def unflat(numbers: Float[AnyArray, " n"]) -> Corrections:
    """The corrections of which `flat` gives these numbers; traced numbers are kept so."""
    leaves, structure = jax.tree.flatten(PRIOR_WIDTHS)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = [
        numbers[end - np.size(leaf) : end].reshape(np.shape(leaf))
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    corrections: Corrections = jax.tree.unflatten(structure, parts)
    return corrections


def labels() -> list[str]:
    """Names of `flat`'s numbers: those of the residual are counted."""
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(PRIOR_WIDTHS.residual))
    return [*CORRECTIONS, *(f"residual[{i}]" for i in range(size))]
