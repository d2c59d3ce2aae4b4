"""What is recommended: deployments that keep to objectives, cheapest first."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from physim.inputs.case import Case
from physim.prediction.commands import serve_command
from physim.prediction.results import Prediction
from physim.printable import aligned, shown
from physim.questions.objectives import Requirements
from physim.questions.pareto import Tradeoff, tradeoff
from physim.questions.pools_apart import Split
from physim.questions.schedule import ReplicaSchedule
from physim.questions.servers import Servers

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Choice:
    """A deployment that keeps to the objectives.

    Attributes:
        case: One of its servers with its share of the load.
        replicas: Servers of which each has such a share.
        prediction: What is predicted of each.
        replayed: What a request-by-request replay of each gives, which keeps to the objectives.
        chances: Chance that an objective is met, by its name, from the prediction's intervals;
            ``throughput`` that the load is below capacity. Empty without a fit that knows.
        headroom: Least share of a bound that is left: of latencies, and of the saturation
            throughput.
        limited_by: What the latency with the least of it depends on most.
        cost: Price of a million generated tokens; None without prices.
        price: Price of an hour of all GPUs; None without prices.
        schedule: What each window of a load profile takes, if that is what is planned for; case and
            predictions are then of the window that leaves least room, and ``cost`` is with servers
            that run as scheduled.
    """

    case: Case
    replicas: int
    prediction: Prediction
    replayed: Prediction
    chances: Mapping[str, float]
    headroom: float
    limited_by: str
    cost: float | None
    price: float | None
    schedule: ReplicaSchedule | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all servers."""
        return self.replicas * self.case.server.parallelism.gpus

    @property
    def scheduled_price(self) -> float | None:
        """Price of all windows of a profile with the servers that each takes; None without one."""
        if self.price is None or self.schedule is None:
            return None
        return self.price / self.gpus * self.schedule.gpu_hours()

    def to_dict(self) -> dict[str, Any]:
        """The choice as plain values, for JSON."""
        layout, sizes = self.case.server.parallelism, self.case.server.sizes
        one = self.prediction
        return {
            "model": self.case.model.name,
            "gpu": self.case.server.gpu.key,
            **asdict(layout),
            "replicas": self.replicas,
            "gpus": self.gpus,
            "max_num_seqs": sizes.max_num_seqs,
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "draft_tokens": self.case.server.draft_tokens,
            "ttft_s": one.ttft_s,
            "itl_s": one.itl_s,
            "e2e_s": one.e2e_s,
            "replayed": {
                name: getattr(self.replayed, name) for name in ("ttft_s", "itl_s", "e2e_s")
            },
            "intervals": {name: list(pair) for name, pair in one.intervals.items()},
            "requests_per_s": self.replicas * one.requests_per_s,
            "output_tokens_per_s": self.replicas * one.output_tokens_per_s,
            "saturation_rps": self.replicas * one.saturation_rps,
            "headroom": self.headroom,
            "chances": dict(self.chances),
            "limited_by": self.limited_by,
            "cost_per_million_tokens": self.cost,
            "cost_per_hour": self.price,
            "command": serve_command(self.case),
            "extrapolations": list(one.extrapolations),
        } | ({} if self.schedule is None else self._over_time(self.schedule))

    def _over_time(self, schedule: ReplicaSchedule) -> dict[str, Any]:
        return {
            "gpu_hours": schedule.gpu_hours(self.replicas),
            "gpu_hours_scaled": schedule.gpu_hours(),
            "cost_scaled": self.scheduled_price,
            "windows": schedule.to_frame().to_dict("records"),
        }

    def __repr__(self) -> str:
        servers = f"{self.replicas} x ({self.case.what})"
        price = "" if self.price is None else f", {self.price:.4g} an hour"
        if self.scheduled_price is not None:
            price = f", {self.scheduled_price:.4g} as scheduled"
        return shown(
            self,
            f"{servers}: each {self.prediction.figures}",
            f"{self.headroom:.1%} of the tightest bound left, limited by {self.limited_by}{price}",
        )


@dataclass(frozen=True)
class Recommendation:
    """Deployments that keep to objectives, the cheapest first.

    Attributes:
        choices: The best of each model, GPU, layout and number of servers.
        asked: What is asked.
        servers: All servers that were searched, each with every number of replicas.
        refused: How many more cannot be, by the reason.
        split: The best pools with prefill and decode apart; None where none keeps to the objectives
            or was asked for.
    """

    choices: Sequence[Choice]
    asked: Requirements
    servers: Servers = field(repr=False)
    refused: Mapping[str, int] = field(repr=False)
    split: Split | None = None

    @functools.cached_property
    def tradeoff(self) -> Tradeoff:
        """What the servers trade: tokens of a GPU against tokens of a user."""
        return tradeoff(self.servers, self.asked)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "choices": [one.to_dict() for one in self.choices],
            "objectives": {one.name: one.seconds for one in self.asked.objectives},
            "searched": len(self.servers.cases),
            "refused": dict(self.refused),
            "split": None if self.split is None else self.split.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """The choices as a table."""
        import pandas as pd

        return pd.DataFrame([one.to_dict() for one in self.choices])

    def __repr__(self) -> str:
        asked = ", ".join(f"{one.name} {1e3 * one.seconds:g} ms" for one in self.asked.objectives)
        searched = f"{len(self.servers.cases):,} servers searched for {asked}"
        if not self.choices:
            return shown(self, f"nothing that keeps to the objectives; {searched}")
        rows: list[tuple[str, ...]] = [
            ("servers", "GPUs", "TTFT ms", "ITL ms", "E2E s", "room", "cost")
        ]
        for one in self.choices:
            found = one.prediction
            rows.append(
                (
                    f"{one.replicas} x {one.case.service.where}",
                    str(one.gpus),
                    *(
                        "-" if value is None else f"{scale * value:.4g}"
                        for value, scale in (
                            (found.ttft_s, 1e3),
                            (found.itl_s, 1e3),
                            (found.e2e_s, 1.0),
                        )
                    ),
                    f"{one.headroom:.0%}",
                    "-" if one.cost is None else f"{one.cost:.3g}",
                )
            )
        return shown(self, f"{self.choices[0].case.model.name}: {searched}", *aligned(rows))
