"""Options of a fleet, which several commands take."""

from __future__ import annotations

from collections.abc import Mapping

from physim.cli.bundles import CommandOption, shown
from physim.inputs.fleet_request import FleetRequest
from physim.options import options_of

FLEET: Mapping[str, CommandOption] = {
    name: shown(option) for name, option in options_of(FleetRequest).items()
}
