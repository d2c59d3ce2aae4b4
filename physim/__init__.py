"""physim: differentiable prediction of LLM-serving performance from a ``config.json``.

Names load on first use, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from physim.cases import Case
    from physim.corrections import Corrections
    from physim.errors import InputError
    from physim.evaluation import Evaluation, evaluate
    from physim.fits import Fit, load_fit
    from physim.fitting.crossval import Crossval, crossval
    from physim.fitting.fit import Outcome, fit
    from physim.inputs.deployment import Deployment
    from physim.measured.reports import read_report
    from physim.prediction import predict_cases
    from physim.questions.capacity import Capacity, Objective, capacity
    from physim.questions.comparison import Comparison, compare
    from physim.questions.elasticities import Elasticities, explain
    from physim.results import Prediction
    from physim.serving.lengths import Lengths
    from physim.serving.load import Load, Stage
    from physim.serving.workload import Conversations
    from physim.step.batch import Batch
    from physim.step.model import StepModel, StepTime
    from physim.verbs import predict, predict_trace, step_model

_HOME = {
    "Batch": "physim.step.batch",
    "Capacity": "physim.questions.capacity",
    "Case": "physim.cases",
    "Comparison": "physim.questions.comparison",
    "Conversations": "physim.serving.workload",
    "Corrections": "physim.corrections",
    "Crossval": "physim.fitting.crossval",
    "Deployment": "physim.inputs.deployment",
    "Elasticities": "physim.questions.elasticities",
    "Evaluation": "physim.evaluation",
    "Fit": "physim.fits",
    "InputError": "physim.errors",
    "Lengths": "physim.serving.lengths",
    "Load": "physim.serving.load",
    "Objective": "physim.questions.capacity",
    "Outcome": "physim.fitting.fit",
    "Prediction": "physim.results",
    "Stage": "physim.serving.load",
    "StepModel": "physim.step.model",
    "StepTime": "physim.step.model",
    "capacity": "physim.questions.capacity",
    "compare": "physim.questions.comparison",
    "crossval": "physim.fitting.crossval",
    "evaluate": "physim.evaluation",
    "explain": "physim.questions.elasticities",
    "fit": "physim.fitting.fit",
    "load_fit": "physim.fits",
    "predict": "physim.verbs",
    "predict_cases": "physim.prediction",
    "predict_trace": "physim.verbs",
    "read_report": "physim.measured.reports",
    "step_model": "physim.verbs",
}

__all__ = [
    "Batch",
    "Capacity",
    "Case",
    "Comparison",
    "Conversations",
    "Corrections",
    "Crossval",
    "Deployment",
    "Elasticities",
    "Evaluation",
    "Fit",
    "InputError",
    "Lengths",
    "Load",
    "Objective",
    "Outcome",
    "Prediction",
    "Stage",
    "StepModel",
    "StepTime",
    "capacity",
    "compare",
    "crossval",
    "evaluate",
    "explain",
    "fit",
    "load_fit",
    "predict",
    "predict_cases",
    "predict_trace",
    "read_report",
    "step_model",
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
