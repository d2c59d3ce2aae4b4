"""What a full KV cache costs: tokens that preempted requests compute again.

Requests are preempted in the reverse of the order in which they started, and start again in that
order, so those that run are the oldest that fit. Each token that they generate takes the place of
one of the youngest, which has to be computed again, unless a request ends in the same step and
makes room. So a request computes again at most as many tokens as it generates.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from physim.batching.demand import Demand
from physim.batching.guards import ROOT
from physim.batching.kv_capacity import kv_cv2, kv_slots
from physim.batching.limits import Limits
from physim.types import Scalar

# How sharply the KV cache takes over as what limits the requests that run: chosen on
# benchmarks/fluid_against_replay.py.
_SHARPNESS = 20.0
# Requests that may end in a step, at most; with more in the mean hardly a step has too few.
_MOST_ENDING = 63
_FACTORIALS = np.cumsum(np.log(np.maximum(np.arange(_MOST_ENDING + 1.0), 1.0)))
# The five constants below were read off 285 replays in which every step takes as long, of 16 to
# 3,000 prompt tokens and 16 to 1,000 generated ones, and caches for 4 to 600 requests. On 180
# others, of other lengths, the mean error of what is computed again is 2% of prompt and output.
# Share of its output that a request has generated when it is preempted, where prompts are short.
_PREEMPTED_AT = 0.15
# Requests of one output length that start together also end together, in waves, between which
# hardly anything makes room: of the tokens that they generate, this share is computed again, where
# this share of all that run ends with a wave.
_OF_A_WAVE, _WAVE = 0.7, 0.5
# They fall out of step if lengths vary by this much, relative to their mean, and if they are
# preempted often: by this much for each prompt's length of generated tokens.
_VARIED, _SCATTERED = 1 / 15, 0.15


def full_cache(limits: Limits, slots: Scalar) -> Scalar:
    """How far requests wait for KV blocks rather than for ``max_num_seqs``, from 0 to 1.

    Args:
        limits: The engine's limits.
        slots: Requests that the KV cache has room for.
    """
    return jax.nn.sigmoid(_SHARPNESS * (1 - slots / limits.max_num_seqs))


def varied_by_blocks(limits: Limits, demand: Demand) -> Scalar:
    """Variance of the number of requests that run, over its mean, by the KV blocks of each.

    Where they wait for blocks, there is room for more short requests than for long ones.

    Args:
        limits: The engine's limits.
        demand: The load.
    """
    return full_cache(limits, kv_slots(limits, demand)) * kv_cv2(demand)


def recomputed_tokens(limits: Limits, demand: Demand, slots: Scalar) -> Scalar:
    """Tokens that a request computes again, on average, where more arrive than are served.

    Where room is kept for whole answers there are none.

    Args:
        limits: The engine's limits.
        demand: The load.
        slots: Requests that the KV cache has room for.
    """
    # Layers with a window and those with a state have blocks of a request's that do not grow.
    whole = demand.input_tokens + demand.output_tokens
    seen = jnp.minimum(whole, limits.window + limits.block_size)
    fixed = limits.window_share * seen + limits.state_blocks * limits.block_size
    held = demand.private_tokens + fixed
    # Every rank has a cache of its own, and every stage a batch of its own.
    together = slots / (limits.ranks * limits.stages)
    # In units of the tokens that a step gives a request.
    each = demand.tokens_each
    counted, output = held / each, demand.output_tokens / each
    again = displaced_tokens(counted, output, together, _lockstep(demand, held))
    again += limits.prompts_apart * started_too_soon(counted, output, together)
    again *= each
    # A request that has the only slot is never preempted.
    others = jnp.clip(limits.max_num_seqs / limits.ranks - 1.0, 0.0, 1.0)
    share = full_cache(limits, slots) * others * (1.0 - limits.whole_requests)
    return share * again * demand.private_tokens / held


def displaced_tokens(held: Scalar, output: Scalar, requests: Scalar, lockstep: Scalar) -> Scalar:
    """Tokens whose KV blocks others take, and that have to be computed again, for each request.

    Between one that ends and the next, the requests that run generate ``output`` tokens in the
    mean, of which blocks that are left over after the last start hold some: those were too few for
    the next request, so their number is uniform below its size. Of the request that was preempted
    last, what is not yet overwritten is found in the prefix cache, but for what the step in which
    it starts again takes.

    Args:
        held: Tokens, or blocks for them, that a request holds when it starts.
        output: Tokens that it generates, mean.
        requests: Requests that run and take each step together.
        lockstep: How far those that start together also end together, from 0 to 1.
    """
    size = held + _PREEMPTED_AT * output
    left = _room_left(size / output)
    # The mean of the lesser of a step's tokens and what is left of a request: uniform, too.
    step = jnp.minimum(requests, size)
    overwritten = step - step**2 / (2 * size)
    by_chance = unmet_growth(held, output, requests) * left * (output + overwritten)
    of_a_wave = _OF_A_WAVE * output * _room_left(held / (_WAVE * requests * output))
    return lockstep * of_a_wave + (1 - lockstep) * by_chance


def started_too_soon(held: Scalar, output: Scalar, requests: Scalar) -> Scalar:
    """Tokens that a request computes again since it starts before others take the next step.

    Where prompts have steps of their own, which come first, a request starts in room that the step
    after it needs. What is left of the room is uniform below a request's size ``s``, so that with a
    step's tokens ``t`` it is too little with the chance ``t / s``: then half of the step overwrites
    the one that has just started. It starts again by the same chance, so a request computes
    ``t^2 / (2 (s - t))`` tokens again.

    Args:
        held: Tokens, or blocks for them, that a request holds when it starts.
        output: Tokens that it generates, mean.
        requests: Requests that run and take each step together.
    """
    size = held + _PREEMPTED_AT * output
    step = jnp.minimum(requests, size)
    return step**2 / (2 * (size - jnp.minimum(step, size / 2)))


def unmet_growth(held: Scalar, output: Scalar, requests: Scalar) -> Scalar:
    """Share of the generated tokens for which no request makes room in the step that they come in.

    In a step, ``n`` requests generate a token each and ``D`` of them end, with the chances of
    Poisson's distribution of mean ``n / output``: ``E[max(1 - D (held + output) / n, 0)]``.

    Args:
        held: Tokens that a request holds when it starts.
        output: Tokens that it generates, mean.
        requests: Requests that run, n.
    """
    ending = jnp.minimum(requests / output, float(_MOST_ENDING))
    number = np.arange(_MOST_ENDING + 1.0)
    chance = jnp.exp(number * jnp.log(ending) - ending - _FACTORIALS)
    return jnp.sum(chance * jax.nn.relu(1 - number * (held + output) / (ending * output)))


def _room_left(ratio: Scalar) -> Scalar:
    """Share of growth beyond the blocks that are left over: exponential, less uniform, in the mean.

    Args:
        ratio: The size of the request that did not fit, over mean growth.
    """
    return -jnp.expm1(-ratio) / ratio


def _lockstep(demand: Demand, held: Scalar) -> Scalar:
    """How far requests that start together, holding so many tokens, also end together."""
    return in_waves(demand) / (1 + _SCATTERED * demand.output_tokens / held)


def in_waves(demand: Demand) -> Scalar:
    """How far requests that start together also end together for their lengths, from 0 to 1."""
    return jnp.exp(-jnp.sqrt(demand.output_cv2 + ROOT) / _VARIED)
