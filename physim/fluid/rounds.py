"""Rounds of clients that begin at once: how far they stay in step, and what that makes them meet.

Requests that are prefilled together end together if they are of one length, and the next ones of
their clients come together. Lengths that differ let clients drift apart, and what counts is how far
in engine steps: however long a step takes, all requests in it are one token older after it. So the
prompts of a round of all clients are spread over a width of steps. It begins as the steps that the
first prompts take, grows a little as clients settle, and with the root of the rounds, until they
are anywhere in their requests; what a request meets of others follows from how many prompts there
are in a step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.batching.guards import TINY
from physim.batching.limits import Limits
from physim.batching.looks import Looks, looks_at
from physim.fluid.busy_steps import BusyTimes, Crowd, busy_times, crowd_of
from physim.fluid.first_prompts import first_prompts, prefill_s
from physim.fluid.first_token import front_end_s
from physim.fluid.settling import InStep, Settling, settling_of
from physim.step.front_end import output_s
from physim.step.model import StepModel
from physim.types import AnyArray, Scalar

# Power of how far clients are in step that says whether groups of them still follow one another
# without a gap, so that the budget is full in each step that a request waits for. The mean error of
# TTFT on benchmarks/clients.py with outputs that vary by 0.1, 0.3 and 1% is 4.8% with 2, 4.1 with
# 4, 3.9 with 8, 3.7 with 16.
_GAPLESS = 8.0


class Waits(NamedTuple):
    """Steps of a request's turn in a busy engine.

    Attributes:
        waited: Steps that it waits for before its own, apart from
        comes: Chance that it finds a slot free as it comes.
        decoding: Steps in which it decodes.
        round_steps: Steps from a client's request to its next.
    """

    waited: Scalar
    comes: Scalar
    decoding: Scalar
    round_steps: Scalar


class BusyEngine(NamedTuple):
    """An engine that a number of clients keep busy.

    Attributes:
        limits: Its limits.
        crowd: Who is in its steps.
        times: What they take.
        first: Times to first token of prompts that come all at once to an idle engine, in order,
            seconds.
        waits: Steps of a request's turn.
        meeting: What clients in step meet.
        settling: How they settle.
    """

    limits: Limits
    crowd: Crowd
    times: BusyTimes
    first: Float[AnyArray, " prompts"]
    waits: Waits
    meeting: InStep
    settling: Settling

    def after(self, rounds: Float[AnyArray, "*n"], drift: Float[AnyArray, "*n"]) -> BusyEngine:
        """The engine as its clients have settled after so many rounds.

        Args:
            rounds: Rounds after the first.
            drift: Variance of how far a client has drifted, in steps squared.
        """
        return self._replace(meeting=self.settling.meeting_after(rounds, drift))

    @property
    def running(self) -> Scalar:
        """Requests that have a slot."""
        return self.crowd.running


class Interference(NamedTuple):
    """What a request meets where clients are so far in step.

    Attributes:
        ttft: Its time to first token, seconds.
        each: Time that a prompt takes, in steps of several, seconds.
        others: Time that others' prompts take while it decodes, seconds.
        width: Steps over which the prompts of a round are spread.
        in_step: How far clients are in step, from 0 to 1: the width that they began with over it.
    """

    ttft: Float[AnyArray, "*n"]
    each: Float[AnyArray, "*n"]
    others: Float[AnyArray, "*n"]
    width: Float[AnyArray, "*n"]
    in_step: Float[AnyArray, "*n"]


def engine_of(model: StepModel, demand: Demand, limits: Limits, running: Scalar) -> BusyEngine:
    """The steps of an engine that so many clients keep busy.

    Args:
        model: Step times.
        demand: The load, in a closed loop.
        limits: The engine's limits.
        running: Requests that have a slot.
    """
    crowd, fresh = crowd_of(demand, limits, running), demand.new_tokens
    prompts = first_prompts(
        running, fresh, limits.max_num_batched_tokens, crowd.decoding, limits.ranks
    )
    rest = prompts.rest(running, crowd.room)
    times = busy_times(model, demand, limits, crowd, before_last=prompts.decoding, rest=rest)
    outside = front_end_s(model.corrections, demand, limits)
    if demand.loading_s is not None:
        outside += demand.loading_s
    # A client sends its next request once it has the last token of the one before.
    between = outside + output_s(model.corrections, running)
    waits = waits_of(demand, limits, crowd, between / times.decode)
    # While the first of those who end together is outside, the others decode.
    settling = settling_of(crowd, limits, prompts, between / times.fewer, waits.comes)
    return BusyEngine(
        limits=limits,
        crowd=crowd,
        times=times,
        first=outside
        + output_s(model.corrections, crowd.group)
        + prefill_s(prompts, times.begin, times.end, times.last)
        + later_batches(crowd, limits) * times.begin,
        waits=waits,
        meeting=settling.first,
        settling=settling,
    )


def later_batches(crowd: Crowd, limits: Limits) -> Scalar:
    """How much later than the first of a pipeline's batches all of a step are, mean, in steps."""
    return (crowd.lanes - 1) / limits.stages / 2


def waits_of(demand: Demand, limits: Limits, crowd: Crowd, outside: Scalar) -> Waits:
    """Steps of a request's turn in a busy engine.

    A client's next request comes while a step runs, of which it waits for half in the mean, or for
    the steps that it is outside of the engine and half a step: at least for one. A pipeline's steps
    begin one after the other. Where more clients wait in line than a step takes, it is one of them
    and does not wait for that, nor for the engine to look at what has arrived.

    Args:
        demand: The load, in a closed loop.
        limits: The engine's limits.
        crowd: Who is in the steps.
        outside: What a request spends outside of the engine, in steps.
    """
    comes = jnp.clip(1 - (demand.clients - crowd.running) / crowd.group, 0.0, 1.0)
    apart = 1 / limits.stages
    waited = limits.async_scheduling + comes * jnp.maximum(outside + apart / 2, apart)
    turn = demand.decode_steps + crowd.chunks + waited
    turn += comes * looks_at(crowd.running / turn, limits).waited
    return Waits(waited, comes, demand.decode_steps, turn)


def density_of(engine: BusyEngine, drift: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
    """Chance that two clients have their prompts in the same step.

    Two clients whose prompts are spread evenly over ``w`` steps, or normally with a standard
    deviation of ``w / sqrt(4 pi)``, have them in the same step with a chance of ``1/w``: with the
    width that they begin with, ``w^2 = width^2 + 4 pi drift``. On the ring of a turn ``t`` the
    difference of two such normal draws is nothing with the density

        1/w (1 + 2 sum exp(-pi (k t / w)^2)) = 1/t (1 + 2 sum exp(-pi (k w / t)^2))

    by Poisson's summation, of which the first term of the sum that falls faster is enough: the
    second is below 1e-5.

    Args:
        engine: The engine.
        drift: Variance of how far a client has drifted, in steps squared.
    """
    width = jnp.sqrt(engine.meeting.width**2 + 4 * jnp.pi * drift)
    less, more = (
        jnp.minimum(width, engine.waits.round_steps),
        jnp.maximum(width, engine.waits.round_steps),
    )
    return (1 + 2 * jnp.exp(-jnp.pi * (more / less) ** 2)) / less


def interference(engine: BusyEngine, density: Float[AnyArray, "*n"]) -> Interference:
    """What a request meets of the others.

    Its time to first token is the steps that it waits for and its own, as long as steps are that
    decode, and what the prompts in them add; a prompt that it does not meet there it meets while it
    decodes.

    Args:
        engine: The engine.
        density: Chance that two clients have their prompts in the same step.
    """
    crowd, times, waits = engine.crowd, engine.times, engine.waits
    others = crowd.running - 1
    in_step = jnp.minimum(engine.meeting.width * density, 1.0)
    looks = looks_at(crowd.running * density, engine.limits)
    together, each = _together(engine, density, in_step, looks)
    filled = jnp.minimum(crowd.running / crowd.room / engine.meeting.width, 1.0)
    queue = steps_in_line(crowd, in_step, filled)
    # Of more than a step has room for, half of those in other steps are before its own.
    beside = jnp.minimum(together, jnp.maximum(crowd.room - 1, 0.0))
    in_line = queue * jnp.minimum(crowd.room, 1.0) + (together - beside) / 2
    gapless = in_step**_GAPLESS
    # Of steps with prompts, which are longer, fewer begin while a request is outside.
    with_prompts = 1 - jnp.maximum(1 - density, TINY) ** others
    waited = waits.waited + with_prompts * (engine.meeting.waited - waits.waited)
    before = _before(engine, density, in_step, waited) + in_line
    longer = times.prefill.longer((1 + beside) / crowd.chunks)
    full = times.decode + longer
    own = crowd.chunks * (longer - times.sooner)
    own += in_step * later_batches(crowd, engine.limits) * full
    # Those in step do not decode meanwhile.
    step = times.decode - gapless * crowd.absent / crowd.running * times.each_decode
    steps = waited + waits.comes * looks.waited + queue + crowd.chunks
    # The chance that the prompts of all others come in one step, and leave the engine idle.
    busy = 1 - density**others
    ttft = steps * step + before * each + own
    waits_for_first, decodes_beside_second = _first_batch_alone(engine)
    return Interference(
        ttft=busy * ttft + (1 - busy) * jnp.mean(engine.first) + in_step * waits_for_first * full,
        each=each,
        others=each * jnp.maximum(others - beside - before, 0.0)
        + in_step * decodes_beside_second * full,
        width=1 / density,
        in_step=in_step * jnp.minimum(others, 1.0),
    )


def _first_batch_alone(engine: BusyEngine) -> tuple[Scalar, Scalar]:
    """What clients in step wait for who are all in a pipeline at once, in steps.

    While all requests that there are have their prompts in its first batch it takes no others.
    Those of the other batches wait for it, but for the time by which they begin later anyway; those
    of the first decode beside the second's prompts.

    Args:
        engine: The engine.

    Returns:
        Before the first token, and while it decodes, means over all clients.
    """
    crowd = engine.crowd
    alone = jnp.clip(2 - crowd.running / crowd.room, 0.0, 1.0)
    waiting = alone * (1 - 1 / crowd.lanes) * (1 - 1 / engine.limits.stages)
    return waiting, alone / crowd.lanes * jnp.minimum(crowd.lanes - 1, 1.0)


def steps_in_line(
    crowd: Crowd, in_step: Float[AnyArray, "*n"], filled: Float[AnyArray, "*n"]
) -> Float[AnyArray, "*n"]:
    """Steps that a prompt waits for because more came by chance than the budget has room for.

    Sakasegawa's formula for ``c`` servers that are busy a share ``u`` of the time (Annals of the
    Institute of Statistical Mathematics 29, 1977), with arrivals by chance and steps all alike,

        chunks / 2  u^(sqrt(2 (c + 1)) - 1) / (c (1 - u))

    where ``c`` is the prompts that a step has room for and ``u`` how full steps are. Prompts that
    follow in line do not come by chance: times ``(1 - s^2)`` for each of the two that meet, with
    how far clients are in step.

    Args:
        crowd: Who is in the steps.
        in_step: How far clients are in step, from 0 to 1.
        filled: How full the steps of clients in step are, from 0 to 1.
    """
    servers = jnp.maximum(crowd.room, 1.0)
    used = filled * in_step
    busy = used ** (jnp.sqrt(2 * (servers + 1)) - 1)
    # (1 - s^2)^2 / (1 - u), which has a value at one.
    left, apart = (jnp.maximum(1 - share, TINY) for share in (used, in_step))
    by_chance = (1 - in_step) * (1 + in_step) ** 2 * apart / left
    return crowd.chunks / 2 * busy * by_chance / servers


def _together(
    engine: BusyEngine,
    density: Float[AnyArray, "*n"],
    in_step: Float[AnyArray, "*n"],
    looks: Looks,
) -> tuple[Float[AnyArray, "*n"], Float[AnyArray, "*n"]]:
    """Prompts that are seen with a request's own, mean, and what each prompt takes in all, seconds.

    By chance as many of the others as come between two looks at what has arrived, or as many as the
    first prompts: the more so, the more likely two clients are both in step. Prefill makes a step
    longer once, for all prompts in it.
    """
    crowd, times = engine.crowd, engine.times
    even, same_step = in_step**2, engine.meeting.same_step
    coming = jnp.minimum(density * looks.joined, 1.0)
    together = (1 - even) * (crowd.running - 1) * coming + even * (same_step - 1)
    by_chance = jnp.minimum(crowd.running * density / looks.share, jnp.maximum(crowd.room, 1.0))
    count = (1 - even) * by_chance + even * same_step
    return together, crowd.chunks / count * times.prefill.longer(count / crowd.chunks)


def _before(
    engine: BusyEngine,
    density: Float[AnyArray, "*n"],
    in_step: Float[AnyArray, "*n"],
    waited: Float[AnyArray, "*n"],
) -> Float[AnyArray, "*n"]:
    """Prompts of others in the steps that a request waits for, mean.

    Of a width ``w``, the ``k``-th step before a request's own is within it with a chance of
    ``1 - k / w``: in ``s`` steps there are ``(others / w) (s - s (s + 1) / (2 w))``. Where groups
    of clients follow one another, as many as the first prompts have before them.
    """
    within = jnp.minimum(waited, 1 / density)
    others = engine.crowd.running - 1 + in_step**2
    by_chance = others * density * (within - density * within * (within + 1) / 2)
    gapless = in_step**_GAPLESS
    return (1 - gapless) * by_chance + gapless * engine.meeting.before
