"""An exact replay of servers, request by request: the clock, the router and what requests send.

Between two events a server's batch only ages, so the clock jumps from event to event: the server
that is furthest behind acts next. A request is given to a server when the clock reaches it. One
that a pool has given its first token may go on in the next, once its KV blocks are there. Where
servers of the next make room before, it waits for that room before its prompt is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from physim.errors import InputError
from physim.replay.config import ReplayConfig
from physim.replay.outcome import EngineSamples, Gaps, Replayed, Work
from physim.replay.past import SeenServer
from physim.replay.request import Request
from physim.replay.routers import Candidate, Router, router_named
from physim.replay.server import ReplayServer
from physim.replay.step_times import StepTimes
from physim.replay.workload import Workload
from physim.service.routers import ROUTERS
from physim.service.service import Transfer


@dataclass(frozen=True)
class ReplayPool:
    """Servers of a replay that are alike.

    Attributes:
        times: Step times.
        config: One of them.
        replicas: How many there are.
    """

    times: StepTimes
    config: ReplayConfig
    replicas: int = 1


def replay(
    workload: Workload,
    times: StepTimes,
    config: ReplayConfig,
    timeout_s: float | None = None,
    horizon_s: float = math.inf,
    seed: int = 0,
) -> Replayed:
    """Runs every request of a workload through a server.

    Args:
        workload: The requests; they are changed, so a workload serves one replay.
        times: Step times.
        config: The server.
        timeout_s: Time after which a client gives up on its request; None for never.
        horizon_s: When to stop, whatever is under way.
        seed: Seed of what is accepted of drafts.

    Raises:
        InputError: A request would never fit into the KV cache.
    """
    pool = ReplayPool(times, config)
    return replay_pools(workload, [pool], timeout_s=timeout_s, horizon_s=horizon_s, seed=seed)


def replay_pools(
    workload: Workload,
    pools: Sequence[ReplayPool],
    transfers: Sequence[Transfer] = (),
    router: str = ROUTERS[0],
    timeout_s: float | None = None,
    horizon_s: float = math.inf,
    seed: int = 0,
    router_age_s: float = 0.0,
) -> Replayed:
    """Runs every request of a workload through pools of servers, one after the other.

    Args:
        workload: The requests; they are changed, so a workload serves one replay.
        pools: The pools.
        transfers: What carries KV blocks from each to the next.
        router: How requests are spread over the servers of a pool.
        timeout_s: Time after which a client gives up on its request; None for never.
        horizon_s: When to stop, whatever is under way.
        seed: Seed of what is accepted of drafts, and of what the router leaves to chance.
        router_age_s: Seconds from one look of the router at servers to the next; 0 for the present.

    Raises:
        InputError: A request would never fit into the KV cache.
    """
    servers = [
        [
            ReplayServer(pool.times, pool.config, timeout_s, seed + number)
            for number in range(pool.replicas)
        ]
        for pool in pools
    ]
    routers = [router_named(router, seed) for _ in pools]
    cluster = Cluster(workload, servers, transfers, routers, None, router_age_s)
    cluster.run(horizon_s)
    return outcome_of(cluster, cluster.servers, pools, horizon_s)


def outcome_of(
    cluster: Cluster,
    servers: Sequence[ReplayServer],
    pools: Sequence[ReplayPool],
    horizon_s: float = math.inf,
) -> Replayed:
    """What came of the requests of a cluster that has run.

    Args:
        cluster: The cluster.
        servers: All servers that it had.
        pools: Its pools.
        horizon_s: When it stopped, seconds.
    """
    apart = []
    if len(pools) > 1:
        for pool, alike in zip(pools, cluster.pools, strict=True):
            looks = EngineSamples.of_servers([np.frombuffer(one.samples) for one in alike])
            apart.append((looks, pool.replicas * pool.config.kv_blocks))
    arrived = [request for request in cluster.sent if request.arrival_s <= horizon_s]
    return Replayed(
        requests=sorted(arrived, key=lambda request: (request.arrival_s, request.number)),
        samples=EngineSamples.of_servers([np.frombuffer(one.samples) for one in servers]),
        gaps=Gaps.of_servers([np.frombuffer(one.gaps) for one in servers]),
        work=Work.of_servers([np.frombuffer(one.work) for one in servers]),
        steps=sum(server.steps for server in servers),
        end_s=max(server.now for server in servers),
        entry=pools[0].config,
        config=pools[-1].config,
        kv_blocks=sum(pool.replicas * pool.config.kv_blocks for pool in pools),
        pools=apart,
    )


class Changes(Protocol):
    """What changes the servers of a cluster while it runs, at times of its own.

    Attributes:
        next_s: When it does so next, seconds.
        servers: All servers that have something to do or may be given it.
    """

    next_s: float
    servers: list[ReplayServer]

    def change(self) -> None:
        """Changes them, and says when it does so next."""


class Cluster:
    """Pools of servers that the requests of a workload pass, one after the other.

    Args:
        workload: The requests.
        pools: The servers of each pool.
        transfers: What carries KV blocks from each to the next.
        routers: Who picks the server of a request, in each.
        changes: What changes the servers as they run; None if they stay.
        router_age_s: Seconds from one look of the routers at servers to the next; 0 where they see
            the present.

    Attributes:
        pools: The servers of each pool that are given requests.
        servers: All of them.
        sent: Requests that clients have sent.
    """

    def __init__(
        self,
        workload: Workload,
        pools: Sequence[Sequence[ReplayServer]],
        transfers: Sequence[Transfer] = (),
        routers: Sequence[Router] = (),
        changes: Changes | None = None,
        router_age_s: float = 0.0,
    ) -> None:
        self.pools, self._changes = pools, changes
        self.servers = [server for pool in pools for server in pool]
        self.sent: list[Request] = []
        self._workload, self._transfers = workload, transfers
        self._routers = routers or [router_named(ROUTERS[0]) for _ in pools]
        # Requests on their way to the schedulers of each pool, by when they reach it, and the next.
        self._coming: list[list[tuple[float, int, Request]]] = [[] for _ in pools]
        self._next_s = math.inf
        # Those that one server tokenises, by when they were sent, with when that is done; and
        # which of them it has done.
        self._unread: list[tuple[float, int, float]] = []
        self._read: set[int] = set()
        # Whether what servers do brings requests: clients who are answered, or another pool.
        self._servers_send = len(pools) > 1 or workload.follows
        self._pool_of = {server: place for place, pool in enumerate(pools) for server in pool}
        # Where requests have room or wait for it; of the latter, who is to compute their prompts,
        # and since when they wait.
        self._room_at: dict[Request, ReplayServer] = {}
        self._held: dict[Request, tuple[ReplayServer, float]] = {}
        self._makes_room = len(pools) > 1 and pools[1][0].config.makes_room_first
        # Until when each server sends what it has sent on so far.
        self._taken_s: dict[ReplayServer, float] = {}
        # What routers see of servers, where that is not the present.
        self._router_age_s, self._seen = router_age_s, dict[ReplayServer, SeenServer]()
        for server in self.servers:
            server.content_is_shared |= len(self.servers) > 1
        for request in workload.requests:
            self._send(request)

    def next_arrival_s(self, server: ReplayServer) -> float:
        """From when on a request may come that a server does not know of, seconds.

        Args:
            server: The server. Others may hand requests on to it, or have clients who send theirs
                when one has ended.
        """
        next_s = self._next_s
        if self._changes is not None:
            next_s = min(next_s, self._changes.next_s)
        if not self._servers_send:
            return next_s
        for other in self.servers:
            if other is not server and not other.asleep:
                next_s = min(next_s, other.next_end_s)
        return next_s

    def follow(self, request: Request, now_s: float) -> None:
        """The client of a request that has ended sends another, if it has one.

        Args:
            request: The request that has ended.
            now_s: When the client knows, seconds.

        Raises:
            InputError: The request would never fit into the KV cache.
        """
        room = self._room_at.pop(request, None)
        if room is not None and room.forget(request):
            self._go_on(room, now_s)
        following = self._workload.follow(request, now_s)
        if following is not None:
            self._send(following)

    def pass_on(self, request: Request, source: ReplayServer) -> float:
        """A request goes on in the next pool; gives when its KV blocks are there, seconds.

        Args:
            request: The request.
            source: The server that it leaves.
        """
        place = self._pool_of[source]
        transfer = self._transfers[place]
        assert request.scheduled_s is not None
        exposed_s = transfer.exposed_s(request.computed, source.now - request.scheduled_s)
        begins_s = max(source.now, self._taken_s.get(source, 0.0))
        self._taken_s[source] = begins_s + exposed_s
        sent_s = self._taken_s[source] + transfer.latency_s
        self._come(request, place + 1, sent_s)
        return sent_s

    def run(self, horizon_s: float = math.inf) -> None:
        """Runs until nothing is left to do, or to the horizon.

        Args:
            horizon_s: When to stop, seconds.
        """
        while True:
            awake = [server for server in self.servers if not server.asleep]
            if self._changes is not None and self._change(self._changes, awake):
                continue
            if not awake:
                if self._next_s == math.inf:
                    break
                self._route(self._next_s)
                continue
            server = min(awake, key=lambda one: one.now) if len(awake) > 1 else awake[0]
            if server.now >= horizon_s:
                break
            self._route(server.now)
            server.act(self, horizon_s)
            if self._held and server.config.makes_room_first:
                self._go_on(server, server.now)
            if self._router_age_s:
                self._seen_of(server).note()
            if server.asleep and len(self.servers) > 1:
                # Sums over servers have it as it was last looked at.
                server.look(server.kv_blocks)
        for server in self.servers:
            end_s = min(server.now, horizon_s)
            self._route(end_s)
            server.arrive(self, end_s)

    def _change(self, changes: Changes, awake: Sequence[ReplayServer]) -> bool:
        """Changes the servers if none acts and no request comes before that; gives whether."""
        next_s = min((server.now for server in awake), default=self._next_s)
        if changes.next_s > next_s or changes.next_s == math.inf:
            return False
        self._route(changes.next_s)
        changes.change()
        self.servers = changes.servers
        return True

    def _route(self, time_s: float) -> None:
        """Gives requests that have come by a time to servers."""
        if time_s < self._next_s:
            return
        for place, coming in enumerate(self._coming):
            while coming and coming[0][0] <= time_s:
                reaches_s, number, request = heappop(coming)
                if not place and (read_s := self._read_at(number, reaches_s)) > reaches_s:
                    heappush(coming, (read_s, number, request))
                    continue
                server = self._room_at.get(request) or self._pick(place, request, reaches_s)
                request.fixed = server.config.kv.fixed_blocks(request.kv_tokens)
                if self._makes_room and not place:
                    self._ask(request, server, reaches_s)
                else:
                    self._give(request, server, reaches_s)
        self._next_s = min((coming[0][0] for coming in self._coming if coming), default=math.inf)

    def _read_at(self, number: int, reaches_s: float) -> float:
        """When a request reaches the schedulers: after those that were sent before it.

        An API server reads one prompt after another, so that a short one does not overtake a long
        one, nor comes at the same time: an idle scheduler starts with the first alone. Of several
        servers it is not known yet which a request goes to.

        Args:
            number: The request's number. It counts as read if no other holds it up.
            reaches_s: When its own prompt is tokenised, seconds.
        """
        while self._unread and self._unread[0][1] in self._read:
            self._read.remove(heappop(self._unread)[1])
        if self._unread:
            _, first, read_s = self._unread[0]
            if first != number and read_s > reaches_s:
                return math.nextafter(read_s, math.inf)
            self._read.add(number)
        return reaches_s

    def _pick(self, place: int, request: Request, time_s: float) -> ReplayServer:
        """The server of a pool that its router picks for a request."""
        servers = self.pools[place]
        # A router of servers that change remembers what it gave the only one.
        if len(servers) == 1 and self._changes is None:
            return servers[0]
        seen: Sequence[Candidate] = servers
        if self._router_age_s:
            for server in servers:
                self._seen_of(server).see(time_s)
            seen = [self._seen_of(server) for server in servers]
        return servers[seen.index(self._routers[place](seen, request))]

    def _seen_of(self, server: ReplayServer) -> SeenServer:
        """What routers see of a server."""
        if server not in self._seen:
            self._seen[server] = SeenServer(server, self._router_age_s)
        return self._seen[server]

    def _give(self, request: Request, server: ReplayServer, reaches_s: float) -> None:
        """A request is on its way to a server."""
        server.receive(request, reaches_s)
        if self._router_age_s:
            self._seen_of(server).note()

    def _ask(self, request: Request, first: ReplayServer, now_s: float) -> None:
        """A request waits for room in the next pool before its prompt is computed in the first."""
        # What its prompt shares is of no account there.
        path, request.path = request.path, ()
        second = self._pick(1, request, now_s)
        request.path = path
        request.fixed = second.config.kv.fixed_blocks(request.kv_tokens)
        self._room_at[request], self._held[request] = second, (first, now_s)
        second.ask(request)
        self._go_on(second, now_s)

    def _go_on(self, second: ReplayServer, now_s: float) -> None:
        """Prompts are computed of those for whom a server has room."""
        for request in second.make_room():
            first, since_s = self._held.pop(request)
            request.fixed = first.config.kv.fixed_blocks(request.kv_tokens)
            # Who gave room up may have done so before others asked for it.
            self._give(request, first, max(now_s, since_s))

    def _come(self, request: Request, place: int, sent_s: float) -> None:
        """A request is sent to a pool, whose schedulers it reaches some time later."""
        config = self.pools[place][0].config
        reaches_s = sent_s + config.front_end_s
        reaches_s += config.front_end_per_token_s * request.input_tokens
        heappush(self._coming[place], (reaches_s, request.number, request))
        if not place and len(self.pools[0]) == 1:
            heappush(self._unread, (sent_s, request.number, reaches_s))
        self._next_s = min(self._next_s, reaches_s)

    def _send(self, request: Request) -> None:
        """A client sends a request."""
        for servers in self.pools:
            config = servers[0].config
            needed = config.most_blocks(request.input_tokens, request.output_tokens)
            if needed > config.kv.blocks:
                raise InputError(
                    f"request {request.number}",
                    f"needs {needed} KV blocks and there are {config.kv.blocks}",
                    "shorten it, or give the engine more of them",
                )
        self.sent.append(request)
        self._come(request, 0, request.arrival_s)
