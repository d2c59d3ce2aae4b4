"""The time in which a draft proposes tokens: its layers, once for each token."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from physim.step.batch import Batch
from physim.step.component import Part
from physim.types import Number

PART = Part("draft", "proposing drafts")

# Time of each pass of a draft's layers beside its kernels: inputs are made, the token is taken.
# An order of magnitude, seen between the kernels of DeepSeek's layer in 100 public rows with MTP
# (InferenceX, TensorRT-LLM and SGLang), not a measurement.
PASS_S = 0.15e-3


def further_pass(batch: Batch) -> Batch:
    """The batch of each pass after the first: a token of every request that has its next one.

    The first pass has all tokens of the step, whose hidden states are new to the draft.

    Args:
        batch: The step's batch.
    """
    return replace(batch.decode_only(), query_tokens=jnp.ones_like(jnp.asarray(batch.query_tokens)))


def passes_seconds(batch: Batch, tokens: Number) -> Number:
    """Time of a step's passes beside their kernels, seconds.

    Args:
        batch: The step's batch.
        tokens: Tokens that are proposed.
    """
    return PASS_S * tokens * jnp.minimum(batch.decode_requests, 1.0)
