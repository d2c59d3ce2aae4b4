"""What servers trade: tokens of a GPU against tokens of a user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from physim.printable import shown
from physim.questions.objectives import Requirements
from physim.questions.servers import Servers

if TYPE_CHECKING:
    import pandas as pd

# Shares of its saturation throughput that each server is put under.
_SHARES = np.array([0.01, 0.02, 0.04, 0.07, 0.1, 0.15, *np.arange(0.2, 0.96, 0.05), 0.97])


@dataclass(frozen=True)
class Tradeoff:
    """Servers, each under several loads.

    Attributes:
        servers: The server of each point, by its place in the `Servers`.
        of_a_gpu: Generated tokens per second of each GPU.
        of_a_user: Generated tokens per second of each request while it decodes, the inverse of ITL.
    """

    servers: Int[np.ndarray, " points"]
    of_a_gpu: Float[np.ndarray, " points"]
    of_a_user: Float[np.ndarray, " points"]

    def frontier(self, chosen: Bool[np.ndarray, " points"]) -> Int[np.ndarray, " best"]:
        """Points of which no other has more of both, from the most tokens of a GPU on.

        Args:
            chosen: The points to look at.
        """
        places = np.flatnonzero(chosen)
        order = places[np.lexsort((-self.of_a_user[places], -self.of_a_gpu[places]))]
        users = self.of_a_user[order]
        found: Int[np.ndarray, " best"] = order[users >= np.maximum.accumulate(users)]
        return found

    def __repr__(self) -> str:
        points = f"{len(self.servers):,} points of {len(set(self.servers.tolist())):,} servers"
        if not len(self.servers):
            return shown(self, points)
        return shown(
            self,
            f"{points}: up to {self.of_a_gpu.max():.4g} tokens/s of a GPU, and up to "
            f"{self.of_a_user.max():.4g} of a user",
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each point."""
        import pandas as pd

        return pd.DataFrame(
            {name: getattr(self, name) for name in ("servers", "of_a_gpu", "of_a_user")}
        )


def tradeoff(servers: Servers, asked: Requirements) -> Tradeoff:
    """Puts servers under loads from next to nothing to their saturation throughput.

    Args:
        servers: The servers; each with the most slots of those that differ in limits alone.
        asked: Of its objectives points keep to those on TTFT.
    """
    chosen = _with_most_slots(servers)
    of_ttft = tuple(one for one in asked.objectives if one.metric == "ttft")
    most = servers.saturation[chosen]
    which, shares = (grid.ravel() for grid in np.meshgrid(chosen, _SHARES, indexing="ij"))
    rates = shares * np.repeat(most, len(_SHARES))
    found = servers.under_rates(which, rates, replace(asked, objectives=of_ttft))
    gpus = np.array([case.server.parallelism.gpus for case in servers.cases])[which]
    tokens = found.throughput * servers.cases[0].demanded.mean_output
    return Tradeoff(
        which[found.kept], (tokens / gpus)[found.kept], (1 / found.means["itl"])[found.kept]
    )


def _with_most_slots(servers: Servers) -> Int[np.ndarray, " n"]:
    found: dict[object, int] = {}
    for place, case in enumerate(servers.cases):
        key = (case.model.name, case.server.gpu.key, case.server.parallelism)
        slots = case.server.sizes.max_num_seqs
        if key not in found or slots > servers.cases[found[key]].server.sizes.max_num_seqs:
            found[key] = place
    return np.array(list(found.values()))
