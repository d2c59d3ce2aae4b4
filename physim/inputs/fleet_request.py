"""Options of a fleet, each declared once: light, since commands read them as they start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from physim.options import option
from physim.service.routers import ROUTERS

_PANEL = "Fleet"


@dataclass(frozen=True)
class FleetRequest:
    """What is asked for of a fleet: replicas of a server, or pools for prefill and for decode.

    Attributes:
        replicas: Servers that are alike.
        router: How requests are spread over them, and over the servers of each pool; one of
            `physim.service.routers.ROUTERS`.
        router_age_s: Seconds from one look of a router at the loads of servers to the next, so how
            old what it sees may be; 0 for the present. None for what routers of its kind have; see
            `physim.service.routers.router_age_s`.
        prefill: What servers that compute prompts have of their own, as options by name with
            ``replicas`` among them, or as text such as ``tp=2,replicas=4``; all else is as for the
            case. None where each server does both.
        decode: The same of servers that generate.
        transfer_bandwidth: What each GPU sends KV blocks with from one pool to the other, bytes per
            second; None for the network of the GPU's hardware file.
        transfer_latency_s: What each request waits between the pools beside that, seconds; None for
            what requests of the engine were seen to wait.
        transfer_by_layer: Whether a layer's blocks are sent as soon as it has computed them.
    """

    replicas: int = option(
        1, "Servers that are alike, behind a router.", panel=_PANEL, column="optional"
    )
    router: str = option(
        ROUTERS[0],
        f"How requests are spread: {', '.join(ROUTERS)}.",
        panel=_PANEL,
        column="optional",
    )
    router_age_s: float | None = option(
        None,
        "Seconds between a router's looks at servers (default: 0.05 if it scrapes them, else 0).",
        panel=_PANEL,
        flag="--router-age",
    )
    prefill: str | Mapping[str, Any] | None = option(
        None,
        "Servers that compute prompts, as options of their own: 'tp=2,replicas=4'.",
        panel=_PANEL,
        kind=str | None,
        column="optional",
    )
    decode: str | Mapping[str, Any] | None = option(
        None,
        "Servers that generate, likewise.",
        panel=_PANEL,
        kind=str | None,
        column="optional",
    )
    transfer_bandwidth: float | None = option(
        None,
        "Bytes/s that a prefill GPU sends to decode servers (default: its network's).",
        panel=_PANEL,
    )
    transfer_latency_s: float | None = option(
        None,
        "Extra seconds that a request waits between the pools (default: the engine's).",
        panel=_PANEL,
        flag="--transfer-latency",
    )
    transfer_by_layer: bool = option(
        False, "Send a layer's KV blocks when it is computed.", panel=_PANEL
    )


class FleetOptions(TypedDict, total=False):
    """The options of a fleet by names, as keywords have them."""

    replicas: int
    router: str
    router_age_s: float | None
    prefill: str | Mapping[str, Any] | None
    decode: str | Mapping[str, Any] | None
    transfer_bandwidth: float | None
    transfer_latency_s: float | None
    transfer_by_layer: bool
