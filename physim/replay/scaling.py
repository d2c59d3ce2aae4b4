"""Servers of a replay that come and go: an autoscaler, servers that start, and those that drain.

A server that is asked for serves when it has started, with nothing in its cache. One that is let go
gets no more requests and ends those that it has. As Kubernetes does it, servers that do not serve
yet go first, then the newest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from physim.replay.cluster import Cluster, ReplayPool, outcome_of
from physim.replay.outcome import Replayed
from physim.replay.request import Request
from physim.replay.routers import Candidate, Router, router_named
from physim.replay.server import ReplayServer
from physim.replay.workload import Workload
from physim.service.routers import ROUTERS
from physim.service.scaling import (
    KV,
    PERIOD_S,
    RUNNING,
    TTFT,
    WAITING,
    Autoscaling,
    TargetTracking,
    Timetable,
    most_after,
)


@dataclass
class Replica:
    """A server's time.

    Attributes:
        asked_s: When it was asked for, seconds.
        serves_s: When it serves from; infinite if it was let go before.
        leaves_s: When it was let go.
        ended_s: When its last request ended after that; its GPUs were taken until then.
    """

    asked_s: float
    serves_s: float = math.inf
    leaves_s: float = math.inf
    ended_s: float = math.inf


@dataclass(frozen=True)
class ScaledReplay:
    """A replay with servers that came and went.

    Attributes:
        replayed: What came of the requests.
        replicas: The servers, in the order in which they were asked for.
    """

    replayed: Replayed
    replicas: Sequence[Replica]


def replay_scaled(
    workload: Workload,
    pool: ReplayPool,
    scaling: Autoscaling,
    first: int,
    end_s: float,
    router: str = ROUTERS[0],
    seed: int = 0,
    router_age_s: float = 0.0,
) -> ScaledReplay:
    """Runs every request of a workload through servers that come and go.

    Args:
        workload: The requests; they are changed, so a workload serves one replay.
        pool: The servers; how many there are is up to what scales them.
        scaling: What does.
        first: Servers that serve from the beginning, within the bounds.
        end_s: When the last servers are let go, seconds; later requests are still served.
        router: How requests are spread over servers that serve.
        seed: Seed of what is accepted of drafts, and of what the router leaves to chance.
        router_age_s: Seconds from one look of the router at servers to the next; 0 for the present.

    Raises:
        InputError: A request would never fit into the KV cache.
    """
    scaled = _ScaledPool(pool, scaling, router_named(router, seed), first, end_s, seed)
    cluster = Cluster(workload, [scaled.serving], (), [scaled], scaled, router_age_s)
    cluster.run()
    scaled.end()
    return ScaledReplay(outcome_of(cluster, scaled.every, [pool]), scaled.replicas)


class _Tracking:
    """What an autoscaler with a target remembers."""

    def __init__(self, policy: TargetTracking) -> None:
        self._policy = policy
        # Times with what was wanted, and with the servers that were added.
        self._wanted: deque[tuple[float, int]] = deque()
        self._added: deque[tuple[float, int]] = deque()

    def next_look_s(self, now_s: float) -> float:
        return now_s + self._policy.look_s

    def __call__(self, now_s: float, pool: _ScaledPool) -> int:
        policy = self._policy
        asked = pool.asked
        _forget(self._added, now_s - PERIOD_S)
        lately = sum(added for time_s, added in self._added if time_s > now_s - PERIOD_S)
        most = most_after(asked - lately)
        wanted = policy.wanted(pool.level(policy.metric), asked, len(pool.serving))
        _forget(self._wanted, now_s - policy.hold_s)
        self._wanted.append((now_s, pool.bounded(wanted)))
        if wanted < asked:
            # The highest that was wanted lately, but no more than there are.
            return min(max(before for _, before in self._wanted), asked)
        wanted = pool.bounded(min(wanted, most))
        if wanted > asked:
            self._added.append((now_s, wanted - asked))
        return wanted


class _Timetabled:
    """What an autoscaler with a timetable does."""

    def __init__(self, policy: Timetable) -> None:
        self._policy = policy

    def next_look_s(self, now_s: float) -> float:
        return self._policy.next_look_s(now_s)

    def __call__(self, now_s: float, pool: _ScaledPool) -> int:
        return pool.bounded(self._policy.wanted(now_s))


def _forget(noted: deque[tuple[float, int]], before_s: float) -> None:
    """Leaves out what was noted before a time."""
    while noted and noted[0][0] < before_s:
        noted.popleft()


class _ScaledPool:
    """Servers that come and go, and the router that spreads requests over those that serve.

    Attributes:
        serving: Servers that are given requests, the oldest first.
        servers: These and those that drain.
        every: All that there ever were.
        replicas: The time of each, and of those that never served.
        next_s: When something changes next, seconds.
    """

    def __init__(
        self,
        pool: ReplayPool,
        scaling: Autoscaling,
        router: Router,
        first: int,
        end_s: float,
        seed: int,
    ) -> None:
        self._pool, self._scaling, self._router = pool, scaling, router
        self._end_s, self._seed = end_s, seed
        policy = scaling.policy
        self._policy: _Tracking | _Timetabled = (
            _Tracking(policy) if isinstance(policy, TargetTracking) else _Timetabled(policy)
        )
        self._watches_ttft = isinstance(policy, TargetTracking) and policy.metric == TTFT
        # Requests without a first token so far, where somebody wants to know.
        self._open: list[Request] = []
        self.serving: list[ReplayServer] = []
        self.servers: list[ReplayServer] = []
        self.every: list[ReplayServer] = []
        self.replicas: list[Replica] = []
        self._starting: deque[Replica] = deque()
        self._replica_of: dict[ReplayServer, Replica] = {}
        self._now_s = 0.0
        for _ in range(scaling.bounded(first)):
            self._ask()
            self._serve(self._starting.popleft())
        # A timetable may ask for servers at once.
        self._look_s = 0.0 if isinstance(policy, Timetable) else self._policy.next_look_s(0.0)
        self.next_s = self._look_s

    def __call__(self, servers: Sequence[Candidate], request: Request) -> Candidate:
        """The server that takes a request."""
        if self._watches_ttft:
            self._open.append(request)
        return self._router(servers, request)

    @property
    def asked(self) -> int:
        """Servers that serve or start."""
        return len(self.serving) + len(self._starting)

    def bounded(self, replicas: int) -> int:
        """A number of servers within the bounds."""
        return self._scaling.bounded(replicas)

    def level(self, metric: str) -> float:
        """What a metric is now; see `TargetTracking.wanted`."""
        if metric == TTFT:
            return self._mean_ttft_s()
        if metric == KV:
            held = sum(server.kv_blocks for server in self.serving)
            return held / sum(server.config.kv_blocks for server in self.serving)
        waiting = sum(server.waiting for server in self.serving)
        if metric == WAITING:
            return float(waiting)
        every = sum(server.requests for server in self.serving)
        return float(every - waiting if metric == RUNNING else every)

    def _mean_ttft_s(self) -> float:
        """Mean time to the first tokens since it was last asked for, seconds; NaN without any."""
        still, times = [], []
        for request in self._open:
            first_s = request.first_token_s
            if first_s is None or first_s + request.first_output_s > self._now_s:
                still.append(request)
            else:
                times.append(first_s + request.first_output_s - request.arrival_s)
        self._open = still
        return sum(times) / len(times) if times else math.nan

    def change(self) -> None:
        """Servers that have started serve, and if it is time to look, some are asked for or go."""
        self._now_s = self.next_s
        self._begin()
        if self._look_s <= self._now_s:
            wanted = self._policy(self._now_s, self)
            while self.asked < wanted:
                self._ask()
            while self.asked > wanted:
                self._let_go()
            self._begin()
            self._look_s = self._policy.next_look_s(self._now_s)
            if self._look_s >= self._end_s:
                self._look_s = math.inf
        drained = [one for one in self.servers if one.asleep and one not in self.serving]
        for server in drained:
            self._note_end(server)
            self.servers.remove(server)
        starts_s = self._starts_s() if self._starting else math.inf
        self.next_s = min(self._look_s, starts_s)

    def end(self) -> None:
        """All servers are let go; those that came too late for any request are not waited for."""
        for server in self.serving:
            replica = self._replica_of[server]
            if replica.serves_s > self._end_s and not server.received:
                replica.serves_s = math.inf
            replica.leaves_s = max(self._end_s, min(replica.serves_s, server.now))
        for server in self.servers:
            self._note_end(server)

    def _starts_s(self) -> float:
        """When the first server that starts serves."""
        return self._starting[0].asked_s + self._scaling.start_up_s

    def _ask(self) -> None:
        """A server is asked for."""
        replica = Replica(self._now_s)
        self.replicas.append(replica)
        self._starting.append(replica)

    def _begin(self) -> None:
        """Those serve that have started."""
        while self._starting and self._starts_s() <= self._now_s:
            self._serve(self._starting.popleft())

    def _serve(self, replica: Replica) -> None:
        """A server has started."""
        number = len(self.every)
        server = ReplayServer(self._pool.times, self._pool.config, None, self._seed + number)
        server.content_is_shared |= self._scaling.most > 1
        server.now, server.asleep = max(server.now, self._now_s), True
        replica.serves_s = self._now_s
        self._replica_of[server] = replica
        for own in (self.serving, self.servers, self.every):
            own.append(server)

    def _let_go(self) -> None:
        """A server that starts is not waited for, or else the newest gets no more requests."""
        if self._starting:
            replica = self._starting.pop()
            replica.leaves_s = replica.ended_s = self._now_s
            return
        server = self.serving.pop()
        self._replica_of[server].leaves_s = self._now_s

    def _note_end(self, server: ReplayServer) -> None:
        """A server that was let go has ended its requests."""
        replica = self._replica_of[server]
        replica.ended_s = max(replica.leaves_s, server.now)
        # What was last seen of it is not what there is.
        server.samples.extend((replica.ended_s, 0.0, 0.0, 0.0))
