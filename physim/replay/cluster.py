"""An exact replay of servers, request by request: the clock, the router and what requests send.

Between two events a server's batch only ages, so the clock jumps from event to event: the server
that is furthest behind acts next. A request is given to a server when the clock reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from heapq import heappop, heappush

import numpy as np

from physim.errors import InputError
from physim.replay.config import ReplayConfig
from physim.replay.outcome import EngineSamples, Gaps, Replayed, Work
from physim.replay.server import ReplayServer
from physim.replay.step_times import StepTimes
from physim.replay.workload import Request, Workload

# Which of some servers takes a request.
Router = Callable[[Sequence[ReplayServer], Request], ReplayServer]


def least_loaded(servers: Sequence[ReplayServer], _: Request) -> ReplayServer:
    """The server with the fewest requests, of which those that wait count four times.

    Args:
        servers: The servers.
    """
    return min(servers, key=lambda server: server.load)


def replay(
    workload: Workload,
    times: StepTimes,
    config: ReplayConfig,
    timeout_s: float | None = None,
    horizon_s: float = math.inf,
) -> Replayed:
    """Runs every request of a workload through a server.

    Args:
        workload: The requests; they are changed, so a workload serves one replay.
        times: Step times.
        config: The server.
        timeout_s: Time after which a client gives up on its request; None for never.
        horizon_s: When to stop, whatever is under way.

    Raises:
        InputError: A request would never fit into the KV cache.
    """
    server = ReplayServer(times, config, timeout_s)
    cluster = Cluster(workload, [server])
    cluster.run(horizon_s)
    samples = EngineSamples(*np.frombuffer(server.samples).reshape(-1, 4).T)
    gaps = Gaps(*np.frombuffer(server.gaps).reshape(-1, 3).T)
    arrived = [request for request in cluster.sent if request.arrival_s <= horizon_s]
    requests = sorted(arrived, key=lambda request: (request.arrival_s, request.number))
    work = Work(*np.frombuffer(server.work).reshape(-1, len(fields(Work))).T)
    return Replayed(requests, samples, gaps, work, server.steps, server.now, config)


class Cluster:
    """Servers that share the requests of a workload.

    Attributes:
        servers: The servers.
        sent: Requests that clients have sent.
    """

    def __init__(
        self, workload: Workload, servers: Sequence[ReplayServer], router: Router = least_loaded
    ) -> None:
        self.servers = servers
        self.sent: list[Request] = []
        self._workload, self._router = workload, router
        # Requests on their way to a scheduler, by when they reach it.
        self._coming: list[tuple[float, int, Request]] = []
        for request in workload.requests:
            self._send(request)

    @property
    def next_arrival_s(self) -> float:
        """When the next request that no server has reaches a scheduler; infinite for none."""
        return self._coming[0][0] if self._coming else math.inf

    def follow(self, request: Request, now_s: float) -> None:
        """The client of a request that has ended sends another, if it has one.

        Args:
            request: The request that has ended.
            now_s: When the client knows, seconds.

        Raises:
            InputError: The request would never fit into the KV cache.
        """
        following = self._workload.follow(request, now_s)
        if following is not None:
            self._send(following)

    def run(self, horizon_s: float = math.inf) -> None:
        """Runs until nothing is left to do, or to the horizon.

        Args:
            horizon_s: When to stop, seconds.
        """
        while True:
            awake = [server for server in self.servers if not server.asleep]
            if not awake:
                if not self._coming:
                    break
                self._route(self.next_arrival_s)
                continue
            server = min(awake, key=lambda one: one.now) if len(awake) > 1 else awake[0]
            if server.now >= horizon_s:
                break
            self._route(server.now)
            server.act(self, horizon_s)
        for server in self.servers:
            end_s = min(server.now, horizon_s)
            self._route(end_s)
            server.arrive(self, end_s)

    def _route(self, time_s: float) -> None:
        """Gives requests that have come by a time to servers."""
        coming = self._coming
        while coming and coming[0][0] <= time_s:
            reaches_s, _, request = heappop(coming)
            servers = self.servers
            server = self._router(servers, request) if len(servers) > 1 else servers[0]
            server.receive(request, reaches_s)

    def _send(self, request: Request) -> None:
        """A client sends a request, which reaches the scheduler some time later."""
        config = self.servers[0].config
        tokens, room = request.input_tokens + request.decode_steps, config.kv.blocks
        request.fixed = config.kv.fixed_blocks(tokens)
        needed = -(-tokens // config.kv.block_size) + request.fixed
        if needed > room:
            raise InputError(
                f"request {request.number}",
                f"needs {needed} KV blocks and there are {room}",
                "shorten it, or give the engine more of them",
            )
        reaches_s = request.arrival_s + config.front_end_s
        reaches_s += config.front_end_per_token_s * request.input_tokens
        self.sent.append(request)
        heappush(self._coming, (reaches_s, request.number, request))
