"""Rounds of clients that begin at once: how far they stay in step, and what that makes them meet.

Requests that are prefilled together end together if they are of one length, and the next ones of
their clients come together. Lengths that differ let clients drift apart, and what counts is how far
in engine steps: however long a step takes, all requests in it are one token older after it. So the
prompts of a round of all clients are spread over a width of steps. It begins as the steps that the
first prompts take and grows with the root of the rounds, until clients are anywhere in their
requests; what a request meets of others follows from how many prompts there are in a step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.fluid.demand import Demand
from physim.inputs.deployment import Limits
from physim.step.front_end import output_s, outside_s
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Scalar

# How sharply the spread of the prompts ends at the whole turn: a normal distribution on a ring has
# a mean density within 1% of ``(width^-8 + ring^-8)^(1/8)``.
_SHARPNESS = 8.0
# Of the first prompts as many are followed, and a step is full that lacks this share of a prompt.
_PROMPTS, _WHOLE = 256, 1e-6
# Steps beyond any wait.
_ALL = 1e6


class Engine(NamedTuple):
    """An engine that a number of clients keep busy. Times in seconds.

    Attributes:
        running: Requests that have a slot.
        room: Prompts whose tokens fill a step.
        chunks: Steps that a prompt takes.
        decode: A step in which all decode,
        thin: and one in which a third of them do.
        mixed: How much longer a step is for having prefill,
        longer: and for each prompt in it.
        first: Times to first token of prompts that come all at once to an idle engine, in order.
        steps: Steps in which a request decodes.
        waited: Steps that it waits for before its own in a busy engine, apart from
        seen: those until it is seen, of which the requests that come meanwhile start together.
        sooner: How much sooner a prompt's token is there than the next step can start.
        turn: Steps from a client's request to its next.
        absent: In step, requests that do not decode in a step with prefill,
        before: prompts that are computed while a request waits for its own step, mean,
        after: of the first ones, those that are computed after it,
        together: and those in its own step.
        apart: One where prompts are computed in steps of their own, so that all requests that begin
            together decode together too.
    """

    running: Scalar
    room: Scalar
    chunks: Scalar
    decode: Scalar
    thin: Scalar
    mixed: Scalar
    longer: Scalar
    first: Float[AnyArray, " prompts"]
    steps: Scalar
    waited: Scalar
    seen: Scalar
    sooner: Scalar
    turn: Scalar
    absent: Scalar
    before: Scalar
    after: Scalar
    together: Scalar
    apart: Scalar


class Met(NamedTuple):
    """What a request meets where clients are so far in step.

    Attributes:
        ttft: Its time to first token, seconds,
        others: and the time that others' prompts take while it decodes.
        width: Steps over which the prompts of a round are spread.
        in_step: How far clients are in step, from 0 to 1: the width that they began with over it.
    """

    ttft: Float[AnyArray, "*n"]
    others: Float[AnyArray, "*n"]
    width: Float[AnyArray, "*n"]
    in_step: Float[AnyArray, "*n"]


def engine_of(model: StepModel, demand: Demand, limits: Limits, running: Scalar) -> Engine:
    """The steps of an engine that so many clients keep busy.

    Args:
        model: Step times.
        demand: The load, in a closed loop.
        limits: The engine's limits.
        running: Requests that have a slot.
    """
    fresh, budget = demand.new_tokens, limits.max_num_batched_tokens
    steps, outside = demand.decode_steps, outside_s(model.corrections)
    # Decode has precedence, and leaves the less for prompts. In step, the groups of prompts that
    # end, are waited for and are computed do not decode.
    most = budget / fresh
    absent = jnp.minimum((2.0 + limits.async_scheduling) * most, running)
    decoding = jnp.minimum(running, steps * most)
    room = jnp.maximum(budget - jnp.minimum(running - absent, decoding), 1.0) / fresh
    chunks = jnp.maximum(limits.ranks * limits.stages / room, 1.0)
    group = jnp.minimum(room, running)
    # Prompts that come together fill as many batches of a pipeline as they exceed token budgets.
    lanes = jnp.clip(limits.stages * running * fresh / budget, 1.0, limits.stages)
    # Until one of the first prompts is computed, half as many of those before it decode as at last.
    number = jnp.ceil(running * (np.arange(_PROMPTS) + 1) / _PROMPTS)
    before = jnp.clip(number - most, 0.0, decoding)
    place = jnp.ceil(number * fresh / jnp.maximum(budget - before / 2, 1.0) - _WHOLE)
    groups = place[-1]
    rest = jnp.clip(running - (groups - 1) * room, 0.0, group)

    def time(decodes: Scalar, prompts: Scalar, context: Scalar) -> StepTime:
        return model(
            model.batch(
                decode_requests=decodes,
                context=context,
                prefill_requests=prompts * chunks,
                chunk=fresh / chunks,
                cached=demand.cached_tokens + (chunks - 1) / 2 * fresh / chunks,
                ranks=limits.ranks,
                stages=lanes,
            )
        )

    old, new = demand.input_tokens + demand.age, demand.input_tokens + 1.0
    one, several = 1 / chunks, jnp.maximum(group, 2 / chunks)
    none, others = jnp.zeros_like(running), jnp.maximum(decoding - 1, 0.0)
    late = jnp.minimum(running - group, before[-1])
    kinds = [
        (decoding, none, old),
        (decoding / 3, none, old),
        (others, one, old),
        (others, several, old),
        (none, group, new),
        (late, group, new),
        (late, rest, new),
    ]
    columns = [jnp.stack(jnp.broadcast_arrays(*column)) for column in zip(*kinds, strict=True)]
    times = jax.vmap(time)(*columns)
    decode, thin, single, full, *_ = times.interval
    begin, end, last = times.latency[4:]
    # How far a step is watched for arrivals: one in so many.
    seen = limits.receive_every - 1.0
    longer = (full - single) / (several - one)
    # Steps with prefill grow evenly longer while the first prompts are computed.
    whole = jnp.minimum(place, jnp.maximum(groups - 1, 1.0))
    growth = (end - begin) / jnp.maximum(groups - 1, 1.0)
    passed = whole * begin + whole * (whole - 1) / 2 * growth + (place > whole) * last
    around = outside + output_s(model.corrections, group)
    # A client's next request comes while a step runs; where others wait in line it is one of them.
    comes = jnp.clip(1 - (demand.clients - running) / group, 0.0, 1.0)
    waited = limits.async_scheduling + comes * jnp.maximum(outside / decode + 0.5, 1.0)
    return Engine(
        running=running,
        room=room,
        chunks=chunks,
        decode=decode,
        thin=thin,
        mixed=single - decode - longer * one,
        longer=longer,
        first=around + passed,
        steps=steps,
        waited=waited,
        seen=comes * seen,
        sooner=single - times.latency[2],
        turn=steps + chunks + waited + comes * seen / 2,
        absent=absent,
        # Where prompts come before all that decodes, a request waits for all before its own.
        before=room * jnp.mean(jnp.clip(place - chunks, 0.0, waited + _ALL * limits.prompts_apart)),
        apart=jnp.asarray(limits.prompts_apart, float),
        after=jnp.mean(jnp.maximum(running - place * room, 0.0)),
        together=jnp.maximum(jnp.mean(jnp.where(place < groups, group, rest)), 1.0),
    )


def met(engine: Engine, drift: Float[AnyArray, "*n"]) -> Met:
    """What a request meets of the others.

    Two clients whose prompts are spread evenly over ``w`` steps, or normally with a standard
    deviation of ``w / sqrt(4 pi)``, have them in the same step with a chance of ``1/w``.

    Args:
        engine: The engine.
        drift: Variance of how far a client has drifted, in steps squared.
    """
    others = engine.running - 1
    begun = jnp.maximum((1 - engine.apart) * engine.running / engine.room, 1.0)
    width = jnp.sqrt(begun**2 + 4 * jnp.pi * drift)
    density = (width**-_SHARPNESS + engine.turn**-_SHARPNESS) ** (1 / _SHARPNESS)
    in_step = jnp.minimum(begun * density, 1.0)
    even = in_step**2
    # Prompts of others in a request's own step, and in the steps that it waits for: by chance, or
    # as many as the budget has room for.
    within = jnp.minimum(engine.waited, 1 / density)
    # Who comes between two looks at what has arrived starts with all that came.
    seen = jnp.minimum(engine.seen, 1 / density)
    by_chance = others * density * (1 + seen)
    beside = (1 - even) * by_chance + even * (engine.together - 1)
    before = (others + even) * density * (within - density * within * (within + 1) / 2)
    strictly = in_step**_SHARPNESS
    before = (1 - strictly) * before + strictly * engine.before
    # By chance there are more than the budget has room for (Sakasegawa, as `wait_for_budget`), but
    # not where prompts follow in line.
    servers = jnp.maximum(engine.room, 1.0)
    queue = in_step ** (jnp.sqrt(2 * (servers + 1)) - 1) * (1 - in_step) * (1 + in_step) ** 2
    queue *= engine.chunks / servers / 2
    before += queue * jnp.minimum(engine.room, 1.0)
    arriving = engine.running * density * (1 + seen)
    count = (1 - even) * arriving / -jnp.expm1(-arriving) + even * engine.together
    each = engine.longer + engine.mixed * engine.chunks / count
    own = engine.chunks * (engine.mixed - engine.sooner) + engine.longer * (1 + beside)
    # Those in step do not decode meanwhile; two thirds of all make a step so much longer.
    less = strictly * engine.absent / engine.running * 1.5 * (engine.decode - engine.thin)
    busy = 1 - density**others
    steps = engine.waited + engine.seen / 2 + queue + engine.chunks
    ttft = steps * (engine.decode - less) + before * each + own
    return Met(
        ttft=busy * ttft + (1 - busy) * jnp.mean(engine.first),
        others=each * jnp.maximum(others - beside - before, 0.0),
        width=1 / density,
        in_step=in_step * jnp.minimum(others, 1.0),
    )
