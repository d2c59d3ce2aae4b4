"""The load of a pool: what the requests of a service do there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from physim.inputs.load import Load
from physim.inputs.popularity import IN_TURN
from physim.inputs.request_lengths import RequestLengths
from physim.service.phases import DECODE, PHASES, visit


def pool_load(load: Load, phases: Collection[str]) -> Load:
    """The load of a pool that runs some phases.

    Requests come as they do to the service. What they have in the KV cache when they start is each
    request's own, unless the pool computes their prompts and they share prefixes.

    Args:
        load: The load of the service.
        phases: Phases that the pool runs, of `physim.service.phases.PHASES`.

    Raises:
        InputError: The load is of conversations, and the pool does not run all phases.
    """
    if set(phases) == set(PHASES):
        return load
    load.refuse_turns("part that prefills or decodes alone")
    if load.lengths is None and DECODE not in phases:
        # Prefixes that requests share stay shared.
        return replace(load, output_tokens=1)
    lengths = load.lengths or RequestLengths.independent(load.input_tokens, load.output_tokens)
    prompts, cached, outputs = lengths.arrays
    stay = visit(phases, prompts, cached, outputs)
    # A request of one token has it of its prompt, and goes nowhere else.
    given = np.maximum(stay.given, 1.0)
    return replace(load, prefixes=1, popularity=IN_TURN).with_lengths(
        RequestLengths.from_columns(stay.context + stay.computed, given, stay.context)
    )
