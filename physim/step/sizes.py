"""The sizes of a step that operations work on: one declaration for each.

A row names the size that its time depends on; the knots of its curve, its place among the rows and
the step's figure follow from the declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp

from physim.models.architecture import ModelArch
from physim.pytree import Pytree
from physim.service.server import Server
from physim.step.batch import Batch
from physim.step.curves import MESSAGE_BYTES, TOKENS
from physim.types import Knots, Scalar


class Setting(Pytree):
    """What sizes of a step depend on beside its batch.

    Attributes:
        message_bytes: Bytes of the hidden state of a token, as an all-reduce sends it.
        alike: Data-parallel ranks that are taken to have the same batch.
        padded: Data-parallel ranks that compute as many tokens as the fullest, of which the batch
            is; one where each computes its own.
        pads_all: Whether they do in every step (1), or in CUDA graphs alone (0).
    """

    message_bytes: Scalar
    alike: Scalar = 1.0
    padded: Scalar = 1.0
    pads_all: Scalar = 0.0

    @classmethod
    def from_server(cls, server: Server, layers: ModelArch) -> Setting:
        """The setting of some layers on a server: hidden states are of 16 bit, other ranks differ.

        Args:
            server: The server.
            layers: The layers: its model, or those that propose tokens.
        """
        limit = server.padded_tokens
        return cls(
            message_bytes=2.0 * layers.hidden_size,
            padded=float(server.parallelism.dp) if limit else 1.0,
            pads_all=float(limit == math.inf),
        )

    def of_alike_ranks(self, ranks: float) -> Setting:
        """The setting where so many data-parallel ranks have the same batch, and need no padding.

        Args:
            ranks: How many.
        """
        return replace(self, alike=ranks, padded=1.0)


@dataclass(frozen=True)
class Size:
    """A size of a step.

    Attributes:
        name: What rows call it.
        knots: Where curves of time over it have their knots.
        slots: Rows over it, as many as today's models need at most; a model with more has a
            multiple.
        measured: The figure of a step, from its batch and the setting.
    """

    name: str
    knots: Knots
    slots: int
    measured: Callable[[Batch, Setting], Scalar]


SIZES = (
    # Tokens of the step.
    Size("tokens", TOKENS, 9, lambda batch, _: batch.tokens),
    # Tokens that have logits computed.
    Size("sampled", TOKENS, 4, lambda batch, _: batch.sampled),
    # Bytes of the step's hidden states.
    Size("message_bytes", MESSAGE_BYTES, 1, lambda batch, here: batch.tokens * here.message_bytes),
    # Whether the step has prefill.
    Size("has_prefill", TOKENS, 2, lambda batch, _: jnp.minimum(batch.prefill_requests, 1.0)),
    # Tokens that experts work on: those of all ranks.
    Size("routed", TOKENS, 2, lambda batch, here: batch.routed * here.alike),
)
KNOTS = {size.name: size.knots for size in SIZES}


def step_sizes(batch: Batch, setting: Setting) -> dict[str, Scalar]:
    """The sizes of a step by name.

    Args:
        batch: The step's batch.
        setting: What they depend on besides.
    """
    return {size.name: size.measured(batch, setting) for size in SIZES}
