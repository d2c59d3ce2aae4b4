"""Pools that requests pass one after the other: departures of one are arrivals of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool

from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.fluid.steady import SteadyState, steady_state
from physim.step.model import StepModel
from physim.types import AnyArray, Scalar


class Stop(NamedTuple):
    """A server of a pool, on the way of the requests that come to it.

    Attributes:
        model: Step times.
        demand: What its requests do there; the rate is of all that would come.
        limits: The engine's limits.
        replicas: Servers of the pool, between which requests are shared out evenly.
        handover_s: Time from the pool to the next, seconds.
    """

    model: StepModel
    demand: Demand
    limits: Limits
    replicas: Scalar = 1.0
    handover_s: Scalar = 0.0


class Journey(NamedTuple):
    """What requests get of all pools. Times in seconds, rates in 1/s.

    Attributes:
        ttft: Mean time to first token, which the first pool gives.
        itl: Mean time from one token to the next, of the last pool.
        e2e: Mean time of a request.
        throughput: Requests completed per second.
        saturated: Whether a pool is above its capacity.
        pools: The steady state of a server of each pool.
    """

    ttft: Scalar
    itl: Scalar
    e2e: Scalar
    throughput: Scalar
    saturated: Bool[AnyArray, ""]
    pools: tuple[SteadyState, ...]


def steady_network(way: Sequence[Stop]) -> Journey:
    """The steady state of pools that requests pass one after the other.

    Rates match, since no pool gives on more than it completes, and waits add.

    Args:
        way: The pools in the order in which requests pass them.
    """
    states: list[SteadyState] = []
    rate: Scalar = jnp.inf
    for stop in way:
        came = jnp.minimum(stop.demand.rate, rate) if states else stop.demand.rate
        demand = replace(stop.demand, rate=came / stop.replicas)
        state = steady_state(stop.model, demand, stop.limits)
        rate = state.throughput * stop.replicas
        states.append(state)
    handed_s = sum(stop.handover_s for stop in way[:-1])
    return Journey(
        ttft=states[0].ttft,
        itl=states[-1].itl,
        e2e=sum((state.e2e for state in states[1:]), states[0].e2e) + handed_s,
        throughput=rate,
        saturated=jnp.any(jnp.stack([state.saturated for state in states])),
        pools=tuple(states),
    )
