"""Kubernetes: a HorizontalPodAutoscaler and a KEDA ScaledObject of a day that was replayed.

Sources: the API reference of ``autoscaling/v2``
(https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/horizontal-pod-autoscaler-v2/)
and of ``keda.sh/v1alpha1`` (https://keda.sh/docs/latest/reference/scaledobject-spec/,
https://keda.sh/docs/latest/scalers/prometheus/).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from physim.engines.engine import Counters, engine_named
from physim.errors import InputError
from physim.exports.block_yaml import as_yaml
from physim.prediction.commands import resource_name
from physim.questions.scaled_day import ScaledDay
from physim.service.scaling import (
    KV,
    PERIOD_S,
    REQUESTS,
    RUNNING,
    SHARED_METRICS,
    TOLERANCE,
    TTFT,
    WAITING,
    TargetTracking,
    most_after,
)

# Over what time a mean TTFT is taken by Prometheus, which needs a few scrapes.
_RATE_WINDOW = "1m"
# What one server may have asked for a period later is what is added to it.
_MORE = most_after(1) - 1


def hpa_yaml(day: ScaledDay) -> str:
    """A HorizontalPodAutoscaler of the servers of `physim.prediction.commands.manifest_of`.

    Its metric is an external one, which an adapter has to make of Prometheus's: the query stands in
    a comment.

    Args:
        day: From `physim.scale`, with a target.

    Raises:
        InputError: The day was replayed with a timetable, or the engine does not show the metric.
    """
    policy = _target_of(day)
    name = resource_name(day.case.model.name)
    metric = {
        "metric": {"name": f"{name}-{policy.metric}"},
        "target": _target(policy),
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": day.scaling.least,
        "maxReplicas": day.scaling.most,
        "metrics": [{"type": "External", "external": metric}],
        "behavior": _behaviour(policy),
    }
    query = f"{metric['metric']['name']}, by an adapter: {_query(day, policy)}"
    document = _document("autoscaling/v2", "HorizontalPodAutoscaler", name, spec)
    return as_yaml([document], [*_told(day), query])


def keda_yaml(day: ScaledDay) -> str:
    """A ScaledObject of the servers of `physim.prediction.commands.manifest_of`.

    Args:
        day: From `physim.scale`, with a target.

    Raises:
        InputError: The day was replayed with a timetable, or the engine does not show the metric.
    """
    policy = _target_of(day)
    name = resource_name(day.case.model.name)
    trigger = {
        "type": "prometheus",
        "metricType": _target(policy)["type"],
        "metadata": {
            "serverAddress": "http://prometheus-server.monitoring.svc:80",
            "query": _query(day, policy),
            "threshold": _number(policy.target),
        },
    }
    spec = {
        "scaleTargetRef": {"name": name},
        "pollingInterval": math.ceil(policy.look_s),
        "minReplicaCount": day.scaling.least,
        "maxReplicaCount": day.scaling.most,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(policy)}},
        "triggers": [trigger],
    }
    document = _document("keda.sh/v1alpha1", "ScaledObject", name, spec)
    return as_yaml([document], [*_told(day), "Say where Prometheus is (serverAddress)."])


def _target_of(day: ScaledDay) -> TargetTracking:
    policy = day.scaling.policy
    if isinstance(policy, TargetTracking):
        return policy
    raise InputError(
        "policy", "is a timetable, for which no manifest is written", "use requests=auto"
    )


def _target(policy: TargetTracking) -> dict[str, str]:
    """A MetricTarget: a metric that servers share is an AverageValue, another a Value."""
    if policy.metric in SHARED_METRICS:
        return {"type": "AverageValue", "averageValue": _number(policy.target)}
    return {"type": "Value", "value": _number(policy.target)}


def _behaviour(policy: TargetTracking) -> dict[str, Any]:
    """What was replayed: twice as many or four more in a period, fewer after having held."""
    double = {"type": "Percent", "value": 100, "periodSeconds": int(PERIOD_S)}
    more = {"type": "Pods", "value": _MORE, "periodSeconds": int(PERIOD_S)}
    up: dict[str, Any] = {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [double, more],
    }
    down: dict[str, Any] = {
        "stabilizationWindowSeconds": math.ceil(policy.hold_s),
        "selectPolicy": "Max",
        "policies": [double],
    }
    if policy.tolerance != TOLERANCE:
        # Beta in Kubernetes 1.35; what is not said is the cluster's.
        up["tolerance"] = down["tolerance"] = _number(policy.tolerance)
    return {"scaleUp": up, "scaleDown": down}


def _query(day: ScaledDay, policy: TargetTracking) -> str:
    """What Prometheus is asked for.

    Raises:
        InputError: The engine does not show it.
    """
    engine, labels = day.case.server.profile.engine, json.dumps(day.case.model.name)
    chosen = f"{{model_name={labels}}}"
    names = _names(engine_named(engine).counters, policy.metric)
    if not names or not all(names):
        raise InputError(
            "policy", f"watches {policy.metric}, which {engine} does not show", "use another engine"
        )
    if policy.metric == TTFT:
        total, count = (f"sum(rate({names[0]}_{of}{chosen}[{_RATE_WINDOW}]))" for of in _SUM_COUNT)
        return f"{total} / {count}"
    summed = "avg" if policy.metric == KV else "sum"
    return " + ".join(f"{summed}({name}{chosen})" for name in names)


_SUM_COUNT = ("sum", "count")


def _names(counters: Counters | None, metric: str) -> tuple[str, ...]:
    """An engine's names of what a metric is made of; without one where there is none."""
    if counters is None:
        return ()
    gauges = {
        RUNNING: (counters.running,),
        WAITING: (counters.waiting,),
        REQUESTS: (counters.running, counters.waiting),
        KV: counters.kv_usage[:1],
        TTFT: counters.times.get("ttft", ())[:1],
    }
    return gauges[metric]


def _told(day: ScaledDay) -> list[str]:
    """Where the numbers are from, as comments."""
    server, run, threshold = day.case.server, day.runs[-1], day.threshold
    told = {
        "made_by": f"physim {version('physim-llm')}",
        "model": day.case.model.name,
        "gpu": server.gpu.key,
        "gpus": server.parallelism.gpus,
        "engine": server.to_dict(),
        "fit": day.fit,
        "objectives": {one.name: one.seconds for one in day.asked.objectives},
        "goodput_asked": day.asked.goodput,
        "threshold": "given" if threshold is None else threshold.to_dict(),
        "replayed": run.to_dict(),
    }
    held = f"misses {run.missed}" if run.missed else "keeps to every objective"
    line = f"The replayed day, with a start-up of {run.start_up_s:g} s, {held}."
    return [json.dumps(told), line]


def _document(api: str, kind: str, name: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A manifest."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _number(value: float) -> str:
    """A quantity as Kubernetes takes it: digits, without an exponent."""
    return f"{value:.12f}".rstrip("0").rstrip(".")
