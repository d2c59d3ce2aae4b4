"""Predictions, as records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from physim.errors import InputError
from physim.inputs.load import Load
from physim.metrics import METRICS, STATISTICS
from physim.prediction.html import element, joined, prediction_tables
from physim.prediction.requests import OF_A_REQUEST, LengthGroup, Requests
from physim.printable import aligned, shown
from physim.service.phases import PHASES
from physim.service.server import GIB, Server
from physim.service.service import Pool, where_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StageLatencies:
    """Latencies of the requests of one stage, or of all. Seconds.

    Attributes:
        rate: Arrivals per second; None in a closed loop and for a trace.
        duration_s: How long they arrive; None without end.
        arrived: Requests; None without end, and so for the next.
        completed: Of them, those that were answered before their client gave up.
        latencies: ``ttft``, ``itl``, ``tpot`` and ``e2e``, each with ``mean``, ``p50``, ``p90``,
            ``p95`` and ``p99``, of completed requests; those of ``itl`` are over the gaps between
            all their tokens. Without a value where there is none.
        requests: Some requests that stand for all.
    """

    rate: float | None
    duration_s: float | None
    arrived: float | None
    completed: float | None
    latencies: Mapping[str, Mapping[str, float]]
    requests: Requests = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The part as plain values, without its requests."""
        names = ("rate", "duration_s", "arrived", "completed")
        content = {name: getattr(self, name) for name in names}
        return content | {"latencies": {name: dict(row) for name, row in self.latencies.items()}}

    def __repr__(self) -> str:
        what = "all requests" if self.rate is None else f"{self.rate:g} requests/s"
        rows = [("ms", *STATISTICS)]
        for name, values in self.latencies.items():
            cells = (f"{1e3 * values[one]:.4g}" if one in values else "-" for one in STATISTICS)
            rows.append((METRICS[name].label, *cells))
        return shown(self, what, *aligned(rows))


@dataclass(frozen=True)
class PoolTimeline:
    """All servers of a pool over time.

    Attributes:
        time_s: Times, seconds.
        waiting: Requests that wait.
        running: Requests in the engines.
        kv_use: Share of the KV blocks that are held, for requests on their way to the next pool
            too.
    """

    time_s: list[float]
    waiting: list[float]
    running: list[float]
    kv_use: list[float]

    def __repr__(self) -> str:
        return shown(self, f"{len(self.time_s):,} times")


@dataclass(frozen=True)
class Timeline:
    """An engine over time.

    Attributes:
        time_s: Times, seconds.
        waiting: Requests that wait.
        running: Requests in the engine.
        kv_use: Share of the KV blocks that they hold.
        arrival_s: When some requests arrive.
        ttft_s: Their time to first token.
        pools: Each pool, in the order in which requests pass them; empty where there is one.
    """

    time_s: list[float]
    waiting: list[float]
    running: list[float]
    kv_use: list[float]
    arrival_s: list[float]
    ttft_s: list[float]
    pools: tuple[PoolTimeline, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The engine over time as plain values, for JSON: pools where there are several."""
        content = asdict(self)
        if not self.pools:
            del content["pools"]
        return content

    def __repr__(self) -> str:
        times = f"{len(self.time_s):,} times"
        if self.time_s:
            times += f" from {self.time_s[0]:g} to {self.time_s[-1]:g} s"
        most = f"at most {max(self.waiting, default=0):.4g} waiting"
        return shown(self, f"{times}, {most} and {max(self.running, default=0):.4g} running")

    def to_frame(self) -> pd.DataFrame:
        """A row for each time: requests that wait and run, and the share of the KV cache held."""
        import pandas as pd

        names = ("time_s", "waiting", "running", "kv_use")
        return pd.DataFrame({name: getattr(self, name) for name in names})


FIRST_TOKEN_PARTS = {
    "front_end": "API server",
    "warm_up": "engine warming up",
    "scheduling": "wait for the steps under way",
    "queue": "wait for room",
    "loading": "loading its prefix from host memory",
    "launches": "launching its kernels one by one",
    "prefill": "its own prefill steps",
    "output": "detokenisation",
}
"""What the time to first token is spent on, in the order of time, and what that is for people."""

WAY_PARTS = {
    "transfer": "on the way to the servers that generate",
    "admission": "waiting for room there",
}
"""What it is spent on after that where prefill and decode are apart."""


@dataclass(frozen=True)
class PoolPrediction:
    """What the servers of a pool are predicted to do. Means; seconds, 1/s.

    Of a load that ends or changes they are in the state of its busiest stage, were it to stay.

    Attributes:
        server: One of them, with its engine's version, limits and sampling, as given or by default.
        saturation_rps: Saturation throughput: requests that the pool completes per second when
            there are always more of them.
        batch: Requests that decode at a server, mean over time.
        running: Requests that are prefilled or decode at a server, mean over time.
        kv_use: Share of a server's KV blocks that running requests hold.
        hit_rate: Share of the prompt tokens that are found in the prefix cache, wherever it has
            them.
        host_hit_rate: Share of them that come up from the host's memory.
        disk_hit_rate: Share of these that had come there from the disk.
        mixed_share: Share of steps that carry a prefill chunk.
        step_s: Time of a mean step, from its start until requests that decode get their next token:
            where prompts have steps of their own, with those of the prompts.
        step_parts_s: Where it goes, by component; sums to ``step_s``.
        replicas: How many servers there are.
        phases: What requests do there, of `physim.service.phases.PHASES`.
    """

    server: Server = field(repr=False)
    saturation_rps: float
    batch: float
    running: float
    kv_use: float
    hit_rate: float
    mixed_share: float
    step_s: float
    step_parts_s: Mapping[str, float]
    replicas: int = 1
    host_hit_rate: float = 0.0
    disk_hit_rate: float = 0.0
    phases: tuple[str, ...] = PHASES

    @property
    def pool(self) -> Pool:
        """The pool that it is of."""
        return Pool(self.server, self.replicas, self.phases)

    def of_all(self, pool: Pool) -> PoolPrediction:
        """The prediction of a pool, from that of one server under its share of the load.

        Args:
            pool: The pool.
        """
        return replace(
            self,
            saturation_rps=pool.replicas * self.saturation_rps,
            replicas=pool.replicas,
            phases=pool.phases,
        )

    @property
    def kv_blocks(self) -> int:
        """KV blocks of a data-parallel rank, as the engine reports them."""
        return self.server.kv.reported_blocks

    def to_dict(self) -> dict[str, Any]:
        """The pool as plain values."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        return content | {
            "gpu": self.server.gpu.key,
            "server": self.server.to_dict(),
            "kv_blocks": self.kv_blocks,
            "step_parts_s": dict(self.step_parts_s),
            "phases": list(self.phases),
        }

    def describe_engine(self) -> str:
        """The engine and its limits, in a line."""
        known, sizes = self.server, self.server.sizes
        scheduling = "asynchronous" if known.policy.async_scheduling else "synchronous"
        return (
            f"{known.profile.engine} {known.profile.version}: max_num_seqs {sizes.max_num_seqs}, "
            f"max_num_batched_tokens {sizes.max_num_batched_tokens}, max_model_len "
            f"{sizes.max_model_len}, {scheduling} scheduling, {known.kv_cache_dtype} KV cache, "
            f"{known.sampling} sampling" + (f", {known.draft.describe()}" if known.draft else "")
        )

    def describe_memory(self) -> str:
        """What the memory of a GPU is for, in a line."""
        memory, kv = self.server.memory, self.server.kv
        parts = (
            ("weights", memory.weights),
            ("KV cache", memory.kv_cache),
            ("CUDA graphs", memory.graphs),
            ("activations", memory.activations),
        )
        shown = ", ".join(f"{name} {size / GIB:.3g}" for name, size in parts)
        below = "".join(
            f", {tier.blocks:,} more {where} at {tier.bandwidth / 1e9:.3g} GB/s"
            for where, tier in zip(("in host memory", "on disk"), kv.tiers[1:], strict=False)
        )
        return (
            f"memory of a GPU, GiB: {shown}, of {memory.usable / GIB:.3g} in use; KV cache of "
            f"{kv.reported_blocks * kv.block_size:,} tokens in {kv.reported_blocks:,} blocks{below}"
        )

    def __repr__(self) -> str:
        return shown(
            self,
            f"{'+'.join(self.phases)} on {self.pool.where}: up to "
            f"{self.saturation_rps:.4g} requests/s",
            f"{self.running:.4g} requests in a server, {self.batch:.4g} of them decoding; step of "
            f"{_ms(self.step_s)}, {self.kv_use:.3g} of the KV cache held",
        )


# Of a prediction what is several texts.
_LINES = ("scenario", "assumptions", "extrapolations")


@dataclass(frozen=True)
class Prediction:
    """What a service under a load is predicted to do. Means; seconds, tokens, 1/s.

    Of a load that ends or changes, latencies and throughput are those of its requests.

    Attributes:
        model: The model's name.
        load: The load; None for a trace.
        fit: Name of the fit whose corrections were used.
        method: ``fluid`` or ``replay``.
        ttft_s: Time to first token; None where the queue grows without end.
        ttft_parts_s: What it is spent on, by part (`FIRST_TOKEN_PARTS`, and `WAY_PARTS` where
            prefill and decode are apart); sums to ``ttft_s``. Empty where it is None, of a load
            that ends or changes and of a replay.
        itl_s: Time from a token to the next; None where requests have one output token.
        e2e_s: Time of a request; None where the queue grows without end.
        requests_per_s: Requests completed per second.
        output_tokens_per_s: Tokens generated per second.
        saturated: Whether the load is above capacity.
        pools: What there is one of for each pool: saturation, batch, KV use and step.
        whole: Latencies with percentiles.
        stages: The same for each stage, if there are several.
        timeline: The engine over time; None for a load that stays.
        scenario: What is taken of the engine and the load since it was not said, a few words each;
            intervals do not have it.
        assumptions: Where physics stands in for a measurement, one line each.
        intervals: Where a measurement of ``ttft_s``, ``itl_s``, ``e2e_s`` and ``saturation_rps``
            lies in nine of ten cases; empty without a fit that knows. Infinite where the load may
            be above capacity.
        extrapolations: In what the case is beyond the runs that the fit knows, one line each.
        link_rps: Requests whose KV blocks are sent from pool to pool per second, at most; None
            where there is one pool.
    """

    model: str
    load: Load | None
    fit: str
    method: str
    ttft_s: float | None
    ttft_parts_s: Mapping[str, float]
    itl_s: float | None
    e2e_s: float | None
    requests_per_s: float
    output_tokens_per_s: float
    saturated: bool
    pools: tuple[PoolPrediction, ...]
    whole: StageLatencies
    stages: tuple[StageLatencies, ...]
    timeline: Timeline | None = field(repr=False)
    scenario: tuple[str, ...]
    assumptions: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    extrapolations: tuple[str, ...] = ()
    link_rps: float | None = None

    @property
    def pool(self) -> PoolPrediction:
        """The one pool of a service that has no other.

        Raises:
            ValueError: There are several.
        """
        (pool,) = self.pools
        return pool

    @property
    def saturation_rps(self) -> float:
        """Requests that are completed per second when there are always more of them.

        The pool that saturates first bounds them, or what is sent from pool to pool.
        """
        most = min(pool.saturation_rps for pool in self.pools)
        return most if self.link_rps is None else min(most, self.link_rps)

    @property
    def limiting_pool(self) -> PoolPrediction:
        """The pool that saturates first."""
        return min(self.pools, key=lambda pool: pool.saturation_rps)

    def describe_pools(self) -> str:
        """How much of what pools and the link can do at most the load takes, and of what first."""
        most = {" and ".join(pool.phases): pool.saturation_rps for pool in self.pools}
        if self.link_rps is not None:
            most["the link"] = self.link_rps
        uses = [
            f"{what} {self.requests_per_s / rps:.0%} of {rps:.4g} requests/s"
            for what, rps in most.items()
        ]
        least = min(most, key=most.__getitem__)
        return f"in use: {', '.join(uses)}; {least} is what saturates first"

    @property
    def tpot_s(self) -> float | None:
        """Mean over requests of each one's mean time from a token to the next."""
        return self.whole.latencies.get("tpot", {}).get("mean")

    def goodput(self, **bounds: float) -> float:
        """Share of the requests that keep to all bounds together.

        Args:
            **bounds: Seconds at most: ``ttft``, ``tpot``, ``e2e``.

        Raises:
            InputError: A bound is on something else, or not above zero.
        """
        for name, bound in bounds.items():
            if name not in OF_A_REQUEST:
                raise InputError(
                    f"goodput: {name}",
                    "is no latency of a request",
                    f"use one of {', '.join(OF_A_REQUEST)}",
                )
            if not bound > 0:
                raise InputError(
                    f"goodput: {name}", f"{bound:g} s is not positive", "give a time above zero"
                )
        return self.whole.requests.within(bounds)

    def by_length(self) -> list[LengthGroup]:
        """TTFT and E2E by prompt length: of quarters of the requests, then of the longest tenth.

        Prompts of one length are in one group, so that there is one where all prompts are alike,
        and no group of the longest tenth where it is another already. Groups have no latencies
        where the queue grows without end.
        """
        metrics = [name for name in ("ttft", "e2e") if name in self.whole.latencies]
        return self.whole.requests.by_length(metrics)

    def to_dict(self) -> dict[str, Any]:
        """The prediction as plain values, for JSON."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        content |= {
            "ttft_parts_s": dict(self.ttft_parts_s),
            "load": None if self.load is None else self.load.to_dict(),
            "saturation_rps": self.saturation_rps,
            "pools": [pool.to_dict() for pool in self.pools],
            "timeline": None if self.timeline is None else self.timeline.to_dict(),
            "whole": self.whole.to_dict(),
            "stages": [part.to_dict() for part in self.stages],
        }
        if self.link_rps is None:
            del content["link_rps"]
        # JSON knows no infinity.
        content["intervals"] = {
            name: [low, high if math.isfinite(high) else None]
            for name, (low, high) in self.intervals.items()
        }
        for name in _LINES:
            content[name] = list(content[name])
        return content

    def to_frame(self) -> pd.DataFrame:
        """A row for the whole load and one for each stage; what has parts has columns of its own.

        ``stage`` is -1 for the whole load. Columns of one pool of several begin with ``pool`` and
        its place.
        """
        import pandas as pd

        row = self.to_dict()
        for name in ("timeline", "stages", "whole", "load"):
            row.pop(name)
        row |= {f"ttft_{name}_s": part for name, part in row.pop("ttft_parts_s").items()}
        for place, pool in enumerate(row.pop("pools")):
            pool |= {f"step_{name}_s": value for name, value in pool.pop("step_parts_s").items()}
            pool |= {"phases": "; ".join(pool["phases"]), **pool.pop("server")}
            prefix = f"pool{place}_" if len(self.pools) > 1 else ""
            row |= {f"{prefix}{name}": value for name, value in pool.items()}
        for name in _LINES:
            row[name] = "; ".join(row[name])
        for name, (low, high) in row.pop("intervals").items():
            row |= {f"{name}_low": low, f"{name}_high": high}
        if self.load is not None:
            load = {f.name: getattr(self.load, f.name) for f in fields(Load)}
            row |= {k: v for k, v in load.items() if isinstance(v, int | float | str)}
        rows = []
        for number, part in enumerate((self.whole, *self.stages), start=-1):
            latencies = {
                f"{metric}_{name}_s": value
                for metric, values in part.latencies.items()
                for name, value in values.items()
            }
            counts = {"rate": part.rate, "arrived": part.arrived, "completed": part.completed}
            rows.append({**row, "stage": number, **counts, **latencies})
        return pd.DataFrame(rows)

    def describe(self) -> str:
        """What the prediction is of, in a line."""
        demand = "a trace"
        if self.load is not None:
            demand = f"{self.load.describe()}, {self.load.describe_lengths()}"
        return f"{self.model} on {self.gpus}, {demand}"

    @property
    def gpus(self) -> str:
        """How many GPUs of which kind, of each pool, and what they share."""
        return where_of([pool.pool for pool in self.pools])

    def _repr_html_(self) -> str:
        """The prediction in a notebook."""
        about = [f"{self.describe()}; fit: {self.fit}"]
        for pool in self.pools:
            about += [pool.describe_engine(), pool.describe_memory()]
        paragraphs = (element("p", line) for line in about)
        return joined([*paragraphs, prediction_tables(self.to_dict())])

    @property
    def figures(self) -> str:
        """Mean latencies and throughput, in a line."""
        if self.ttft_s is None or self.e2e_s is None:
            latency = f"above capacity ({self.saturation_rps:.3g}/s): the queue grows without end"
        else:
            latency = f"TTFT {_ms(self.ttft_s)}, ITL {_ms(self.itl_s)}, E2E {self.e2e_s:.3f} s"
        return f"{latency}, {self.output_tokens_per_s:.0f} tokens/s"

    def __repr__(self) -> str:
        return shown(self, f"{self.describe()}:", self.figures)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def refuse_unanswered(completed: float) -> None:
    """Refuses a load of which nothing was answered, so that it has no latencies.

    Args:
        completed: How many of its requests were.

    Raises:
        InputError: None was.
    """
    if not completed > 0:
        raise InputError("load", "has no request that is completed", "make it lighter or longer")


def over_time(
    prediction: Prediction,
    method: str,
    whole: StageLatencies,
    stages: Sequence[StageLatencies],
    timeline: Timeline,
    requests_per_s: float,
    output_tokens_per_s: float,
) -> Prediction:
    """A prediction for a load that ends: the latencies are those of its requests."""
    means = {metric: values["mean"] for metric, values in whole.latencies.items()}
    return replace(
        prediction,
        method=method,
        ttft_s=means.get("ttft"),
        ttft_parts_s={},
        itl_s=means.get("itl"),
        e2e_s=means.get("e2e"),
        requests_per_s=requests_per_s,
        output_tokens_per_s=output_tokens_per_s,
        whole=whole,
        stages=tuple(stages) if len(stages) > 1 else (),
        timeline=timeline,
    )
