"""What limits a service of several servers: its pools, and what a server of each depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from physim.corrections.fields import Corrections
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.inputs.case import Case, CaseOptions
from physim.options import named_options
from physim.prediction.arrays import step_model_of
from physim.prediction.many import predict_cases
from physim.prediction.results import PoolPrediction, Prediction
from physim.printable import shown
from physim.progress import told_in_notebooks
from physim.questions.elasticities import Elasticities, above, check_stays, explain
from physim.service.phases import DECODE, PREFILL
from physim.step.many_batches import named_seconds

if TYPE_CHECKING:
    import pandas as pd

# Share of what a pool can do under which a server of it is looked at, at most: where clients fill
# a pool, its latencies are those of a queue that has no end.
_MOST = 0.95
# What a server that runs one phase decides of the metrics of `physim.explain`.
_OF_PHASE: Mapping[str, tuple[str, ...]] = {
    PREFILL: ("ttft", "saturation"),
    DECODE: ("itl", "e2e", "saturation"),
}


@dataclass(frozen=True)
class ExplainedPool:
    """A pool, and what limits a server of it.

    Attributes:
        pool: What its servers are predicted to do.
        use: Share of what it can do at most that the load takes.
        server: What one of its servers depends on, under its share of the load.
        step_parts_s: What a step of theirs is made of, seconds by component: a mean one, or of
            those that only compute prompts, one with a mean prompt or all that a step takes of it.
    """

    pool: PoolPrediction
    use: float
    server: Elasticities
    step_parts_s: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """How long that step is."""
        return math.fsum(self.step_parts_s.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the service that its servers decide."""
        if len(self.pool.phases) > 1:
            return tuple(self.server.metrics)
        return _OF_PHASE[self.pool.phases[0]]

    @property
    def step_shares(self) -> dict[str, float]:
        """Shares of that step by component, the largest first."""
        ranked = sorted(self.step_parts_s.items(), key=lambda part: -part[1])
        return {name: seconds / self.step_s for name, seconds in ranked}

    def to_dict(self) -> dict[str, Any]:
        """The pool as plain values, for JSON."""
        return {
            "phases": list(self.pool.phases),
            "where": self.pool.pool.where,
            "saturation_rps": self.pool.saturation_rps,
            "use": self.use,
            "step_s": self.step_s,
            "step_shares": self.step_shares,
            "server": self.server.to_dict(),
        }

    def __repr__(self) -> str:
        name, share = next(iter(self.step_shares.items()))
        return shown(
            self,
            f"{'+'.join(self.pool.phases)} on {self.pool.pool.where}: {self.use:.0%} in use, a "
            f"step of {1e3 * self.step_s:.4g} ms, {share:.0%} of it {name.replace('_', ' ')}",
        )


@dataclass(frozen=True)
class ServiceExplanation:
    """What limits a service.

    Attributes:
        prediction: What it is predicted to do.
        pools: Its pools, in the order in which requests pass them.
    """

    prediction: Prediction
    pools: tuple[ExplainedPool, ...]

    @property
    def link_use(self) -> float | None:
        """Share that the load takes of what can be sent from pool to pool; None of one pool."""
        most = self.prediction.link_rps
        return None if most is None else self.prediction.requests_per_s / most

    @property
    def limiting(self) -> ExplainedPool:
        """The pool that saturates first."""
        return max(self.pools, key=lambda one: one.use)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        one = self.prediction
        return {
            "model": one.model,
            "where": one.gpus,
            "fit": one.fit,
            "metrics": {
                "ttft": one.ttft_s,
                "itl": one.itl_s,
                "e2e": one.e2e_s,
                "saturation": one.saturation_rps,
            },
            "ttft_parts_s": dict(one.ttft_parts_s),
            "limiting": list(self.limiting.pool.phases),
            "link_use": self.link_use,
            "pools": [pool.to_dict() for pool in self.pools],
        }

    def __repr__(self) -> str:
        one = self.prediction
        pools = [
            f"{'+'.join(pool.pool.phases)} on {pool.pool.pool.where}: {pool.use:.0%} of "
            f"{pool.pool.saturation_rps:.4g} requests/s in use"
            for pool in self.pools
        ]
        return shown(self, f"{one.describe()}: {one.figures}", *pools)

    def to_frame(self) -> pd.DataFrame:
        """A row for each pool: where it is, what it can do, how much is in use, and its step."""
        import pandas as pd

        names = ("where", "saturation_rps", "use", "step_s")
        rows = [{name: pool.to_dict()[name] for name in names} for pool in self.pools]
        phases = ["+".join(pool.pool.phases) for pool in self.pools]
        return pd.DataFrame(rows).assign(phases=phases)


@told_in_notebooks("differentiating")
@named_options
def explain_service(
    model: str | Path | Case,
    *,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> ServiceExplanation:
    """Which pool of a service limits it, and what a server of each pool depends on.

    A server of a pool is looked at under its share of the load (`physim.explain`). Clients of pools
    apart come to it by chance, at the rate at which they are served; where that is more, at 95% of
    what the pool can do.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, servers and a load that stays, a rate or clients; see `CaseOptions`.

    Raises:
        InputError: Some input cannot be used, the load ends, or it is above capacity.
    """
    case = Case.from_options(model, **options)
    check_stays(case.demanded)
    known = load_fit(fit).on(case)
    (found,) = predict_cases([case], known.corrections, known.name)
    if found.ttft_s is None:
        raise above(found.saturation_rps)
    pools = []
    for pool in found.pools:
        server = _server(case, pool, found.requests_per_s)
        use, elasticities = found.requests_per_s / pool.saturation_rps, explain(server, fit=fit)
        parts = pool.step_parts_s
        if DECODE not in pool.phases:
            parts = _prompt_parts_s(server, known.corrections)
        pools.append(ExplainedPool(pool, use, elasticities, parts))
    return ServiceExplanation(found, tuple(pools))


def _prompt_parts_s(case: Case, corrections: Corrections) -> dict[str, float]:
    """What a step with a mean prompt is made of, or with as much of it as a step takes, seconds.

    Args:
        case: A server and its prompts.
        corrections: Corrections of its steps.
    """
    model, moments = step_model_of(case, corrections), case.demanded.moments()
    batch = model.batch(
        prefill_requests=1.0,
        chunk=min(moments.new, float(case.server.sizes.max_num_batched_tokens)),
        cached=moments.cached,
    )
    return {name: float(seconds[0]) for name, seconds in named_seconds(model, batch).items()}


def _server(case: Case, pool: PoolPrediction, rate: float) -> Case:
    """A server of a pool under its share of the load."""
    if len(case.service.pools) > 1:
        load = case.demanded.in_open_loop(min(rate, _MOST * pool.saturation_rps))
        case = replace(case, load=load)
    return case.of_pool(pool.pool)
