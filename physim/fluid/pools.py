"""Steady state of pools of which one computes prompts and the other generates, differentiable.

Each pool is its servers' steady state (`physim.fluid.steady`); between them are a queue for prompts
and one for the link (`physim.fluid.passage`). The rate of clients, who wait for answers, is the
root of Little's law: so many as there are under way or thinking, or as there are slots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.batching.prompt_caches import EVICTION_PASSES, LONG_S, PromptCaches
from physim.batching.room_ahead import RoomAhead
from physim.batching.root_finding import bracketed_root
from physim.fluid.ending import ends_later
from physim.fluid.passage import (
    ALONE_RPS,
    LEAST_SHARE,
    MOST_SHARE,
    Passage,
    chance_of_clients,
)
from physim.fluid.prompt_queue import KnownSteps, PromptSteps
from physim.fluid.steady import steady_state
from physim.pytree import Pytree
from physim.step.model import StepModel
from physim.types import Scalar

# How far beyond the most that is looked for, in logarithm, the bracket of a rate ends.
_BEYOND = 1e-3


class Replicas(Pytree):
    """The servers of a pool.

    Attributes:
        model: Step times of one.
        demand: Its share of requests that come at a rate, whatever that is.
        limits: Its limits.
        count: How many servers there are.
    """

    model: StepModel
    demand: Demand
    limits: Limits
    count: Scalar


class ReturningClients(Pytree):
    """Clients, each of whom sends its next request after an answer.

    Attributes:
        count: How many there are.
        think_s: How long they think in between, mean, seconds.
        first_share: Share of all requests that are somebody's first; these come at once.
        answer_cv2: Squared coefficient of variation of the answers' lengths.
        slots: Requests that may generate at once.
        turns: Turns of a conversation, mean; 1 where requests have nothing to do with each other.
    """

    count: Scalar
    think_s: Scalar
    first_share: Scalar
    answer_cv2: Scalar
    slots: Scalar
    turns: Scalar = 1.0


class Evictions(Pytree):
    """Turns of conversations whose prompts before may be evicted from where they were computed.

    Attributes:
        missed: Servers that compute prompts, where turns find none of those before.
        known_steps: Steps of such a server; None where none is known.
        caches: What the servers keep.
        missed_cv2: Squared coefficient of variation of the tokens that are computed of prompts
            there.
        longer: How many times as many these are as where all is found, mean.
    """

    missed: Replicas
    known_steps: KnownSteps | None
    caches: PromptCaches
    missed_cv2: Scalar
    longer: Scalar


class PoolsState(NamedTuple):
    """Latencies of requests that pass two pools, mean, seconds; and what is served.

    Attributes:
        ttft: Time to first token; infinite where a queue grows without end.
        itl: Time from one token to the next.
        e2e: Time of a request; infinite where a queue grows without end.
        throughput: Requests completed per second.
    """

    ttft: Scalar
    itl: Scalar
    e2e: Scalar
    throughput: Scalar


class _Prompts(NamedTuple):
    """The pool that computes prompts.

    Attributes:
        stay_s: Time to first token of a prompt that comes alone.
        queue_s: Of it, what it waits for room.
        computed_s: How long such a prompt is computed.
        steps: Steps of a server.
        count: How many servers there are.
        cv2: Squared coefficient of variation of the tokens that are computed of prompts.
    """

    stay_s: Scalar
    queue_s: Scalar
    computed_s: Scalar
    steps: PromptSteps
    count: Scalar
    cv2: Scalar

    @property
    def most_rps(self) -> Scalar:
        """Prompts per second of all servers, at most."""
        return self.count * self.steps.most_rps

    def evicted(self, other: _Prompts, found: Scalar, longer: Scalar) -> _Prompts:
        """The pool where only a share of the prompts finds those before.

        Args:
            other: The pool where none does.
            found: The share.
            longer: How many times as many tokens are computed there, mean.
        """
        rest = 1.0 - found
        mean: _Prompts = jax.tree.map(lambda one, two: found * one + rest * two, self, other)
        squares = found * (1.0 + self.cv2) + rest * (1.0 + other.cv2) * longer**2
        return mean._replace(
            steps=self.steps.mixed(other.steps, found),
            cv2=squares / (found + rest * longer) ** 2 - 1.0,
        )


class _Journey(NamedTuple):
    """What becomes of requests that come at a rate. Seconds.

    Attributes:
        ttft: Mean time to first token.
        before: Of it, until a prompt is there where it is answered,
        wait: and of that, what prompts wait for others.
        answer: From the first token to the last.
        itl: From one token to the next.
        too_many: Whether more come than can generate.
        prompts: The pool that computes their prompts.
    """

    ttft: Scalar
    before: Scalar
    wait: Scalar
    answer: Scalar
    itl: Scalar
    too_many: Scalar
    prompts: _Prompts


class _Way(NamedTuple):
    """What requests pass after the servers that compute prompts, and what these keep.

    Attributes:
        count: How many of these there are.
        answers: Servers that generate.
        passage: What is between them.
        room: What they make room in before prompts are computed; None where they make none.
        missed: The pool that computes prompts where turns find none of those before,
        evictions: and what is evicted there; None where nothing is.
    """

    count: Scalar
    answers: Replicas
    passage: Passage
    room: RoomAhead | None = None
    missed: _Prompts | None = None
    evictions: Evictions | None = None


def pools_state(
    prompts: Replicas,
    answers: Replicas,
    passage: Passage,
    rate: Scalar,
    known_steps: KnownSteps | None = None,
    clients: ReturningClients | None = None,
    evictions: Evictions | None = None,
    room: RoomAhead | None = None,
) -> PoolsState:
    """The steady state of two pools: differentiable, and made to be vmapped.

    Args:
        prompts: Servers that compute prompts.
        answers: Servers that generate.
        passage: What is between them.
        rate: Requests per second that come; of no account for clients.
        known_steps: Steps of a server that computes prompts; None where none is known.
        clients: Who comes at a rate of their own making; None for requests at ``rate``.
        evictions: What becomes of the prompts before turns; None where none are evicted.
        room: What the second pool makes room in before prompts are computed; None for none.
    """
    first = _prompts(prompts, known_steps, passage.prompt_cv2)
    way = _Way(prompts.count, answers, passage, room)
    if evictions is not None:
        missed = _prompts(evictions.missed, evictions.known_steps, evictions.missed_cv2)
        way = way._replace(missed=missed, evictions=evictions)
    ends = jnp.minimum(first.most_rps, passage.most_rps(prompts.count))
    if clients is not None:
        return _of_clients(clients, first, ends, way)
    found = _journey(rate, first, jnp.ones(()), way)
    ttft = found.ttft
    if evictions is not None:
        ends = jnp.minimum(found.prompts.most_rps, ends)
    above = (rate >= ends) | found.too_many
    if room is not None:
        above |= rate >= room.rps(found.before, found.answer)
        ttft += room.wait(rate, found.before, found.answer)[0]
    ttft = jnp.where(above, jnp.inf, ttft)
    return PoolsState(ttft, found.itl, ttft + found.answer, jnp.minimum(rate, ends))


# Compiled once for all pools of one shape where the rest is not.
_steady = jax.jit(steady_state)


def _prompts(pool: Replicas, known_steps: KnownSteps | None, cv2: Scalar) -> _Prompts:
    """What servers that compute prompts take for one that comes alone, and how many they can do."""
    lone = _steady(pool.model, replace(pool.demand, rate=ALONE_RPS), pool.limits)
    parts = lone.first_token
    computed_s = parts.prefill + parts.launches
    if known_steps is None:
        most = _steady(pool.model, pool.demand.unending(), pool.limits).throughput
        new_tokens = pool.demand.new_tokens
        steps = PromptSteps.from_limits(pool.limits, new_tokens, computed_s, most)
    else:
        seconds = jnp.sum(jax.vmap(pool.model)(known_steps.batches).seconds, axis=1)
        steps = PromptSteps.from_known(pool.limits, known_steps, computed_s, seconds)
    return _Prompts(lone.ttft, parts.queue, computed_s, steps, pool.count, cv2)


def _journey(
    rate: Scalar, prompts: _Prompts, chance: Scalar | None, way: _Way, answer_cv2: Scalar = 0.0
) -> _Journey:
    """What becomes of requests that come at a rate.

    Args:
        rate: Requests per second.
        prompts: The pool that computes prompts.
        chance: How far they come by chance; None where that follows from their answers.
        way: What they pass after the servers that compute prompts.
        answer_cv2: Squared coefficient of variation of the answers' lengths.
    """
    count, answers, passage = way.count, way.answers, way.passage
    come = jnp.minimum(rate, prompts.most_rps)
    demand = replace(answers.demand, rate=come / answers.count)
    second = _steady(answers.model, demand, answers.limits)
    parts = second.first_token
    handed = passage.first_token_comes * (parts.prefill + parts.launches)
    # Where more come than are served both are infinite, and so has their difference no number.
    begin = jnp.where(second.saturated, 0.0, second.ttft)
    answer = jnp.where(second.saturated, 0.0, second.e2e) - begin + handed
    if chance is None:
        chance = chance_of_clients(answer_cv2, rate, answer)
    come_cv2 = chance * passage.arrival_cv2

    def waits(own: _Prompts) -> tuple[Scalar, Scalar]:
        """What prompts wait for others, and what passes between the pools."""
        wait = own.steps.wait(rate / own.count, come_cv2, own.cv2)
        return wait.mean_s, passage.between_s(own.computed_s, rate, count, wait.others)

    every = prompts
    wait, between = waits(prompts)
    if way.evictions is not None and way.missed is not None:
        away = jnp.where(second.saturated, 0.0, second.e2e)
        for _ in range(EVICTION_PASSES):
            stay, waited = prompts.computed_s + between, jnp.minimum(wait, LONG_S)
            found = way.evictions.caches.found(rate, stay, waited, away)
            prompts = every.evicted(way.missed, found, way.evictions.longer)
            wait, between = waits(prompts)
    before = prompts.stay_s + wait + between
    ttft = before + begin - handed
    return _Journey(ttft, before, wait, answer, second.itl, second.saturated, prompts)


def _of_clients(
    clients: ReturningClients, prompts: _Prompts, ends: Scalar, way: _Way
) -> PoolsState:
    """The steady state of clients.

    Args:
        clients: The clients.
        prompts: The pool that computes prompts.
        ends: Requests per second that are computed and sent at most.
        way: As `_journey` takes it.
    """

    def residual(
        log_rate: Scalar, known: tuple[ReturningClients, _Prompts, Scalar, _Way]
    ) -> tuple[Scalar, _Journey]:
        """In logarithm, how many more clients, slots or prompts a rate takes than there are."""
        clients, prompts, ends, way = known
        rate = jnp.exp(log_rate)
        one = _journey(rate, prompts, None, way, clients.answer_cv2)
        stay = one.ttft + one.answer + clients.think_s
        more = jnp.maximum(rate * stay / clients.count, rate * one.answer / clients.slots)
        if way.room is not None:
            more = jnp.maximum(more, rate / way.room.rps(one.before, one.answer))
        more = jnp.maximum(jnp.log(more), log_rate - jnp.log(MOST_SHARE * ends))
        # What compares has no number to differentiate.
        one = one._replace(too_many=1.0 * one.too_many)
        return jnp.where(one.too_many > 0, 1.0, more), one

    low, high = jnp.log(LEAST_SHARE * ends), jnp.log(MOST_SHARE * ends) + _BEYOND
    log_rate, one = bracketed_root(
        residual, (clients, prompts, ends, way), low, high, (low + high) / 2
    )
    rate = jnp.exp(log_rate)
    all_come = jnp.minimum(clients.count / (one.ttft + one.answer + clients.think_s), ends)
    # Clients that there is no room for wait for it.
    held = rate < (1.0 - 2.0 * _BEYOND) * jnp.minimum(MOST_SHARE * ends, all_come)
    served = jnp.where(held, rate, all_come)
    ttft = clients.count / served - clients.think_s - one.answer
    # Those who send their first requests at once wait for one another's prompts.
    at_once = (clients.count - 1.0) / (2.0 * one.prompts.most_rps)
    queue = one.prompts.queue_s + one.wait + ttft - one.ttft
    ttft += clients.first_share * jnp.maximum(at_once - queue, 0.0)
    stay = clients.count / served
    longer = ends_later(clients.count, clients.first_share, clients.think_s / stay, clients.turns)
    served /= jnp.where(clients.think_s > 0, longer, 1.0)
    return PoolsState(ttft, one.itl, ttft + one.answer, served)
