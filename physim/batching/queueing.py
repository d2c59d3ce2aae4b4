"""How long requests wait by chance, though the server could keep up on average."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.batch_statistics import GOLDEN, Nodes, following
from physim.batching.guards import FULLEST, HARDLY, NEARLY, ROOT, SMALL, TINY
from physim.batching.strata import PARTS
from physim.inputs.lengths import STRATA
from physim.types import AnyArray, Scalar

# Nodes of the integrals over the number that runs (tests/test_queueing.py holds them against sums).
_NODES = 65
# Standard deviations below the largest term of a sum at which its nodes begin.
_BELOW = 5
# Pairs of prompts by chance: each part of them with a few strata, all of these as often, and their
# weights.
_OF_EACH = 4
_PAIRS = np.arange(_OF_EACH * len(PARTS))
_PAIRS = np.stack([_PAIRS // _OF_EACH, _PAIRS * (int(STRATA * GOLDEN) | 1) % STRATA])
_OF_PAIRS = PARTS[_PAIRS[0]] / _OF_EACH
# Shares of those that came with a prompt that are before it, to be rounded to whole ones.
_TURNS = np.linspace(0.0, 1.0, _OF_EACH)


def peakedness(arrival_cv2: Scalar, evenness: Scalar) -> Scalar:
    """Variance of the number of requests that run, over its mean, were there slots for all.

    1 for Poisson arrivals whatever the lengths, 0 for even arrivals of equal requests. In heavy
    traffic ``1 + (c - 1) x`` the mean of the lesser of two lengths over the mean length (Whitt,
    Bell System Technical Journal 63(4), 1984).

    Args:
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
        evenness: Mean of the lesser of two lengths, over the mean length.
    """
    # In 32 bit the evenness of equal lengths may be a little above one.
    return jnp.maximum(1.0 + (arrival_cv2 - 1.0) * evenness, 0.0)


class Varied(NamedTuple):
    """How far requests come and stay by chance.

    Attributes:
        peaked: Peakedness of the number that run,
        lasting: and what is left of it once all slots are taken.
        arrival_cv2: Squared coefficient of variation of the times between arrivals,
        steps_cv2: of the steps of a request,
        prompt_cv2: and of the time that its prompt takes.
    """

    peaked: Scalar | float = 1.0
    lasting: Scalar | float = 1.0
    arrival_cv2: Scalar | float = 1.0
    steps_cv2: Scalar | float = 1.0
    prompt_cv2: Scalar | float = 1.0


def lasting(by_arrivals: Scalar, clumped: Scalar, evenness: Scalar) -> Scalar:
    """What is left of a peakedness once all slots are taken and requests start as others end.

    Clumps that prompts make while requests come last where lengths are equal, since all of a clump
    end together. Of exponential lengths any may end next, whoever began with it.

    Args:
        by_arrivals: Peakedness by the times between arrivals alone.
        clumped: Peakedness where prompts hold others up while more come.
        evenness: Mean of the lesser of two lengths, over the mean length: a half of exponential
            ones.
    """
    return by_arrivals + jnp.maximum(2 * evenness - 1.0, 0.0) * (clumped - by_arrivals)


def wait_for_a_slot(
    offered: Scalar,
    slots: Scalar,
    slowest: Scalar,
    slower: Scalar,
    varied: Varied,
    prompts: Scalar | float = 0.0,
) -> tuple[Scalar, Scalar]:
    """Mean number of requests that wait for a slot by chance, and the chance that one has to.

    Decoding requests share the server: with ``n`` of them a step takes ``G(n)``, so the number that
    run has the product form of a processor-sharing queue whose speed depends on its state,
    ``p(n) / p(n - 1) = offered G(n) / n`` (Cohen, Acta Informatica 12, 1979), which knows nothing
    of lengths but their mean. Beyond the slots a queue adds its geometric tail, scaled by the
    variability of arrivals and lengths (Allen and Cunneen). Arrivals other than Poisson count in
    units of their peakedness (Hayward). ``G`` is taken for a straight line. It is the step of those
    that run while others take their places; below the slots prompts come as requests do, however
    many run, and take the same share of the time.

    With all slots taken a prompt is computed whenever a request ends, not whenever one comes, so
    that of the time between two ends only the part that prompts leave varies as lengths do. Clumps
    in which requests came last as far as they end as they began: see `lasting`.

    Args:
        offered: Steps that arriving requests need, per second.
        slots: Requests that may run.
        slowest: Time of a step with all slots taken, seconds.
        slower: How much longer a step is for each request in it, seconds.
        varied: How far requests come and stay by chance.
        prompts: Of ``slower``, what is for the prompts of those that take the places of others.
    """
    # Where arrivals and lengths are more even, no chance is left worth a sum.
    unit, in_tail = (jnp.maximum(x, HARDLY) for x in (varied.peaked, varied.lasting))
    load, room = offered / unit, slots / unit
    fixed = jnp.maximum(slowest - slower * slots, HARDLY * slowest)
    slope = (slowest - fixed) / room
    full = jnp.minimum(load * slowest / room, FULLEST)
    # While there are slots, prompts come as requests do, however many run.
    taken = jnp.minimum(offered * prompts, NEARLY)
    slope = jnp.maximum(slope - prompts * unit, 0.0)
    load /= 1.0 - taken
    # Where the product is largest, and how wide it is there.
    free = jnp.maximum(1.0 - load * slope, HARDLY)
    most = jnp.minimum(load * fixed / free, room)
    low = jnp.maximum(most - _BELOW * jnp.sqrt(jnp.maximum(most, 1.0) / free), HARDLY - 0.5)
    # The sums over whole counts are integrals between half counts. If these nodes miss the largest
    # product between them, it is so far from the slots that none is ever waited for.
    counts = jnp.linspace(low, room, _NODES)
    gap = (room - low) / (_NODES - 1)
    growth = jnp.log(load * (fixed + slope * (counts + 0.5)) / (counts + 0.5))
    logs = jnp.append(0.0, jnp.cumsum((growth[1:] + growth[:-1]) / 2 * gap))
    logs -= jnp.max(logs)
    # All counts but the last, which stands for the integral over the half unit below the slots.
    inside = jnp.clip((room - 0.5 - counts) / gap + 0.5, 0.0, 1.0)
    below = jnp.sum(inside * jnp.exp(logs)) * gap
    beyond = jnp.exp(logs[-1]) * jnp.minimum(in_tail / unit, 1.0) / (1.0 - full)
    chance = beyond / (below + beyond)
    by_prompts = jnp.minimum(prompts * slots / slowest, NEARLY)
    stays_cv2 = (1.0 - by_prompts) ** 2 * varied.steps_cv2 + by_prompts**2 * varied.prompt_cv2
    variability = (varied.arrival_cv2 + stays_cv2) / 2
    return chance * variability * full / (1.0 - full), chance


class TokenQueue(NamedTuple):
    """What a prompt waits for where those before it take the token budget of steps.

    Attributes:
        wait_s: Wait for tokens that are left over when it comes, mean, seconds.
        chance: Chance that there are any.
        cv: Coefficient of variation of the wait where there are some.
        behind_s: How long steps are full once the prompt is computed, mean, seconds. As much is
            left behind it as it found, and while that is worked off more comes.
    """

    wait_s: Scalar
    chance: Scalar
    cv: Scalar
    behind_s: Scalar


def wait_for_tokens(
    prompts: Float[AnyArray, " parts"],
    room: Scalar,
    full_s: Scalar,
    rate: Scalar,
    lone: Scalar,
    arriving: Nodes,
    arrival_cv2: Scalar,
    burst_cv2: Scalar,
    meet: Scalar,
) -> TokenQueue:
    """The queue of prompts for the tokens of steps.

    A step computes as many tokens as there is room for. What is left of those that came in one step
    begins a queue that full steps work off while others come, which is a busy period of a single
    server with an exceptional first customer (Welch, Operations Research 12, 1964). In units of the
    room, ``Y`` left tokens take ``g`` full steps, the sum over these of what is left is ``f``, and
    with the load ``u`` of what comes meanwhile, of a second moment ``v`` in a step,

        f + Y^2 / 2  u / (1 - u) + g v / (2 (1 - u)^2)

    In bursts more come after those that began it than otherwise.

    Args:
        prompts: Tokens of the parts of all prompts (`physim.batching.strata.PARTS`).
        room: Tokens that a step has room for.
        full_s: Time of a step that is full, seconds.
        rate: Prompts that come per second.
        lone: Share of them that come alone in their step,
        arriving: and how many come together else.
        arrival_cv2: Squared coefficient of variation of the times between arrivals,
        burst_cv2: and of counts in times as short as steps.
        meet: How often prompts meet one that is under way, over how often they do by chance.
    """
    size = prompts / room
    mean = jnp.sum(PARTS * size)

    def pairs(count: Scalar) -> Float[AnyArray, " n"]:
        """So many prompts as two halves: pairs of what has half of their mean and variance."""
        half = count / 2
        spread = mean * half + (size - mean) * jnp.sqrt(half)
        return jnp.maximum(spread[_PAIRS[0]] + _strata(spread)[_PAIRS[1]], 0.0)

    def left(tokens: Float[AnyArray, " n"], weights: Float[np.ndarray, " n"]) -> tuple[Scalar, ...]:
        rest = jnp.maximum(tokens - 1.0, 0.0)
        steps = jnp.ceil(rest)
        sums = steps * rest - steps * (steps - 1.0) / 2
        of_sums = steps * rest**2 - (rest - (2 * steps - 1.0) / 6) * steps * (steps - 1.0)
        squares = rest**2 / 2
        of_all = (jnp.sum(weights * x) for x in (steps, steps**2, sums, squares, of_sums))
        return tuple(of_all)

    steps, steps_squared, sums, squares, of_sums = (
        lone * one + (1 - lone) / arriving.mean(*arriving[:2]) * arriving.mean(few, many)
        for one, few, many in zip(
            left(size, PARTS),
            *(left(pairs(count), _OF_PAIRS) for count in (arriving.low, arriving.high)),
            strict=True,
        )
    )
    # Prompts, and the load, that come in a full step.
    come = rate * full_s
    load = jnp.minimum(come * mean, FULLEST)
    some = jnp.maximum(steps, TINY)
    long = come * steps_squared / some
    more = 1.0 + following(long, burst_cv2) / jnp.maximum(long, TINY)
    more *= meet
    chance = more * come * steps / (1.0 - load)
    varied = come * (jnp.sum(PARTS * size**2) + (arrival_cv2 - 1.0) * mean**2) / 2
    wait = sums + squares * load / (1.0 - load) + steps * varied / (1.0 - load) ** 2
    # A geometric number of such waits, as in a queue of a single server.
    cv2 = jnp.maximum(of_sums / some / jnp.maximum(sums / some, TINY) ** 2 - 1.0, 0.0)
    number = jnp.maximum(wait / jnp.maximum(sums, TINY), 1.0)
    cv = jnp.sqrt((cv2 + number - 1.0) / number + ROOT)
    wait *= more * come * full_s
    # The queue begins where there is none.
    wait /= 1.0 + chance
    return TokenQueue(wait, chance / (1.0 + chance), cv, wait / (1.0 - load))


class Together(NamedTuple):
    """What a prompt that comes with others in a step has of them, mean.

    Attributes:
        in_last_step: Tokens of theirs in the step in which it ends, over all of theirs.
        later: Steps by which it ends later, for those before it.
        is_later: Chance that it does.
        tokens_before: Tokens of those before it where it ends later, over the room of a step.
    """

    in_last_step: Scalar
    later: Scalar
    is_later: Scalar
    tokens_before: Scalar


def coming_together(prompts: Float[AnyArray, " parts"], room: Scalar, others: Scalar) -> Together:
    """What a prompt that comes with others has of them, if a step has room for so many tokens.

    Any of them is before it as likely as after it. Where all fit into a step, all end with it.
    Else those before it may take the room, so that it ends some full steps later, and those after
    it have what it leaves of its last step.

    Args:
        prompts: Tokens of the parts of all prompts (`physim.batching.strata.PARTS`).
        room: Tokens that a step has room for.
        others: How many come with it, one at least, mean.
    """
    size = prompts / room
    mean = jnp.sum(PARTS * size)
    own, other = size[_PAIRS[0]][:, None], _strata(size)[_PAIRS[1]][:, None]
    first = jnp.ceil(own - SMALL)

    def beside_others(count: Scalar) -> Together:
        every = jnp.maximum(count * mean + jnp.sqrt(count) * (other - mean), 0.0)
        before = every * jnp.round(_TURNS * count) / count
        end = jnp.ceil(own + before - SMALL)
        is_later = end > first
        in_last = jnp.minimum(own + every, end) - own - is_later * before
        columns = (in_last / (count * mean), end - first, is_later, is_later * before)
        return Together(*(jnp.sum(_OF_PAIRS * jnp.mean(x, axis=1)) for x in columns))

    fewer = jnp.floor(others)
    found: Together = jax.tree.map(
        lambda low, high: low + (others - fewer) * (high - low),
        beside_others(fewer),
        beside_others(fewer + 1.0),
    )
    return found


def _strata(of_parts: Float[AnyArray, " parts"]) -> Float[AnyArray, " strata"]:
    """Means over strata, of which the last is in parts."""
    return jnp.append(of_parts[: STRATA - 1], jnp.mean(of_parts[STRATA - 1 :]))
