"""A server's share of a load that a router spreads by what servers have."""

from __future__ import annotations

from dataclasses import dataclass, fields

from physim.inputs.load import Load


@dataclass(frozen=True, repr=False)
class RoutedLoad(Load):
    """The same as a load; a router picks the server of each request by what servers have.

    In the long run each of ``n`` servers gets every ``n``-th request, as though in turn, but the
    times between them are another thing.
    """

    @classmethod
    def from_load(cls, load: Load) -> RoutedLoad:
        """The share.

        Args:
            load: The same, as though its requests came in turn.
        """
        return cls(**{one.name: getattr(load, one.name) for one in fields(load)})


@dataclass(frozen=True, repr=False)
class LevelledLoad(RoutedLoad):
    """The same; its requests go where fewest are.

    From step to step they come more by chance, the more of them there are; see
    `physim.batching.demand.Demand.levelled_out`.
    """
