"""A service: pools of servers, what joins them, and a router before them."""

from __future__ import annotations

from dataclasses import dataclass

from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.service.phases import PHASES
from physim.service.server import Server

ROUTERS = ("least_loaded",)


@dataclass(frozen=True)
class Pool:
    """Servers that are alike.

    Attributes:
        server: One of them.
        replicas: How many there are.
        phases: What requests do there, of `PHASES`.

    Raises:
        InputError: There is no server, or no phase that is known.
    """

    server: Server
    replicas: int = 1
    phases: tuple[str, ...] = PHASES

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise InputError("replicas", f"{self.replicas} is not positive", "use 1 or more")
        if not self.phases or not set(self.phases) <= set(PHASES):
            known = " and ".join(PHASES)
            raise InputError("phases", f"{self.phases} are no phases", f"use {known}, or one")


@dataclass(frozen=True)
class Link:
    """What carries the KV blocks of a request from one pool to another.

    Attributes:
        source: The pool that hands on, by its place in the service.
        target: The pool that takes over, likewise.
        bandwidth: Bytes per second.
        latency_s: Time before the first byte, seconds.
    """

    source: int
    target: int
    bandwidth: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Service:
    """All that serves a load.

    Attributes:
        pools: The pools, in the order in which requests pass them.
        links: What joins them.
        router: How requests are spread over the replicas of a pool, of `ROUTERS`.

    Raises:
        InputError: No pool runs a phase, or pools serve different models.
    """

    pools: tuple[Pool, ...]
    links: tuple[Link, ...] = ()
    router: str = ROUTERS[0]

    def __post_init__(self) -> None:
        run = {phase for pool in self.pools for phase in pool.phases}
        for phase in PHASES:
            if phase not in run:
                raise InputError("service", f"has no pool for {phase}", "add one")
        if len({pool.server.model.name for pool in self.pools}) > 1:
            raise InputError("service", "has pools of several models", "give one service for each")
        if self.router not in ROUTERS:
            known = ", ".join(ROUTERS)
            raise InputError("router", f"{self.router!r} is unknown", f"use one of {known}")

    @classmethod
    def single(cls, server: Server) -> Service:
        """The service that is one server.

        Args:
            server: The server.
        """
        return cls((Pool(server),))

    @property
    def model(self) -> ModelArch:
        """The model that is served."""
        return self.pools[0].server.model

    @property
    def server(self) -> Server:
        """The one server of the service.

        Raises:
            InputError: It has several, which physim does not predict.
        """
        pool = self.pools[0]
        if len(self.pools) > 1 or pool.replicas > 1:
            servers = sum(own.replicas for own in self.pools)
            raise InputError(
                "service",
                f"has {servers} servers in {len(self.pools)} pools, and one is predicted",
                "give the share of the load of each",
            )
        return pool.server
