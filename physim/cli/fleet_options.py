"""Options of a fleet, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from physim.cli.bundles import CommandOption, Given, shown
from physim.cli.comma_lists import degrees_in
from physim.inputs.fleet_request import FleetOptions, FleetRequest
from physim.options import options_of
from physim.service.phases import PHASES

FLEET: Mapping[str, CommandOption] = {
    name: shown(option) for name, option in options_of(FleetRequest).items()
}
# Fleets beside one server: the numbers of replicas by commas, and pools apart.
FLEETS: Mapping[str, CommandOption] = {
    name: shown(
        replace(option, kind=str, default="1", help="Servers that are alike; by commas.")
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
    others: Any = {name: value for name, value in given.items() if value and name != "replicas"}
    is_apart = any(others.get(phase) for phase in PHASES)
    alike: Any = {"router": given["router"]} if is_apart else others
    return [{**alike, "replicas": count} for count in counts] + [others] * is_apart
