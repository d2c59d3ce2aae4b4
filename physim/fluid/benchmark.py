"""A benchmark of clients that all begin at once: means over all requests, from the first on."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.batching.guards import LITTLE, ROOT, TINY
from physim.fluid.client_percentiles import Clients
from physim.fluid.rounds import BusyEngine, density_of, interference
from physim.service.phases import decode_steps
from physim.types import AnyArray, Scalar

# Rounds that stand for all, evenly spaced in the root of their number.
_NODES = 16
# Points at which the ends of the last requests are taken.
_POINTS = 64


class Benchmark(NamedTuple):
    """All requests of clients that begin at once. Times in seconds.

    Attributes:
        ttft: Time to first token, mean.
        itl: Time from one token to the next, mean.
        e2e: Time of a request, mean.
        throughput: Requests over the time until the last is answered, 1/s.
        in_step: How far clients are in step, from 0 to 1, mean over the requests.
        clients: Its requests, for percentiles.
    """

    ttft: Scalar
    itl: Scalar
    e2e: Scalar
    throughput: Scalar
    in_step: Scalar
    clients: Clients


def benchmark(engine: BusyEngine, cycle_s: Scalar, demand: Demand, warm_up_s: Scalar) -> Benchmark:
    """What clients see who begin at once, from their first request to the last.

    The first requests of the slots are prefilled together; in the rounds after them clients drift
    apart. How far they are in step decides how much of a request's time is before its first token,
    and hardly how long it takes: the engine has the same to do. At the end the batch thins out,
    over as many steps as clients are apart. Clients without a slot wait in line.

    Args:
        engine: The engine.
        cycle_s: Time from a request of a slot to the slot's next if clients are anywhere in their
            requests, seconds.
        demand: The load.
        warm_up_s: Time that the first requests wait for the engine to warm up, seconds.
    """
    times, running, steps = engine.times, engine.running, engine.waits.decoding
    firsts = engine.first + warm_up_s
    # Where there is no end: with infinity no gradient is a number.
    requests = jnp.minimum(demand.requests, 1 / TINY)
    rounds = jnp.maximum(requests / running, 1.0)
    begun = 1 / rounds
    number, weight = _rounds_after_the_first(rounds)
    # One call, of which less is compiled than of several.
    number = jnp.append(number, jnp.stack([rounds, rounds]))
    drift = demand.steps_variance * number
    settled = engine.after(number, drift)
    density = density_of(settled, drift)
    every = interference(settled, density.at[-1].set(1 / engine.waits.round_steps))
    each, final, anywhere = (
        jax.tree.map(lambda x, i=i: x[i], every) for i in (slice(_NODES), _NODES, _NODES + 1)
    )
    # What a turn takes beyond that of clients anywhere in their requests it does not of those in
    # step, unless their prompts take all of it.
    beyond = cycle_s - anywhere.ttft - anywhere.others - steps * times.decode
    part = jnp.minimum(each.width / engine.waits.round_steps, 1.0)
    anywhere_share = 1 - each.in_step * (1 - part)
    e2e = each.ttft + each.others + steps * times.decode + anywhere_share * beyond
    # No step is longer than one whose token budget is full: what is left is waited for in line.
    group = engine.crowd.group
    excess = times.prefill.longer(group)
    full = times.decode + excess
    decode = jnp.clip(e2e - each.ttft, steps * times.partly_full, steps * full)
    # Of the first prompts, a request meets those after its own while it decodes.
    after = excess * jnp.minimum(engine.meeting.after / group, steps)
    # The batch thins out evenly over the last ``w`` steps. Who ends ``e`` steps into them is spared
    # ``e^2 / 2w`` of the time that all take to decode, which is a sixth of ``w`` in the mean.
    width = final.width
    thinned = (width - 1) / 6 * times.each_decode
    first_decode = jnp.maximum(steps * times.decode + after - thinned, steps * times.partly_full)

    def mean(first: Scalar, later: Float[AnyArray, " nodes"]) -> Scalar:
        return begun * first + (1 - begun) * jnp.sum(weight * later)

    decoding = mean(first_decode, decode)
    ttft = mean(jnp.mean(firsts), e2e - decode)
    # Of the turns that clients without a slot wait for, the first clients find half.
    line = (ttft + decoding) * (demand.clients / running - 1)
    line *= 1 - demand.clients / requests / 2
    tail = _last_s(engine, demand) * (width - 1) / jnp.maximum(engine.waits.round_steps - 1, 1.0)
    return Benchmark(
        ttft=ttft + line,
        itl=decoding / jnp.maximum(steps, LITTLE),
        e2e=ttft + line + decoding,
        throughput=running / (ttft + decoding + begun * tail),
        in_step=jnp.sum(weight * each.in_step),
        clients=Clients(
            closed=demand.closed,
            begun=begun,
            first=firsts,
            round=jnp.cumsum(weight) - weight / 2,
            later=e2e - decode,
            decode=decode / jnp.maximum(decoding, TINY),
            last_decode=first_decode / jnp.maximum(decoding, TINY),
            chance=1 - each.in_step**2,
            until_s=engine.settling.until * each.each[0],
            after_s=engine.settling.after * each.each[0],
            prompts_apart=1.0 * engine.limits.prompts_apart,
            least_s=times.partly_full,
            most_s=full,
            line=line / jnp.maximum(1 - begun, TINY),
            line_cv=_spread_of_cycles(engine, demand),
        ),
    )


def _rounds_after_the_first(
    rounds: Scalar,
) -> tuple[Float[AnyArray, " nodes"], Float[AnyArray, " nodes"]]:
    """Numbers of some rounds after the first, even in their roots, and shares of all after it.

    The ``r``-th after the first is all between ``r - 1/2`` and ``r + 1/2``. A node with the root
    ``x`` stands for a share of ``2 x dx``.

    Args:
        rounds: Rounds in all, at least one.
    """
    first, last = jnp.sqrt(1 / 2), jnp.sqrt(jnp.maximum(rounds - 1 / 2, 1 / 2))
    places = (np.arange(_NODES) + 1 / 2) / _NODES
    roots = first + (last - first) * places
    return roots**2, roots / jnp.sum(roots)


def _spread_of_cycles(engine: BusyEngine, demand: Demand) -> Scalar:
    """Coefficient of variation of the time in which as many requests end as wait in line.

    A sum of so many times between the ends of requests, each as variable as a request is long.
    """
    line = jnp.maximum(demand.clients - engine.running, 1.0)
    return jnp.sqrt(demand.steps_variance / line + ROOT) / engine.waits.round_steps


def _last_s(engine: BusyEngine, demand: Demand) -> Scalar:
    """Time from the mean end of the last requests to the last, if clients are anywhere in them."""
    steps = decode_steps(demand.output_steps)
    at = jnp.max(steps) * (np.arange(_POINTS) + 0.5) / _POINTS
    # What is left of a request at any time is longer than that with this chance.
    left = jnp.mean(jnp.maximum(steps - at[:, None], 0.0), axis=1) / jnp.maximum(
        engine.waits.decoding, LITTLE
    )
    longest = 1 - (1 - left) ** engine.running
    return jnp.max(steps) * jnp.mean(longest - left) * engine.times.partly_full
