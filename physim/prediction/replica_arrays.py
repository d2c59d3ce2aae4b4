"""A case of replicas behind a router as arrays, whose latencies are differentiable."""

from __future__ import annotations

import math
from dataclasses import replace

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.steady import SteadyState, steady_state
from physim.inputs.case import Case
from physim.prediction.arrays import CaseArrays, row_of
from physim.pytree import Pytree
from physim.types import Scalar


class ReplicaArrays(Pytree):
    """A case of servers that are alike as numbers.

    Attributes:
        server: One of them, and its requests: how these come depends on the router.
        count: Servers that requests come to.
        rate: Requests per second that come to all; infinite for clients.
    """

    server: CaseArrays
    count: Scalar
    rate: Scalar

    @classmethod
    def from_case(cls, case: Case) -> ReplicaArrays:
        """The case as numbers.

        Args:
            case: Replicas, or one server, and a load that stays: a rate without end, or clients.

        Raises:
            InputError: Its service has several pools.
        """
        if len(case.service.pools) > 1:
            raise InputError(
                "service",
                "has several pools",
                "use physim.prediction.apart_arrays, or give one",
            )
        (pool,), load = case.service.pools, case.demanded
        count, rate = pool.replicas, load.rate
        if load.concurrency is not None:
            count, rate = min(count, math.floor(load.concurrency)), math.inf
        server = row_of(CaseArrays.from_cases([case.of_pool(pool)]), 0)
        return cls(server, float(count), float(rate or math.inf))

    def state(self, corrections: Corrections) -> SteadyState:
        """The steady state of a server, with the throughput of all.

        Args:
            corrections: Corrections of the components.
        """
        demand = replace(self.server.demand, rate=self.rate / self.count)
        one = steady_state(self.server.model(corrections), demand, self.server.limits)
        return replace(one, throughput=self.count * one.throughput)
