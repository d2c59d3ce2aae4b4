"""Options of a fleet, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from physim.cli.bundles import CommandOption, Given, shown
from physim.cli.comma_lists import degrees_in
from physim.inputs.fleet_request import FleetOptions, FleetRequest
from physim.options import options_of
from physim.service.routers import ROUTERS

FLEET: Mapping[str, CommandOption] = {
    name: shown(option) for name, option in options_of(FleetRequest).items()
}
# Options of which each says what a pool of its own has.
POOLS = ("prefill", "decode")
# Fleets beside one server: the numbers of replicas by commas, and pools apart.
FLEETS: Mapping[str, CommandOption] = {
    name: shown(
        replace(
            option, kind=str, default="1", help="Numbers of identical servers, comma-separated."
        )
        if name == "replicas"
        else option
    )
    for name, option in options_of(FleetRequest).items()
}


def fleets_in(given: Given) -> list[FleetOptions]:
    """The fleets that options name: one of each number of replicas, and pools apart.

    Args:
        given: What `FLEETS` are given.

    Raises:
        InputError: A number of replicas is none.
    """
    (counts,) = degrees_in({"replicas": given["replicas"]}).values()
    router: Any = {} if given["router"] == ROUTERS[0] else {"router": given["router"]}
    own = {name: given[name] for name in given if name not in ("replicas", "router")}
    others: Any = {name: value for name, value in own.items() if value} | router
    is_apart = any(others.get(pool) for pool in POOLS)
    alike = router if is_apart else others
    some = [alike | ({} if count == 1 else {"replicas": count}) for count in counts]
    return [*some, others] if is_apart else some
