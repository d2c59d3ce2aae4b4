"""A prediction as a Benchmark Report of llm-d, so that dashboards show it beside runs.

The form is that of version 0.2.1 (llm-d-benchmark, ``benchmark_report/schema_v0_2_1.py``), which
`physim.measured.llm_d` reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from physim import data
from physim.errors import InputError
from physim.inputs.lengths import Tokens, lengths
from physim.inputs.load import Load
from physim.prediction.results import PoolPrediction, Prediction

VERSION = "0.2.1"
# Of a load without end, for a report has a number of requests.
_SHOWN_S = 3600.0
_SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")


def write_report(prediction: Prediction, path: str | Path) -> None:
    """Writes a prediction as llm-d's Benchmark Report, as JSON, which is YAML too.

    The load generator is called physim. Of a load without end, the report is of an hour.

    Args:
        prediction: Of one rate or of clients.
        path: The file, which appears whole or not at all.

    Raises:
        InputError: The load is a trace, has several stages or conversations, or is above capacity,
            so that latencies have no steady value; or the file cannot be written.
    """
    data.write_json(Path(path), as_report(prediction))


def as_report(prediction: Prediction) -> dict[str, Any]:
    """The report that `write_report` writes.

    Args:
        prediction: Of one rate or of clients.

    Raises:
        InputError: As `write_report` says, but for the file.
    """
    load = prediction.load
    if load is None or load.stages:
        problem = "is a trace" if load is None else "has several stages"
        raise InputError("load", f"{problem}, where llm-d's report has one rate", "give a rate")
    load.refuse_turns("report of llm-d")
    told = prediction.whole.latencies
    if not {"ttft", "e2e"} <= set(told):
        raise InputError("load", "is above capacity, so that TTFT has no steady value", "lower it")
    release = version("physim-llm")
    scenario = {
        "stack": [_component(prediction.model, pool) for pool in prediction.pools],
        "load": _load(load, release),
    }
    return {
        "version": VERSION,
        "run": {
            "uid": _digest([scenario, prediction.fit, prediction.method, release]),
            "eid": _digest(scenario),
            "description": f"predicted by physim {release}, fit {prediction.fit}",
            "keywords": ["physim", "prediction"],
        },
        "scenario": scenario,
        "results": {"request_performance": {"aggregate": _aggregate(prediction, load)}},
    }


def _component(model: str, pool: PoolPrediction) -> dict[str, Any]:
    """The servers of a pool."""
    server, layout = pool.server, pool.server.parallelism
    role = "replica" if len(pool.phases) > 1 else pool.phases[0]
    args: dict[str, Any] = {
        f"--{name.replace('_', '-')}": getattr(server.sizes, name) for name in _SIZES
    }
    args["--gpu-memory-utilization"] = server.memory.share
    standardized = {
        "kind": "inference_engine",
        "tool": server.profile.engine,
        "tool_version": server.profile.version,
        "role": role,
        "replicas": pool.pool.replicas,
        "model": {"name": model},
        "accelerator": {
            "model": server.gpu.name,
            "count": layout.gpus,
            "parallelism": {
                **{name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")},
                "dp_local": layout.dp,
                "workers": 1,
            },
        },
    }
    return {
        "metadata": {"label": f"{server.profile.engine}-{role}", "cfg_id": _digest(standardized)},
        "standardized": standardized,
        "native": {"args": args},
    }


def _load(load: Load, release: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tool": "physim",
        "tool_version": release,
        "source": "unknown",
        "input_seq_len": _lengths(load.input_tokens),
        "output_seq_len": _lengths(load.output_tokens),
    }
    if load.concurrency is None:
        found["rate_qps"] = load.rate
    else:
        found["concurrency"] = round(load.concurrency)
    if load.cached_tokens:
        found["prefix"] = {
            "prefix_len": {"distribution": "fixed", "value": load.cached_tokens},
            "num_groups": load.prefixes,
            "num_users_per_group": 1,
            "num_prefixes": 1,
        }
    return {
        "metadata": {"cfg_id": _digest(found)},
        "standardized": found,
        "native": {"config": {"load": {"type": load.arrival, "burstiness": load.burstiness}}},
    }


def _lengths(tokens: Tokens) -> dict[str, Any]:
    spread = _spread(tokens)
    kind = "other" if spread else "fixed"
    return {"distribution": kind, "value": lengths(tokens).mean, "std_dev": spread}


def _spread(tokens: Tokens) -> float:
    """Standard deviation of lengths, tokens."""
    known = lengths(tokens)
    return 0.0 if known.alike else float(np.std(known.fine))


def _aggregate(prediction: Prediction, load: Load) -> dict[str, Any]:
    told, rate = prediction.whole.latencies, prediction.requests_per_s
    sent, done = prediction.whole.arrived, prediction.whole.completed
    total = max(round(rate * _SHOWN_S if sent is None else sent), 1)
    failed = 0 if sent is None or done is None else max(total - round(done), 0)
    latency = {
        "time_to_first_token": _statistics(told["ttft"], "s"),
        "request_latency": _statistics(told["e2e"], "s"),
    }
    for name, ours in (("time_per_output_token", "tpot"), ("inter_token_latency", "itl")):
        if ours in told:
            latency[name] = _statistics(told[ours], "s/token")
    read = rate * load.mean_input
    written = prediction.output_tokens_per_s
    return {
        "requests": {
            "total": total,
            "failures": failed,
            "input_length": _statistics(
                {"mean": load.mean_input, "stddev": _spread(load.input_tokens)}, "count"
            ),
            "output_length": _statistics(
                {"mean": load.mean_output, "stddev": _spread(load.output_tokens)}, "count"
            ),
        },
        "latency": latency,
        "throughput": {
            "request_rate": _statistics({"mean": rate}, "queries/s"),
            "input_token_rate": _statistics({"mean": read}, "tokens/s"),
            "output_token_rate": _statistics({"mean": written}, "tokens/s"),
            "total_token_rate": _statistics({"mean": read + written}, "tokens/s"),
        },
    }


def _statistics(values: Mapping[str, float], units: str) -> dict[str, Any]:
    return {"units": units, **{name: float(value) for name, value in values.items()}}


def _digest(content: Any) -> str:
    """A name for some content: whoever has the same gets the same."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
