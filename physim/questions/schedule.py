"""How many servers a day takes, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from physim.corrections.files import Fit
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.lengths import lengths
from physim.inputs.load_request import LoadOptions
from physim.inputs.profile import LoadProfile, Window
from physim.printable import shown
from physim.questions.objectives import Requirements
from physim.questions.servers import Servers

if TYPE_CHECKING:
    import pandas as pd

_HOUR = 3600.0


@dataclass(frozen=True)
class Arrivals:
    """How requests come within a window.

    Attributes:
        arrival: ``poisson``, ``constant`` or ``gamma``.
        burstiness: Shape of the gamma distribution.
    """

    arrival: str = "poisson"
    burstiness: float = 1.0

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Arrivals:
        """Takes the pattern of arrivals out of options, which is all of a load beside a profile.

        Args:
            options: The options by name, which are changed.

        Raises:
            InputError: The options have more of a load.
        """
        own = [name for name in LoadOptions.__annotations__ if name in options]
        for name in own:
            if name not in ("arrival", "burstiness"):
                raise InputError(name, "is given by the load profile already", "leave it out")
        return cls(**{name: options.pop(name) for name in own})

    def under(self, server: Case, window: Window) -> Case:
        """A server under the whole load of a window.

        Raises:
            InputError: Its requests do not fit.
        """
        try:
            return server.under(window.load(self.arrival, self.burstiness))
        except InputError as error:
            where = f"window at {window.start_s:g} s: {error.where}"
            raise InputError(where, error.what, error.remedy) from error


def server_hours_about(profile: LoadProfile, most: float) -> float:
    """Hours of servers that a load profile takes, about: each window its share of the most.

    It is not rounded up to whole servers, so that it is seldom above what is needed.

    Args:
        profile: The windows.
        most: Servers that the busiest takes.
    """
    demands = np.array([window.demands for window in profile.windows])
    durations = np.array([window.duration_s for window in profile.windows])
    peaks = np.max(demands, axis=0)
    share = np.max(demands[:, peaks > 0] / peaks[peaks > 0], axis=1)
    return float(np.sum(np.maximum(most * share, 1.0) * durations) / _HOUR)


@dataclass(frozen=True)
class ReplicaSchedule:
    """How many of a server keep to objectives in each window of a load profile.

    Attributes:
        cases: The server under the whole load of each window.
        windows: The windows.
        replicas: The fewest in each; 0 where more would be needed than are allowed.
        room: Share of the tightest bound that is left of each if all have the most of these.
    """

    cases: Sequence[Case]
    windows: Sequence[Window]
    replicas: Int[np.ndarray, " windows"]
    room: Float[np.ndarray, " windows"]

    @classmethod
    def planned(
        cls,
        server: Case,
        profile: LoadProfile,
        asked: Requirements,
        known: Fit,
        most: int,
        arrivals: Arrivals,
    ) -> ReplicaSchedule:
        """Finds how many of a server each window takes.

        Args:
            server: The server, under any load.
            profile: The windows.
            asked: What is asked in each.
            known: The fit.
            most: Servers that are allowed.
            arrivals: How requests come within a window.

        Raises:
            InputError: The requests of a window do not fit.
        """
        cases = [arrivals.under(server, window) for window in profile.windows]
        servers = Servers(cases, known)
        replicas = servers.fewest(asked, np.full(len(cases), most))
        every = np.full(len(cases), max(int(replicas.max()), 1))
        return cls(cases, profile.windows, replicas, servers.headroom(asked, every))

    @property
    def most(self) -> int:
        """Servers that are enough in every window; 0 if too many are needed in one."""
        return int(self.replicas.max()) if self.replicas.all() else 0

    def raised_to(self, most: int) -> ReplicaSchedule:
        """The schedule with so many more servers in every window that the most are ``most``.

        Args:
            most: The most in a window, no fewer than there are.
        """
        return replace(self, replicas=self.replicas + (most - self.most))

    @property
    def telling(self) -> list[int]:
        """Places of windows to look at closely if no server is ever turned off.

        First the one that leaves least room, then those with most arrivals, prompt tokens and
        generated tokens, and with the longest prompts.
        """
        longest = [lengths(window.input_tokens).strata()[-1] for window in self.windows]
        demands = np.array([window.demands for window in self.windows])
        kinds = (-self.room, *demands.T, np.array(longest))
        return list(dict.fromkeys(int(np.argmax(kind)) for kind in kinds))

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens, mean over the windows."""
        tokens = sum(one.duration_s * one.demands[2] for one in self.windows)
        return float(tokens / (_HOUR * self.hours))

    @property
    def hours(self) -> float:
        """Hours of all windows."""
        return sum(window.duration_s for window in self.windows) / _HOUR

    @property
    def server_hours(self) -> float:
        """Hours of servers, if each window has as many as it takes."""
        durations = np.array([window.duration_s for window in self.windows])
        return float(np.sum(self.replicas * durations) / _HOUR)

    def gpu_hours(self, replicas: int | None = None) -> float:
        """GPU-hours of all windows.

        Args:
            replicas: Servers at all times; None for as many as each window takes.
        """
        gpus = self.cases[0].server.parallelism.gpus
        return gpus * (self.server_hours if replicas is None else replicas * self.hours)

    def to_frame(self) -> pd.DataFrame:
        """A row for each window: when it is, its load, and the servers and GPUs that it takes."""
        import pandas as pd

        gpus = self.cases[0].server.parallelism.gpus
        rows = [
            {**window.means(), "replicas": replicas, "gpus": replicas * gpus}
            for window, replicas in zip(self.windows, self.replicas.tolist(), strict=True)
        ]
        return pd.DataFrame(rows).round(6)

    def __repr__(self) -> str:
        counts = self.replicas.tolist()
        return shown(
            self,
            f"{len(self.windows)} windows of {self.cases[0].what}: {min(counts)} to {max(counts)} "
            f"servers, {self.gpu_hours():.4g} GPU-hours",
        )
