"""physim: differentiable prediction of LLM-serving performance from a ``config.json``.

Names load on first use, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from physim.api import check, predict, predict_trace, step_model
    from physim.corrections.fields import Corrections
    from physim.corrections.files import Fit, load_fit
    from physim.errors import InputError
    from physim.fitting.drift import Drift, drift
    from physim.fitting.fit import Outcome, fit
    from physim.fitting.identified import Identified, identified
    from physim.fitting.next_runs import NextRuns, next_runs
    from physim.inputs.arrivals import ArrivalDispersion
    from physim.inputs.case import Case, CaseOptions
    from physim.inputs.deployment import Deployment
    from physim.inputs.lengths import Lengths
    from physim.inputs.load import Load
    from physim.inputs.load_file import read_load
    from physim.inputs.profile import LoadProfile
    from physim.inputs.request_lengths import RequestLengths
    from physim.inputs.stages import Stage
    from physim.measured.metrics import read_metrics
    from physim.measured.profiles import read_profile
    from physim.measured.reports import read_report
    from physim.measured.step_files import read_step_files
    from physim.models.parallelism import Parallelism
    from physim.prediction.checked import Check
    from physim.prediction.many import predict_cases
    from physim.prediction.results import Prediction
    from physim.questions.capacity import Capacity, capacity
    from physim.questions.choices import Choice, Recommendation
    from physim.questions.comparison import Comparison, compare
    from physim.questions.elasticities import Elasticities, explain
    from physim.questions.objectives import Objective
    from physim.questions.recommendation import recommend
    from physim.questions.scaled_day import ScaledDay
    from physim.questions.scaling import scale
    from physim.questions.service_explanation import ServiceExplanation, explain_service
    from physim.questions.sweep import CaseGrid, sweep
    from physim.replay.workload import Conversations
    from physim.step.batch import Batch
    from physim.step.model import StepModel, StepTime
    from physim.validation.crossval import Crossval, crossval
    from physim.validation.evaluation import Evaluation, evaluate
    from physim.validation.step_errors import compare_steps

_HOME = {
    "next_runs": "physim.fitting.next_runs",
    "identified": "physim.fitting.identified",
    "drift": "physim.fitting.drift",
    "NextRuns": "physim.fitting.next_runs",
    "Identified": "physim.fitting.identified",
    "Drift": "physim.fitting.drift",
    "ArrivalDispersion": "physim.inputs.arrivals",
    "Batch": "physim.step.batch",
    "Capacity": "physim.questions.capacity",
    "Case": "physim.inputs.case",
    "Choice": "physim.questions.choices",
    "CaseGrid": "physim.questions.sweep",
    "CaseOptions": "physim.inputs.case",
    "Check": "physim.prediction.checked",
    "Comparison": "physim.questions.comparison",
    "Conversations": "physim.replay.workload",
    "Corrections": "physim.corrections.fields",
    "Crossval": "physim.validation.crossval",
    "Deployment": "physim.inputs.deployment",
    "Elasticities": "physim.questions.elasticities",
    "Evaluation": "physim.validation.evaluation",
    "Fit": "physim.corrections.files",
    "InputError": "physim.errors",
    "Lengths": "physim.inputs.lengths",
    "Load": "physim.inputs.load",
    "LoadProfile": "physim.inputs.profile",
    "Objective": "physim.questions.objectives",
    "Outcome": "physim.fitting.fit",
    "Prediction": "physim.prediction.results",
    "Stage": "physim.inputs.stages",
    "Parallelism": "physim.models.parallelism",
    "Recommendation": "physim.questions.choices",
    "RequestLengths": "physim.inputs.request_lengths",
    "ScaledDay": "physim.questions.scaled_day",
    "ServiceExplanation": "physim.questions.service_explanation",
    "StepModel": "physim.step.model",
    "StepTime": "physim.step.model",
    "capacity": "physim.questions.capacity",
    "check": "physim.api",
    "compare": "physim.questions.comparison",
    "compare_steps": "physim.validation.step_errors",
    "crossval": "physim.validation.crossval",
    "evaluate": "physim.validation.evaluation",
    "explain": "physim.questions.elasticities",
    "explain_service": "physim.questions.service_explanation",
    "fit": "physim.fitting.fit",
    "load_fit": "physim.corrections.files",
    "predict": "physim.api",
    "predict_cases": "physim.prediction.many",
    "predict_trace": "physim.api",
    "read_load": "physim.inputs.load_file",
    "read_metrics": "physim.measured.metrics",
    "read_profile": "physim.measured.profiles",
    "read_report": "physim.measured.reports",
    "read_step_files": "physim.measured.step_files",
    "recommend": "physim.questions.recommendation",
    "scale": "physim.questions.scaling",
    "step_model": "physim.api",
    "sweep": "physim.questions.sweep",
}

__all__ = [
    "ArrivalDispersion",
    "Batch",
    "Capacity",
    "Case",
    "CaseGrid",
    "CaseOptions",
    "Check",
    "Choice",
    "Comparison",
    "Conversations",
    "Corrections",
    "Crossval",
    "Deployment",
    "Drift",
    "Elasticities",
    "Evaluation",
    "Fit",
    "Identified",
    "InputError",
    "Lengths",
    "Load",
    "LoadProfile",
    "NextRuns",
    "Objective",
    "Outcome",
    "Parallelism",
    "Prediction",
    "Recommendation",
    "RequestLengths",
    "ScaledDay",
    "ServiceExplanation",
    "Stage",
    "StepModel",
    "StepTime",
    "capacity",
    "check",
    "compare",
    "compare_steps",
    "crossval",
    "drift",
    "evaluate",
    "explain",
    "explain_service",
    "fit",
    "identified",
    "load_fit",
    "next_runs",
    "predict",
    "predict_cases",
    "predict_trace",
    "read_load",
    "read_metrics",
    "read_profile",
    "read_report",
    "read_step_files",
    "recommend",
    "scale",
    "step_model",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("physim-llm")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'physim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
