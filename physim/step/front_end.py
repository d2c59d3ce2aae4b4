"""What a request spends outside of steps: in the API server, and waiting to be handed over."""

from __future__ import annotations

import jax.numpy as jnp

from physim.corrections.fields import Corrections
from physim.types import Number, Scalar

# Time of a request outside the engine: HTTP, tokenisation, two messages between processes,
# detokenisation. An order of magnitude, not a measurement.
FRONT_END_S = 5e-3

# CPU time of the API server for each token that leaves it (detokenisation, a message, a chunk of
# HTTP), a step's tokens one after another. An order of magnitude, not a measurement.
OUTPUT_REQUEST_S = 20e-6


def outside_s(corrections: Corrections, prompt_s: Number = 0.0) -> Scalar:
    """Time of a request outside the engine, seconds.

    Args:
        corrections: Corrections of the constants.
        prompt_s: What its prompt's tokens take there: the engine's time of each, times them.
    """
    return FRONT_END_S * jnp.exp(corrections.front_end) + tokens_outside_s(corrections, prompt_s)


def tokens_outside_s(corrections: Corrections, prompt_s: Number) -> Scalar:
    """Of it, what tokens of a prompt take, seconds.

    Args:
        corrections: Corrections of the constants.
        prompt_s: What they take with nothing fitted.
    """
    return prompt_s * jnp.exp(corrections.front_end)


def warm_up_s(corrections: Corrections, load_s: Number) -> Number:
    """Time that the first requests wait for the engine to warm up, seconds.

    Args:
        corrections: Corrections of the constants.
        load_s: What the load says of it, seconds.
    """
    return load_s * jnp.exp(corrections.warm_up)


def output_s(corrections: Corrections, requests: Number) -> Number:
    """Time in which the tokens of a step leave the API server, for the mean one, seconds.

    They are handled one after another while the engine goes on.

    Args:
        corrections: Corrections of the constants.
        requests: Requests of the step.
    """
    return OUTPUT_REQUEST_S * jnp.exp(corrections.output_handling) * requests / 2


def handover_steps(corrections: Corrections, async_scheduling: Number) -> Scalar:
    """Scheduling delay of an arriving request, in steps.

    Half of the step that runs, and those that are scheduled ahead of it.

    Args:
        corrections: Corrections of the constants.
        async_scheduling: Steps that are scheduled while another runs: one or none.
    """
    return (0.5 + async_scheduling) * jnp.exp(corrections.handover)


def handover_beyond_steps(corrections: Corrections, async_scheduling: Number) -> Scalar:
    """Scheduling delay that the correction adds to what an engine's own steps make, in steps.

    Args:
        corrections: Corrections of the constants.
        async_scheduling: Steps that are scheduled while another runs: one or none.
    """
    return handover_steps(corrections, async_scheduling) - handover_steps(
        Corrections(), async_scheduling
    )
