"""A server's share of a load that a router spreads by how many requests servers have."""

from __future__ import annotations

from dataclasses import dataclass, fields

from physim.inputs.load import Load


@dataclass(frozen=True, repr=False)
class LevelledLoad(Load):
    """The same as a load; its requests go where fewest are.

    In the long run each of ``n`` servers gets every ``n``-th request, as though in turn. From step
    to step they come more by chance, the more of them there are; see
    `physim.batching.demand.Demand.levelled_out`.
    """

    @classmethod
    def from_load(cls, load: Load) -> LevelledLoad:
        """The share.

        Args:
            load: The same, as though its requests came in turn.
        """
        return cls(**{one.name: getattr(load, one.name) for one in fields(load)})
