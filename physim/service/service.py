"""A service: pools of servers, what joins them, and a router before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.printable import shown
from physim.service.phases import PHASES
from physim.service.routers import ROUTERS
from physim.service.server import Server


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

    @property
    def gpus(self) -> int:
        """GPUs of all its servers."""
        return self.replicas * self.server.parallelism.gpus

    @property
    def layout(self) -> str:
        """How many servers of which layout, such as ``2 x (tp 4)``."""
        return f"{self.replicas} x ({self.server.parallelism})"

    @property
    def where(self) -> str:
        """How many of which servers, such as ``2 servers of 4 x h100_sxm (tp 4)``."""
        where = self.server.where
        return f"{self.replicas} servers of {where}" if self.replicas > 1 else where

    def __repr__(self) -> str:
        return shown(self, f"{'+'.join(self.phases)} on {self.where}")


def where_of(pools: Sequence[Pool]) -> str:
    """The servers of each pool, and what these do where there are several.

    Args:
        pools: The pools.
    """
    if len(pools) == 1:
        return pools[0].where
    return ", ".join(f"{pool.where} for {'+'.join(pool.phases)}" for pool in pools)


@dataclass(frozen=True)
class Transfer:
    """What carries the KV blocks of requests from servers to the next pool.

    A server sends those of one request after the other.

    Attributes:
        per_token_s: Time of a token's keys and values, seconds.
        latency_s: What every request waits beside that, seconds; others need not wait for it.
        while_computed: Share of a request's keys and values that may be sent while its prompt is
            still computed: 0 where all wait for its end.
    """

    per_token_s: float
    latency_s: float = 0.0
    while_computed: float = 0.0

    def exposed_s(self, tokens: float, computing_s: float) -> float:
        """How long a request's keys and values take after its prompt is computed, seconds.

        Args:
            tokens: Tokens that it has.
            computing_s: How long they were computed, seconds.
        """
        whole = self.per_token_s * tokens
        return max(whole - computing_s, (1.0 - self.while_computed) * whole)


@dataclass(frozen=True)
class Link:
    """What carries the KV blocks of requests from each pool to the next.

    Attributes:
        bandwidth: Bytes per second of each GPU.
        latency_s: What each request waits beside that, for the router and until its first byte is
            there, seconds.
        by_layer: Whether a layer's blocks are sent as soon as it has computed them, or all blocks
            after the last.
    """

    bandwidth: float
    latency_s: float = 0.0
    by_layer: bool = False

    def token_s(self, source: Server, target: Server) -> float:
        """Time in which a token's keys and values are sent, seconds.

        Each GPU of a server sends, or takes, its own part of them.

        Args:
            source: The server that sends.
            target: The server that takes.
        """
        parts = [server.memory.kv_block / server.kv.block_size for server in (source, target)]
        return max(parts) / self.bandwidth

    def transfer(self, source: Server, target: Server) -> Transfer:
        """What the keys and values of requests take.

        Args:
            source: The server that sends.
            target: The server that takes.
        """
        hidden = 1.0 - 1.0 / source.model.layers if self.by_layer else 0.0
        return Transfer(self.token_s(source, target), self.latency_s, hidden)


@dataclass(frozen=True)
class Service:
    """All that serves a load.

    Attributes:
        pools: The pools, in the order in which requests pass them.
        link: What joins them; None where there is one.
        router: How requests are spread over the replicas of a pool, of `ROUTERS`.
        router_age_s: Seconds from one look of the router at what servers have to the next; 0 where
            it sees that as it is.

    Raises:
        InputError: No pool runs a phase, pools serve different models, or nothing joins them.
    """

    pools: tuple[Pool, ...]
    link: Link | None = None
    router: str = ROUTERS[0]
    router_age_s: float = 0.0

    def __post_init__(self) -> None:
        run = {phase for pool in self.pools for phase in pool.phases}
        for phase in PHASES:
            if phase not in run:
                raise InputError("service", f"has no pool for {phase}", "add one")
        if len({pool.server.model.name for pool in self.pools}) > 1:
            raise InputError("service", "has pools of several models", "give one service for each")
        if len(self.pools) > 1 and self.link is None:
            raise InputError("service", "has pools and no link between them", "add one")
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
    def is_single(self) -> bool:
        """Whether it is one server."""
        return len(self.pools) == 1 and self.pools[0].replicas == 1

    def pool_of(self, phase: str) -> Pool:
        """The pool that runs a phase.

        Args:
            phase: One of `PHASES`.
        """
        return next(pool for pool in self.pools if phase in pool.phases)

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def where(self) -> str:
        """What the model runs on: the servers of each pool."""
        return where_of(self.pools)

    @property
    def layout(self) -> str:
        """The layout of its servers, such as ``tp 2``, ``4 x (tp 2)`` with a router that is named.

        Of pools apart ``3 x (tp 1) prefill : 2 x (tp 2) decode``.
        """
        if self.is_single:
            return str(self.pools[0].server.parallelism)
        pools = self.pools
        layout = pools[0].layout
        if len(pools) > 1:
            layout = " : ".join(f"{pool.layout} {'+'.join(pool.phases)}" for pool in pools)
        return layout if self.router == ROUTERS[0] else f"{layout}, {self.router}"

    @property
    def router_notes(self) -> tuple[str, ...]:
        """What is taken of its router where that is not routed request by request, or nothing."""
        if not self.router_age_s or all(pool.replicas == 1 for pool in self.pools):
            return ()
        every = f"{1e3 * self.router_age_s:g} ms"
        return (f"the router is taken to see loads as they are, which it reads every {every}",)

    @property
    def unused(self) -> tuple[str, ...]:
        """Options that change nothing of it, one line each."""
        if self.router == ROUTERS[0] or any(pool.replicas > 1 for pool in self.pools):
            return ()
        return (f"router {self.router} changes nothing: there is one server to choose",)

    @property
    def gpu_keys(self) -> tuple[str, ...]:
        """Keys of the GPUs that its pools have, each once."""
        return tuple(dict.fromkeys(pool.server.gpu.key for pool in self.pools))

    @property
    def server(self) -> Server:
        """The one server of the service.

        Raises:
            InputError: It has several.
        """
        if not self.is_single:
            servers = f"{sum(pool.replicas for pool in self.pools)} servers"
            if len(self.pools) > 1:
                servers += f" in {len(self.pools)} pools"
            raise InputError(
                "service",
                f"has {servers}, where one is asked about",
                "ask about one server, under its share of the load",
            )
        return self.pools[0].server

    def __repr__(self) -> str:
        return shown(self, f"{self.model.name} on {self.where}")
