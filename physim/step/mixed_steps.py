"""How a step of both prefill and decode is composed of what each would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from physim.inputs.case import APART, MIXED
from physim.pytree import Pytree
from physim.step.batch import Batch
from physim.types import Scalar

# Any record of times of a batch.
TimeOf = Callable[[Batch], Any]


class Additive(Pytree):
    """GEMMs on all tokens together, attention apart: what an engine runs."""

    def __call__(self, time_of: TimeOf, batch: Batch) -> Any:
        """The time of a batch."""
        return time_of(batch)


class WeightedAverage(Pytree):
    """The seed study's blend of a prefill-only and a decode-only step, by regimes.

    Prefill has 0.75 where its tokens are more than four times the decode tokens and over 100,
    0.35 where decode tokens are more than twice the prefill tokens and over 50, else its share of
    the tokens (inference-sim, sim/roofline_step.go, as recorded in its hypothesis H27). Batches
    of one kind have the time of that kind.
    """

    def __call__(self, time_of: TimeOf, batch: Batch) -> Any:
        """The time of a batch."""
        return _blended(time_of, batch, lambda value, limit: 1.0 * (_ratio(value, limit) > 1))


class SmoothWeighted(Pytree):
    """`WeightedAverage` with the regimes' borders smoothed."""

    def __call__(self, time_of: TimeOf, batch: Batch) -> Any:
        """The time of a batch."""
        return _blended(
            time_of, batch, lambda value, limit: jax.nn.sigmoid(4 * jnp.log(_ratio(value, limit)))
        )


class Apart(Pytree):
    """A step for prompts, in which nothing decodes, and one for requests that decode.

    What is prefilled is there after the first; who decodes waits for both, so the interval and its
    parts are those of the two together.
    """

    def __call__(self, time_of: TimeOf, batch: Batch) -> Any:
        """The time of a batch."""
        prefill, decode = time_of(batch.prefill_only()), time_of(batch.decode_only())
        has_prompt = jnp.asarray(batch.prefill_requests) > 0
        has_others = jnp.asarray(batch.decode_requests) > 0
        kept = jax.tree.map(lambda x: jnp.where(has_others, x, 0.0), decode)
        both = jax.tree.map(lambda p, d: p + d, prefill, kept)
        mixed = replace(both, latency=prefill.latency, launches=prefill.launches)
        return jax.tree.map(lambda m, d: jnp.where(has_prompt, m, d), mixed, decode)


Mixing: TypeAlias = Additive | WeightedAverage | SmoothWeighted | Apart

ADDITIVE = Additive()
MIXINGS: dict[str, Mixing] = dict(
    zip((*MIXED, APART), (ADDITIVE, WeightedAverage(), SmoothWeighted(), Apart()), strict=True)
)


def _ratio(value: Scalar, limit: Scalar) -> Scalar:
    return (value + 1e-6) / (limit + 1e-6)


def _blended(time_of: TimeOf, batch: Batch, above: Callable[[Scalar, Scalar], Scalar]) -> Any:
    """Times of a prefill-only and a decode-only step, weighted.

    Args:
        time_of: Times of a batch.
        batch: The batch.
        above: How far a number is above a limit, from 0 to 1.
    """
    prefill = jnp.asarray(batch.prefill_tokens)
    decode = jnp.asarray(batch.decode_requests * batch.query_tokens)
    prefill_rules = above(prefill, 4 * decode) * above(prefill, 100.0)
    decode_rules = above(decode, 2 * prefill) * above(decode, 50.0)
    share = prefill / jnp.maximum(prefill + decode, 1e-6)
    blend = prefill_rules * 0.75 + decode_rules * 0.35 + (1 - prefill_rules - decode_rules) * share
    weight = jnp.where(prefill == 0, 0.0, jnp.where(decode == 0, 1.0, blend))
    return jax.tree.map(
        lambda p, d: weight * p + (1 - weight) * d,
        time_of(batch.prefill_only()),
        time_of(batch.decode_only()),
    )
