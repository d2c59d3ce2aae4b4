"""How long requests wait by chance, though the server could keep up on average."""

from __future__ import annotations

import jax.numpy as jnp

from physim.types import Scalar

# Nodes of the integrals over the number that runs (tests/test_queueing.py holds them against sums).
_NODES = 65
# Below this, arrivals and lengths are so even that no chance is left worth a sum.
_LEAST_PEAKEDNESS = 0.02
# Share of the capacity beyond which a queue is no longer a matter of chance.
_FULLEST = 0.999


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


def wait_for_a_slot(
    offered: Scalar,
    slots: Scalar,
    slowest: Scalar,
    slower: Scalar,
    peaked: Scalar,
    variability: Scalar,
) -> tuple[Scalar, Scalar]:
    """Mean number of requests that wait for a slot by chance, and the chance that one has to.

    Decoding requests share the server: with ``n`` of them a step takes ``G(n)``, so the number that
    run has the product form of a processor-sharing queue whose speed depends on its state,
    ``p(n) / p(n - 1) = offered G(n) / n`` (Cohen, Acta Informatica 12, 1979), which knows nothing
    of lengths but their mean. Beyond the slots a queue adds its geometric tail, scaled by the
    variability of arrivals and lengths (Allen and Cunneen). Arrivals other than Poisson count in
    units of their peakedness (Hayward). ``G`` is taken for a straight line.

    Args:
        offered: Steps that arriving requests need, per second.
        slots: Requests that may run.
        slowest: Time of a step with all slots taken, seconds.
        slower: How much longer a step is for each request in it, seconds.
        peaked: Peakedness of the number that run.
        variability: Mean of the squared coefficients of variation of the times between arrivals and
            of the steps of a request.
    """
    unit = jnp.maximum(peaked, _LEAST_PEAKEDNESS)
    load, room = offered / unit, slots / unit
    fixed = jnp.maximum(slowest - slower * slots, 0.05 * slowest)
    slope = (slowest - fixed) / room
    full = jnp.minimum(load * slowest / room, _FULLEST)
    # Where the product is largest, and how wide it is there.
    free = jnp.maximum(1.0 - load * slope, 0.05)
    most = jnp.minimum(load * fixed / free, room)
    low = jnp.maximum(most - 5 * jnp.sqrt(jnp.maximum(most, 1.0) / free), -0.45)
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
    beyond = jnp.exp(logs[-1]) / (1.0 - full)
    chance = beyond / (below + beyond)
    return chance * variability * full / (1.0 - full), chance


def wait_for_budget(chunks: Scalar, most: Scalar, arrival_cv2: Scalar) -> Scalar:
    """Steps that a prompt waits because those before it take the token budget of a step.

    A step serves ``most`` chunks at once, so this is a queue of as many servers whose service takes
    one step (Sakasegawa, Annals of the Institute of Statistical Mathematics 29, 1977).

    Args:
        chunks: Chunks that arrive in a step, mean.
        most: Chunks that the budget leaves room for.
        arrival_cv2: Squared coefficient of variation of the times between arrivals.
    """
    full = jnp.minimum(chunks / most, _FULLEST)
    waiting = full ** (jnp.sqrt(2 * (most + 1)) - 1) / (1 - full) / most
    return waiting * arrival_cv2 / 2


def beyond_budget(before: Scalar, most: Scalar) -> Scalar:
    """Chance that the prompts of a step are too many for its token budget to reach another one.

    The tail of a Poisson distribution, by Chernoff's bound and the saddle point's factor; within a
    fifth of the sum where it matters.

    Args:
        before: Prompts in the step before it, mean.
        most: Prompts that the budget leaves room for.
    """
    few = jnp.clip(before, 1e-6, most)
    bound = jnp.exp(most - few + most * jnp.log(few / most))
    return bound / (1.2 + jnp.sqrt(2 * jnp.pi * most) * (1 - few / most))
