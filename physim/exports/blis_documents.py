"""Documents of today's BLIS: a scenario, a deployment and the coefficients of its host terms.

Source of fields, units and vocabularies: inference-sim/blis-schemas (``spec/scenario``,
``spec/deployment``, ``spec/coefficient``, ``vocab``), whose strict reader refuses unknown keys; of
the names of host terms: inference-sim/blis-registry,
``coefficients/cost-model-host-overheads.yaml``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from physim.corrections.calibration import Calibration
from physim.corrections.fields import CORRECTIONS, flat, labels
from physim.inputs.case import Case
from physim.step.front_end import FRONT_END_S, OUTPUT_REQUEST_S
from physim.step.host import HOST_REQUEST_S, HOST_STEP_S, WORKER_REQUEST_S

COEFFICIENTS = "physim-host-overheads"
# BLIS's catalog names of GPUs; others are the first part of physim's.
_HARDWARE = {"a100_sxm": "a100-sxm", "gb200": "gb200-nvl72"}
_GPUS_PER_NODE = 8
# How many standard deviations hold 95% of a normal distribution.
_TWO_SIDED_95 = 1.96
# Names of physim's options in BLIS's documents.
NAMES = {
    "model": "Scenario model",
    "gpu": "Scenario cluster.hardware",
    "engine_version": "Scenario engine_version",
    "tp": "Deployment pools[].parallel.tp",
    "pp": "Deployment pools[].parallel.pp",
    "dp": "Deployment pools[].parallel.dp",
    "ep": "Deployment pools[].parallel.enable_expert_parallel",
    "block_size": "Deployment pools[].engine.block_size",
    "max_num_seqs": "Deployment pools[].engine.max_num_seqs",
    "max_num_batched_tokens": "Deployment pools[].engine.max_num_batched_tokens",
    "max_model_len": "Deployment pools[].engine.max_model_len",
    "kv_cache_dtype": "Deployment pools[].engine.cache_dtype",
    "gpu_memory_utilization": "Deployment pools[].engine.gpu_memory_utilization",
    "async_scheduling": "Deployment pools[].engine.async_scheduling",
}
_ENGINE = {name: place.rpartition(".")[2] for name, place in NAMES.items() if ".engine." in place}


@dataclass(frozen=True)
class HostTerm:
    """A host term of BLIS.

    Attributes:
        name: Its name there.
        units: Units there.
        seconds: Physim's constant, before corrections; none if physim charges nothing.
        correction: The correction that multiplies it.
        rationale: What it stands for.
    """

    name: str
    units: str
    seconds: float
    correction: str
    rationale: str


def host_terms(case: Case) -> tuple[HostTerm, ...]:
    """The host terms of a case.

    Args:
        case: What is served.
    """
    each = HOST_REQUEST_S + (WORKER_REQUEST_S if case.server.parallelism.tp == 1 else 0.0)
    return (
        HostTerm(
            "host_admission_per_request",
            "us_per_request",
            FRONT_END_S,
            "front_end",
            "Time of a request outside the engine: HTTP, tokenisation, two messages between "
            "processes. Charged once, before the queue",
        ),
        HostTerm(
            "host_admission_per_token",
            "us_per_token",
            case.server.profile.prompt_token_s,
            "front_end",
            "What each token of a prompt takes in the API server",
        ),
        HostTerm(
            "host_output_token",
            "us_per_token",
            OUTPUT_REQUEST_S,
            "output_handling",
            "CPU time of the API server for a token that leaves it. The engine goes on "
            "meanwhile, so it is no part of the time between tokens",
        ),
        HostTerm(
            "host_completion",
            "us_per_request",
            0.0,
            "",
            "physim charges nothing after a request's last token",
        ),
        HostTerm(
            "physim_host_step",
            "us_per_step",
            HOST_STEP_S,
            "host_step",
            "CPU time of a step in the engine's process, whatever its batch; under asynchronous "
            "scheduling the GPU waits only for what exceeds its own time",
        ),
        HostTerm(
            "physim_host_request",
            "us_per_request",
            each,
            "host_request",
            "The same for each request of a step",
        ),
    )


def coefficient_set(case: Case, known: Calibration) -> dict[str, Any]:
    """A CoefficientSet of the host terms.

    A value is physim's constant times the exponential of its correction; ``ci95`` is 1.96 standard
    deviations of the correction, which are the prior's without a fit. The method is ``assumed``
    throughout: a fit backs these terms out of latencies, and the registry calls measured only what
    was seen itself.

    Args:
        case: What is served.
        known: What a fit says of it.
    """
    entries = [_entry(term, case, known) for term in host_terms(case)]
    return {"kind": "CoefficientSet", "name": COEFFICIENTS, "coefficients": entries}


def scenario(case: Case) -> dict[str, Any]:
    """The Scenario: what is given. It names no workload, which the catalog has.

    Args:
        case: What is served.
    """
    server, gpus = case.server, case.server.parallelism.tp
    return {
        "kind": "Scenario",
        "name": _name(case),
        "model": _stem(case),
        "coefficients": [COEFFICIENTS],
        "engine_version": server.profile.version,
        "cluster": {
            "hardware": hardware(case),
            "nodes": math.ceil(gpus / _GPUS_PER_NODE),
            "gpus_per_node": min(gpus, _GPUS_PER_NODE),
        },
    }


def deployment(case: Case) -> dict[str, Any]:
    """The Deployment: one pool that does both prefill and decode.

    Args:
        case: What is served.
    """
    layout, told = case.server.parallelism, case.server.to_dict()
    return {
        "kind": "Deployment",
        "name": _name(case),
        "pools": [
            {
                "role": "colocated",
                "nodes": math.ceil(layout.tp / _GPUS_PER_NODE),
                "parallel": {
                    "tp": layout.tp,
                    "pp": layout.pp,
                    "dp": layout.dp,
                    "enable_expert_parallel": layout.ep > 1,
                },
                "engine": {there: told[here] for here, there in _ENGINE.items()},
            }
        ],
    }


def hardware(case: Case) -> str:
    """BLIS's catalog name of the GPU.

    Args:
        case: What is served.
    """
    key = case.server.gpu.key
    return _HARDWARE.get(key, key.partition("_")[0])


def _entry(term: HostTerm, case: Case, known: Calibration) -> dict[str, Any]:
    scope = {
        "hardware": [hardware(case)],
        "model": [_stem(case)],
        "tp": [case.server.parallelism.tp],
    }
    if not term.correction:
        said = {"value": 0.0, "units": term.units, "method": "not_charged", "fitted": False}
        return {term.name: {**said, "scope": scope, "rationale": term.rationale + "."}}
    prior, place = CORRECTIONS[term.correction].prior, labels().index(term.correction)
    width = prior
    if known.covariance is not None:
        width = math.sqrt(max(float(known.covariance[place, place]), 0.0))
    centre = 1e6 * term.seconds * math.exp(float(flat(known.corrections)[place]))
    ends = centre * np.exp(_TWO_SIDED_95 * width * np.array([-1.0, 1.0]))
    return {
        term.name: {
            "value": _short(centre),
            "units": term.units,
            "method": "assumed",
            "fitted": False,
            "scope": scope,
            "ci95": [_short(one) for one in ends],
            "sources": [
                {
                    "kind": "model",
                    "cite": f"physim {version('physim-llm')}, fit {known.name}",
                    "role": "primary",
                }
            ],
            "rationale": f"{term.rationale}. {_known(width, prior)}.",
        }
    }


def _known(width: float, prior: float) -> str:
    """How well the logarithm of a term is known."""
    told = f"An order of magnitude, whose logarithm has a standard deviation of {prior:.2g}"
    return told if width == prior else f"{told}, and of {width:.2g} after the fit"


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _stem(case: Case) -> str:
    """A model's name in the catalog: without its owner, in lower case."""
    return case.model.name.rpartition("/")[2].removesuffix(".json").lower()


def _name(case: Case) -> str:
    return f"{_stem(case)}-on-{case.server.parallelism.tp}-{hardware(case)}"
