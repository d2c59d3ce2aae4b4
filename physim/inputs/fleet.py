"""Services of several servers, as they are asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from physim.engines.engine import engine_named
from physim.errors import InputError
from physim.inputs.engine_request import EngineOptions
from physim.inputs.fleet_request import FleetRequest
from physim.inputs.stages import check_positive
from physim.models.parallelism import Parallelism
from physim.options import options_of
from physim.service.phases import DECODE, PREFILL
from physim.service.routers import BY_LOAD, router_age_s
from physim.service.server import Server
from physim.service.service import Link, Pool, Service

REPLICAS = "replicas"
_HINTS: Mapping[str, Any] = {
    "gpu": str,
    REPLICAS: int,
    **dict.fromkeys(options_of(Parallelism), int),
    **get_type_hints(EngineOptions),
}

# Beyond what anybody has.
_MOST = 10**6

# Makes a server of options by names.
ServerOf = Callable[[Mapping[str, Any]], Server]


@dataclass(frozen=True)
class Fleet(FleetRequest):
    """A fleet, as it is asked for; see `FleetRequest`.

    Raises:
        InputError: A figure is out of range, or options do not go together.
    """

    def __post_init__(self) -> None:
        check_positive(REPLICAS, self.replicas)
        given = [name for name in (PREFILL, DECODE) if getattr(self, name) is not None]
        if len(given) == 1:
            other = DECODE if given == [PREFILL] else PREFILL
            raise InputError(other, f"is not given, and {given[0]} is", "give both, or neither")
        if given and self.replicas != 1:
            problem = "are of servers that do both, and prefill and decode are given"
            raise InputError(REPLICAS, problem, "give them in each: prefill tp=2,replicas=4")
        age_s = self.router_age_s
        if age_s is not None and not 0 <= age_s < float("inf"):
            raise InputError("router_age_s", f"{age_s} is not a time", "use seconds from 0 on")
        if age_s and self.router not in BY_LOAD:
            problem = f"is given, and a router {self.router} looks at no loads"
            remedy = f"leave it out, or use a router of {', '.join(BY_LOAD)}"
            raise InputError("router_age_s", problem, remedy)
        if self.transfer_bandwidth is not None:
            check_positive("transfer_bandwidth", self.transfer_bandwidth)
        wait_s = self.transfer_latency_s
        if wait_s is not None and not 0 <= wait_s < float("inf"):
            problem = f"{wait_s} is not a time"
            raise InputError("transfer_latency_s", problem, "use seconds from 0 on")
        if not given:
            for name in ("transfer_bandwidth", "transfer_latency_s", "transfer_by_layer"):
                if getattr(self, name) not in (None, False):
                    problem = "is of servers apart, and prefill and decode are not given"
                    raise InputError(name, problem, "give them, or leave it out")

    def service(self, server_of: ServerOf) -> Service:
        """The service that it is.

        Args:
            server_of: Makes a server of what it has of its own, options by names.

        Raises:
            InputError: Some part cannot be used.
        """
        age_s = self.router_age_s
        if age_s is None:
            age_s = router_age_s(self.router)
        if self.prefill is None or self.decode is None:
            return Service((Pool(server_of({}), self.replicas),), None, self.router, age_s)
        pools = tuple(
            self._pool(phase, asked, server_of)
            for phase, asked in ((PREFILL, self.prefill), (DECODE, self.decode))
        )
        return Service(pools, self._link(pools), self.router, age_s)

    def _pool(self, phase: str, asked: str | Mapping[str, Any], server_of: ServerOf) -> Pool:
        own = pool_options(phase, asked)
        replicas = own.pop(REPLICAS, 1)
        try:
            server = server_of(own)
            return Pool(server.of_phase(phase), replicas, (phase,))
        except InputError as error:
            raise InputError(f"{phase}: {error.where}", error.what, error.remedy) from error

    def _link(self, pools: tuple[Pool, ...]) -> Link:
        bandwidth = self.transfer_bandwidth
        if bandwidth is None:
            known = [pool.server.gpu.network_bandwidth for pool in pools]
            for pool, one in zip(pools, known, strict=True):
                if one is None:
                    problem = f"is not given, and nothing is known of a {pool.server.gpu.key}'s"
                    raise InputError("transfer_bandwidth", problem, "give it, such as 50e9")
            bandwidth = min(filter(None, known))
        wait_s = self.transfer_latency_s
        if wait_s is None:
            wait_s = engine_named(pools[-1].server.profile.engine).handover_s
        return Link(bandwidth, wait_s, self.transfer_by_layer)


def pool_options(where: str, asked: str | Mapping[str, Any]) -> dict[str, Any]:
    """What servers of a pool have of their own, by name.

    Args:
        where: What the pool is for, such as ``prefill``.
        asked: The options, or text such as ``tp=2,replicas=4``.

    Raises:
        InputError: One is unknown or there twice, or not what it should be.
    """
    if isinstance(asked, Mapping):
        given = dict(asked)
    elif not isinstance(asked, str):
        remedy = "write options as tp=2,replicas=4"
        raise InputError(where, f"{repr(asked)[:60]} are no options", remedy)
    else:
        given = _read(where, asked)
    for name in given:
        if name not in _HINTS:
            near = difflib.get_close_matches(name, _HINTS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(_HINTS)}"
            raise InputError(f"{where}: option {name[:60]!r}", "is unknown", remedy)
    for name in (REPLICAS, *options_of(Parallelism)):
        value = given.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            problem = f"{repr(value)[:60]} is not a positive integer"
            raise InputError(f"{where}: {name}", problem, "correct it")
    return given


def pool_text(options: Mapping[str, object]) -> str:
    """Options of a pool as the text that `pool_options` reads.

    Args:
        options: Values by name, ``replicas`` among them; those that are None are left out.
    """
    said = {name: value for name, value in options.items() if value is not None}
    return ",".join(f"{name}={value}" for name, value in said.items())


def _read(where: str, text: str) -> dict[str, Any]:
    """Options that are text."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        name = name.replace("-", "_")
        if not (name and equals and value):
            remedy = "write options as tp=2,replicas=4"
            raise InputError(where, f"{part[:60]!r} is not an option and its value", remedy)
        if name in found:
            raise InputError(where, f"names {name[:60]} twice", "name it once")
        found[name] = _value(where, name, value)
    return found


def _value(where: str, name: str, text: str) -> Any:
    """The value of an option that is text."""
    hint = _HINTS.get(name, str)
    if hint in (bool, bool | None):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InputError(f"{where}: {name}", f"{text[:60]!r} is not true or false", "correct it")
    kinds = {int: int, int | None: int, float | None: float, float: float}
    try:
        return kinds.get(hint, str)(text)
    except ValueError as error:
        problem = f"{text[:60]!r} is not a number"
        raise InputError(f"{where}: {name}", problem, "correct it") from error
